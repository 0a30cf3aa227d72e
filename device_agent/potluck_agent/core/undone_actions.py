"""What it amounts to where an action could not be carried out, and its end is waited for. Pure."""

from potluck_agent.core.events import (
    FAILED,
    Action,
    FromDisk,
    FromWorker,
    KeptOrder,
    ToWorker,
    Undone,
)
from potluck_wire.messages import (
    Compute,
    ComputeFailed,
    FailureCause,
    LoadSegment,
    MeasureTask,
    RefusalCode,
)


def end_of(undone: Undone) -> FromWorker | FromDisk | None:
    """The event that says so, as whoever was asked would; None where nobody was asked."""
    action: Action = undone.action
    match action:
        case ToWorker(message=Compute() as order, worker=worker):
            failed = ComputeFailed(tag=order.tag, cause=FailureCause.INTERNAL, text=undone.text)
            return FromWorker(failed, (), worker)
        case ToWorker(message=LoadSegment(slot=name) | MeasureTask(task=name), worker=worker):
            failed = ComputeFailed(slot=name, cause=RefusalCode.DOCUMENT, text=undone.text)
            return FromWorker(failed, (), worker)
        case KeptOrder():
            return FromDisk(action.ticket, action.place.worker, FAILED)
    return None
