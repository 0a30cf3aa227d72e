"""What is loaded: runs and their plan epochs, prepared beside each other and switched in two
phases. Pure.

All runs here are of one notebook. What others have on this device leaves less memory for it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from potluck_agent.core.dependencies import DependencyGraph
from potluck_agent.core.events import Buffer
from potluck_agent.core.execution import Name, Unwanted, slot_of
from potluck_agent.core.outbox import Outbox, Settings
from potluck_agent.core.run_state import MAX_EPOCHS, MAX_RUNS, Answer, Epoch, LoadedRun, read_load
from potluck_agent.core.worker_proxy import WorkerProxy
from potluck_wire.errors import WireError
from potluck_wire.limits import MAX_PLANS_BYTES, is_identifier
from potluck_wire.messages import (
    Abort,
    Commit,
    Committed,
    ComputeFailed,
    Done,
    Drop,
    Dropped,
    Execute,
    Failed,
    FailureCause,
    Forget,
    LoadSegment,
    Prepare,
    Prepared,
    RefusalCode,
    SegmentLoaded,
    Value,
)

CODES = frozenset(value for name, value in vars(RefusalCode).items() if name.isupper())


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRun:
    """A run that went with its worker, until its notebook drops it: what is told to whoever goes on
    with it.
    """

    owner: str
    was_committed: bool
    cause: str
    text: str


class OtherNotebooks(Protocol):
    """What other notebooks have on this device."""

    @property
    def n_at_work(self) -> int:
        """How many of them have runs here."""

    @property
    def claimed_bytes(self) -> int:
        """Memory that is theirs."""

    def know(self, run: str) -> bool:
        """Whether one of them has, or had, a run of this name."""


class Refusal(NamedTuple):
    """Why an epoch is not even tried; the sizes where it is too large."""

    code: str
    text: str
    needed_bytes: int = 0
    available_bytes: int = 0


class EpochTable:
    """Runs of a notebook by name. `end_epoch(run, epoch, now_s)` is called when an epoch ends:
    nothing of it is executed any more.
    """

    def __init__(
        self,
        settings: Settings,
        out: Outbox,
        worker: WorkerProxy,
        end_epoch: Callable[[LoadedRun, int, float], None],
        others: OtherNotebooks,
    ) -> None:
        self._settings = settings
        self._out = out
        self._worker = worker
        self._end_epoch = end_epoch
        self._others = others
        self.runs: dict[str, LoadedRun] = {}
        self._lost: dict[str, LostRun] = {}
        self.n_old = 0  # messages of an epoch that is over

    def prepare(self, key: str, message: Prepare, buffers: Sequence[Buffer], now_s: float) -> None:
        """Load an epoch beside whatever runs now."""
        run = self.runs.get(message.run)
        if refusal := self._refusal(key, message, run):
            self._out.refuse(key, message, *refusal)
            return
        known = run.epochs.get(message.epoch) if run else None
        if known is not None:
            if not known.loading:
                self._out.send(key, Prepared(run=message.run, epoch=message.epoch))
            return
        if crowded := self._crowded(buffers):
            self._out.refuse(key, message, RefusalCode.BUSY, crowded)
            return
        try:
            load = read_load(buffers, message.run, message.epoch)
        except WireError as error:
            self._out.refuse(key, message, RefusalCode.DOCUMENT, error.text)
            return
        run = run or self.runs.setdefault(message.run, _begun(key, message))
        this = Name(run.name, message.epoch, "", 0)
        slots = {piece.name: slot_of(this, piece.name) for piece in load.segments}
        run.epochs[message.epoch] = Epoch(
            number=message.epoch,
            document_bytes=len(buffers[0]),
            memory_bytes=message.memory_bytes,
            layouts=load.layouts,
            loading={slot: segment for segment, slot in slots.items()},
            credit_along=message.credit_along,
        )
        self._worker.need(now_s)
        for piece in load.segments:
            order = LoadSegment(
                slot=slots[piece.name],
                kind=piece.kind,
                seed=message.seed,
                weights=slot_of(this, piece.weights),
            )
            self._worker.send(order, (piece.document,), now_s)
        if not slots:
            self._out.send(key, Prepared(run=message.run, epoch=message.epoch))

    def _refusal(self, key: str, message: Prepare, run: LoadedRun | None) -> Refusal | None:
        """Why an epoch is not even tried."""
        if not is_identifier(message.run):
            return Refusal(RefusalCode.DOCUMENT, "the run's name is not an identifier")
        if message.run in self._lost:
            return Refusal(RefusalCode.UNKNOWN_RUN, self.why_not(message.run))
        if self._others.know(message.run):
            return Refusal(RefusalCode.BUSY, "another notebook's run has this name")
        if run is None and len(self.runs) >= MAX_RUNS:
            return Refusal(RefusalCode.BUSY, f"{MAX_RUNS} runs are loaded: close one, run.close()")
        if run is not None and message.epoch not in run.epochs:
            if message.epoch <= run.committed:
                return Refusal(RefusalCode.OLD_EPOCH, f"epoch {run.committed} is in force")
            if len(run.epochs) >= MAX_EPOCHS:
                return Refusal(
                    RefusalCode.STATE, f"{MAX_EPOCHS} epochs are loaded; commit or drop one"
                )
        taken_bytes = sum(other.memory_bytes for other in self.runs.values() if other is not run)
        left_bytes = self._settings.memory_bytes - self._others.claimed_bytes
        available_bytes = max(0, left_bytes - taken_bytes)
        if message.memory_bytes > available_bytes:
            text = f"{message.memory_bytes} bytes needed, {available_bytes} bytes available"
            if self._others.claimed_bytes:
                text += f"; other notebooks have {self._others.claimed_bytes}"
            return Refusal(RefusalCode.MEMORY, text, message.memory_bytes, available_bytes)
        return None

    @property
    def claimed_bytes(self) -> int:
        """Memory that is this notebook's: what its plans say, or what its worker was seen to
        hold.
        """
        if not self.runs:
            return 0
        said_bytes = sum(run.memory_bytes for run in self.runs.values())
        return min(max(said_bytes, self._worker.held_bytes), self._settings.memory_bytes)

    def knows(self, run: str) -> bool:
        """Whether a run of this name is loaded, or went with the worker."""
        return run in self.runs or run in self._lost

    def is_loaded(self, run: str, epoch: int) -> bool:
        """Whether this epoch of a run is loaded, or being loaded."""
        return run in self.runs and epoch in self.runs[run].epochs

    def _crowded(self, buffers: Sequence[Buffer]) -> str:
        """Why these documents are not even looked at now; empty: they are."""
        loaded_bytes = sum(
            epoch.document_bytes for run in self.runs.values() for epoch in run.epochs.values()
        )
        if loaded_bytes + len(buffers[0]) > MAX_PLANS_BYTES:
            return (
                f"plans of {loaded_bytes} bytes are loaded, at most {MAX_PLANS_BYTES} at once; "
                "drop one"
            )
        nbytes = sum(map(len, buffers[1:]))
        return self._worker.crowded(nbytes)

    def loaded(self, message: SegmentLoaded) -> None:
        """The worker has a segment; the last one completes its epoch."""
        for run in self.runs.values():
            for epoch in run.epochs.values():
                if message.slot in epoch.loading:
                    del epoch.loading[message.slot]
                    if not epoch.loading:
                        self._out.send(run.owner, Prepared(run=run.name, epoch=epoch.number))
                    return

    def not_loaded(self, message: ComputeFailed, now_s: float) -> None:
        """A segment could not be loaded: the epoch is refused as a whole."""
        for run in list(self.runs.values()):
            for epoch in list(run.epochs.values()):
                if message.slot in epoch.loading:
                    text = f"segment {epoch.loading[message.slot]}: {message.text}"
                    code = refusal_code(message.cause)
                    self._out.refuse(
                        run.owner, Prepare(run=run.name, epoch=epoch.number), code, text
                    )
                    self._drop_epoch(run, epoch.number, now_s)

    def commit(self, key: str, message: Commit, now_s: float) -> None:
        """An epoch comes into force, older ones go."""
        run = self.own(key, message.run)
        if run is None:
            self._out.refuse(key, message, RefusalCode.UNKNOWN_RUN, self.why_not(message.run))
        elif message.epoch < run.committed:
            self.n_old += 1
            self._out.refuse(
                key, message, RefusalCode.OLD_EPOCH, f"epoch {run.committed} is in force"
            )
        elif message.epoch not in run.epochs or run.epochs[message.epoch].loading:
            self._out.refuse(
                key, message, RefusalCode.STATE, f"epoch {message.epoch} is not prepared"
            )
        else:
            run.committed = message.epoch
            self._worker.held_bytes = 0  # what loading took besides is given back
            run.epochs[message.epoch].need_alone(message.memory_bytes)
            for older in [number for number in run.epochs if number < message.epoch]:
                if run.epochs[older].loading:
                    text = f"epoch {message.epoch} came into force while it was loaded"
                    self._out.refuse(
                        key, Prepare(run=run.name, epoch=older), RefusalCode.OLD_EPOCH, text
                    )
                self._drop_epoch(run, older, now_s)
            self._out.send(key, Committed(run=run.name, epoch=run.committed))

    def drop(self, key: str, message: Drop, now_s: float) -> None:
        """Forget an epoch, or a run."""
        run = self.own(key, message.run)
        if run is not None and message.epoch < 0:
            self._drop_run(run, now_s)
        elif run is not None and message.epoch in run.epochs:
            self._drop_epoch(run, message.epoch, now_s)
        lost = self._lost.get(message.run)
        if lost is not None and lost.owner == key and (message.epoch < 0 or not lost.was_committed):
            del self._lost[message.run]
        self._out.send(key, Dropped(run=message.run, epoch=message.epoch))

    def end_older(self, key: str, lease: str, term: int, now_s: float) -> None:
        """A newer term has begun: runs of older ones end; its holder's own go along."""
        for run in list(self.runs.values()):
            if run.lease == lease and run.term < term:
                if run.owner == key:
                    run.term = term
                else:
                    self._drop_run(run, now_s)

    def leave(self, key: str, now_s: float) -> None:
        """A notebook is gone: its runs end."""
        for run in [run for run in self.runs.values() if run.owner == key]:
            self._drop_run(run, now_s)
        self._lost = {name: lost for name, lost in self._lost.items() if lost.owner != key}

    def why_not(self, name: str) -> str:
        """Why there is no run of that name."""
        lost = self._lost.get(name)
        return (
            f"no run {name} is loaded"
            if lost is None
            else f"run {name} went with the worker: {lost.text}"
        )

    def refuse_or_fail(self, key: str, message: Execute) -> None:
        """Answer who wants a program of a run that is not here. Where the run went with the worker,
        this fails as what was under way then did: the notebook may not have heard of it yet.
        """
        lost = self._lost.get(message.run)
        if lost is None or lost.owner != key:
            self._out.refuse(key, message, RefusalCode.UNKNOWN_RUN, self.why_not(message.run))
            return
        name = Name.of(message)
        self._out.send(key, Failed(**name._asdict(), cause=lost.cause, text=lost.text))

    def answer_again(self, key: str, message: Execute, answer: Answer | None) -> None:
        """Tell once more how an execution went."""
        if answer is None:
            text = "this was executed, and the answer is forgotten"
            self._out.refuse(key, message, RefusalCode.STATE, text)
        else:
            self._out.send(key, *answer)

    def own(self, key: str, name: str) -> LoadedRun | None:
        """That run, if it is this notebook's."""
        run = self.runs.get(name)
        return run if run is not None and run.owner == key else None

    def answer_failed(self, done: Done, text: str) -> None:
        """That an execution went well cannot be told: so it has failed."""
        run = self.runs.get(done.run)
        if run is not None:
            name = Name.of(done)
            failed = Failed(**name._asdict(), cause=FailureCause.INTERNAL, text=text)
            run.answered(name, (failed, ()))
            self._out.send(run.owner, failed)

    def taker(self, value: Value, known: DependencyGraph | None) -> tuple[LoadedRun, str]:
        """The run that takes this value, and from which device; `Unwanted` where none does.

        `known`: the layout of its program, where that is none of the epoch's.
        """
        run = self.runs.get(value.run)
        if run is None:
            raise Unwanted(RefusalCode.UNKNOWN_RUN, self.why_not(value.run))
        epoch = run.epochs.get(value.epoch)
        if epoch is None and value.epoch <= run.committed:
            self.n_old += 1
            raise Unwanted(RefusalCode.OLD_EPOCH, f"epoch {run.committed} is in force")
        if epoch is None:
            raise Unwanted(RefusalCode.UNKNOWN_RUN, f"epoch {value.epoch} is not prepared here")
        layout = known or epoch.layouts.get(value.program)
        receive = layout.receives.get(value.name) if layout else None
        if receive is None:
            raise Unwanted(RefusalCode.DOCUMENT, f"{value.name} is not received in that program")
        return run, receive[1]

    def layout(self, key: str, message: Execute | Abort, run: LoadedRun) -> DependencyGraph | None:
        """The program that is asked for; None, and the message is refused, where it is not here."""
        epoch = run.epochs.get(message.epoch)
        if epoch is None or epoch.loading:
            old = message.epoch < run.committed
            self.n_old += old
            code = RefusalCode.OLD_EPOCH if old else RefusalCode.STATE
            self._out.refuse(
                key,
                message,
                code,
                f"epoch {message.epoch} is not prepared, {run.committed} is in force",
            )
            return None
        layout = epoch.layouts.get(message.program)
        if layout is None:
            self._out.refuse(
                key, message, RefusalCode.DOCUMENT, f"no program {message.program} in this epoch"
            )
        return layout

    def _drop_run(self, run: LoadedRun, now_s: float) -> None:
        for number in list(run.epochs):
            self._drop_epoch(run, number, now_s)
        self.runs.pop(run.name, None)

    def _drop_epoch(self, run: LoadedRun, number: int, now_s: float) -> None:
        self._end_epoch(run, number, now_s)
        del run.epochs[number]
        if not run.epochs:
            self.runs.pop(run.name, None)
        if not self.runs:
            self._worker.held_bytes = 0
        self._worker.send(Forget(prefix=f"{run.name}/{number}/"), (), now_s)

    def lose_all(self, cause: str, text: str) -> None:
        """The worker is gone, and all that was loaded with it."""
        code = RefusalCode.MEMORY if cause == FailureCause.MEMORY else RefusalCode.STATE
        for run in self.runs.values():
            for epoch in run.epochs.values():
                if epoch.loading:
                    self._out.refuse(
                        run.owner, Prepare(run=run.name, epoch=epoch.number), code, text
                    )
            self._lost[run.name] = LostRun(
                owner=run.owner, was_committed=run.committed >= 0, cause=cause, text=text
            )
        for name in list(self._lost)[:-MAX_RUNS]:
            del self._lost[name]
        self.runs.clear()


def _begun(key: str, message: Prepare) -> LoadedRun:
    return LoadedRun(name=message.run, owner=key, lease=message.lease, term=message.term)


def refusal_code(cause: str) -> str:
    """How a failed loading is told: the worker's own refusal code, or the document is to blame."""
    if cause == FailureCause.MEMORY:
        return RefusalCode.MEMORY
    return cause if cause in CODES else RefusalCode.DOCUMENT
