"""Human units in, SI out: "100 Mbit/s" becomes bytes per second, "4 GB" bytes, "20 ms" seconds."""

import re

from potluck.errors import UserError

_PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_AMOUNT = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([a-zA-Zµ/]*)\s*")
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "min": 60.0, "h": 3600.0, "": 1.0}


def parse_bytes(amount: float | str) -> int:
    """Bytes from a number of bytes, or text such as "512 MiB" or "4 GB"."""
    if not isinstance(amount, str):
        return int(amount)
    number, unit = _split(amount)
    return int(number * _prefix(unit.removesuffix("B"), amount))


def parse_rate(amount: float | str) -> float:
    """Bytes per second from a number, or text such as "100 Mbit/s", "1 Gbps" or "12 MB/s"."""
    if not isinstance(amount, str):
        return float(amount)
    number, unit = _split(amount)
    for ending, divisor in (("bit/s", 8.0), ("bps", 8.0), ("B/s", 1.0), ("Bps", 1.0)):
        if unit.endswith(ending):
            return number * _prefix(unit.removesuffix(ending), amount) / divisor
    raise _unreadable(amount, "a rate such as '100 Mbit/s' or '12 MB/s'")


def parse_seconds(amount: float | str) -> float:
    """Seconds from a number, or text such as "20 ms" or "2 min"."""
    if not isinstance(amount, str):
        return float(amount)
    number, unit = _split(amount)
    if unit not in _TIMES:
        raise _unreadable(amount, "a time such as '20 ms'")
    return number * _TIMES[unit]


def _split(amount: str) -> tuple[float, str]:
    match = _AMOUNT.fullmatch(amount)
    if match is None:
        raise _unreadable(amount, "a number and a unit")
    return float(match[1]), match[2]


def _prefix(prefix: str, amount: str) -> float:
    if prefix not in _PREFIXES:
        raise _unreadable(amount, "one of the prefixes k, M, G, T, Ki, Mi, Gi")
    return _PREFIXES[prefix]


def _unreadable(amount: str, expected: str) -> UserError:
    return UserError(f"cannot read the amount {amount!r}: expected {expected}.")
