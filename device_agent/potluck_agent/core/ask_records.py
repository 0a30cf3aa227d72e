"""Requests for services as a device knows them, and what it makes of how they ended. Pure."""

from dataclasses import dataclass, field

from potluck_agent.core.execution import Name
from potluck_agent.core.grants import GrantedProgram, NextPart
from potluck_wire.limits import STANDING_S
from potluck_wire.messages import AskEnded, FailureCause, RefusalCode
from potluck_wire.request_handler import ServeRefusal, is_route

REFUSALS = {
    ServeRefusal.TIMED_OUT: RefusalCode.LATE,
    ServeRefusal.OFFLOADED_TOO_OFTEN: RefusalCode.HOPS,
}

# another device may answer all the same: nothing was wrong with the request, nor with its values
ELSEWHERE = frozenset(
    {
        RefusalCode.NOT_GRANTED,
        RefusalCode.TOO_OFTEN,
        RefusalCode.UNKNOWN_RUN,
        RefusalCode.LEAVING,
        RefusalCode.BUSY,
        RefusalCode.MEMORY,
        RefusalCode.HOPS,
        RefusalCode.INSUFFICIENT,
        FailureCause.PEER_LOST,
        FailureCause.CANCELLED,
    }
)
SILENT_S = 5 * STANDING_S  # who has not said for so long how it stands is not asked

Key = tuple[str, int]  # of who asked, or is asked, and its number there


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """A request as the decision sees it; `path` ends with this device. At `until_s` it ends."""

    service: str
    arrived_s: float
    deadline_s: float
    until_s: float
    path: tuple[str, ...]
    rows: int
    work: float
    fps: float = 0.0

    @property
    def n_offloads(self) -> int:
        """How often it was handed on."""
        return len(self.path) - 1


@dataclass(slots=True, kw_only=True, eq=False)
class AskUnderWay:
    """A request that is not answered yet. `granted`: by what it was admitted, whatever was granted
    since. `to`: whom it was handed on to; its report is kept until all of the answer has gone on.
    `kept_bytes`: of its inputs, which are kept until then. `tried`: to whom it was handed before.
    `then`: it is computed here, and what follows there.
    """

    asker: Key
    asker_name: str  # HOME: its own notebook
    request: DeviceRequest
    granted: GrantedProgram
    name: Name
    to: Key | None = None
    to_name: str = ""
    report: AskEnded | None = None
    is_through: bool = False
    kept_bytes: int = 0
    tried: list[str] = field(default_factory=list)
    then: NextPart | None = None

    def is_possible(self, report: AskEnded) -> bool:
        """Whether it can have gone as whom it was handed on to says."""
        return (
            is_route(report.path, self.to_name, self.request.path)
            and len(report.hops_s) == len(report.path)
            and min(report.hops_s) >= 0
        )
