"""The simulator where each server has one processor that computes one batch after the other, as the
worker of an agent does. The frames of a stream come one by one.

`ServingSimulation` plays replicas side by side as they were profiled, and a stream by the rate that
it was granted. Here a batch takes the time that it takes alone, once those before it are done, and
whose turn it is `scheduling.fair_queueing` says, as on real devices. So this predicts what agents
do.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from potluck.serve.scheduling.events import Action, ComputeBatch, RequestArrived, Settled, TurnCame
from potluck.serve.scheduling.fair_queueing import FairQueue, WaitingBatch
from potluck.serve.scheduling.placement import Placement
from potluck.serve.scheduling.records import Request
from potluck.serve.scheduling.replica_pools import PoolKey
from potluck.serve.simulate.arrivals import Arrival
from potluck.serve.simulate.engine import DONE, EXCHANGE, Scenario, ServingSimulation
from potluck.serve.simulate.scheme import Scheme

FRAME = EXCHANGE + 1  # after the engine's own kinds of event


class SerialServing(ServingSimulation):
    """One scenario by one scheme.

    Parameters
    ----------
    scenario, scheme, clock, placement
        As of `ServingSimulation`; each server has one processor.
    """

    by_turns = True

    def __init__(
        self,
        scenario: Scenario,
        scheme: Scheme,
        clock: Callable[[], float] | None = None,
        placement: Placement | None = None,
    ) -> None:
        super().__init__(scenario, scheme, clock, placement)
        self.turns = [FairQueue() for _ in self.nodes]
        self._begun_s: dict[int, float] = {}  # of batches that are with their processor
        self._free_s = [0.0] * len(self.nodes)
        self._n_ids = max((each.request.id for each in scenario.arrivals), default=0)
        self._entrance: dict[int, int] = {}  # of streams

    def alone_s(self, start: ComputeBatch) -> float:
        """Seconds of a batch by itself."""
        times = self.allocations[start.pool[:2]].variant.times[1]
        return times.at(len(start.requests)) * max(each.work for each in start.requests)

    def begin_batch(self, index: int, start: ComputeBatch, now_s: float) -> None:
        """A processor is given a batch; it computes what it was given before first.

        Parameters
        ----------
        index
            Of the server.
        start
            The batch.
        now_s
            The time.
        """
        self._at(self._free_s[index], DONE, index, start)

    def batch_done(self, index: int, start: ComputeBatch, now_s: float) -> None:
        """A batch has ended.

        Parameters
        ----------
        index
            Of the server.
        start
            The batch.
        now_s
            The time.
        """
        self.turns[index].done(start.pool[0], now_s - self._begun_s.pop(id(start)))
        if not self.turns[index].n_under_way:
            self._free_s[index] = now_s
        super()._event(DONE, index, start, now_s)

    def _compute(self, index: int, start: ComputeBatch, now_s: float) -> None:
        self._begun_s[id(start)] = begun_s = max(now_s, self._free_s[index])
        self._free_s[index] = begun_s + self.alone_s(start)
        self.begin_batch(index, start, now_s)

    def _follow(self, index: int, actions: Sequence[Action], now_s: float) -> None:
        super()._follow(index, actions, now_s)
        while self._give_turn(index, now_s):
            pass

    def _give_turn(self, index: int, now_s: float) -> bool:
        """Give one turn; whether there was one to give."""
        node, start_s = self.nodes[index], max(now_s, self._free_s[index])
        offered = {key: self._offered(index, key, now_s) for key in node.pools()}
        waiting = {key: batch for key, batch in offered.items() if batch is not None}
        if (chosen := self.turns[index].next([*waiting.values()], start_s)) is None:
            return False
        pool = next(key for key, batch in waiting.items() if batch is chosen)
        actions = node.handle(TurnCame(pool, start_s), now_s)
        if any(isinstance(action, ComputeBatch) for action in actions):
            self.turns[index].begun(chosen)
        super()._follow(index, actions, now_s)
        return True

    def _offered(self, index: int, key: PoolKey, now_s: float) -> WaitingBatch | None:
        """What a pool would compute next. None of its batches follows another one as on devices:
        there is no way to a processor, during which it would have no time without.
        """
        node = self.nodes[index]
        batch = node.waiting(key, now_s)
        if batch is None or not node.must_follow(key):
            return batch
        return replace(batch, may_begin=False)

    # --- streams

    def _event(self, code: int, index: int, what: object, now_s: float) -> None:
        if code == FRAME:
            assert isinstance(what, Request)
            self._frame(what, index, now_s)
        elif code == DONE:
            assert isinstance(what, ComputeBatch)
            self.batch_done(index, what, now_s)
        else:
            super()._event(code, index, what, now_s)

    def _enter(self, arrival: Arrival, now_s: float) -> None:
        if arrival.request.fps:
            self._entrance[arrival.request.id] = self.index[arrival.server]
        super()._enter(arrival, now_s)

    def _opened(self, request: Request, fps: float, index: int, now_s: float) -> None:
        stream = self._streams[request.id]
        is_first = not stream.servers
        super()._opened(request, fps, index, now_s)
        if not is_first:
            return
        streamed, entrance = stream.request, self._entrance[request.id]
        for number in range(streamed.n_frames):
            self._n_ids += 1
            at_s = now_s + number / streamed.fps
            limit_s = self.services[streamed.service].slo.tolerance_s
            frame = Request(
                self._n_ids,
                streamed.service,
                at_s,
                at_s + limit_s,
                priority=streamed.priority,
                stream=streamed.id,
                frame=number,
            )
            self._at(at_s, FRAME, entrance, frame)

    def _frame(self, frame: Request, index: int, now_s: float) -> None:
        self._deadline_s[frame.id] = frame.deadline_s
        self._follow(index, self.nodes[index].handle(RequestArrived(frame), now_s), now_s)

    def _refused(self, request: Request, now_s: float) -> None:
        """Who handed a stream on hears that it was refused there."""
        if request.fps and len(request.path) > 1:
            index = self.index[request.path[-2]]
            settled = Settled(request.id, refused=True)
            self._follow(index, self.nodes[index].handle(settled, now_s), now_s)

    def _end(self, what: object, now_s: float) -> None:
        """Its frames have been counted one by one."""
        assert isinstance(what, int)
        stream = self._streams[what]
        stream.granted_fps = 0.0
        super()._end(what, now_s)
