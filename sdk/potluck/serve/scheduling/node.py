"""One server's decisions together: handler, queues, streams and its own state. A pure machine:
`handle(event, now_s) -> actions`. The runtime and the simulator drive this very class.

A pool is the replicas of one service on one kind of processor by one way (alone, across servers, on
an edge device): it has a queue and, for frequency services, a ledger of streams. Every accepted
request leaves by exactly one of `ComputeBatch` followed by `BatchDone`, `HandOn` followed by
`Settled`, and `RefuseRequest`; what was lost on the way is decided anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from random import Random

from potluck.serve.scheduling import batching
from potluck.serve.scheduling.batching import Batcher
from potluck.serve.scheduling.events import (
    Action,
    BatchDone,
    BatchFailed,
    ComputeBatch,
    Event,
    HandOn,
    Open,
    Placed,
    RefuseRequest,
    RequestArrived,
    ServerGone,
    Settled,
    StreamEnded,
    Tick,
    TurnCame,
    WakeAt,
)
from potluck.serve.scheduling.fair_queueing import WaitingBatch
from potluck.serve.scheduling.frame_streams import StreamLedger
from potluck.serve.scheduling.known_servers import NoView, View
from potluck.serve.scheduling.records import Request, ServerState, ServiceSpec, ServiceState
from potluck.serve.scheduling.replica_pools import Pool, PoolKey
from potluck_wire import request_handler
from potluck_wire.request_handler import (
    Choose,
    HandlerRules,
    LocalOption,
    Offload,
    Refuse,
    Serve,
    ServeRefusal,
    Way,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a server decides; the baselines are other values of it.

    `wait_frac`: part of its slack that a request may wait for a fuller batch. `early_drop`: what
    cannot hold its deadline is not computed. `data_parallel`: a stream may use several replicas.
    """

    choose: Choose = request_handler.by_spare_finish
    rules: HandlerRules = request_handler.EPARA_RULES
    wait_frac: float = 0.0
    early_drop: bool = True
    data_parallel: bool = True


OURS = Policy()
EPARA = Policy(choose=request_handler.by_idle_goodput, early_drop=False)


_REASONS = {
    batching.TIMED_OUT: ServeRefusal.TIMED_OUT,
    batching.CANNOT_MEET: ServeRefusal.CANNOT_MEET,
    batching.QUEUE_FULL: ServeRefusal.QUEUE_FULL,
}


@dataclass(slots=True)
class _Held:
    """A pool with its queue, its streams and the batches that are computed. `refuses`: whether it
    had too much to do for a request within the service's limit, since its latest batch began.
    """

    pool: Pool
    queue: Batcher
    ledger: StreamLedger | None
    running: dict[int, tuple[Request, ...]]
    refuses: bool = False


@dataclass(slots=True)
class _Route:
    """Where the frames of an admitted stream go: a part here, the rest to a server."""

    request: Request
    pool: PoolKey | None
    here_frac: float
    server: str = ""

    def is_here(self, frame: int) -> bool:
        """Spread evenly: of the first n frames about n times `here_frac` are."""
        return int((frame + 1) * self.here_frac + 1e-9) > int(frame * self.here_frac + 1e-9)


class ServerNode:
    """One server.

    Parameters
    ----------
    name
        Of this server, as it stands in paths.
    services
        By name: all that are served in the home, here or elsewhere.
    view
        What is known of the others.
    rng
        Randomness.
    policy
        How it decides.
    reply_s
        By service, seconds until an answer is back from another server: for what is handed on,
        the deadline is that much earlier there.
    by_turns
        Whether its services take turns on what computes: each batch is made up when `TurnCame`.
    """

    def __init__(
        self,
        name: str,
        services: Mapping[str, ServiceSpec],
        view: View,
        rng: Random,
        policy: Policy = OURS,
        reply_s: Mapping[str, float] | None = None,
        *,
        by_turns: bool = False,
    ) -> None:
        self.name = name
        self.services = services
        self.view = view
        self.rng = rng
        self.policy = policy
        self.reply_s = reply_s or {}
        self.by_turns = by_turns
        self._pools: dict[PoolKey, _Held] = {}
        self._of_service: dict[str, list[_Held]] = {}
        self._handed_on: dict[int, tuple[Request, str]] = {}
        self._routes: dict[int, _Route] = {}
        # requests that were answered: in this interval of state exchange, and in the last whole one
        self._answered: dict[str, float] = {}
        self._answered_before: dict[str, float] = {}
        self._interval_began_s: float | None = None
        self._interval_s = 0.0

    # --- what it says of itself

    def state(self, now_s: float) -> ServerState:
        """Its state to tell the others: call this once per interval of state exchange.

        Idle goodput is the theoretical one less what was answered in the interval before
        (eq. 1, the time from -2 t_n to -t_n).
        """
        if self._interval_began_s is not None and now_s > self._interval_began_s:
            self._interval_s = now_s - self._interval_began_s
            self._answered_before, self._answered = self._answered, {}
        self._interval_began_s = now_s
        rows = {
            service: self._row(service, held, now_s) for service, held in self._of_service.items()
        }
        return ServerState(server=self.name, version=0, services=rows)

    def _row(self, service: str, pools: list[_Held], now_s: float) -> ServiceState:
        allocation = pools[0].pool.allocation
        capacity = sum(held.pool.allocation.rate_per_s * held.queue.n_replicas for held in pools)
        usual_s = allocation.batch_s[allocation.batch]
        if allocation.category.is_frequency:
            idle = sum(held.ledger.idle_fps() for held in pools if held.ledger)
            return ServiceState(capacity_per_s=capacity, idle_per_s=idle, batch_s=usual_s)
        used = 0.0
        if self._interval_s:
            used = self._answered_before.get(service, 0.0) / self._interval_s
        return ServiceState(
            capacity_per_s=capacity,
            idle_per_s=max(0.0, capacity - used),
            queue_s=min(held.queue.queue_s(now_s) for held in pools),
            batch_s=usual_s,
        )

    def hosted(self) -> tuple[str, ...]:
        """The services that it has replicas of."""
        return tuple(self._of_service)

    def now(self, service: str, now_s: float) -> ServiceState | None:
        """Its state of one service at this moment; None if it is not here."""
        held = self._of_service.get(service)
        return self._row(service, held, now_s) if held else None

    def pools(self) -> tuple[PoolKey, ...]:
        """All that it has, those that compute for the last time, too."""
        return tuple(self._pools)

    def waiting(self, pool: PoolKey, now_s: float) -> WaitingBatch | None:
        """What a pool would compute next; None: nothing, as yet.

        Parameters
        ----------
        pool
            Which.
        now_s
            The time.
        """
        held = self._pools.get(pool)
        batch = held.queue.waiting(now_s) if held is not None else None
        if batch is not None and held is not None and held.refuses:
            return replace(batch, is_full=True)  # by waiting it gains nothing
        return batch

    def must_follow(self, pool: PoolKey) -> bool:
        """Whether each replica of a pool computes: what begins now follows another batch.

        Parameters
        ----------
        pool
            Which.
        """
        held = self._pools.get(pool)
        return held is not None and held.queue.n_running >= held.queue.n_replicas

    def latest_s(self, pool: PoolKey, now_s: float) -> float:
        """Until when a full batch of a pool could begin, were it asked for now.

        Parameters
        ----------
        pool
            Which.
        now_s
            The time.
        """
        held, service = self._pools.get(pool), self.services.get(pool[0])
        if held is None or service is None:
            return inf
        return now_s + service.slo.tolerance_s - held.queue.full_s()

    def n_waiting(self) -> int:
        """Requests in all its queues."""
        return sum(held.queue.n_queued for held in self._pools.values())

    def n_computing(self) -> int:
        """Requests in batches that are computed."""
        return sum(len(batch) for held in self._pools.values() for batch in held.running.values())

    # --- events

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """What is to be done now."""
        actions: list[Action] = []
        match event:
            case RequestArrived(request):
                self._arrived(request.through(self.name), now_s, actions)
            case TurnCame(pool, start_s, n_sharing):
                if (held := self._pools.get(pool)) is not None:
                    self._queue(held, batching.ReplicaTurn(start_s, n_sharing), now_s, actions)
            case BatchDone(pool, replica, took_s, expected_s):
                free = batching.ReplicaFree(replica, took_s, expected_s)
                self._ended(pool, free, now_s, actions)
            case BatchFailed(pool, replica):
                free = batching.ReplicaFree(replica)
                self._ended(pool, free, now_s, actions, failed=True)
            case StreamEnded(_, stream):
                self._stream_ended(stream)
            case Settled(request_id, refused):
                self._handed_on.pop(request_id, None)
                if refused:
                    self._rest_refused(request_id, actions)
            case ServerGone(server):
                self._server_gone(server, now_s, actions)
            case Placed(pools):
                self._placed(pools, now_s, actions)
            case Tick():
                for held in self._pools.values():
                    self._queue(held, batching.QueueTick(), now_s, actions)
        return actions

    def _arrived(self, request: Request, now_s: float, actions: list[Action]) -> None:
        if request.service not in self.services:
            actions.append(RefuseRequest(request, ServeRefusal.UNKNOWN_SERVICE))
        elif request.stream is not None:
            self._frame(request, now_s, actions)
        else:
            self._decide(request, now_s, actions)

    def _decide(self, request: Request, now_s: float, actions: list[Action]) -> None:
        service = request.service
        decision = request_handler.decide(
            request,
            [self._local(held, request, now_s) for held in self._of_service.get(service, ())],
            lambda: self.view.candidates(service, now_s),
            now_s,
            self.rng,
            self.policy.choose,
            self.policy.rules,
        )
        match decision:
            case Serve(way, fps) if request.fps:
                self._open(request, way, fps, actions)
            case Serve(way, _):
                held = self._best(service, way, request, now_s)
                self._queue(held, batching.RequestQueued(request), now_s, actions)
            case Offload(server, fps):
                self._hand_on(request, server, fps, now_s, actions)
            case Refuse(reason):
                actions.append(RefuseRequest(request, reason))

    def _local(self, held: _Held, request: Request, now_s: float) -> LocalOption:
        if request.fps:
            free = held.ledger.free_fps(request.fps) if held.ledger else 0.0
            return LocalOption(held.pool.way, inf, free)
        finish_s = self._finish_s(held, request, now_s)
        held.refuses |= finish_s > now_s + self.services[request.service].slo.tolerance_s
        return LocalOption(held.pool.way, finish_s)

    def _best(self, service: str, way: Way, request: Request, now_s: float) -> _Held:
        pools = [held for held in self._of_service[service] if held.pool.way is way]
        if len(pools) == 1:
            return pools[0]
        return min(pools, key=lambda held: self._finish_s(held, request, now_s))

    def _finish_s(self, held: _Held, request: Request, now_s: float) -> float:
        return held.queue.finish_s(now_s, request.work, self._beside_frac(held))

    def _beside_frac(self, held: _Held) -> float:
        """By turns, of the batches that its own were expected beside those that are there: its own
        on the same device, and full ones of other services, which wait there, too. Where another
        server can be asked, all: that one may be quicker.
        """
        pool = held.pool
        n_expected = pool.allocation.replicas - 1
        if not self.by_turns or not n_expected or not isinstance(self.view, NoView):
            return 1.0
        n_beside = -(-pool.n_replicas // pool.n_devices) - 1
        for each in self._pools.values():
            is_there = each.pool.allocation.variant.kind == pool.allocation.variant.kind
            n_beside += each is not held and is_there and each.queue.is_full
        return min(1.0, n_beside / n_expected)

    def _hand_on(
        self, request: Request, server: str, fps: float, now_s: float, actions: list[Action]
    ) -> None:
        if not request.n_offloads:
            reply_s = self.reply_s.get(request.service, 0.0)
            request = request.with_path(request.path, request.deadline_s - reply_s)
        if request.fps:
            pool = self._open(request, None, fps, actions) if fps > 0 else None
            self._routes[request.id] = _Route(request, pool, fps / request.fps, server)
            request = replace(request, fps=request.fps - fps)
        self.view.sent(request.service, server, request.fps or 1.0, now_s)
        self._handed_on[request.id] = (request, server)
        actions.append(HandOn(request, server))

    # --- streams

    def _open(
        self, request: Request, way: Way | None, fps: float, actions: list[Action]
    ) -> PoolKey:
        """Admit a stream on the pool that gives it the most of `fps`."""
        pools = [
            held
            for held in self._of_service[request.service]
            if held.ledger and way in (None, held.pool.way)
        ]
        held = max(pools, key=lambda each: each.ledger.free_fps(fps) if each.ledger else 0.0)
        assert held.ledger is not None
        grant = held.ledger.admit(request.id, fps)
        self._routes[request.id] = _Route(request, held.pool.key, 1.0)
        actions.append(Open(held.pool.key, request, grant))
        return held.pool.key

    def _frame(self, request: Request, now_s: float, actions: list[Action]) -> None:
        route = self._routes.get(request.stream if request.stream is not None else -1)
        if route is None:
            actions.append(RefuseRequest(request, ServeRefusal.INSUFFICIENT))
        elif route.is_here(request.frame) and route.pool in self._pools:
            held = self._pools[route.pool]
            self._queue(held, batching.RequestQueued(request), now_s, actions)
        elif route.server and request.n_offloads < self.policy.rules.max_offloads:
            self._handed_on[request.id] = (request, route.server)
            actions.append(HandOn(request, route.server))
        else:
            actions.append(RefuseRequest(request, ServeRefusal.INSUFFICIENT))

    def _rest_refused(self, stream: int, actions: list[Action]) -> None:
        """Nobody takes what was handed on of a stream. A part of it that is served here gets the
        frames of the rest, too: those that hold their tolerance are computed, as beyond the grant
        of a stream that is not divided. Whoever has no part says no to whom it comes from.
        """
        route = self._routes.get(stream)
        if route is None:
            return
        route.server = ""
        if route.pool is not None:
            route.here_frac = 1.0
        else:
            del self._routes[stream]
            actions.append(RefuseRequest(route.request, ServeRefusal.INSUFFICIENT))

    def _stream_ended(self, stream: int) -> Request | None:
        """Free what it had; returns what was asked, if it was here."""
        route = self._routes.pop(stream, None)
        self._handed_on.pop(stream, None)
        if route is None:
            return None
        held = self._pools.get(route.pool) if route.pool else None
        if held is not None and held.ledger:
            held.ledger.end(stream)
        return route.request

    # --- queues

    def _queue(
        self, held: _Held, event: batching.Event, now_s: float, actions: list[Action]
    ) -> None:
        for action in held.queue.handle(event, now_s):
            match action:
                case batching.StartBatch(replica, requests, seconds):
                    held.running[replica], held.refuses = requests, False
                    actions.append(ComputeBatch(held.pool.key, replica, requests, seconds))
                case batching.GiveBack(request, reason):
                    actions.append(RefuseRequest(request, _REASONS[reason]))
                case batching.WakeQueueAt(at_s):
                    actions.append(WakeAt(at_s))

    def _ended(
        self,
        key: PoolKey,
        free: batching.ReplicaFree,
        now_s: float,
        actions: list[Action],
        *,
        failed: bool = False,
    ) -> None:
        held = self._pools.get(key)
        if held is None:
            return
        requests = held.running.pop(free.replica, ())
        if not failed:
            service = key[0]
            self._answered[service] = self._answered.get(service, 0.0) + len(requests)
        self._queue(held, free, now_s, actions)
        if failed:
            for request in requests:
                self._decide(request, now_s, actions)

    # --- changes

    def _server_gone(self, server: str, now_s: float, actions: list[Action]) -> None:
        lost = [request for request, to in self._handed_on.values() if to == server]
        for request in lost:
            original = self._stream_ended(request.id) or request
            self._handed_on.pop(request.id, None)
            # it is on the path now, so that nobody hands it there again
            path = (*original.path[:-1], server, original.path[-1])
            self._decide(replace(original, path=path).anew(now_s), now_s, actions)

    def _placed(self, pools: tuple[Pool, ...], now_s: float, actions: list[Action]) -> None:
        before = self._pools
        homeless = list[Request]()
        self._pools = {pool.key: self._renewed(pool, before, homeless) for pool in pools}
        for key, held in before.items():
            if key not in self._pools:
                homeless += held.queue.take_all()
                if held.running:  # what is computed there now is still answered
                    self._pools[key] = replace(held, pool=replace(held.pool, n_replicas=0))
        self._of_service = {}
        for held in sorted(self._pools.values(), key=lambda each: _ORDER[each.pool.way]):
            if held.pool.n_replicas:
                self._of_service.setdefault(held.pool.allocation.service, []).append(held)
        self._move_streams(before, now_s, actions)
        for held in [*self._pools.values()]:
            self._queue(held, batching.Resized(held.pool.n_replicas), now_s, actions)
        for request in homeless:
            self._decide(request, now_s, actions)

    def _renewed(
        self, pool: Pool, before: Mapping[PoolKey, _Held], homeless: list[Request]
    ) -> _Held:
        """The pool as it is now: with its queue, if only the number of replicas has changed."""
        old = before.get(pool.key)
        if old is not None and old.pool.allocation == pool.allocation:
            return replace(old, pool=pool)
        if old is not None:
            homeless += old.queue.take_all()
        running = old.running if old is not None else {}
        allocation = pool.allocation
        queue = Batcher(
            allocation.batch_s,
            pool.n_replicas,
            max_queue=self.services[allocation.service].max_queue,
            wait_frac=self.policy.wait_frac,
            early_drop=self.policy.early_drop,
            busy=running,
            alone_s=(
                0.0,
                *(allocation.variant.times[1].at(n) for n in range(1, allocation.batch + 1)),
            ),
            by_turns=self.by_turns,
        )
        ledger = None
        if allocation.category.is_frequency:
            ledger = StreamLedger(
                allocation, pool.n_replicas, data_parallel=self.policy.data_parallel
            )
        return _Held(pool, queue, ledger, running)

    def _move_streams(
        self, before: Mapping[PoolKey, _Held], now_s: float, actions: list[Action]
    ) -> None:
        """Streams whose replicas are gone are decided anew."""
        for key, old in before.items():
            if old.ledger is None:
                continue
            now = self._pools.get(key)
            kept = now.pool.n_replicas if now is not None and now.ledger is old.ledger else 0
            for stream in old.ledger.resize(kept):
                request = self._stream_ended(stream)
                if request is not None:
                    self._decide(request.anew(now_s), now_s, actions)


_ORDER = {Way.ALONE: 0, Way.ACROSS: 1, Way.EDGE_DEVICE: 2}
