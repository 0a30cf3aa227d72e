"""One reading of a device's power as a notebook believes it: bounded, whatever the device says.
Pure.
"""

from dataclasses import dataclass
from math import isfinite

from potluck.provenance import ASSUMED, MEASURED, SIMULATED, UNKNOWN, worst
from potluck_wire.messages import Reading

MOST_W = 1e5  # of one device: 100 A at three phases of 230 V give less
SLACK_S = 1.0  # counters move in steps
SOURCES = {"measured": MEASURED, "estimated": ASSUMED, "simulated": SIMULATED}


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerReading:
    """Power of a device now, and energy since this home first heard of it.

    `at_s`: by this notebook's clock (`time.monotonic`). `source`: where the joules come from, see
    `provenance`. `battery_frac`: charge, 0 to 1; None without a battery. `busy_frac`: part of the
    time since the reading before that it computed.
    """

    device: str
    at_s: float
    watts: float
    joules: float
    source: str
    meter: str = ""
    resolution_w: float = 0.0
    busy_frac: float = 0.0
    battery_frac: float | None = None


def fault_of(reading: Reading, before: Reading | None) -> str:
    """Why this reading is not believed; empty where it is.

    Parameters
    ----------
    reading
        What the device says, on the notebook's clock.
    before
        The one before, of this session.
    """
    if not all(map(isfinite, (reading.at_s, reading.watts, reading.joules, reading.resolution_w))):
        return "a number that is none"
    if not 0 <= reading.watts <= MOST_W:
        return f"{reading.watts:g} W"
    if reading.joules < 0 or reading.resolution_w < 0:
        return f"{reading.joules:g} J, known to {reading.resolution_w:g} W"
    if before is not None and reading.at_s < before.at_s:
        return f"a time {before.at_s - reading.at_s:g} s before the reading before"
    return ""


def mark_of(reading: Reading) -> str:
    """Where a device says that its joules come from; see `provenance`.

    Parameters
    ----------
    reading
        What it says.
    """
    return SOURCES.get(reading.source, UNKNOWN)


def can_follow(at_s: float, joules: float, before_s: float, before_j: float) -> bool:
    """Whether a device can have taken what its count grew by.

    Parameters
    ----------
    at_s, joules
        Of a reading.
    before_s, before_j
        Of the one before.
    """
    return 0 <= joules - before_j <= MOST_W * (at_s - before_s + SLACK_S)


@dataclass(frozen=True, slots=True)
class EnergyCount:
    """Joules of one device so far, over all its sessions. They never fall: what a device says less
    or more than can be is a gap, and the sum is no longer measured.
    """

    joules: float = 0.0
    has_gap: bool = False

    def after(self, reading: Reading, before: Reading | None) -> "EnergyCount":
        """The count once a believed reading has come."""
        if before is None:
            return self
        if not can_follow(reading.at_s, reading.joules, before.at_s, before.joules):
            return EnergyCount(self.joules, True)
        return EnergyCount(self.joules + reading.joules - before.joules, self.has_gap)

    def mark(self, reading: Reading) -> str:
        """Where the sum comes from."""
        mark = mark_of(reading)
        return worst((mark, ASSUMED)) if self.has_gap else mark


def believed(device: str, reading: Reading, count: EnergyCount) -> PowerReading:
    """The reading for people."""
    charge = reading.battery_frac
    return PowerReading(
        device=device,
        at_s=reading.at_s,
        watts=reading.watts,
        joules=count.joules,
        source=count.mark(reading),
        meter=reading.meter,
        resolution_w=reading.resolution_w,
        busy_frac=min(1.0, max(0.0, reading.busy_frac)),
        battery_frac=charge if 0 <= charge <= 1 else None,
    )
