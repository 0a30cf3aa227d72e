"""What the loop needs of a meter, and how often it looks at it."""

from typing import Protocol

# A counter of joules may wrap every minute (of memory: 65 kJ at 1 kW): it is looked at more often,
# whether anybody wants to know or not.
METER_KEPT_S = 30.0


class MeterReading(Protocol):
    """One reading: of power now, and of energy so far."""

    @property
    def watts(self) -> float: ...
    @property
    def joules(self) -> float: ...
    @property
    def source(self) -> str: ...
    @property
    def meter(self) -> str: ...
    @property
    def resolution_w(self) -> float: ...
    @property
    def battery_frac(self) -> float | None: ...


class MeterSource(Protocol):
    """Where readings of power come from."""

    def read(self, now_s: float, busy_s: float, radio_s: float) -> MeterReading:
        """Power and energy; `busy_s` and `radio_s` are seconds of computing and of sending so
        far.
        """


class KeptMeter:
    """A meter that is looked at every `METER_KEPT_S`, whether anybody wants to know or not.

    Parameters
    ----------
    meter
        Where readings come from.
    now_s
        When it was made.
    """

    def __init__(self, meter: MeterSource, now_s: float) -> None:
        self._meter, self._read_s = meter, now_s

    def read(self, now_s: float, busy_s: float, radio_s: float) -> MeterReading:
        """As of the meter itself."""
        self._read_s = now_s
        return self._meter.read(now_s, busy_s, radio_s)

    def tick(self, now_s: float, busy_s: float, radio_s: float) -> None:
        """Look at it, if that is due."""
        if now_s - self._read_s >= METER_KEPT_S:
            self.read(now_s, busy_s, radio_s)
