"""A server's decisions together: whole traces, changes of placement, losses, frames."""

from collections import Counter
from dataclasses import replace
from heapq import heappop, heappush
from random import Random

import pytest
from tests.sdk.serve.serving import allocation, request, server, service, stream_service

from potluck.serve.scheduling.allocate import allocate_all
from potluck.serve.scheduling.events import (
    BatchDone,
    BatchFailed,
    ComputeBatch,
    HandOn,
    Open,
    Placed,
    RefuseRequest,
    RequestArrived,
    ServerGone,
    Settled,
    StreamEnded,
    Tick,
    WakeAt,
)
from potluck.serve.scheduling.known_servers import NoView, RingView
from potluck.serve.scheduling.node import EPARA, OURS, ServerNode
from potluck.serve.scheduling.placement import place
from potluck.serve.scheduling.replica_pools import Pool, pools_by_server
from potluck.serve.scheduling.state_exchange import IntervalOver as RingTick
from potluck.serve.scheduling.state_exchange import NeighbourMessage, Ring
from potluck_wire.request_handler import CandidateServer, ServeRefusal, Way

BIRDS = service("birds")
CAMERAS = stream_service("cameras", fps=60, tolerance_s=0.2, fixed_s=0.005, item_s=0.005)
SERVICES = {"birds": BIRDS, "cameras": CAMERAS}
BIRD_POOL = Pool(allocation(BIRDS), 1)
CAMERA_POOL = Pool(allocation(CAMERAS), 1)


class Others:
    """A view that always shows the same servers, and notes what was sent."""

    def __init__(self, *names, idle_per_s=100.0):
        self.names = names
        self.idle_per_s = idle_per_s
        self.noted = []

    def candidates(self, service, now_s):
        return [
            CandidateServer(name, self.idle_per_s, 0.0, 0.1, 100.0, 0.02) for name in self.names
        ]

    def sent(self, service, server, amount, now_s):
        self.noted.append((service, server, amount))


def node(view=None, pools=(BIRD_POOL, CAMERA_POOL), policy=OURS, **changes):
    made = ServerNode("a", SERVICES, view or NoView(), Random(0), policy, **changes)
    made.handle(Placed(tuple(pools)), 0.0)
    return made


def kinds(actions):
    return [type(action).__name__ for action in actions]


@pytest.mark.parametrize(
    ("n_replicas", "n_devices", "n_cats", "view", "does"),
    [
        (1, 1, 0, NoView(), []),
        (1, 1, 31, NoView(), []),
        (1, 1, 32, NoView(), ["RefuseRequest"]),
        (2, 1, 0, NoView(), ["RefuseRequest"]),
        (2, 2, 0, NoView(), []),
        (1, 1, 0, Others("b"), ["HandOn"]),
    ],
)
def test_by_turns_a_batch_is_expected_beside_those_that_are_there(
    n_replicas, n_devices, n_cats, view, does
):
    """A row takes 0.02 s alone, and 0.04 beside another batch; cats go together by 32."""
    pools = []
    for name in ("birds", "cats"):
        alone = allocation(service(name))
        both = replace(alone, replicas=2, batch_s=tuple(2 * each for each in alone.batch_s))
        pools.append(Pool(both, n_replicas, n_devices=n_devices))
    local = ServerNode(
        "a", {"birds": BIRDS, "cats": service("cats")}, view, Random(0), by_turns=True
    )
    local.handle(Placed(tuple(pools)), 0.0)
    for number in range(1, n_cats + 1):
        assert local.handle(RequestArrived(request(number, name="cats")), 0.0) == []
    actions = local.handle(RequestArrived(request(0, limit_s=0.03)), 0.0)
    assert kinds(actions) == does


def test_a_request_is_computed_here():
    local = node()
    (start,) = local.handle(RequestArrived(request(1)), 0.0)
    assert start == ComputeBatch(BIRD_POOL.key, 0, (request(1, path=("a",)),), 0.02)
    assert local.handle(BatchDone(BIRD_POOL.key, 0), 0.02) == []
    assert local.n_computing() == 0


def test_what_nobody_knows_is_refused():
    (refusal,) = node().handle(RequestArrived(request(1, name="cats")), 0.0)
    assert refusal.reason is ServeRefusal.UNKNOWN_SERVICE


def test_a_full_queue_hands_on_and_a_view_is_told():
    others = Others("b")
    local = node(others, pools=[CAMERA_POOL])
    (sent,) = local.handle(RequestArrived(request(1)), 0.0)
    assert (sent.server, sent.request.path) == ("b", ("a",))
    assert others.noted == [("birds", "b", 1.0)]


def test_the_way_back_makes_a_deadline_earlier():
    local = node(Others("b"), pools=[], reply_s={"birds": 0.25})
    (sent,) = local.handle(RequestArrived(request(1)), 0.0)
    assert sent.request.deadline_s == 0.75


def test_a_stream_is_admitted_and_its_frames_computed():
    local = node()
    (opened,) = local.handle(RequestArrived(request(7, name="cameras", fps=60.0, limit_s=9.0)), 0.0)
    assert isinstance(opened, Open)
    assert opened.grant.total_fps == pytest.approx(60.0)
    frame = request(8, name="cameras", limit_s=0.2, stream=7, frame=0)
    assert kinds(local.handle(RequestArrived(frame), 0.0)) == ["ComputeBatch"]
    local.handle(StreamEnded("cameras", 7), 1.0)
    late = request(9, name="cameras", limit_s=0.2, stream=7, frame=1)
    assert kinds(local.handle(RequestArrived(late), 1.0)) == ["RefuseRequest"]


def test_a_stream_that_does_not_fit_is_split_and_its_frames_too():
    local = node(Others("b"))
    opened, sent = local.handle(
        RequestArrived(request(7, name="cameras", fps=200.0, limit_s=9)), 0.0
    )
    granted = opened.grant.total_fps
    assert sent.request.fps == pytest.approx(200.0 - granted)
    went = Counter()
    for frame in range(300):
        each = request(100 + frame, frame * 0.005, 0.2, "cameras", stream=7, frame=frame)
        for action in local.handle(RequestArrived(each), frame * 0.005):
            went[type(action).__name__] += 1
        local.handle(BatchDone(CAMERA_POOL.key, 0), frame * 0.005 + 0.001)
    assert went["HandOn"] == pytest.approx(300 * (1 - granted / 200), abs=2)
    # the other server refuses its part: whatever of it holds its tolerance is computed here
    local.handle(Settled(7, refused=True), 2.0)
    ends = Counter()
    for frame in range(300, 600):
        at_s = 2.0 + (frame - 300) * 0.005
        each = request(100 + frame, at_s, 0.2, "cameras", stream=7, frame=frame)
        local.handle(BatchDone(CAMERA_POOL.key, 0), at_s)
        for action in local.handle(RequestArrived(each), at_s):
            ends[type(action).__name__] += 1
    assert [*ends] == ["ComputeBatch"]


def test_who_has_no_part_of_a_stream_that_nobody_takes_says_so_to_whom_it_came_from():
    local = node(Others("b"), pools=[])
    (sent,) = local.handle(RequestArrived(request(7, name="cameras", fps=30.0, limit_s=9)), 0.0)
    (refusal,) = local.handle(Settled(7, refused=True), 0.1)
    assert (type(sent), refusal.request.id) == (HandOn, 7)
    frame = request(8, name="cameras", limit_s=0.2, stream=7, frame=0)
    assert kinds(local.handle(RequestArrived(frame), 0.1)) == ["RefuseRequest"]
    assert local.handle(Settled(7, refused=True), 0.2) == []


def test_a_failed_batch_is_decided_anew():
    local = node()
    local.handle(RequestArrived(request(1)), 0.0)
    (again,) = local.handle(BatchFailed(BIRD_POOL.key, 0), 0.1)
    assert [each.id for each in again.requests] == [1]
    (refusal,) = local.handle(BatchFailed(BIRD_POOL.key, 0), 0.99)
    assert refusal.reason in (ServeRefusal.INSUFFICIENT, ServeRefusal.CANNOT_MEET)


def test_what_was_handed_to_a_server_that_is_gone_goes_elsewhere():
    local = node(Others("b", "c"), pools=[])
    (first,) = local.handle(RequestArrived(request(1)), 0.0)
    (again,) = local.handle(ServerGone(first.server), 0.1)
    assert {first.server, again.server} == {"b", "c"}
    (refusal,) = local.handle(ServerGone(again.server), 0.2)
    assert refusal.reason is ServeRefusal.INSUFFICIENT
    assert local.handle(ServerGone(again.server), 0.3) == []


def test_what_is_settled_is_not_sent_twice():
    local = node(Others("b"), pools=[])
    local.handle(RequestArrived(request(1)), 0.0)
    local.handle(Settled(1), 0.1)
    assert local.handle(ServerGone("b"), 0.2) == []


def test_a_stream_whose_other_half_is_gone_is_decided_whole():
    local = node(Others("b", "c"))
    opened, sent = local.handle(
        RequestArrived(request(7, name="cameras", fps=200.0, limit_s=9)), 0.0
    )
    again = local.handle(ServerGone(sent.server), 0.1)
    assert kinds(again) == ["Open", "HandOn"]
    assert again[0].grant.total_fps == pytest.approx(opened.grant.total_fps)
    assert {sent.server, again[1].server} == {"b", "c"}


def test_a_new_placement_drops_no_request():
    """Live switch: what waits is served by the new pools or handed on, what is computed ends."""
    local = node(Others("b"))
    for number in range(3):
        local.handle(RequestArrived(request(number)), 0.0)
    assert (local.n_computing(), local.n_waiting()) == (1, 2)
    actions = local.handle(Placed((CAMERA_POOL,)), 0.01)
    assert sorted(action.request.id for action in actions) == [1, 2]
    assert local.handle(RequestArrived(request(3, 0.01)), 0.01)[0].server == "b"
    assert local.n_computing() == 1
    local.handle(BatchDone(BIRD_POOL.key, 0), 0.02)
    assert local.n_computing() == 0


def test_more_replicas_start_what_waits():
    local = node()
    for number in range(3):
        local.handle(RequestArrived(request(number)), 0.0)
    actions = local.handle(Placed((Pool(BIRD_POOL.allocation, 2), CAMERA_POOL)), 0.01)
    assert [(a.replica, [each.id for each in a.requests]) for a in actions] == [(1, [1, 2])]


def test_other_settings_wait_for_the_batch_that_is_computed():
    local = node()
    local.handle(RequestArrived(request(0)), 0.0)
    local.handle(RequestArrived(request(1)), 0.0)
    slower = Pool(allocation(service("birds", fixed_s=0.02)), 1)
    assert local.handle(Placed((slower,)), 0.01) == []
    assert local.n_waiting() == 1
    (start,) = local.handle(BatchDone(BIRD_POOL.key, 0), 0.02)
    assert start.seconds == pytest.approx(0.03)


def test_streams_move_when_their_pool_goes():
    local = node(Others("b"))
    local.handle(RequestArrived(request(7, name="cameras", fps=60.0, limit_s=9.0)), 0.0)
    (sent,) = local.handle(Placed((BIRD_POOL,)), 1.0)
    assert (sent.request.id, sent.request.fps, sent.server) == (7, 60.0, "b")


def test_a_stream_that_has_lasted_longer_than_its_tolerance_moves_too():
    local = node(pools=[CAMERA_POOL])
    local.handle(RequestArrived(request(7, name="cameras", fps=30.0, limit_s=0.2)), 0.0)
    slower = allocation(stream_service("cameras", fps=30.0, tolerance_s=0.3))
    (opened,) = local.handle(Placed((Pool(slower, 1),)), 60.0)
    assert (type(opened), opened.request.id) == (Open, 7)


def test_an_edge_device_is_the_last_way_and_may_leave():
    edge = Pool(BIRD_POOL.allocation, 1, Way.EDGE_DEVICE)
    local = node(Others("b"), pools=[BIRD_POOL, edge])
    limit_s = 0.03  # one alone takes 0.02 s, a second one ends at 0.04 s
    first = local.handle(RequestArrived(request(0, limit_s=limit_s)), 0.0)
    second = local.handle(RequestArrived(request(1, limit_s=limit_s)), 0.0)
    assert [each[0].pool[2] for each in (first, second)] == [Way.ALONE, Way.EDGE_DEVICE]
    local.handle(Placed((BIRD_POOL,)), 0.001)
    assert local.handle(BatchFailed(edge.key, 0), 0.001)[0].server == "b"


def test_tells_its_idle_goodput_by_the_last_whole_interval():
    local = node()
    local.state(0.0)
    for number in range(10):
        local.handle(RequestArrived(request(number, number * 0.1)), number * 0.1)
        local.handle(BatchDone(BIRD_POOL.key, 0), number * 0.1 + 0.02)
    state = local.state(1.0).services["birds"]
    assert state.capacity_per_s == pytest.approx(BIRD_POOL.allocation.rate_per_s)
    assert state.idle_per_s == pytest.approx(state.capacity_per_s - 10)
    assert local.state(2.0).services["birds"].idle_per_s == pytest.approx(state.capacity_per_s)


def test_wakes_up_when_a_batch_has_waited_long_enough():
    policy = type(OURS)(wait_frac=0.5)
    local = node(policy=policy)
    (wake,) = local.handle(RequestArrived(request(0)), 0.0)
    assert wake == WakeAt(pytest.approx(0.49))
    assert kinds(local.handle(Tick(), 0.49)) == ["ComputeBatch"]


def test_pools_come_from_a_placement():
    allocations = allocate_all([BIRDS], [server("any", 9)])
    placement = place([server("a", 2)], allocations, {("birds", "a"): 150.0})
    (pool,) = pools_by_server(placement, allocations)["a"]
    assert (pool.n_replicas, pool.way) == (2, Way.ALONE)
    (edge,) = pools_by_server(placement, allocations, {"a": "b"})["b"]
    assert (edge.n_replicas, edge.way) == (2, Way.EDGE_DEVICE)


class Home:
    """Some servers with rings, played event by event; servers die and come back."""

    def __init__(self, seed, policy):
        self.rng = Random(seed)
        self.names = [f"s{n}" for n in range(4)]
        allocations = allocate_all([BIRDS], [server("any", 9)])
        self.rings = {name: Ring(name, self.names, 0.1) for name in self.names}
        self.nodes = {}
        for name in self.names:
            view = RingView(self.rings[name], lambda server, service: 0.01)
            self.nodes[name] = ServerNode(name, SERVICES, view, Random(f"{seed}{name}"), policy)
            pool = Pool(allocations["birds", "gpu"], 1)
            self.nodes[name].handle(Placed((pool,) if self.rng.random() < 0.7 else ()), 0.0)
        self.heap = []
        self.n = 0
        self.dead = set()
        self.ends = Counter()
        self.asked = {}

    def at(self, at_s, *what):
        self.n += 1
        heappush(self.heap, (at_s, self.n, what))

    def follow(self, name, actions, now_s):
        for action in actions:
            match action:
                case ComputeBatch(pool, replica, requests, seconds):
                    self.at(now_s + seconds, "done", name, pool, replica, requests)
                case HandOn(each, to):
                    self.asked[each.id] = [*self.asked.get(each.id, []), name]
                    self.at(now_s + 0.01, "request", to, each)
                case RefuseRequest(each, _):
                    self.answer(name, each, now_s)
                case WakeAt(at_s):
                    self.at(at_s, "tick", name)

    def answer(self, name, each, now_s):
        """Back along the path; the entrance's client hears it."""
        if each.path[0] == name:
            self.ends[each.id] += 1
        else:
            self.at(now_s + 0.01, "answer", each.path[0], each)

    def play(self, until_s):
        for name in self.names:
            self.at(0.0, "exchange", name)
        while self.heap and self.heap[0][0] < until_s:
            now_s, _, (what, name, *rest) = heappop(self.heap)
            if name in self.dead:
                continue
            local = self.nodes[name]
            match what:
                case "request":
                    self.follow(name, local.handle(RequestArrived(rest[0]), now_s), now_s)
                case "done":
                    pool, replica, requests = rest
                    for each in requests:
                        self.answer(name, each, now_s)
                    self.follow(name, local.handle(BatchDone(pool, replica), now_s), now_s)
                case "answer":
                    local.handle(Settled(rest[0].id), now_s)
                    self.ends[rest[0].id] += 1
                case "tick":
                    self.follow(name, local.handle(Tick(), now_s), now_s)
                case "exchange":
                    for tell in self.rings[name].handle(RingTick(local.state(now_s)), now_s):
                        self.at(now_s + 0.002, "state", tell.server, name, tell.message)
                    self.at(now_s + 0.1, "exchange", name)
                case "state":
                    self.rings[name].handle(NeighbourMessage(rest[0], rest[1]), now_s)


@pytest.mark.few(3)
@pytest.mark.parametrize("policy", [OURS, EPARA], ids=["ours", "epara"])
@pytest.mark.parametrize("seed", range(6))
def test_every_request_is_answered_or_refused_once(seed, policy):
    """Open-loop arrivals at every entrance, below and above what four servers can do."""
    home = Home(seed, policy)
    rate = home.rng.choice((50, 200, 600))
    now_s, n_requests = 0.0, 0
    while now_s < 3.0:
        now_s += home.rng.expovariate(rate)
        where = home.rng.choice(home.names)
        home.at(now_s, "request", where, request(n_requests, now_s, home.rng.choice((0.1, 0.5))))
        n_requests += 1
    home.play(20.0)
    assert home.ends == dict.fromkeys(range(n_requests), 1)
