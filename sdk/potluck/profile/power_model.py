"""The power of one device: idle, computing, and on top while sending. Pure."""

from dataclasses import dataclass, replace

from potluck.provenance import ASSUMED, UNKNOWN
from potluck.records import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Watts:
    """None: not known. `source`: see `provenance`; `note` says it in words; `error_w`: how far off
    each may be, where it was measured.
    """

    idle_w: float | None = None
    busy_w: float | None = None
    radio_w: float | None = None
    source: str = UNKNOWN
    note: str = ""
    error_w: float | None = None

    def of(self, device: Device) -> Device:
        """The device with this power."""
        return replace(
            device,
            idle_w=self.idle_w,
            busy_w=self.busy_w,
            radio_w=self.radio_w,
            power_source=ASSUMED if self.source == UNKNOWN else self.source,
            power_note=self.note,
            power_error_w=self.error_w,
        )
