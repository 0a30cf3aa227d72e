"""How a request would be answered now: which rows run where, and when. Pure, but for `save`."""

from collections.abc import Mapping
from dataclasses import dataclass

from potluck.display_hooks import Pictured
from potluck.offload.plan.problem import Operator
from potluck.records import Trace

Interval = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RequestExplanation(Pictured):
    """A way to answer, by operator. `rows[device][place]`: the rows of operator `place` that it
    computes.

    `predicted` is one request by the simulator, at `bytes_per_s` between the device and its
    helpers. `notes` say what is noteworthy.
    """

    device: str
    helpers: tuple[str, ...]
    bytes_per_s: float
    operators: tuple[Operator, ...]
    rows: Mapping[str, Mapping[int, Interval]]
    predicted: Trace
    alone_s: float
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The device, then its helpers."""
        return (self.device, *self.helpers)

    @property
    def latency_s(self) -> float:
        """How long the request should take."""
        return max(self.predicted.step_s)
