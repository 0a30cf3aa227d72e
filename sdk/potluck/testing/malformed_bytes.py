"""Bytes that are wrong in ways that parsers fall over: nested, infinite, half, repeated, of another
kind.
"""

import msgpack

NESTED_DEEP = b"[" * 3000 + b"]" * 3000
DOCUMENTS: dict[str, bytes] = {
    "nested": NESTED_DEEP,
    "nested within a key": b'{"backends":' + NESTED_DEEP + b"}",
    "nested, and never closed": b'{"a":' * 5000,
    "infinite": b'{"overhead_s":1e999}',
    "not a number": b'{"overhead_s":NaN}',
    "of five thousand digits": b'{"overhead_s":' + b"9" * 5000 + b"}",
    "half of a character": b'{"backends":{"torch":"\\ud800"}}',
    "a key twice": b'{"backends":{},"backends":{}}',
    "a list": b"[]",
    "nothing": b"",
    "no UTF-8": b"\xff\xfe\xfd",
}


def header(number: int, **fields: object) -> bytes:
    """The header of a message as nobody checks it."""
    packed: bytes = msgpack.packb([number, fields])
    return packed


def nested_header(number: int, field: str, depth: int = 1000) -> bytes:
    """The header of a message with a field that is nested deeper than `repr` goes.

    Parameters
    ----------
    number
        Of the message.
    field
        The field's name.
    depth
        How many lists lie in each other.
    """
    name: bytes = msgpack.packb(field)
    start: bytes = b"\x92" + msgpack.packb(number) + b"\x81" + name
    return start + b"\x91" * depth + b"\x90"
