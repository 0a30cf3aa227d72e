"""Who is given up where an event raised what nothing may raise. Pure."""

from potluck_agent.core.events import Event, FromDisk, FromPeer, FromWorker, Undone, WorkerDied


def worker_of(event: Event) -> int | None:
    """The number of the worker that it came from, or that it is the end of an order for."""
    match event:
        case FromWorker() | WorkerDied() | FromDisk():
            return event.worker
        case Undone():
            place = getattr(event.action, "place", event.action)
            return getattr(place, "worker", None)
    return None


def key_of(event: Event) -> str:
    """The key of the peer that it came from, or that it is about; empty: of nobody."""
    match event:
        case FromPeer():
            return event.sender.key
        case Undone():
            return getattr(event.action, "key", "")
    return getattr(event, "key", "")
