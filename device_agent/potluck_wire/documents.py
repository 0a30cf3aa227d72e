"""JSON documents that ride in buffers, read strictly: what JSON leaves open (sizes, repeated keys, NaN) is refused."""

import json
from typing import Any, NoReturn

from potluck_wire.errors import WireCode, WireError
from potluck_wire.frames import Buffer
from potluck_wire.limits import MAX_DOCUMENT_BYTES, MAX_INT


def parse(data: Buffer, what: str = "the document", max_bytes: int = MAX_DOCUMENT_BYTES) -> Any:
    """The JSON value in `data`; `what` names it in errors.

    Raises
    ------
    WireError
        Too long, no UTF-8 or JSON, nested too deep, a key twice in one object, NaN, infinity, an integer past 2**53.
    """
    if len(data) > max_bytes:
        raise WireError(WireCode.SIZE, f"{what} has {len(data)} bytes, at most {max_bytes}")
    try:
        return json.loads(
            bytes(data).decode(),
            object_pairs_hook=_once,
            parse_constant=_refuse,
            parse_int=_whole,
            parse_float=_finite,
        )
    except WireError as error:
        raise WireError(error.code, f"{what}: {error.text}") from None
    except (ValueError, RecursionError) as error:
        raise WireError(WireCode.DOCUMENT, f"{what} is not JSON ({type(error).__name__})") from error


def dump(document: Any) -> bytes:
    """A document as compact JSON text, as `parse` reads it."""
    return _encode(document).encode()


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode  # made once: `json.dumps` makes it each time


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise WireError(WireCode.DOCUMENT, "a key stands twice in one object")
    return document


def _refuse(constant: str) -> NoReturn:
    raise WireError(WireCode.DOCUMENT, f"{constant} is no number")


def _whole(digits: str) -> int:
    # Twenty characters hold every allowed integer; longer ones are not even converted (that takes quadratic time).
    if len(digits) > 20 or abs(int(digits)) > MAX_INT:
        raise WireError(WireCode.DOCUMENT, f"the integer {digits[:20]} is past 2**53")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise WireError(WireCode.DOCUMENT, f"the number {digits[:20]} is not finite")
    return number
