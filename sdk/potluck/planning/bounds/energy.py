"""Joules that no plan goes below: how much of its energy the thriftiest plan found may still waste
at most.

Say the devices S take part, for T seconds. Device d is busy for b_d <= T of them, and takes idle_d
T + c_d b_d joules where c_d is what computing adds (radios come on top). So for any a_d >= 0 that
add up to the idle power of S,

    E >= sum_d (a_d + c_d) b_d >= sum_l min_d (a_d + c_d) s[d, l]

where s[d, l] are the least seconds of layer l on d: the work bound of `bound` with powers for
weights. Sets whose memory cannot hold the model, or which cannot be on time, are left out; the
least of all others bounds every plan.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import inf, prod

from potluck.planning.bounds.latency import way_s, work_s
from potluck.planning.bounds.rates import least_rates, least_updates_s
from potluck.planning.building_blocks.device_classes import Pattern, classes_of, members
from potluck.records import Device, Problem
from potluck.simulate import cost, equations

MAX_SETS = 300  # of devices, alike ones counted once; with more, all devices stand for every set
N_STEPS = 20  # to better the a_d


def least_energy_j(problem: Problem, table: cost.CostTable) -> float:
    """Joules per step or request that no plan within the limits goes below; infinite where no set
    of devices will do, 0 where power is unknown.
    """
    if any(device.idle_w is None or device.busy_w is None for device in problem.devices):
        return 0.0
    batch = problem.workload.batch
    seconds = [
        [batch * rate + update for rate, update in zip(*rows, strict=True)]
        for device in problem.devices
        for rows in [(least_rates(problem, device.name, batch), least_updates_s(table, device))]
    ]
    patterns = list(_patterns(table))
    if not patterns:
        everyone = range(len(problem.devices))
        return _by_layers(
            [seconds[i] for i in everyone], [problem.devices[i].busy_w or 0.0 for i in everyone]
        )
    classes = classes_of(table)
    least = inf
    way = way_s(problem, in_parts=True)
    for pattern in patterns:
        chosen = members(pattern, classes, [0] * len(classes))
        devices, rows = [problem.devices[i] for i in chosen], [seconds[i] for i in chosen]
        late = problem.qoe.latency_s is not None and work_s(1, rows) > problem.qoe.latency_s * (
            1 + 1e-9
        )
        if not late and holds_weights(table, devices):
            least = min(least, _least_j(devices, rows, way, least))
    return least


def _patterns(table: cost.CostTable) -> Iterator[Pattern]:
    """Every set of devices, the smallest first; nothing where there are too many."""
    sizes = [len(same) for same in classes_of(table)]
    if prod(size + 1 for size in sizes) <= MAX_SETS:
        yield from sorted(
            (p for p in product(*(range(size + 1) for size in sizes)) if any(p)), key=sum
        )


def holds_weights(table: cost.CostTable, devices: Sequence[Device]) -> bool:
    """Whether these devices have room for the model's weights together."""
    problem, floor_bytes = table.problem, table.floor_bytes
    needed = equations.static_bytes(table, 0, len(problem.layers)) - floor_bytes
    return needed <= sum(
        max(cost.budget_bytes(problem, device) - floor_bytes, 0) for device in devices
    )


def _least_j(
    devices: Sequence[Device], seconds: Sequence[Sequence[float]], way: float, enough: float
) -> float:
    """The bound for just these devices; not bettered once it is `enough`."""
    idle = [device.idle_w or 0.0 for device in devices]
    busy = [device.busy_w or 0.0 for device in devices]
    best = _by_layers(seconds, busy)
    if any(b < i for b, i in zip(busy, idle, strict=True)):
        return best
    added = [b - i for b, i in zip(busy, idle, strict=True)]
    best = max(best, sum(idle) * way + _by_layers(seconds, added))
    shares = [1 / max(sum(row), 1e-30) for row in seconds]
    for step in range(N_STEPS):
        if best >= enough or not sum(idle):
            break
        powers = [
            sum(idle) * share / sum(shares) + c for share, c in zip(shares, added, strict=True)
        ]
        best = max(best, _by_layers(seconds, powers))
        load = _loads(seconds, powers)
        mean = sum(load) / len(load)
        if mean <= 0:
            break
        shares = [
            s * (1 + (x / mean - 1) / len(load) / (step + 2))
            for s, x in zip(shares, load, strict=True)
        ]
    return best


def _by_layers(seconds: Sequence[Sequence[float]], powers: Sequence[float]) -> float:
    """Every layer where it takes the fewest joules.

    >>> _by_layers([[1.0, 4.0], [3.0, 3.0]], [2.0, 1.0])  # 2 J and 3 J
    5.0
    """
    joules = 0.0
    for layer in zip(*seconds, strict=True):
        joules += min(w * s for w, s in zip(powers, layer, strict=True))
    return joules


def _loads(seconds: Sequence[Sequence[float]], powers: Sequence[float]) -> list[float]:
    """Seconds of each device if every layer is where it takes the fewest joules."""
    load = [0.0] * len(powers)
    for layer in zip(*seconds, strict=True):
        d = min(range(len(powers)), key=lambda d, layer=layer: powers[d] * layer[d])  # type: ignore[misc]
        load[d] += layer[d]
    return load
