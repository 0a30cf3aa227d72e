"""JSON documents that ride in buffers, read strictly: the one place where a document from outside
is looked at first.

What JSON leaves open (sizes, depth, repeated keys, NaN, halves of characters) is refused before
anything is built of it. A check (`potluck_wire.checks`) has seen every field before anybody reads
one.
"""

import json
import math
import re
from typing import Any, NoReturn

from potluck_wire.checks import Check, Unfit
from potluck_wire.errors import WireCode, WireError
from potluck_wire.limits import MAX_DEPTH, MAX_DOCUMENT_BYTES, MAX_INT

Buffer = bytes | memoryview


def parse(data: Buffer, what: str, check: Check, max_bytes: int = MAX_DOCUMENT_BYTES) -> Any:
    """The JSON value in `data`, as `check` gives it; `what` names it in errors.

    Parameters
    ----------
    data
        UTF-8 bytes.
    what
        Names the document in errors.
    check
        From `potluck_wire.checks`; sees the whole value.
    max_bytes
        The longest that is read.

    Raises
    ------
    WireError
        Too long, no UTF-8 or JSON, nested too deep, a key twice in one object, NaN, infinity, an
        integer past 2**53, half of a character, or not what `check` expects. Nothing else is ever
        raised.
    """
    if len(data) > max_bytes:
        raise WireError(WireCode.SIZE, f"{what} has {len(data)} bytes, at most {max_bytes}")
    raw = bytes(data)
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _is_deeper(raw):
        raise WireError(WireCode.DOCUMENT, f"{what} is nested deeper than {MAX_DEPTH}, or not JSON")
    try:
        decode = _decode if _LARGE.search(raw) else _decode_small
        document = decode(raw.decode())
        if b"\\u" in raw:
            # half of a character cannot be encoded
            json.dumps(document, ensure_ascii=False).encode()
    except WireError as error:
        raise WireError(error.code, f"{what}: {error.text}") from None
    except ValueError as error:
        raise WireError(
            WireCode.DOCUMENT, f"{what} is not JSON ({type(error).__name__})"
        ) from error
    return fit(document, what, check)


def fit(document: Any, what: str, check: Check) -> Any:
    """A parsed document as `check` gives it.

    Parameters
    ----------
    document
        As `json` gives it.
    what
        Names the document in errors.
    check
        From `potluck_wire.checks`.

    Raises
    ------
    WireError
        Has the place of what does not hold.
    """
    try:
        return check(document)
    except Unfit as unfit:
        where = f"{unfit.place.lstrip('.')} of {what}" if unfit.place else what
        raise WireError(WireCode.DOCUMENT, f"{where} {unfit}") from None


def dump(document: Any) -> bytes:
    """A document as compact JSON text, as `parse` reads it."""
    return _encode(document).encode()


# an open one goes to the end: no second try
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
_AS_SQUARE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_NOT_COUNTED = bytes(set(_NO_BRACKETS) - set(b'"'))
_LARGE = re.compile(rb"[0-9]{16}")  # digits that an integer past 2**53 has


def _is_deeper(raw: bytes) -> bool:
    """Whether brackets nest deeper than `MAX_DEPTH`, or do not match: layer after layer is taken
    off, from inside.
    """
    # then two quotes in a row have nothing between them that counts, and most strings go at once
    if b"\\" not in raw:
        raw = raw.translate(None, _NOT_COUNTED).replace(b'""', b"")
    brackets = _STRING.sub(b"", raw).translate(_AS_SQUARE, _NO_BRACKETS)
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise WireError(WireCode.DOCUMENT, "a key stands twice in one object")
    return document


def _refuse(constant: str) -> NoReturn:
    raise WireError(WireCode.DOCUMENT, f"{constant} is no number")


def _whole(digits: str) -> int:
    # Twenty characters hold every allowed integer; longer ones are not even converted (that takes
    # quadratic time).
    if len(digits) > 20 or abs(int(digits)) > MAX_INT:
        raise WireError(WireCode.DOCUMENT, f"the integer {digits[:20]} is past 2**53")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise WireError(WireCode.DOCUMENT, f"the number {digits[:20]} is not finite")
    return number


# Made once: `json.loads` and `json.dumps` make them each time.
_decode = json.JSONDecoder(
    object_pairs_hook=_once, parse_constant=_refuse, parse_int=_whole, parse_float=_finite
).decode
_decode_small = json.JSONDecoder(
    object_pairs_hook=_once, parse_constant=_refuse, parse_float=_finite
).decode
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
