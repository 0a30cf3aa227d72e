"""Amounts as people write them: "100 Mbit/s" in, bytes per second out.

And SI numbers as short text. Pure.

The only place where a millisecond or a mebibyte appears.
"""

import math
import re

from potluck.errors import UserError

_PREFIXES = {
    "": 1.0,
    "k": 1e3,
    "K": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
}
_AMOUNT = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([a-zA-Zµ/]*)\s*")
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "min": 60.0, "h": 3600.0, "": 1.0}


def parse_bytes(amount: float | str) -> int:
    """Bytes from a number of bytes, or text such as "512 MiB" or "4 GB"."""
    if not isinstance(amount, str):
        return int(amount)
    number, unit = _split(amount)
    return int(number * _prefix(unit.removesuffix("B"), amount))


def parse_rate(amount: float | str) -> float:
    """Bytes per second from a number, or text such as "100 Mbit/s", "1 Gbps" or "12 MB/s".

    Raises
    ------
    UserError
        The text is no rate.
    """
    if not isinstance(amount, str):
        return float(amount)
    number, unit = _split(amount)
    for ending, divisor in (("bit/s", 8.0), ("bps", 8.0), ("B/s", 1.0), ("Bps", 1.0)):
        if unit.endswith(ending):
            return number * _prefix(unit.removesuffix(ending), amount) / divisor
    raise _unreadable(amount, "a rate such as '100 Mbit/s' or '12 MB/s'")


def parse_seconds(amount: float | str) -> float:
    """Seconds from a number, or text such as "20 ms" or "2 min".

    Raises
    ------
    UserError
        The text is no time.
    """
    if not isinstance(amount, str):
        return float(amount)
    number, unit = _split(amount)
    if unit not in _TIMES:
        raise _unreadable(amount, "a time such as '20 ms'")
    return number * _TIMES[unit]


def _split(amount: str) -> tuple[float, str]:
    match = _AMOUNT.fullmatch(amount)
    if match is None:
        raise _unreadable(amount, "a number, not below zero, and a unit")
    return float(match[1]), match[2]


def _prefix(prefix: str, amount: str) -> float:
    if prefix not in _PREFIXES:
        raise _unreadable(amount, "one of the prefixes k, M, G, T, Ki, Mi, Gi")
    return _PREFIXES[prefix]


def _unreadable(amount: str, expected: str) -> UserError:
    return UserError(f"cannot read the amount {amount!r}: expected {expected}.")


UNKNOWN = "–"

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SMALL_TO_LARGE = (
    (1e-9, "n"),
    (1e-6, "µ"),
    (1e-3, "m"),
    (1.0, ""),
    (1e3, "k"),
    (1e6, "M"),
    (1e9, "G"),
    (1e12, "T"),
)


def three_digits(value: float) -> str:
    """Three significant digits, never in exponent form: 0.123, 4.56, 78.9, 1235."""
    if value == 0 or not math.isfinite(value):
        return {math.inf: "∞", -math.inf: "-∞"}.get(value, "0" if value == 0 else UNKNOWN)
    rounded = abs(float(f"{value:.3g}"))
    decimals = max(0, 2 - math.floor(math.log10(rounded)))
    return f"{value:.{min(decimals, 9)}f}"


def _scaled(value: float | None, unit: str, smallest: float = 1e-9) -> str:
    if value is None or math.isnan(value):
        return UNKNOWN
    # less than a thousandth of the smallest unit is nothing to people
    if abs(value) < smallest * 1e-3:
        value = 0.0
    if value == 0 or math.isinf(value):
        return f"{three_digits(value)} {unit}"
    fitting = [
        pair for pair in _SMALL_TO_LARGE if pair[0] >= smallest and pair[0] <= abs(value) * 1.0005
    ]
    factor, prefix = (
        fitting[-1] if fitting else next(pair for pair in _SMALL_TO_LARGE if pair[0] >= smallest)
    )
    return f"{three_digits(value / factor)} {prefix}{unit}"


def size(nbytes: float | None) -> str:
    """Bytes in powers of 1024: `1.50 MiB`."""
    if nbytes is None or math.isnan(nbytes):
        return UNKNOWN
    if math.isinf(nbytes):
        return f"{three_digits(nbytes)} B"
    power = 0
    while abs(nbytes) / 1024**power >= 999.5 and power < len(_BINARY) - 1:
        power += 1
    return (
        f"{nbytes:.0f} B"
        if power == 0
        else f"{three_digits(nbytes / 1024**power)} {_BINARY[power]}"
    )


def rate(bytes_per_s: float | None) -> str:
    """Bytes per second: `94.1 MiB/s`."""
    return UNKNOWN if bytes_per_s is None or math.isnan(bytes_per_s) else f"{size(bytes_per_s)}/s"


def duration(seconds: float | None) -> str:
    """Seconds, from nanoseconds to hours: `12.3 ms`, `4.56 s`, `3 min 20 s`."""
    if seconds is None or math.isnan(seconds):
        return UNKNOWN
    if math.isinf(seconds) or abs(seconds) < 99.95:
        return (
            _scaled(seconds, "s")
            if abs(seconds) < 1 or math.isinf(seconds)
            else f"{three_digits(seconds)} s"
        )
    minutes, rest_s = divmod(round(abs(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    sign = "-" if seconds < 0 else ""
    return f"{sign}{hours} h {minutes} min" if hours else f"{sign}{minutes} min {rest_s} s"


def energy(joules: float | None) -> str:
    """Joules: `250 mJ`, `1.20 kJ`."""
    return _scaled(joules, "J", smallest=1e-6)


def power(watts: float | None) -> str:
    """Watts: `4.25 W`."""
    return _scaled(watts, "W", smallest=1e-3)


def count(value: float | None) -> str:
    """A large number with a prefix: `4.65 M`."""
    return UNKNOWN if value is None else _scaled(value, "", smallest=1.0).strip()


def number(n: int, noun: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def percent(fraction: float | None) -> str:
    """A fraction of one: `61 %`; a small one is not nothing: `<1 %`."""
    if fraction is None or math.isnan(fraction):
        return UNKNOWN
    return "<1 %" if 0 < fraction < 0.005 else f"{100 * fraction:.0f} %"


def change(fraction: float | None) -> str:
    """A relative difference with its sign: `+4.2 %`."""
    return UNKNOWN if fraction is None or math.isnan(fraction) else f"{100 * fraction:+.1f} %"
