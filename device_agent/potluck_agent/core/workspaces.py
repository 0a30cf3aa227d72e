"""What each notebook has on this device: a worker of its own, its runs and their values, and what
it measures. Pure.

Nothing of it is shared but the links, which take turns by bytes, and the owner's memory: what the
plans of all say fits into it together, and what nobody claims is divided evenly. The processor is
divided by the system, for each worker is a process.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from potluck_agent.core.epochs import EpochTable
from potluck_agent.core.events import DONE, MOVES, Buffer, FromDisk, PeerDevice, RemoveKept
from potluck_agent.core.grants import GrantTable
from potluck_agent.core.measurements import MeasurementQueue
from potluck_agent.core.outbox import Outbox, Settings
from potluck_agent.core.receive_buffers import ChunkOutcome, ReceiveBuffers
from potluck_agent.core.request_engine import RequestEngine
from potluck_agent.core.send_queue import SendQueue
from potluck_agent.core.sessions import NotebookSession
from potluck_agent.core.weight_cache import WeightCache
from potluck_agent.core.worker_proxy import ABSENT, COMPUTING, READY, BusyTime, WorkerProxy
from potluck_wire.limits import MAX_WORKERS
from potluck_wire.messages import (
    Available,
    Computed,
    ComputeFailed,
    Freed,
    MeasuredTask,
    Message,
    SegmentLoaded,
)
from potluck_wire.version import SHARING, VERSION

TOLD_PARTS = 1024  # of the memory: what is left is told to one of so many
IDLE_S = 10.0  # a worker without work for so long makes room where another notebook's is at work


class Workspace:
    """Of one notebook; `number` is that of its worker."""

    def __init__(
        self,
        key: str,
        number: int,
        settings: Settings,
        out: Outbox,
        outgoing: SendQueue,
        members: Callable[[str], dict[str, PeerDevice]],
        others: "OtherWorkspaces",
        busy: BusyTime,
        cache: WeightCache,
    ) -> None:
        self.key, self.number = key, number
        self._out = out
        self.n_moved = 0  # messages of values that came in and went out
        self.worker = WorkerProxy(settings, out, number, busy)
        self.incoming = ReceiveBuffers(settings.inbound_bytes, number, key, cache)
        self.work = RequestEngine(
            key, settings, out, self.worker, self.incoming, outgoing, members, others
        )
        self.grants = GrantTable()
        self.measuring = MeasurementQueue(out, self.worker, outgoing, members, others, busy)

    def __repr__(self) -> str:
        return f"of notebook {self.key}"

    @property
    def plans(self) -> EpochTable:
        """Its runs."""
        return self.work.plans

    @property
    def progress(self) -> int:
        """Grows while anything of it gets on."""
        return self.worker.n_finished + self.n_moved

    @property
    def is_busy(self) -> bool:
        """Whether anything is computed or executed."""
        return self.work.busy or self.worker.is_working

    def takes(self, step: ChunkOutcome, now_s: float) -> None:
        """Some of a value came in. What is refused is not told here: it is nothing that gets on."""
        self.n_moved += 1
        self.work.apply(step, now_s)

    def receive(self, message: Message, buffers: Sequence[Buffer], now_s: float) -> None:
        """Its worker said something. WireError where that cannot be."""
        self.worker.receive(message, buffers, now_s)
        match message:
            case SegmentLoaded():
                self.plans.loaded(message)
            case Computed():
                self.work.computed(message, buffers, now_s)
                for offset in message.freed:
                    self.work.freed(offset, now_s)
            case MeasuredTask():
                self.measuring.measured(message)
            case ComputeFailed():
                if not self.work.task_failed(message, now_s) and not self.measuring.failed(message):
                    self.plans.not_loaded(message, now_s)
            case Freed():
                self.work.freed(message.offset, now_s)

    def forget_what_is_over(self) -> None:
        """What was granted of epochs that are over takes no memory any more."""
        self.grants.forget_programs(self.plans.is_loaded)

    def feed(self, now_s: float) -> None:
        """Keep its worker supplied."""
        if self.worker.state == READY:
            self.work.feed(now_s)

    def credit(self, now_s: float) -> None:
        """Give credit that has waited for too long."""
        self._out.add(*self.incoming.credit(now_s))

    def tick(self, now_s: float, radio_s: float) -> None:
        """Time has passed; the links were busy for so long in all."""
        self.forget_what_is_over()
        self.work.tick(now_s)
        self.work.go_on()
        self.measuring.tick(now_s, radio_s)

    def wake_s(self, now_s: float) -> float | None:
        """When it has to be looked at, if no event comes first."""
        parts = (self.work.wake_s(now_s), self.incoming.wake_s(), self.measuring.wake_s())
        return min((wake_s for wake_s in parts if wake_s is not None), default=None)


class OtherWorkspaces:
    """All but that of one notebook, as its own parts see them."""

    def __init__(self, key: str, by_key: dict[str, Workspace]) -> None:
        self._key, self._by_key = key, by_key

    def _plans(self) -> Iterator[EpochTable]:
        return (each.plans for key, each in self._by_key.items() if key != self._key)

    @property
    def n_at_work(self) -> int:
        """How many of them have runs here."""
        return sum(bool(plans.runs) for plans in self._plans())

    @property
    def claimed_bytes(self) -> int:
        """Memory that is theirs."""
        return sum(plans.claimed_bytes for plans in self._plans())

    def know(self, run: str) -> bool:
        """Whether one of them has, or had, a run of this name."""
        return any(plans.knows(run) for plans in self._plans())


class Workspaces:
    """Those of all notebooks that have a session, by their keys."""

    def __init__(
        self,
        settings: Settings,
        out: Outbox,
        members: Callable[[str], dict[str, PeerDevice]],
        cache: WeightCache,
    ) -> None:
        self._settings, self._out = settings, out
        self._members = members
        self._cache = cache
        cache.loaded = lambda: {run for each in self for run in each.plans.runs}
        self.outgoing = SendQueue(link_bytes_per_s=settings.link_bytes_per_s, along=self.along)
        self.busy = BusyTime()
        self._by_key: dict[str, Workspace] = {}

    def __iter__(self) -> Iterator[Workspace]:
        return iter(tuple(self._by_key.values()))

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def open(self, key: str) -> Workspace:
        """That of this notebook, which may be new."""
        known = self._by_key.get(key)
        if known is None:
            taken = {each.number for each in self}
            number = next(n for n in range(len(taken) + 1) if n not in taken)
            known = self._by_key[key] = Workspace(
                key,
                number,
                self._settings,
                self._out,
                self.outgoing,
                self._members,
                OtherWorkspaces(key, self._by_key),
                self.busy,
                self._cache,
            )
        return known

    def close(self, key: str) -> None:
        """This notebook is gone, and what it had has ended."""
        self._by_key.pop(key, None)
        self.outgoing.leave(key)

    def get(self, key: str) -> Workspace | None:
        """That of this notebook, if it has one."""
        return self._by_key.get(key)

    def of_worker(self, number: int) -> Workspace | None:
        """That whose worker has this number."""
        return next((each for each in self if each.number == number), None)

    def of_run(self, name: str) -> Workspace | None:
        """That which has, or had, a run of this name; no two have."""
        return next((each for each in self if each.plans.knows(name)), None)

    def of_service(self, name: str) -> Workspace | None:
        """That whose service this is; no two have one of this name."""
        return next((each for each in self if name in each.grants.services), None)

    def from_disk(self, event: FromDisk, now_s: float) -> None:
        """Weights are kept now, or in their place; or the disk gets on, or failed."""
        if event.state != MOVES:
            self._cache.end(event.ticket, is_whole=event.state == DONE)
        if (own := self.of_worker(event.worker)) is not None:
            own.worker.moved(now_s)
            own.takes(own.incoming.from_disk(event), now_s)

    def distrust(self, key: str) -> None:
        """Nothing is kept for this notebook any more."""
        if self._cache.leave(key):
            self._out.add(RemoveKept(key))

    @property
    def owners(self) -> set[str]:
        """The notebooks that have runs here."""
        return {each.key for each in self if each.plans.runs}

    @property
    def askers(self) -> set[str]:
        """The notebooks whose measurements are under way."""
        return {key for each in self for key in each.measuring.askers}

    @property
    def at_work(self) -> set[str]:
        """The notebooks that have runs here, or measure, or whose worker computes yet."""
        working = {each.key for each in self if each.worker.is_working}
        return self.owners | self.askers | working

    def state(self) -> dict[str, list[dict[str, Any]]]:
        """The runs and the workers, by the keys of their notebooks."""
        runs = [
            {"name": run.name, "notebook": each.key, "memory_bytes": run.memory_bytes}
            for each in self
            for run in each.plans.runs.values()
        ]
        workers = [
            {
                "notebook": each.key,
                "state": COMPUTING if each.worker.is_working else each.worker.state,
                "limit_bytes": each.worker.limit_bytes,
                "computed_s": each.worker.computed_s,
            }
            for each in self
            if each.worker.state != ABSENT
        ]
        return {"workers": workers, "runs": runs}

    # --- rounds of the loop -----------------------------------------------------------------------

    @property
    def starting(self) -> list[str]:
        """Notebooks of which more is ready than could be seen to at once."""
        return [each.key for each in self if each.work.is_starting]

    def along(self, key: str, sender: str) -> tuple[int, ...]:
        """Transfers of a sender for this notebook's runs whose credit has waited for the value that
        the sender is sent now.
        """
        own = self._by_key.get(key)
        return own.incoming.along(sender) if own is not None else ()

    def wake_s(self, now_s: float) -> float | None:
        """When one has to be looked at, if no event comes first."""
        times = [each.wake_s(now_s) for each in self]
        return min((wake_s for wake_s in times if wake_s is not None), default=None)

    def end_older(self, key: str, lease: str, term: int, now_s: float) -> None:
        """A newer term of a lease has begun: runs of older ones end, whose ever they are."""
        for each in self:
            each.plans.end_older(key, lease, term, now_s)

    def crowded(self, key: str) -> str:
        """Why this notebook gets no worker; empty: it has one, or gets one."""
        others = [each for each in self if each.key != key and each.worker.state != ABSENT]
        own = self._by_key.get(key)
        if len(others) < MAX_WORKERS or (own is not None and own.worker.state != ABSENT):
            return ""
        return f"{MAX_WORKERS} notebooks compute here already; ask again when one is through"

    def share_memory(self) -> None:
        """Each worker may take what its notebook claims, and an even part of what nobody does."""
        at_work = [each for each in self if each.worker.state != ABSENT]
        claimed = {each.number: each.plans.claimed_bytes for each in at_work}
        free_bytes = max(0, self._settings.memory_bytes - sum(claimed.values()))
        for each in at_work:
            each.worker.limit(claimed[each.number] + free_bytes // len(at_work))

    def divide(self, sessions: Mapping[str, NotebookSession]) -> None:
        """The memory, between all notebooks: each worker has its limit, and each notebook hears
        what is left.
        """
        self.share_memory()
        for key, session in sessions.items():
            self.tell_what_is_left(key, session)

    def tell_what_is_left(self, key: str, session: NotebookSession) -> None:
        """What other notebooks have here leaves less: said where that has changed."""
        if session.hello is not None or self._out.versions.get(key, VERSION) < SHARING:
            return
        available = self._left_for(key)
        if available != (session.available or Available(memory_bytes=self._settings.memory_bytes)):
            session.available = available
            self._out.send(key, available)

    def _left_for(self, key: str) -> Available:
        """What the others leave for this notebook; how much, to a part that is worth telling."""
        others = OtherWorkspaces(key, self._by_key)
        step = max(1, self._settings.memory_bytes // TOLD_PARTS)
        left_bytes = max(0, self._settings.memory_bytes - others.claimed_bytes)
        if others.claimed_bytes:
            left_bytes -= left_bytes % step
        return Available(memory_bytes=left_bytes, n_beside=others.n_at_work)

    def make_room(self, now_s: float) -> None:
        """End workers that have nothing to do, where another notebook's is at work."""
        ready = [each for each in self if each.worker.state == READY]
        for each in ready if len(ready) > 1 else ():
            if not each.plans.runs and each.worker.idle_s(now_s) > IDLE_S:
                each.worker.kill("another notebook's runs need the room")
                each.work.lose_worker("", "", now_s)
