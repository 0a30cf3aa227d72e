"""The work of this device: executing programs, and letting their values in and out. Pure.

`EpochTable` says what is loaded, `Execution` what is ready, `ComputeQueue` what the worker does
next, `SendQueue` and `ReceiveBuffers` what is on the links; here they are put together.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial

from potluck_agent.core.compute_queue import ComputeQueue, QueuedTask
from potluck_agent.core.deferred_work import DeferredWork, Piece
from potluck_agent.core.early_values import EarlyValues
from potluck_agent.core.epochs import EpochTable, OtherNotebooks
from potluck_agent.core.events import Buffer, PeerDevice, Span
from potluck_agent.core.execution import (
    ASKED_STEP,
    EarlyValue,
    Execution,
    Located,
    Name,
    OneWay,
    Ready,
    SendOf,
    Unwanted,
    compute_of,
    key_of,
    put_of,
    transfer_of,
)
from potluck_agent.core.inbound_space import WORKER
from potluck_agent.core.outbox import Outbox, Settings
from potluck_agent.core.receive_buffers import ChunkOutcome, IncomingValue, ReceiveBuffers
from potluck_agent.core.run_state import LoadedRun
from potluck_agent.core.send_queue import SendQueue, Transfer
from potluck_agent.core.waiting_executions import ExecutionRequest, WaitingExecutions, crowded
from potluck_agent.core.work_queue import WorkQueue
from potluck_agent.core.worker_proxy import WorkerProxy
from potluck_wire.documents import dump
from potluck_wire.messages import (
    Abort,
    Computed,
    ComputeFailed,
    Done,
    Execute,
    Failed,
    FailureCause,
    Forget,
    Message,
    RefusalCode,
    Release,
    Value,
)

N_EVENTS = 1000  # of the times of an execution, written at once: it takes some 2 ms


class ExecutionEngine:
    """Executions of the runs of one notebook, `owner`, by name. `members(owner)` gives the roster
    of its home, by device name. `others`: what other notebooks have here.
    """

    def __init__(
        self,
        owner: str,
        settings: Settings,
        out: Outbox,
        worker: WorkerProxy,
        incoming: ReceiveBuffers,
        outgoing: SendQueue,
        members: Callable[[str], dict[str, PeerDevice]],
        others: OtherNotebooks,
    ) -> None:
        self._owner = owner
        self._out = out
        self._worker = worker
        self._hang_s = settings.hang_s
        self._is_told_times, self._outbound_bytes = settings.is_told_times, settings.outbound_bytes
        self._incoming = incoming
        self._outgoing = outgoing
        self._members = members
        self._compute_queue = ComputeQueue()
        self.plans = EpochTable(settings, out, worker, self._end_epoch, others)
        self._executions: dict[Name, Execution] = {}
        self.early = EarlyValues(settings.memory_bytes + settings.inbound_bytes)
        self._behind = WaitingExecutions()
        self._queue = WorkQueue()
        self._starting = (
            DeferredWork()
        )  # what is ready: nothing leaves before all of that is in its queue
        self._closing = DeferredWork()  # what is over: nobody waits for it
        self._n_executions = 0

    @property
    def busy(self) -> bool:
        """Whether any program is being executed."""
        return bool(self._executions)

    @property
    def is_starting(self) -> bool:
        """Whether more is ready than could be seen to at once: it may be the most urgent."""
        return bool(self._starting)

    def wake_s(self, now_s: float) -> float | None:
        """When `go_on` is to be called again, if no event comes first."""
        return now_s if self._starting or self._closing else None

    def go_on(self) -> None:
        """A new round: more of what was too much at once."""
        self._starting.go_on()
        self._closing.go_on()

    # --- executions -------------------------------------------------------------------------------

    def execute(self, key: str, message: Execute, now_s: float) -> None:
        """Run a program once. A repeat is answered again, or will be when the first one is over."""
        name = Name.of(message)
        run = self.plans.own(key, message.run)
        if run is None:
            self.plans.refuse_or_fail(key, message)
            return
        if name in run.answers:
            self.plans.answer_again(key, message, run.answers[name])
            return
        is_known = name in self._executions or name in self._behind
        if is_known or (layout := self.plans.layout(key, message, run)) is None:
            return
        is_full = crowded(self._executions.values(), self._behind, layout)
        if text := is_full or self._worker.crowded():
            self._out.refuse(key, message, RefusalCode.BUSY, text)
            return
        ahead = name._replace(step=message.after_step)
        if ahead in self._behind or (
            ahead in self._executions and not self._executions[ahead].only_computing
        ):
            self._behind.put(
                ExecutionRequest(
                    name=name, key=key, message=message, n_instructions=layout.n_instructions
                ),
                ahead,
            )
            return
        self._n_executions += 1
        execution = Execution(name, layout, key, self._n_executions, message.begin_s)
        self._executions[name] = execution
        execution.early = self.early.take(name)
        self._go_on(execution, execution.start(), now_s)
        if execution.early:
            self._starting.do(self._use_early(execution, now_s))

    def _use_early(self, execution: Execution, now_s: float) -> Piece:
        for value in tuple(execution.early):
            if execution.over:  # what is left went with it
                return
            self._use(execution, value, execution.early.pop(value), now_s)
            yield

    def _go_on(self, execution: Execution, ready: Ready, now_s: float) -> None:
        """What has become ready: tasks are offered, sends are posted, and perhaps that was all."""
        self._worker.n_finished += len(ready.done)
        if ready.tasks or ready.sends:
            self._starting.do(self._start(execution, ready, now_s))
        else:
            self._conclude(execution, now_s)

    def _start(self, execution: Execution, ready: Ready, now_s: float) -> Piece:
        for index in ready.tasks:
            if execution.over:
                return
            self._compute_queue.offer(execution, index)
            yield
        for index in ready.sends:
            if execution.over:
                return
            self._post(execution, index, now_s)
            yield
        self._conclude(execution, now_s)

    def _conclude(self, execution: Execution, now_s: float) -> None:
        """Perhaps that was all."""
        if execution.over or execution.closing:
            return
        if execution.complete:
            execution.closing = True
            piece = self._send_done(execution, now_s)
            if execution.layout.n_instructions > N_EVENTS:
                self._closing.do(piece)
            else:
                deque(piece, maxlen=0)
        elif execution.only_computing:
            self._let_follow(execution, now_s)

    def _send_done(self, execution: Execution, now_s: float) -> Piece:
        rows, n_instructions = [], execution.layout.n_instructions
        for start in range(0, n_instructions, N_EVENTS):
            rows.append(dump(execution.events(start, min(start + N_EVENTS, n_instructions)))[1:-1])
            yield
        if not execution.over:
            self._end(execution, execution.done(), (b"[" + b",".join(rows) + b"]",), now_s)

    def _let_follow(self, execution: Execution, now_s: float) -> None:
        """The executions that wait behind this one begin."""
        for ask in self._behind.take(execution.name):
            self._queue.do(partial(self.execute, ask.key, ask.message, now_s))

    def feed(self, now_s: float) -> None:
        """Keep the worker supplied."""
        while not self._starting and (pick := self._compute_queue.next()) is not None:
            self._compute(*pick, now_s)

    def _compute(self, tag: int, task: QueuedTask, now_s: float) -> None:
        execution = task.execution
        ready, frees = execution.queued(task.index)
        order = compute_of(execution, task.index, tag, frees, is_told_times=self._is_told_times)
        self._worker.send(order, (execution.layout.attrs[task.index],), now_s)
        self._go_on(execution, ready, now_s)

    def computed(self, message: Computed, buffers: Sequence[Buffer], now_s: float) -> None:
        """A task is done. WireError where the worker tells of values that it cannot have made."""
        task = self._compute_queue.finish(message.tag, message.stop_s - message.start_s)
        if task is None:
            return
        execution = task.execution
        exports = execution.exported(
            task.index, buffers[0], self._outbound_bytes, self._worker.number
        )
        if execution.over:
            for located in exports.values():
                self._give_back(located.span, now_s)
            return
        execution.places.update(exports)
        execution.peak_bytes = max(execution.peak_bytes, message.memory_bytes)
        self._go_on(
            execution, execution.computed(task.index, message.start_s, message.stop_s), now_s
        )

    def task_failed(self, message: ComputeFailed, now_s: float) -> bool:
        """A task failed, and its execution with it; False where this tag is none of ours."""
        task = self._compute_queue.finish(message.tag)
        if task is None:
            return False
        if not task.execution.over:
            self._fail(task.execution, message.cause, message.text, now_s, instruction=task.index)
        return True

    def _post(self, execution: Execution, index: int, now_s: float) -> None:
        """Hand a value to the send queue; what may go on because of that does so at once."""
        instruction = execution.instruction(index)
        peer = instruction.attrs["peer"]
        key = key_of(peer, execution.owner, self._members, execution)
        located = execution.places.get(instruction.inputs[0])
        is_one_way = index in execution.layout.targets
        if is_one_way and not key and located is not None:  # nobody is there to have it
            self._give_back(located.span, now_s)
            self._let_go(execution, index, now_s)
        elif not key or located is None:
            text = f"{instruction.inputs[0]} is not here" if key else f"{peer} is not in the roster"
            cause = FailureCause.INTERNAL if key else FailureCause.PEER_LOST
            self._fail(execution, cause, text, now_s, instruction=index)
        else:
            self._outgoing.add(transfer_of(execution, index, located, key, now_s), now_s)
            execution.posted(index)
            if is_one_way:
                self._let_go(execution, index, now_s)

    def _let_go(self, execution: Execution, index: int, now_s: float) -> None:
        """A one-way send counts as done, and what follows it leaves next.

        The execution does not hold its place any more.
        """
        ready, _ = execution.sent(index, now_s, now_s)  # such a value has no other send
        del execution.places[execution.instruction(index).inputs[0]]
        self._go_on(execution, ready, now_s)

    def _send_of(self, transfer: Transfer, now_s: float) -> tuple[Execution, int] | None:
        """The execution and the send that this transfer is of.

        Of a one-way send, which is over now, and others: None.
        """
        about = transfer.about
        if not isinstance(about, SendOf):
            return None
        if about.one_way:
            self._give_back(transfer.place, now_s)
            return None
        execution = self._executions.get(about.name)
        return None if execution is None else (execution, about.index)

    def delivered(self, transfer: Transfer, now_s: float) -> None:
        """A value of ours has arrived where it should."""
        if (sent := self._send_of(transfer, now_s)) is None:
            return
        execution, index = sent
        start_s = transfer.start_s if transfer.start_s is not None else now_s
        ready, last = execution.sent(index, start_s, now_s)
        self._worker.n_finished += 1
        if last:
            self._give_back(
                execution.places.pop(execution.instruction(index).inputs[0]).span, now_s
            )
        self._go_on(execution, ready, now_s)

    def refused(self, transfer: Transfer, code: str, text: str, now_s: float) -> None:
        """The receiver does not want a value of ours."""
        if (sent := self._send_of(transfer, now_s)) is not None:
            execution, index = sent
            cause = FailureCause.MEMORY if code == RefusalCode.MEMORY else FailureCause.PEER_LOST
            to = execution.instruction(index).attrs["peer"]
            text = f"{to} rejected {transfer.value.name}: {text}"
            self._fail(execution, cause, text, now_s, instruction=index)

    def lost(self, transfers: dict[Hashable, list[Transfer]], text: str, now_s: float) -> None:
        """These values of ours, by group, will not get where they should."""
        for group, lost in transfers.items():
            if isinstance(group, OneWay):
                spans = [transfer.place for transfer in lost]
                self._closing.do(self._give_back_all(spans, now_s))
            else:  # with one of its values the whole execution fails
                self.refused(lost[0], FailureCause.PEER_LOST, text, now_s)

    def _fail(
        self, execution: Execution, cause: str, text: str, now_s: float, *, instruction: int = -1
    ) -> None:
        if execution.over:  # of several that end, one may have let another come to its end
            return
        self._end(execution, execution.name.failed(cause, text, instruction), (), now_s)

    def fail_all(self, cause: str, text: str, now_s: float) -> None:
        """End every execution; what is loaded stays."""
        for execution in list(self._executions.values()):
            self._fail(execution, cause, text, now_s)

    def _end(
        self, execution: Execution, answer: Message, buffers: tuple[Buffer, ...], now_s: float
    ) -> None:
        """An execution is over, well or not: tell, give back every place, and remember the
        answer.
        """
        name = execution.name
        execution.over = True
        del self._executions[name]
        self._compute_queue.drop(execution)
        if execution.ends is None:
            self._answer(name, execution.owner, answer, buffers, now_s)
        else:
            assert isinstance(answer, Done | Failed)
            self.apply(self._incoming.settle(name), now_s)
            execution.ends(answer, now_s)
        self._outgoing.cancel((name,))
        spans = [located.span for located in execution.places.values()]
        self._closing.do(self._give_back_all(spans, now_s))
        self._waste(execution.early, now_s)
        execution.places, execution.early = {}, {}
        self._worker.send(Forget(prefix=name.prefix), (), now_s)
        if isinstance(answer, Done):
            self._let_follow(execution, now_s)
        else:
            self._cancel_behind(name)

    def _answer(
        self, name: Name, owner: str, answer: Message, buffers: tuple[Buffer, ...], now_s: float
    ) -> None:
        """Tell how an execution went, and remember it: what still comes for it is not kept."""
        self.plans.runs[name.run].answered(name, (answer, buffers))
        self._out.send(owner, answer, buffers)
        if not isinstance(answer, Done):
            self.apply(self._incoming.settle(name), now_s)

    def _cancel_behind(self, name: Name) -> None:
        for ahead, ask in self._behind.take_all(name):
            text = f"step {ahead.step} failed before it"
            self._out.send(ask.key, ask.name.failed(FailureCause.CANCELLED, text))

    def _end_epoch(self, run: LoadedRun, number: int, now_s: float) -> None:
        """Nothing of an epoch goes on: values that are coming (first: they take any room),
        executions, early values.
        """
        self.apply(self._incoming.cancel((run.name, number)), now_s)
        under_way = list(self._executions.values())
        for execution in [one for one in under_way if one.name[:2] == (run.name, number)]:
            self._fail(execution, FailureCause.CANCELLED, "its plan was dropped", now_s)
        for name in self.early.of_epoch(run.name, number):
            self._waste(self.early.take(name), now_s)

    def abort(self, key: str, message: Abort, now_s: float) -> None:
        """End one execution, and remember that: what still comes for it is not kept."""
        name = Name.of(message)
        run = self.plans.own(key, message.run)
        if run is None:
            self._out.refuse(key, message, RefusalCode.UNKNOWN_RUN, self.plans.why_not(message.run))
        elif name not in run.answers and self.plans.layout(key, message, run) is not None:
            text = "it was aborted"
            if name in self._executions:
                self._fail(self._executions[name], FailureCause.CANCELLED, text, now_s)
                return
            # One that has not begun fails before it does.
            self._behind.forget(name)
            self._answer(name, key, name.failed(FailureCause.CANCELLED, text), (), now_s)
            self._worker.send(Forget(prefix=name.prefix), (), now_s)
            self._cancel_behind(name)
            self._waste(self.early.take(name), now_s)

    # --- values -----------------------------------------------------------------------------------

    def expect(self, key: str, value: Value) -> tuple[str, int] | None:
        """Whose value this is (run, epoch); None where it is here already.

        `Unwanted` where it does not belong.
        """
        name = Name.of(value)
        execution = self._executions.get(name)
        known = execution.layout if execution is not None and execution.peers else None
        run, peer = self.plans.taker(value, known)
        if key != key_of(peer, run.owner, self._members, execution):
            raise Unwanted(RefusalCode.DOCUMENT, f"{value.name} is to come from {peer}")
        has_arrived = (
            execution.has_arrived(value.name) if execution else self.early.has(name, value.name)
        )
        if has_arrived or name in run.answers:
            return None
        if execution is None:
            layout = run.epochs[value.epoch].layouts[value.program]
            if text := self.early.crowded(name, layout, value):
                raise Unwanted(RefusalCode.MEMORY, text)
        if text := self._worker.crowded():
            raise Unwanted(RefusalCode.BUSY, text)
        return value.run, value.epoch

    def goes_on_after(self, value: Value) -> bool:
        """Whether more goes to and fro in the same step of training that this value's credit can go
        along with.
        """
        execution = self._executions.get(Name.of(value))
        if execution is None or not self.plans.runs[value.run].epochs[value.epoch].credit_along:
            return False
        return execution.goes_on_after(value.name)

    def apply(self, step: ChunkOutcome, now_s: float) -> None:
        """Carry out what a chunk or a free place has led to."""
        self._out.add(*step.actions)
        for arrival in step.complete:
            if not arrival.sink:
                self._queue.do(partial(self._arrived, arrival, now_s))

    def _arrived(self, arrival: IncomingValue, now_s: float) -> None:
        """A value is complete: to the worker, if it computes with it.

        Kept in place, if it is sent on.
        """
        value = arrival.value
        name = Name.of(value)
        run = self.plans.runs.get(value.run)
        epoch = run.epochs.get(value.epoch) if run else None
        span = arrival.span
        execution = self._executions.get(name)
        has_arrived = (
            execution.has_arrived(value.name) if execution else self.early.has(name, value.name)
        )
        is_over = execution is None and value.step >= ASKED_STEP
        if run is None or epoch is None or has_arrived or is_over or name in run.answers:
            self._give_back(span, now_s)
            return
        layout = execution.layout if execution else epoch.layouts[value.program]
        uses, sends = layout.uses.get(value.name, 0), layout.sends.get(value.name, 0)
        if uses:
            self._incoming.space.lend(span.offset, WORKER)
            self._worker.send(put_of(value, span), (), now_s)
        if not sends:
            self._give_back(span, now_s)
        located = Located(span=span, dtype=value.dtype, shape=value.shape) if sends else None
        early = EarlyValue(
            located=located,
            worker_bytes=value.nbytes if uses else 0,
            start_s=arrival.start_s,
            stop_s=now_s,
        )
        if execution is None:
            self.early.put(name, layout, value.name, early)
        else:
            self._use(execution, value.name, early, now_s)

    def _use(self, execution: Execution, value: str, early: EarlyValue, now_s: float) -> None:
        if early.located is not None:
            execution.places[value] = early.located
        self._go_on(execution, execution.arrived(value, early.start_s, early.stop_s), now_s)

    def freed(self, offset: int, now_s: float) -> None:
        """The worker does not look at that place any more."""
        self.apply(self._incoming.release(offset, WORKER), now_s)

    def tick(self, now_s: float) -> None:
        """A value that found no room for long, while nothing is computed that could free some,
        never will.
        """
        if not self._worker.is_working:
            self.apply(self._incoming.give_up(now_s - self._hang_s), now_s)

    def _give_back(self, span: Span, now_s: float) -> None:
        """We do not need that place any more."""
        if span.arena == "inbound":
            self.apply(self._incoming.release(span.offset), now_s)
        else:
            self._worker.send(Release(offset=span.offset), (), now_s)
            self._worker.moved(now_s)

    def _give_back_all(self, spans: Iterable[Span], now_s: float) -> Piece:
        for span in spans:
            self._give_back(span, now_s)
            yield

    def _waste(self, values: dict[str, EarlyValue], now_s: float) -> None:
        """Nobody will send these values on."""
        spans = [early.located.span for early in values.values() if early.located is not None]
        self._closing.do(self._give_back_all(spans, now_s))

    def lose_worker(self, cause: str, text: str, now_s: float) -> None:
        """All that was loaded is lost: every execution fails, every prepare is refused, the runs
        are forgotten.
        """
        self._out.add(*self._incoming.clear().actions)
        self._compute_queue.clear()
        self.fail_all(cause, text, now_s)
        self._outgoing.cancel((OneWay(self._owner),))
        self.early.clear()
        self._starting.clear()
        self._closing.clear()  # places of an arena that is no more
        self.plans.lose_all(cause, text)
