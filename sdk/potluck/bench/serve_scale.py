"""How serving scales: 10 to `largest` simulated servers of one P100 each, mixed workload, in groups
of `group` that exchange states (EPARA, section 5.3.2: 100 to 500).

`handling`: processor time of one decision about a request, in the simulator by the very `Node` of
the runtime; `..._one_ring`: a single decision with all servers as candidates. `placement_new`: all
replicas from nothing, on servers of eight processors. `placement_update`: the same home when one in
a hundred demands has grown by half. `sync`: bytes that a server of a group sends per interval, by
real `Ring`s, as MessagePack would write them. Times are processor time, so that a busy machine does
not count.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from statistics import quantiles
from typing import TypeVar

import msgpack

from potluck.bench.harness import Result
from potluck.serve.baselines.schemes import OURS
from potluck.serve.scheduling.allocate import allocate_all
from potluck.serve.scheduling.live_placement import LivePlacement
from potluck.serve.scheduling.placement import place
from potluck.serve.scheduling.records import Frequency, Request, ServerState, ServiceState, by_name
from potluck.serve.scheduling.state_exchange import (
    IntervalOver,
    NeighbourMessage,
    Ring,
    StateMessage,
)
from potluck.serve.simulate import arrivals, epara_services
from potluck.serve.simulate.cases import SweepCase, equal_parts
from potluck.serve.simulate.engine import ServingSimulation
from potluck_wire.request_handler import CandidateServer, by_spare_finish, decide

Answer = TypeVar("Answer")
SETTINGS: Mapping[str, float] = {
    "largest": 10_000,
    "requests": 40_000,
    "group": 100,
    "interval_s": 0.1,
    "seed": 1,
}
GOALS = {
    "handling_ms_p99_10000": ("<=", 1.0),
    "handling_ms_one_ring_10000": ("<=", 20.0),
    "placement_update_ms_10000": ("<=", 200.0),
}
SIZES = (10, 100, 1000, 10_000)
DURATION_S = 10.0
N_ROUNDS = 5


def run(settings: Mapping[str, float]) -> Result:
    """Every size up to the largest."""
    figures: dict[str, float] = {}
    for n_servers in SIZES:
        if n_servers <= settings["largest"]:
            figures |= played(n_servers, settings)
            figures |= placed(n_servers, settings)
            figures[f"handling_ms_one_ring_{n_servers}"] = one_ring_ms(n_servers)
    group = int(settings["group"])
    figures[f"sync_bytes_per_interval_group_{group}"] = sync_bytes(group)
    return Result(name="serve_scale", figures=figures, settings=dict(settings), goals=GOALS)


def played(n_servers: int, settings: Mapping[str, float]) -> dict[str, float]:
    """A simulation of so many servers with about `requests` requests: handling and events."""
    case = SweepCase(
        n_servers=n_servers,
        n_processors=1,
        duration_s=DURATION_S,
        interval_s=settings["interval_s"],
        seed=int(settings["seed"]),
    )
    load = min(0.5, settings["requests"] / DURATION_S / requests_per_s(n_servers))
    scheme = replace(OURS, group=int(settings["group"]), alternatives=())
    scenario = replace(case, load=load).scenario()
    simulation = ServingSimulation(scenario, scheme, clock=time.thread_time)
    began_s = time.process_time()
    outcome = simulation.run()
    seconds = time.process_time() - began_s
    handling = quantiles(simulation.handling_s, n=100)
    return {
        f"handling_ms_p50_{n_servers}": handling[49] * 1e3,
        f"handling_ms_p99_{n_servers}": handling[98] * 1e3,
        f"events_per_s_{n_servers}": outcome.n_events / seconds,
        f"served_frac_{n_servers}": outcome.satisfied_frac,
        f"offloads_per_request_{n_servers}": outcome.offloads_per_request,
        f"n_requests_{n_servers}": float(outcome.n_requests),
    }


def placed(n_servers: int, settings: Mapping[str, float]) -> dict[str, float]:
    """Processor time of a placement from nothing, and of following a load that has moved."""
    servers, services = epara_services.servers(n_servers, 8), epara_services.services("mixed")
    demand = demand_of(n_servers, settings)
    allocations = allocate_all(services, servers, demand=demand)
    new_s, replicas = timed(lambda: place(servers, allocations, demand))
    live = LivePlacement(servers, allocations, demand)
    rng = Random(int(settings["seed"]))
    moved = rng.sample([*demand], max(1, len(demand) // 100))
    update_s, moves = timed(lambda: live.update({key: 1.5 * demand[key] for key in moved}))
    return {
        f"placement_new_ms_{n_servers}": new_s * 1e3,
        f"placement_update_ms_{n_servers}": update_s * 1e3,
        f"n_replicas_{n_servers}": float(len(replicas.replicas)),
        f"n_loads_{n_servers}": float(len(moves.load)),
    }


def requests_per_s(n_servers: int) -> float:
    """Requests and streams per second of load 1 on servers of one processor."""
    servers, services = epara_services.servers(n_servers, 1), epara_services.services("mixed")
    parts = equal_parts(services, servers)
    return sum(
        parts[each.name] / (arrivals.FRAMES if isinstance(each.slo, Frequency) else 1)
        for each in services
    )


def timed(call: Callable[[], Answer]) -> tuple[float, Answer]:
    """Processor time of a call, and its result."""
    began_s = time.process_time()
    result = call()
    return time.process_time() - began_s, result


def demand_of(n_servers: int, settings: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """What functions call on servers of eight processors, at load 0.6."""
    servers, services = epara_services.servers(n_servers, 8), epara_services.services("mixed")
    load = arrivals.ArrivalLoad(
        per_s={name: 0.6 * per_s for name, per_s in equal_parts(services, servers).items()},
        duration_s=1.0,
        n_functions=max(1000, 10 * n_servers),
    )
    named, found = by_name(services), dict[tuple[str, str], float]()
    names = [server.name for server in servers]
    for each in arrivals.functions(services, names, load, Random(int(settings["seed"]))):
        n_frames = load.n_frames if isinstance(named[each.service].slo, Frequency) else 1
        key = (each.service, each.server)
        found[key] = found.get(key, 0.0) + each.per_s * n_frames
    return found


def one_ring_ms(n_servers: int) -> float:
    """One decision to hand on with all servers as candidates, the mean of some."""
    rng = Random(0)
    others = [
        CandidateServer(f"s{n}", rng.random() * 50, rng.random(), 1.0, 60.0, 0.05, 0.002)
        for n in range(1, n_servers)
    ]
    request = Request(0, "birds", 0.0, 1.0, ("s0",))
    n_times = max(3, 20_000 // n_servers)
    began_s = time.process_time()
    for _ in range(n_times):
        decide(request, (), lambda: others, 0.0, rng, by_spare_finish)
    return (time.process_time() - began_s) / n_times * 1e3


def sync_bytes(n_servers: int) -> float:
    """Bytes that a server of a group sends per interval, once every state has gone round."""
    names = [f"server-{n}" for n in range(n_servers)]
    rings = {name: Ring(name, names, 1.0) for name in names}
    services = [service.name for service in epara_services.services("mixed")][:8]
    row = ServiceState(capacity_per_s=1.0, idle_per_s=1.0, queue_s=0.1, batch_s=0.1)
    state = ServerState(server="", version=0, services=dict.fromkeys(services, row))
    sent = 0
    for round_ in range(n_servers // 2 + N_ROUNDS):
        tells = [
            (name, tell)
            for name, ring in rings.items()
            for tell in ring.handle(IntervalOver(state), float(round_))
        ]
        for name, tell in tells:
            rings[tell.server].handle(NeighbourMessage(name, tell.message), float(round_))
        if round_ >= n_servers // 2:
            sent += sum(len(packed(tell.message, services)) for _, tell in tells)
    return sent / N_ROUNDS / n_servers


def packed(message: StateMessage, services: Sequence[str]) -> bytes:
    """A message as it might travel: services by their numbers, figures as 32-bit floats."""
    numbers = {name: number for number, name in enumerate(services)}
    rows = [
        (
            state.server,
            state.version,
            age_s,
            [
                (numbers[name], row.capacity_per_s, row.idle_per_s, row.queue_s, row.batch_s)
                for name, row in state.services.items()
            ],
        )
        for state, age_s in zip(message.states, message.ages_s, strict=True)
    ]
    return bytes(msgpack.packb(rows, use_single_float=True))
