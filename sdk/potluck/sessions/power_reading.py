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


def fault_of(told: Reading, before: Reading | None) -> str:
    """Why this reading is not believed; empty where it is.

    Parameters
    ----------
    told
        What the device says, on the notebook's clock.
    before
        The one before, of this session.
    """
    if not all(map(isfinite, (told.at_s, told.watts, told.joules, told.resolution_w))):
        return "a number that is none"
    if not 0 <= told.watts <= MOST_W:
        return f"{told.watts:g} W"
    if told.joules < 0 or told.resolution_w < 0:
        return f"{told.joules:g} J, known to {told.resolution_w:g} W"
    if before is not None and told.at_s < before.at_s:
        return f"a time {before.at_s - told.at_s:g} s before the reading before"
    return ""


@dataclass(frozen=True, slots=True)
class Count:
    """Joules of one device so far, over all its sessions. They never fall: what a device says less
    or more than can be is a gap, and the sum is no longer measured.
    """

    joules: float = 0.0
    has_gap: bool = False

    def after(self, told: Reading, before: Reading | None) -> "Count":
        """The count once a believed reading has come."""
        if before is None:
            return self
        joules, span_s = told.joules - before.joules, told.at_s - before.at_s
        if not 0 <= joules <= MOST_W * (span_s + SLACK_S):
            return Count(self.joules, True)
        return Count(self.joules + joules, self.has_gap)

    def mark(self, told: Reading) -> str:
        """Where the sum comes from."""
        mark = SOURCES.get(told.source, UNKNOWN)
        return worst((mark, ASSUMED)) if self.has_gap else mark


def believed(device: str, told: Reading, count: Count) -> PowerReading:
    """The reading for people."""
    charge = told.battery_frac
    return PowerReading(
        device=device,
        at_s=told.at_s,
        watts=told.watts,
        joules=count.joules,
        source=count.mark(told),
        meter=told.meter,
        resolution_w=told.resolution_w,
        busy_frac=min(1.0, max(0.0, told.busy_frac)),
        battery_frac=charge if 0 <= charge <= 1 else None,
    )
