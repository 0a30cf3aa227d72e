"""Scales: round tick values, and numbers to pixels. Pure."""

import itertools
import math
from dataclasses import dataclass

MOST_DECIMALS, LARGEST = 6, 1e7  # beyond, a tick value is told by its power of ten


def ticks(low: float, high: float, max_ticks: int = 8) -> tuple[float, ...]:
    """Round values (1, 2 or 5 times a power of ten apart) from `low` to `high`.

    At most `max_ticks` of them.

    >>> ticks(0, 10, 6)
    (0, 2, 4, 6, 8, 10)
    """
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return (low,)
    rough = (high - low) / max(1, max_ticks - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = 12 - min(0, math.floor(math.log10(step)))  # enough for the smallest steps
    values = (round(index * step, digits) for index in range(first, last + 1))
    return tuple(int(value) if value == int(value) else value for value in values)


def decimals(values: tuple[float, ...]) -> int:
    """How many decimals tell these tick values apart."""
    if len(values) < 2:
        return 1
    step = min(later - earlier for earlier, later in itertools.pairwise(values))
    return max(0, -math.floor(math.log10(step) + 1e-9))


def labels(values: tuple[float, ...]) -> tuple[str, ...]:
    """Each tick value as a short text.

    >>> labels((0, 0.5, 1)), labels((0, 2e-13)), labels((0, 2e38))
    (('0.0', '0.5', '1.0'), ('0', '2e-13'), ('0', '2e+38'))
    """
    n_decimals, highest = decimals(values), max(map(abs, values))
    if n_decimals <= MOST_DECIMALS and highest < LARGEST:
        return tuple(f"{value:.{n_decimals}f}" for value in values)
    step = values[-1] - values[-2] if len(values) > 1 else highest
    digits = 1 + math.floor(math.log10(highest)) - math.floor(math.log10(step) + 1e-9)
    return tuple(f"{value:.{max(1, digits)}g}" for value in values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A linear map of [low, high] to pixels [start, stop].

    `start` may lie beyond `stop` (upwards).
    """

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        return self.start + (self.stop - self.start) * ((value - self.low) / span if span else 0.5)
