"""What a meter says, what is found out about it, and the two ways to count energy: from a counter
and from power.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Power since the last sample, energy since the meter was opened.

    `source`: measured, estimated or simulated.
    """

    watts: float
    joules: float
    source: str
    meter: str
    resolution_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Whether a family of meters can be used here.

    If not why, and what would help (may be empty).
    """

    meter: str
    present: bool
    reason: str
    remedy: str = ""


# watts, joules; None: not known from a first call alone
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
class Found:
    """The meters of a family, ready to be read, and what to tell about them."""

    finding: Finding
    gauges: tuple[Gauge, ...] = ()


class PowerGauge:
    """A meter that tells watts: joules by the trapezoid between two calls."""

    def __init__(self, name: str, resolution_w: float, power_w: Callable[[], float]) -> None:
        self.name, self.resolution_w = name, resolution_w
        self._power_w = power_w
        self._last: tuple[float, float] | None = None  # (now_s, watts)

    def advance(self, now_s: float) -> Advance:
        """See `Gauge`; the watts are those of this moment."""
        watts, last = self._power_w(), self._last
        self._last = now_s, watts
        if last is None:
            return watts, None
        before_s, before_w = last
        return watts, (watts + before_w) / 2 * (now_s - before_s)

    def skip(self) -> None:
        """See `Gauge`."""
        self._last = None


class CounterGauge:
    """A meter that counts joules, up to `range_j` and then again from 0.

    With None, a smaller count is a new start.
    """

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
        self._last = now_s, count_j
        if last is None:
            return None, None
        before_s, before_j = last
        joules = count_j - before_j
        if joules < 0:
            joules = count_j if self._range_j is None else joules + self._range_j
        if now_s > before_s:
            self._watts = joules / (now_s - before_s)
        return self._watts, joules

    def skip(self) -> None:
        """See `Gauge`."""
        self._last = None


def number(path: Path) -> float:
    """The number in a file of /sys. `OSError` where there is none."""
    text = path.read_text()
    try:
        return float(text)
    except ValueError as error:
        raise OSError(f"{path} holds {text[:40]!r}, expected a number") from error


def text(path: Path) -> str:
    """The stripped text of a file, empty where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip().strip("\0")
    except OSError:
        return ""
