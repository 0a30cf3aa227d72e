"""The simulator: traces by hand, nothing lost, views as the ring gives them, streams as frames."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from heapq import heappop, heappush
from random import Random

import pytest
from tests.sdk.serve.serving import server, service, stream_service

from potluck.errors import UserError
from potluck.serve.baselines.schemes import EPARA, OURS, SCHEMES, as_printed
from potluck.serve.scheduling.allocate import allocate_all
from potluck.serve.scheduling.events import BatchDone, ComputeBatch, Open, Placed, RequestArrived
from potluck.serve.scheduling.events import Tick as Wake
from potluck.serve.scheduling.known_servers import NoView, RingView
from potluck.serve.scheduling.node import ServerNode
from potluck.serve.scheduling.placement import Placement, place
from potluck.serve.scheduling.records import Latency, Replica, Request, ServerState
from potluck.serve.scheduling.replica_pools import Pool
from potluck.serve.scheduling.state_exchange import IntervalOver, NeighbourMessage, Ring
from potluck.serve.simulate.arrivals import Arrival
from potluck.serve.simulate.cases import SweepCase, play
from potluck.serve.simulate.engine import Scenario, ServingSimulation, simulate
from potluck.serve.simulate.epara_services import WORKLOADS
from potluck.serve.simulate.state_snapshots import ExchangeGroup, RingSnapshots
from potluck.serve.sweep import sweep


def scenario(requests, services, servers, **changes):
    arrivals = [Arrival(server=where, request=each) for where, each in requests]
    demand = {(each.service, where): 1.0 for where, each in requests}
    return Scenario(
        servers=servers,
        services=services,
        arrivals=arrivals,
        demand=changes.pop("demand", demand),
        duration_s=changes.pop("duration_s", 10.0),
        **changes,
    )


def test_by_hand_a_batch_of_what_came_meanwhile():
    """One replica, 0.02 s alone, 0.03 s for two: the third of three misses 0.055 s."""
    birds = service(slo=Latency(0.055), fixed_s=0.01, item_s=0.01)
    times = (0.0, 0.001, 0.002)
    requests = [("a", Request(n, "birds", t, t + 0.055)) for n, t in enumerate(times)]
    found = simulate(scenario(requests, [birds], [server("a")]), OURS)
    # the largest batch within half of the limit is one: 0.02, 0.04, and 0.06 is too late
    assert (found.tallies["birds"].satisfied, found.satisfied_frac) == (2, pytest.approx(2 / 3))
    assert sum(found.refused.values()) == 1


def test_by_hand_a_request_goes_where_the_replica_is_and_back():
    birds = service(slo=Latency(0.055), input_bytes=1000, output_bytes=1000)
    requests = [("b", Request(0, "birds", 0.5, 0.555))]
    placed = Placement(replicas=(Replica(service="birds", kind="gpu", processors=(("a", 0),)),))

    def on_a(servers, allocations, demand):
        return placed

    def run(bytes_per_s):
        each = scenario(
            requests, [birds], [server("a"), server("b")], bytes_per_s=bytes_per_s, latency_s=0.001
        )
        scheme = type(OURS)(name="on a", policy=OURS.policy, place=on_a)
        return simulate(each, scheme)

    # 0.02 s of computing; there and back 0.012 s, or 0.042 s
    assert (run(2e5).satisfied, run(2e5).n_offloads) == (1, 1)
    assert (run(5e4).satisfied, run(5e4).n_offloads) == (0, 0)


def test_by_hand_half_of_a_streams_frames_count_half():
    """120 frames at 60 fps on a replica that does 30: 60 count (section 3.3)."""
    cameras = stream_service(fps=60, tolerance_s=0.05, fixed_s=0.0, item_s=1 / 30)
    stream = Request(0, "cameras", 0.0, 9.0, fps=60.0, n_frames=120)
    found = simulate(scenario([("a", stream)], [cameras], [server("a")]), EPARA)
    assert found.tallies["cameras"].satisfied == pytest.approx(60)


def test_two_servers_share_a_stream_that_is_too_fast_for_one():
    cameras = stream_service(fps=60, tolerance_s=0.05, fixed_s=0.0, item_s=1 / 30)
    stream = Request(0, "cameras", 0.5, 9.0, fps=60.0, n_frames=120)
    demand = {("cameras", "a"): 30.0, ("cameras", "b"): 30.0}
    two = scenario([("a", stream)], [cameras], [server("a"), server("b")], demand=demand)
    assert simulate(two, EPARA).satisfied == pytest.approx(120)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("printed", [False, True])
def test_every_request_is_satisfied_late_or_refused(name, printed):
    scheme = as_printed(SCHEMES[name]) if printed else SCHEMES[name]
    case = SweepCase(workload="latency, one processor", n_servers=3, n_processors=2, duration_s=3.0)
    found = play(case, scheme)
    late = sum(tally.late for tally in found.tallies.values())
    assert found.n_requests > 500
    assert found.satisfied + late + sum(found.refused.values()) == found.n_requests
    assert scheme.source
    assert scheme.differs


@pytest.mark.long
@pytest.mark.parametrize("workload", ["mixed", "frequency, several processors"])
def test_the_same_case_has_the_same_outcome(workload):
    case = SweepCase(workload=workload, n_servers=2, n_processors=4, duration_s=5.0)
    assert play(case, OURS) == play(case, OURS)


@pytest.mark.parametrize(
    "wrong",
    [
        {"interval_s": 0},
        {"interval_s": -1.0},
        {"load": -1},
        {"load": float("nan")},
        {"load": float("inf")},
        {"n_servers": 0},
        {"n_servers": 1.5},
        {"n_processors": 0},
        {"duration_s": 0},
        {"cv": 0},
    ],
)
def test_a_case_that_cannot_be_played_is_refused_by_name(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        SweepCase(**wrong)


def test_a_workload_that_there_is_not_is_refused_with_those_that_are():
    with pytest.raises(UserError, match="mixed"):
        SweepCase(workload="all")


@pytest.mark.parametrize("n_servers", [2, 3, 6, 7])
def test_snapshots_are_what_the_ring_brings(n_servers):
    """The same servers, once with real rings and no loss, once with snapshots."""
    names = [f"s{n}" for n in range(n_servers)]
    birds = {"birds": service()}
    pool = Pool(allocate_all([service()], [server("any")])["birds", "gpu"], 1)
    nodes = [ServerNode(name, birds, NoView(), Random(0)) for name in names]
    for node in nodes:
        node.handle(Placed((pool,)), 0.0)
    rings = {name: Ring(name, names, 1.0) for name in names}
    group = ExchangeGroup(nodes, 1.0)
    group.settle()
    number = 0
    for now_s in range(1, 12):
        for index, node in enumerate(nodes):
            for _ in range((index * 7 + now_s) % 4):
                number += 1
                node.handle(
                    RequestArrived(Request(number, "birds", now_s, now_s + 9.0)), float(now_s)
                )
        sent = []
        group.exchange(float(now_s))
        states = group.rounds[-1][1]["birds"]
        for name in names:
            row = states[names.index(name)]
            state = ServerState(server=name, version=0, services={"birds": row})
            sent += [(name, tell) for tell in rings[name].handle(IntervalOver(state), float(now_s))]
        for name, tell in sent:
            rings[tell.server].handle(NeighbourMessage(name, tell.message), float(now_s))
    for index, name in enumerate(names):
        by_ring = RingView(rings[name], lambda server, service: 0.5).candidates("birds", 11.0)
        by_snapshot = RingSnapshots(group, index, {"birds": 0.5}).candidates("birds", 11.0)
        assert sorted(by_ring, key=str) == sorted(by_snapshot, key=str)


class Frames:
    """Streams on one server, frame by frame through its queue."""

    def __init__(self, cameras, n_replicas, policy):
        pool = Pool(allocate_all([cameras], [server("a")])["cameras", "gpu"], n_replicas)
        self.node = ServerNode("a", {"cameras": cameras}, NoView(), Random(0), policy)
        self.node.handle(Placed((pool,)), 0.0)
        self.tolerance_s = cameras.slo.tolerance_s
        self.heap, self.n = [], 0
        self.in_time, self.granted = Counter(), {}

    def at(self, at_s, what):
        self.n += 1
        heappush(self.heap, (at_s, self.n, what))

    def follow(self, actions, now_s):
        for action in actions:
            match action:
                case ComputeBatch():
                    self.at(now_s + action.seconds, action)
                case Open(_, request, grant):
                    self.granted[request.id] = grant.total_fps
                case _ if hasattr(action, "at_s"):
                    self.at(action.at_s, Wake())

    def play(self, streams, seconds):
        number = 1000
        for stream, (fps, offset_s) in streams.items():
            request = Request(stream, "cameras", 0.0, 1e9, fps=fps, n_frames=1)
            self.follow(self.node.handle(RequestArrived(request), 0.0), 0.0)
            for frame in range(int(seconds * fps)):
                number += 1
                due_s = offset_s + frame / fps
                deadline_s = due_s + self.tolerance_s
                self.at(
                    due_s, Request(number, "cameras", due_s, deadline_s, stream=stream, frame=frame)
                )
        while self.heap:
            now_s, _, what = heappop(self.heap)
            if isinstance(what, ComputeBatch):
                for each in what.requests:
                    self.in_time[each.stream] += now_s <= each.deadline_s + 1e-9
                self.follow(self.node.handle(BatchDone(what.pool, what.replica), now_s), now_s)
            else:
                event = what if isinstance(what, Wake) else RequestArrived(what)
                self.follow(self.node.handle(event, now_s), now_s)


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(12))
def test_streams_that_are_granted_whole_have_their_frames_answered_in_time(seed):
    """The simulator counts a stream by its granted rate: frame by frame it is no less."""
    rng = Random(seed)
    fps = rng.choice((15, 30, 60))
    cameras = stream_service(
        fps=fps, tolerance_s=rng.uniform(0.15, 0.4), fixed_s=0.005, item_s=rng.uniform(2e-3, 6e-3)
    )
    frames = Frames(cameras, rng.randint(1, 3), OURS.policy())
    streams = {n: (float(fps), rng.uniform(0, 1 / fps)) for n in range(rng.randint(1, 8))}
    frames.play(streams, seconds=10.0)
    granted_fully = [n for n, granted in frames.granted.items() if granted >= fps - 1e-6]
    assert granted_fully
    if len(granted_fully) == len(streams):
        answered = sum(frames.in_time.values()) / (len(streams) * int(10 * fps))
        assert answered > 0.99


@pytest.mark.long
def test_a_sweep_has_the_same_outcomes_in_any_executor():
    cases = [SweepCase(n_servers=1, n_processors=4, duration_s=2.0, seed=seed) for seed in (1, 2)]
    alone = {(case, s.name): play(case, s) for case in cases for s in (EPARA, OURS)}
    with ThreadPoolExecutor(2) as threads:
        assert sweep(cases, [EPARA, OURS], executor=threads) == alone
    assert sweep(cases[:1], [EPARA]) == {(cases[0], "epara"): alone[cases[0], "epara"]}
    with pytest.raises(UserError, match="different names, got epara, epara"):
        sweep(cases, [EPARA, EPARA])


@pytest.mark.long
@pytest.mark.slow
def test_a_sweep_runs_on_a_dask_cluster():
    distributed = pytest.importorskip("distributed")
    case = SweepCase(n_servers=1, n_processors=4, duration_s=2.0)
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        found = sweep([case], [EPARA], executor=client.get_executor())
    assert found == {(case, "epara"): play(case, EPARA)}


def test_a_clock_times_every_decision():
    ticks = iter(range(1_000_000))
    case = SweepCase(n_servers=1, n_processors=4, duration_s=1.0)
    simulation = ServingSimulation(case.scenario(), OURS, clock=lambda: float(next(ticks)))
    found = simulation.run()
    assert simulation.handling_s == [1.0] * found.n_requests


def test_what_is_placed_is_what_the_scheme_places():
    case = SweepCase(n_servers=2, n_processors=4, duration_s=2.0)
    each = case.scenario()
    simulation = ServingSimulation(each, EPARA)
    assert simulation.placement == place(each.servers, simulation.allocations, each.demand)


@pytest.mark.long
@pytest.mark.slow
def test_ours_is_never_clearly_worse_than_epara():
    """Of the five workloads, below and above capacity: within a hundredth, and better in all."""
    ours, papers = [], []
    for workload in WORKLOADS:
        for load, n_servers in ((0.6, 6), (1.4, 4)):
            case = SweepCase(
                workload=workload, n_servers=n_servers, n_processors=2, load=load, duration_s=3.0
            )
            each = case.scenario()
            ours.append(simulate(each, OURS).satisfied_frac)
            papers.append(simulate(each, EPARA).satisfied_frac)
    assert all(a >= b - 0.01 for a, b in zip(ours, papers, strict=True))
    assert sum(ours) > sum(papers)
