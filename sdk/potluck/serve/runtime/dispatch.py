"""The entrance of a home: requests in, batches to devices, answers out; each request is answered or
refused exactly once.

`ServerNode` decides (`serve/scheduling`), and this carries it out: any thread may ask; what comes
back is taken in the link's thread; one more thread wakes the node up. All state is guarded by one
lock. Answers are handed to their callers after it is released.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

from potluck.errors import DeviceGone, NotServed, PotluckError, RequestFailed
from potluck.serve.runtime.alarm import Alarm
from potluck.serve.runtime.batches import Batch, Begins, LoadedPool, least_busy, offers, pools_alive
from potluck.serve.runtime.device_turns import DeviceTurns, Turn
from potluck.serve.runtime.homeless_requests import HomelessRequests
from potluck.serve.runtime.loaded_model import Compute, Computing, Loaded
from potluck.serve.runtime.pending_requests import (
    LOSSES,
    TRIES,
    ComputedBatch,
    Part,
    Pending,
    RequestRow,
    apart,
    calls_of,
    closed,
    failures_of_requests,
    joined,
    refusal,
)
from potluck.serve.scheduling.events import (
    Action,
    BatchDone,
    BatchFailed,
    ComputeBatch,
    Event,
    Open,
    Placed,
    RefuseRequest,
    RequestArrived,
    StreamEnded,
    Tick,
    TurnCame,
    WakeAt,
)
from potluck.serve.scheduling.fair_queueing import WaitingBatch
from potluck.serve.scheduling.known_servers import NoView
from potluck.serve.scheduling.node import OURS, Policy, ServerNode
from potluck.serve.scheduling.records import Request, ServiceSpec
from potluck.serve.scheduling.replica_pools import Pool, PoolKey
from potluck.serve.stats import CLOSED, NOBODY, TOO_MANY_ROWS, Counts, ServiceStats
from potluck_wire.messages import RefusalCode
from potluck_wire.request_handler import ServeRefusal

if TYPE_CHECKING:
    import torch

STATE_S = 1.0  # between statements of its own state, by which idle goodput is counted


class Dispatch:
    """What is served by a home, at one entrance.

    Parameters
    ----------
    compute
        Has the rows of a batch computed.
    clock
        Seconds, monotonic.
    policy
        How the node decides.
    seed
        Of its randomness.
    is_placed_anew
        Whether somebody places anew when a device is lost, and says by `placed_anew` when that is
        done: until then, and for as long as their limit allows, requests wait for it that have no
        device.
    later
        Has answers handed over; in the thread that sends batches, once those that follow are sent.
    """

    def __init__(
        self,
        compute: Compute,
        clock: Callable[[], float] = time.monotonic,
        policy: Policy = OURS,
        seed: int = 0,
        *,
        is_placed_anew: bool = False,
        later: Callable[[Callable[[], Any]], None] = lambda give: give(),
    ) -> None:
        self._compute, self._later = compute, later
        self.clock = clock
        self.records: dict[str, ServiceSpec] = {}
        self.counts: dict[str, Counts] = {}
        self.lost = threading.Event()  # a device went
        rng = Random(seed)
        self._node = ServerNode("home", self.records, NoView(), rng, policy, by_turns=True)
        self._lock = threading.RLock()
        self.turns = DeviceTurns(clock, self._turn)
        self._held: dict[PoolKey, LoadedPool] = {}
        self._rows: dict[int, RequestRow] = {}
        self._streams: dict[int, float] = {}
        self._asked_fps: dict[int, float] = {}  # of streams that have not ended
        self._is_placed_anew, self._is_placing = is_placed_anew, False
        self._homeless = HomelessRequests()
        self._numbers = count(1)
        self._depth, self._is_going_on = 0, False
        self._events: deque[tuple[Event, Begins | None]] = deque()
        self._settled: list[Callable[[], None]] = []
        self._closed = False
        self._alarm = Alarm(clock, STATE_S, self._rung)

    # --- for any thread ---------------------------------------------------------------------------

    def add(self, record: ServiceSpec) -> None:
        """Serve this from now on, once it is placed."""
        with self._turn():
            if record.name not in self.records:  # one of this name may have been served before
                self.counts[record.name] = Counts()
            self.records[record.name] = record

    def remove(self, name: str) -> None:
        """Serve this no longer: whoever waits is refused, and its devices forget it."""
        with self._turn():
            self.records.pop(name, None)
            for row in [r for r in self._rows.values() if r.pending.service == name]:
                self._refuse(row.pending, CLOSED)
            self._put([h for h in self._held.values() if h.pool.allocation.service != name])

    def ask(
        self,
        name: str,
        inputs: "Sequence[torch.Tensor]",
        rows: int,
        answer: Callable[["list[torch.Tensor]"], Any],
        is_open: Callable[[], bool] = lambda: True,
        *,
        stream: int | None = None,
        frame: int = 0,
        limit_s: float | None = None,
    ) -> Pending:
        """Have a request answered; comes back at once.

        Parameters
        ----------
        name
            Of the service.
        inputs
            Each [rows, ...].
        rows
            How many.
        answer
            Makes what the caller gets of the outputs.
        is_open
            Whether the service of this name is still the one that is asked; called under the lock.
        stream, frame
            Of a frame: its stream, as `open` gave it, and its place there.
        limit_s
            A limit of the caller's own, if it is shorter than the service's.
        """
        now_s = self.clock()
        with self._turn():
            record = self.records.get(name)
            own_s = record.slo.tolerance_s if record is not None else 0.0
            limit_s = own_s if limit_s is None else min(own_s, limit_s)
            counts = self.counts.get(name, Counts())
            pending = Pending(name, inputs, rows, now_s, limit_s, answer, counts)
            if record is None or self._closed or not is_open():
                self._settled.append(partial(pending.future.set_exception, closed(name, limit_s)))
                return pending
            counts.n_asked += 1
            if rows > record.max_queue:
                text = f"its queue takes {record.max_queue} rows, not {rows}"
                self._refuse(pending, TOO_MANY_ROWS, text)
                return pending
            self._admit(name, stream)
            priority, until_s = record.priority, now_s + limit_s
            for index in range(rows):
                if pending.is_over:
                    break
                number = next(self._numbers)
                self._rows[number] = RequestRow(pending, index)
                pending.numbers.append(number)
                request = Request(
                    number, name, now_s, until_s, priority=priority, stream=stream, frame=frame
                )
                self._handle(RequestArrived(request))
        return pending

    def open(self, name: str, fps: float) -> tuple[int, float]:
        """Admit a stream; its number, and the frames per second that it is granted: 0 is none yet
        where it is open, as its frames wait for a device like other requests, and else none.

        Parameters
        ----------
        name
            Of a frequency service.
        fps
            Frames per second that are asked for.
        """
        with self._turn():
            number = next(self._numbers)
            self._asked_fps[number] = fps
            self._admit(name, number)
            granted_fps = self._streams.get(number, 0.0)
            waits = self._is_placing and self._node.now(name, self.clock()) is None
            if not granted_fps and not waits:
                del self._asked_fps[number]
            return number, granted_fps

    def is_open(self, stream: int) -> bool:
        """Whether a stream may ask: it is granted frames, or its service is being placed anew."""
        return stream in self._asked_fps

    def granted_fps(self, stream: int) -> float:
        """What a stream is granted now; 0 once it is over."""
        return self._streams.get(stream, 0.0)

    def end(self, name: str, stream: int) -> None:
        """A stream is over."""
        with self._turn():
            self._streams.pop(stream, None)
            self._asked_fps.pop(stream, None)
            self._handle(StreamEnded(name, stream))

    def place(self, pools: Sequence[tuple[Pool, Sequence[Loaded]]]) -> None:
        """These from now on. What else is loaded finishes its batches, and then goes."""
        with self._turn():
            self._put([LoadedPool(pool, tuple(loaded)) for pool, loaded in pools])

    def placed_anew(self) -> None:
        """Who places anew is done with what was lost before `lost` was cleared."""
        with self._turn():
            self._is_placing = self._is_placed_anew and self.lost.is_set()
            self._settle_homeless()

    def loaded(self, name: str, devices: tuple[str, ...]) -> Loaded | None:
        """What is loaded there of this service, and not lost."""
        with self._lock:
            held = [h for h in self._held.values() if h.pool.allocation.service == name]
            loaded = (each for pool in held for each in pool.loaded if each.devices == devices)
            return next((each for each in loaded if not each.is_lost), None)

    def pools(self) -> tuple[LoadedPool, ...]:
        """What is placed now."""
        with self._lock:
            return tuple(self._held.values())

    def stats(self, name: str) -> ServiceStats:
        """What a service has done so far."""
        return self.stats_of(self.counts[name])

    def stats_of(self, counts: Counts) -> ServiceStats:
        """What a service has done that is counted there: one that is closed, too."""
        with self._lock:
            return counts.stats()

    def expected_s(self, name: str) -> float | None:
        """Until when a request that came now would be answered; None: nobody has it."""
        with self._lock:
            return self._soonest_s(name)

    def close(self) -> None:
        """End all services."""
        with self._turn():
            self._closed = True
            for name in tuple(self.records):
                self.remove(name)
        self.turns.close()
        self._alarm.close()
        self.lost.set()

    # --- who holds the lock -----------------------------------------------------------------------

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """All that follows from what happens inside is done, and whoever has a turn begins; then
        callers get their answers.
        """
        with ExitStack() as after, self._lock:
            self._depth += 1
            try:
                yield
                while self._depth == 1 and self.turns.give(self._offered()):
                    pass
            finally:
                self._depth -= 1
                while not self._depth and self._settled:
                    after.callback(self._later, self._settled.pop())  # the last one is called first

    def _handle(self, event: Event, begins: Begins | None = None) -> None:
        """Have an event handled, and then what its actions lead to: one after the other, never one
        within another.
        """
        self._events.append((event, begins))
        if self._is_going_on:
            return
        self._is_going_on = True
        try:
            while self._events:
                event, begins = self._events.popleft()
                for action in self._node.handle(event, self.clock()):
                    self._carry_out(action, begins)
        finally:
            self._is_going_on = False

    def _carry_out(self, action: Action, begins: Begins | None) -> None:
        match action:
            case ComputeBatch():
                assert begins is not None  # only at its turn
                self._start(action, *begins)
            case RefuseRequest(request, reason):
                self._refused(request, reason)
            case Open(_, request, grant):
                self._streams[request.id] = grant.total_fps
            case WakeAt(at_s):
                self._alarm.at(at_s)

    def _refused(self, request: Request, reason: ServeRefusal) -> None:
        self._streams.pop(request.id, None)
        if (row := self._rows.get(request.id)) is None:
            return
        if self._node.now(request.service, self.clock()) is not None:
            self._refuse(row.pending, reason.value)
        elif not self._waits(request):
            self._refuse(row.pending, NOBODY)

    def _admit(self, name: str, stream: int | None) -> None:
        """A stream that nobody has is asked for: a new one, or one whose devices were lost."""
        record, fps = self.records.get(name), self._asked_fps.get(stream or 0)
        if stream is None or record is None or fps is None or stream in self._streams:
            return
        now_s = self.clock()
        until_s = now_s + record.slo.tolerance_s
        self._handle(RequestArrived(Request(stream, name, now_s, until_s, fps=fps)))

    def _settle_homeless(self) -> None:
        for request in self._homeless.take_all():
            if request.id in self._rows:
                self._admit(request.service, request.stream)
                self._handle(RequestArrived(request))

    def _waits(self, request: Request) -> bool:
        """Whether a request that no device has a place for waits until there is one."""
        record = self.records.get(request.service)
        if not self._is_placing or not self._homeless.keep(request, record, self.clock()):
            return False
        self._alarm.at(request.deadline_s)
        return True

    def _refuse(self, pending: Pending, reason: str, text: str = "") -> None:
        if pending.is_over:
            return
        pending.counts.refused[reason] += 1
        self._over(pending, refusal(pending, reason, self._soonest_s(pending.service), text))

    def _soonest_s(self, name: str) -> float | None:
        state = self._node.now(name, self.clock())
        return None if state is None else state.queue_s + state.batch_s

    def _fail(self, pending: Pending, error: PotluckError) -> None:
        if not pending.is_over:
            pending.counts.n_failed += 1
            self._over(pending, error)

    def _over(self, pending: Pending, error: PotluckError | None) -> None:
        pending.is_over = True
        pending.answered_s = self.clock()
        for number in pending.numbers:
            self._rows.pop(number, None)
        give = pending.give if error is None else partial(pending.future.set_exception, error)
        self._settled.append(give)

    # --- batches ----------------------------------------------------------------------------------

    def _offered(self) -> dict[str, list[Turn]]:
        """By device, the batches that would be made up there now."""
        found: dict[str, list[Turn]] = {}
        for key, loaded, batch in offers(self._held, self.turns, self._node, self.clock()):
            turn = Turn(batch, partial(self._turn_came, key, loaded, batch))
            found.setdefault(loaded.devices[0], []).append(turn)
        return found

    def _turn_came(self, key: PoolKey, loaded: Loaded, batch: WaitingBatch) -> None:
        start_s = self.turns.start_s(loaded.devices[0])
        n_sharing = self._held[key].n_sharing(loaded, self.turns.n_under_way)
        self._handle(TurnCame(key, start_s, n_sharing), (loaded, batch))

    def _start(self, start: ComputeBatch, turn_at: Loaded, waiting: WaitingBatch) -> None:
        rows = [self._rows[r.id] for r in start.requests if r.id in self._rows]
        loaded = least_busy(self._held.values(), start.pool, turn_at, rows)
        if loaded is None:
            self._place_anew()
            for request in start.requests:
                if request.id in self._rows and not self._waits(request):
                    self._refuse(self._rows[request.id].pending, NOBODY)
        if loaded is None or not rows:
            self._handle(BatchDone(start.pool, start.replica))
            return
        calls = deque(calls_of(rows, loaded.batch))
        device = loaded.devices[0]
        backlog = self.turns.backlogs[device]
        batch = Batch(start.pool, start.replica, loaded, calls, backlog, rows=rows)
        if (held := self._held.get(start.pool)) is not None:
            batch.times = held.pool.allocation.variant.times[1]
        batch.begun_s = self.clock()
        loaded.n_under_way += 1
        self.turns.begun(device, waiting)
        self._call(batch)

    def _call(self, batch: Batch) -> None:
        """Have the next rows of a batch computed; where there are none, it is over."""
        while batch.calls:
            if not (rows := self._in_time(batch, batch.calls.popleft())):
                continue
            batch.called_s = self.clock()
            left_s = max(row.pending.deadline_s for row in rows) - batch.called_s
            try:
                with failures_of_requests():
                    inputs, loaded = joined(rows), batch.loaded
                    in_flight = self._compute(batch.pool[0], loaded, inputs, len(rows), left_s)
            except RequestFailed as error:
                self._failed(batch, rows, error)
                continue
            except PotluckError as error:
                self._lost(batch, rows, error)
                return
            batch.backlog.begun(batch, batch.alone_s(len(rows)), batch.called_s)
            in_flight.on_done(partial(self._came, batch, rows, in_flight))
            return
        self._ended(batch)
        self._handle(BatchDone(batch.pool, batch.replica, batch.took_s, batch.expected_s))

    def _in_time(self, batch: Batch, rows: list[RequestRow]) -> list[RequestRow]:
        """Those that somebody waits for; who waited too long for the calls before is refused."""
        for row in batch.too_late(rows, self.clock()):
            self._refuse(row.pending, ServeRefusal.CANNOT_MEET.value)
        return [row for row in rows if not row.pending.is_over]

    def _came(self, batch: Batch, rows: list[RequestRow], in_flight: Computing, _: object) -> None:
        """In the link's thread: a call has ended."""
        with self._turn():
            batch.call_ended(len(rows), self.clock())
            try:
                with failures_of_requests():
                    parts = apart(in_flight.wait(), len(rows))
            except RequestFailed as error:
                self._failed(batch, rows, error)
            except NotServed as refused:
                self._elsewhere(batch, rows, refused)
                return
            except CancelledError:
                gone = DeviceGone("it was given up.", device=batch.loaded.devices[0])
                self._lost(batch, rows, gone)
                return
            except PotluckError as error:
                self._lost(batch, rows, error)
                return
            else:
                self._answered(rows, parts, batch.computed(in_flight.devices, rows, self.clock()))
            self._call(batch)

    def _failed(self, batch: Batch, rows: list[RequestRow], error: RequestFailed) -> None:
        if len(rows) == 1:
            self._fail(rows[0].pending, error)
        else:  # one of them is to blame
            batch.calls.extendleft([row] for row in reversed(rows))

    def _answered(self, rows: list[RequestRow], parts: list[Part], computed: ComputedBatch) -> None:
        rows[0].pending.counts.computed(computed.devices, computed.rows)
        for row, part in zip(rows, parts, strict=True):
            pending = row.pending
            if pending.is_over:
                continue
            self._rows.pop(pending.numbers[row.index])  # what is lost later is not asked again
            if pending.put(row.index, part, computed):
                self._over(pending, None)
                pending.counts.answered(pending.taken_s, pending.queue_s, late=pending.is_late)

    def _elsewhere(self, batch: Batch, rows: list[RequestRow], refused: NotServed) -> None:
        """The device would not, or whom it handed them on to: what is left of the batch is decided
        anew, for another one. A row that is refused again is refused, and one whose time is over.
        """
        reason = str(refused.facts["reason"])
        self._ended(batch)
        for row in rows:
            if reason == RefusalCode.LATE:
                self._refuse(row.pending, ServeRefusal.TIMED_OUT.value)
            elif row.refused_by:
                self._refuse(row.pending, reason)
            row.refused_by = batch.loaded.devices[0]
            row.n_lost += reason in LOSSES
        if reason == RefusalCode.LEAVING:
            batch.loaded.is_leaving |= len(refused.facts.get("path", ())) < 2  # it said so itself
            self._place_anew()
        self._handle(BatchFailed(batch.pool, batch.replica))

    def _lost(self, batch: Batch, rows: list[RequestRow], error: PotluckError) -> None:
        """Whoever computed it is lost: what is left of the batch is decided anew."""
        self._ended(batch)
        for row in rows:
            row.n_lost += 1
            row.pending.counts.n_again += 1
            if row.n_lost > TRIES:
                self._fail(row.pending, error)
        if not batch.loaded.is_lost:
            batch.loaded.close()
        self._place_anew()
        self._handle(BatchFailed(batch.pool, batch.replica))

    def _place_anew(self) -> None:
        self._is_placing = self._is_placed_anew
        self.lost.set()
        self._put([*self._held.values()])  # without what is lost, or leaves

    def _ended(self, batch: Batch) -> None:
        batch.loaded.n_under_way -= 1
        self._let_go([batch.loaded])
        self.turns.left(batch.loaded.devices[0], batch.pool[0], batch.turn_s(self.clock()))

    # --- placement --------------------------------------------------------------------------------

    def _put(self, pools: Sequence[LoadedPool]) -> None:
        """These from now on, without what is lost."""
        before = [each for held in self._held.values() for each in held.loaded]
        self._held = {held.pool.key: held for held in pools_alive(pools)}
        self._handle(Placed(tuple(held.pool for held in self._held.values())))
        self._let_go(before)

    def _let_go(self, loaded: Sequence[Loaded]) -> None:
        """Devices forget what is not placed any more and has no batch under way."""
        kept = {id(each) for held in self._held.values() for each in held.loaded}
        for each in loaded:
            if id(each) not in kept and not each.n_under_way and not each.is_lost:
                each.close()

    def _rung(self, is_due: bool, is_over: bool) -> None:
        with self._turn():
            self._handle(Tick())
            if is_due:
                self._settle_homeless()
            if is_over:
                self._node.state(self.clock())
