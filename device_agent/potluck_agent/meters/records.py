"""What a meter says, what is found out about it, and the two ways to count energy: from a counter
and from power.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterSample:
    """Power since the last sample, energy since the meter was opened.

    `source`: measured, estimated or simulated. `battery_frac`: charge, 0 to 1; None without a
    battery.
    """

    watts: float
    joules: float
    source: str
    meter: str
    resolution_w: float
    battery_frac: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterFinding:
    """Whether a family of meters can be used here.

    If not why, and what would help (may be empty).
    """

    meter: str
    present: bool
    reason: str
    remedy: str = ""


# What one meter can be right about: a socket of a home gives 16 A at 230 V. What is beyond, or
# below zero, is a meter that jumped, wrapped more than once or began anew.
MOST_W = 3680.0
REFRESH_S = 1.0  # counters of chips move in steps, some 20 ms to 1 s apart

# watts, joules; None: not known, from a first call alone or since the meter jumped
Advance = tuple[float | None, float | None]


class Gauge(Protocol):
    """One meter of one thing."""

    name: str
    resolution_w: float

    def advance(self, now_s: float) -> Advance:
        """(watts, joules) since the last call. `OSError` where it does not answer."""

    def skip(self) -> None:
        """The time since the last call is not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMeters:
    """The meters of a family, ready to be read, and what to tell about them."""

    finding: MeterFinding
    gauges: tuple[Gauge, ...] = ()


class PowerGauge:
    """A meter that tells watts: joules by the trapezoid between two calls.

    Watts that cannot be (`MOST_W`) are not known, and neither are the joules up to the next ones.
    """

    def __init__(self, name: str, resolution_w: float, power_w: Callable[[], float]) -> None:
        self.name, self.resolution_w = name, resolution_w
        self._power_w = power_w
        self._last: tuple[float, float] | None = None  # (now_s, watts)

    def advance(self, now_s: float) -> Advance:
        """See `Gauge`; the watts are those of this moment."""
        watts, last = self._power_w(), self._last
        if not 0 <= watts <= MOST_W:
            self._last = None
            return None, None
        self._last = now_s, watts
        if last is None:
            return watts, None
        before_s, before_w = last
        joules = (watts + before_w) / 2 * (now_s - before_s)
        return watts, joules if joules >= 0 else None

    def skip(self) -> None:
        """See `Gauge`."""
        self._last = None


class CounterGauge:
    """A meter that counts joules, up to `range_j` and then again from 0.

    A smaller count is a wrap where the joules that this makes can be (`MOST_W`). Else, and without
    a range, the counter has begun anew, and what was counted before that nobody knows."""

    def __init__(
        self,
        name: str,
        resolution_w: float,
        count_j: Callable[[], float],
        range_j: float | None = None,
    ) -> None:
        self.name, self.resolution_w = name, resolution_w
        self._count_j, self._range_j = count_j, range_j
        self._last: tuple[float, float] | None = None  # (now_s, count_j)
        self._watts: float | None = None

    def advance(self, now_s: float) -> Advance:
        """See `Gauge`; the watts are the mean since the last call."""
        count_j, last = self._count_j(), self._last
        if not isfinite(count_j):
            self._last = None
            return None, None
        self._last = now_s, count_j
        if last is None:
            return None, None
        before_s, before_j = last
        joules = count_j - before_j
        if joules < 0 and self._range_j is not None:
            joules += self._range_j
        span_s = now_s - before_s
        if span_s < 0 or not 0 <= joules <= MOST_W * (span_s + REFRESH_S):
            return None, None
        if 0 <= joules <= MOST_W * span_s and span_s > 0:
            self._watts = joules / span_s
        return self._watts, joules

    def skip(self) -> None:
        """See `Gauge`."""
        self._last = None


def number(path: Path) -> float:
    """The number in a file of /sys. `OSError` where there is none."""
    text = path.read_text(errors="replace")
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if not isfinite(found):
        raise OSError(f"{path} holds {text[:40]!r}, expected a number")
    return found


def text(path: Path) -> str:
    """The stripped text of a file, empty where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip().strip("\0")
    except OSError:
        return ""
