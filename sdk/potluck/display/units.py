"""SI numbers to short human text: the only place where a millisecond or a mebibyte appears. Pure."""

import math

UNKNOWN = "–"

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SMALL_TO_LARGE = ((1e-9, "n"), (1e-6, "µ"), (1e-3, "m"), (1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"))


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
    if value == 0 or math.isinf(value):
        return f"{three_digits(value)} {unit}"
    fitting = [pair for pair in _SMALL_TO_LARGE if pair[0] >= smallest and pair[0] <= abs(value) * 1.0005]
    factor, prefix = fitting[-1] if fitting else next(pair for pair in _SMALL_TO_LARGE if pair[0] >= smallest)
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
    return f"{nbytes:.0f} B" if power == 0 else f"{three_digits(nbytes / 1024**power)} {_BINARY[power]}"


def rate(bytes_per_s: float | None) -> str:
    """Bytes per second: `94.1 MiB/s`."""
    return UNKNOWN if bytes_per_s is None or math.isnan(bytes_per_s) else f"{size(bytes_per_s)}/s"


def duration(seconds: float | None) -> str:
    """Seconds, from nanoseconds to hours: `12.3 ms`, `4.56 s`, `3 min 20 s`."""
    if seconds is None or math.isnan(seconds):
        return UNKNOWN
    if math.isinf(seconds) or abs(seconds) < 99.95:
        return _scaled(seconds, "s") if abs(seconds) < 1 or math.isinf(seconds) else f"{three_digits(seconds)} s"
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
