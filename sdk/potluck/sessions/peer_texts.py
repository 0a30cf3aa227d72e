"""What devices say in words, made harmless where it comes in: nothing behind this shows it to
anybody as it came.

Names of runs, programs and values go through here as well. Ours stay as they are, and one that was
changed is none of ours.
"""

from dataclasses import fields, replace
from typing import Any

from potluck.sanitized_text import harmless
from potluck_wire import statement
from potluck_wire.documents import Buffer
from potluck_wire.errors import WireCode, WireError
from potluck_wire.limits import MAX_STATEMENT_BYTES
from potluck_wire.messages import MESSAGES, Message

_WORDS: dict[type[Message], tuple[str, ...]] = {
    entry.type: tuple(field.name for field in fields(entry.type) if field.type is str)
    for entry in MESSAGES.values()
}


def legible(message: Message) -> Message:
    """The message with harmless texts."""
    texts = {name: getattr(message, name) for name in _WORDS[type(message)]}
    changed = {name: clean for name, text in texts.items() if (clean := harmless(text)) != text}
    return replace(message, **changed) if changed else message


def read_statement(document: Buffer) -> dict[str, Any]:
    """What a device says of itself, with harmless texts. WireError where it does not hold."""
    if len(document) > MAX_STATEMENT_BYTES:
        raise WireError(WireCode.SIZE, f"a capability statement of {len(document)} bytes")
    capability: dict[str, Any] = _legible(statement.read(document))
    return capability


def _legible(document: Any) -> Any:
    """A JSON document that was parsed, so that it is at most `MAX_DEPTH` deep."""
    if isinstance(document, str):
        return harmless(document)
    if isinstance(document, list):
        return [_legible(entry) for entry in document]
    if isinstance(document, dict):
        return {harmless(key): _legible(entry) for key, entry in document.items()}
    return document
