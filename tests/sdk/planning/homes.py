"""Small homes for the planners' tests: random ones, and what the simulator says of every plan there
is.
"""

import random
from dataclasses import replace
from itertools import combinations, pairwise, permutations, product

import pytest

from potluck.planning.exhaustive import plan_exhaustive
from potluck.records import (
    Device,
    Edge,
    Inference,
    Layer,
    LayerCost,
    Medium,
    Network,
    Path,
    Plan,
    Problem,
    QoE,
    Stage,
    Training,
)
from potluck.simulate.cost import CostTable
from potluck.simulate.direct_simulation import Direct

WORKLOADS = [
    Training(batch=8, micro_batch=2),
    Inference(batch=4),
    Inference(batch=4, streaming=True),
]


def later(seeds):
    """More homes of a kind that the others show already: in the long tests alone."""
    return [pytest.param(seed, marks=pytest.mark.long) for seed in seeds]


def random_home(
    seed, workload=None, *, devices=3, layers=5, qoe=None, capacity=None, speedup=1.0, prefix="d"
):
    """Devices `prefix`0, 1, ... on one shared medium.

    `capacity` and `speedup` (of the first device) for what-if.
    """
    rng = random.Random(seed)
    n = rng.randint(2, devices)
    names = [f"{prefix}{i}" for i in range(n)]
    drawn = 10 ** rng.uniform(4, 6.5)
    speeds = [rng.uniform(20, 200) for _ in names]
    speeds[0] *= speedup
    weights = [rng.uniform(0.5, 2) for _ in range(rng.randint(3, layers))]
    sizes = [rng.choice([100, 1000, 10_000]) for _ in weights]
    return Problem(
        model="chain",
        workload=workload or Training(batch=8, micro_batch=2),
        qoe=qoe or QoE(),
        devices=tuple(
            Device(name=x, memory_bytes=10**9, idle_w=1.0, busy_w=4.0, radio_w=1.0) for x in names
        ),
        network=Network(
            media=(Medium(name="air", capacity_bytes_per_s=capacity or drawn),),
            paths={
                (a, b): Path(media=(("air", 1),), latency_s=1e-4)
                for a in names
                for b in names
                if a != b
            },
        ),
        layers=tuple(
            Layer(
                name=f"l{i}",
                parameter_bytes=1000,
                output_bytes=s,
                gradient_bytes=s,
                activation_bytes=s,
            )
            for i, s in enumerate(sizes)
        ),
        costs={
            name: tuple(
                LayerCost(
                    rows=(1, 8),
                    forward_s=(w / speed, 5 * w / speed),
                    backward_s=(2 * w / speed, 10 * w / speed),
                )
                for w in weights
            )
            for name, speed in zip(names, speeds, strict=True)
        },
    )


def optimum_s(problem):
    """The least simulated latency of all plans (rows by Algorithm 1, depths K_p)."""
    table = CostTable(problem)
    direct = Direct(problem, table)
    return min(direct.run(plan).latency_s for plan in plan_exhaustive(problem, table))


def every_plan(problem):
    """Every plan there is for a chain, whatever memory says: all micro-batches, orders of devices,
    cuts and rows; depths K_p, those of plain 1F1B, and 1."""
    n_layers, training = len(problem.layers), isinstance(problem.workload, Training)
    batch, fixed = problem.workload.batch, getattr(problem.workload, "micro_batch", None)
    sizes = [fixed] if fixed else [size for size in range(1, batch + 1) if batch % size == 0]
    for size, (groups, spans) in product(
        sizes, _stages_of([device.name for device in problem.devices], n_layers)
    ):
        n, m = len(groups), batch // size
        depths = {
            (1,) * n,
            tuple(n - p for p in range(n)),
            tuple(2 * (n - p) - 1 for p in range(n)),
        }
        for shares in product(*(_parts(size, len(group)) for group in groups)):
            for depth in depths if training else [(1,) * n]:
                stages = tuple(
                    Stage(start=start, stop=stop, devices=group, shares=rows, warm_up=min(deep, m))
                    for (start, stop), group, rows, deep in zip(
                        spans, groups, shares, depth, strict=True
                    )
                )
                yield Plan(
                    planner="every",
                    model=problem.model,
                    stages=stages,
                    micro_batch=size,
                    n_micro_batches=m,
                    training=training,
                )


def every_returning_plan(problem):
    """Every plan of a chain in which any devices share any stage, also several; depths K_p, and
    1.
    """
    n_layers, training = len(problem.layers), isinstance(problem.workload, Training)
    batch, fixed = problem.workload.batch, getattr(problem.workload, "micro_batch", None)
    sizes = [fixed] if fixed else [size for size in range(1, batch + 1) if batch % size == 0]
    names = [device.name for device in problem.devices]
    for size, n in product(sizes, range(1, n_layers + 1)):
        shared = [
            (group, rows)
            for k in range(1, len(names) + 1)
            for group in combinations(names, k)
            for rows in _parts(size, k)
        ]
        depths = {(1,) * n, tuple(2 * (n - p) - 1 for p in range(n))} if training else {(1,) * n}
        for lengths, chosen, depth in product(
            _parts(n_layers, n), product(shared, repeat=n), depths
        ):
            ends = [sum(lengths[:i]) for i in range(n + 1)]
            yield Plan(
                planner="every",
                model=problem.model,
                stages=tuple(
                    Stage(
                        start=start,
                        stop=stop,
                        devices=group,
                        shares=rows,
                        warm_up=min(deep, batch // size),
                    )
                    for (start, stop), (group, rows), deep in zip(
                        pairwise(ends), chosen, depth, strict=True
                    )
                ),
                micro_batch=size,
                n_micro_batches=batch // size,
                training=training,
            )


def _stages_of(names, n_layers):
    """Groups of devices, in every order, and the layers of each."""
    for n in range(1, len(names) + 1):
        for order in permutations(names, n):
            for k in range(1, min(n, n_layers) + 1):
                for sizes, lengths in product(_parts(n, k), _parts(n_layers, k)):
                    ends, cuts = (
                        [0, *(sum(parts[: i + 1]) for i in range(k))] for parts in (sizes, lengths)
                    )
                    yield [order[a:b] for a, b in pairwise(ends)], [*pairwise(cuts)]


def _parts(total, n):
    """All ways to write `total` as n whole numbers above zero."""
    return [
        tuple(b - a for a, b in pairwise((0, *at, total)))
        for at in combinations(range(1, total), n - 1)
    ]


def random_branches(seed, workload=None, *, devices=3):
    """A stem, two or three branches of one or two layers (the last may be fed by home), a head that
    takes them all.

    The devices of `random_home`; in some the head takes what the stem makes, too.
    """
    rng = random.Random(f"branches {seed}")
    home = random_home(seed, workload, devices=devices)
    edges: list[list[Edge]] = [[]]
    lengths = [rng.choice([1, 1, 2]) for _ in range(rng.choice([2, 2, 3]))]
    head = 1 + sum(lengths)
    firsts = [1 + sum(lengths[:b]) for b in range(len(lengths))]
    edges[0].append(_edge(rng, *firsts, *([head] if rng.random() < 0.3 else [])))
    for first, length in zip(firsts, lengths, strict=True):
        edges += [
            [_edge(rng, i + 1 if i + 1 < first + length else head)]
            for i in range(first, first + length)
        ]
    edges.append([])
    alive = [
        sum(
            edge.output_bytes
            for i, row in enumerate(edges)
            for edge in row
            if i <= at < max(edge.to)
        )
        for at in range(head)
    ]
    fed = {firsts[-1]: 40} if rng.random() < 0.5 else {}
    layers = tuple(
        Layer(
            name=f"l{i}",
            parameter_bytes=rng.choice([400, 4000]),
            output_bytes=size,
            gradient_bytes=size,
            activation_bytes=100,
            edges=tuple(row),
            feed_bytes=fed.get(i, 0),
        )
        for i, (row, size) in enumerate(zip(edges, [*alive, 100], strict=True))
    )
    weights = [rng.uniform(0.1, 3) for _ in layers]
    costs = {
        device.name: tuple(
            LayerCost(
                rows=(1, 8),
                forward_s=(w / speed, 5 * w / speed),
                backward_s=(2 * w / speed, 10 * w / speed),
            )
            for w in weights
        )
        for device, speed in ((device, rng.uniform(50, 150)) for device in home.devices)
    }
    return replace(
        home, model="branches", layers=layers, costs=costs, input_bytes=60, target_bytes=4
    )


def two_by_rows_or_branches(seed):
    """Two devices and a model of two branches or three, of one layer or two each: some layers gain
    when devices share their rows, and some, of a fixed cost, do not.
    """
    rng = random.Random(f"rows or branches {seed}")
    home = random_home(seed, devices=2, capacity=10 ** rng.uniform(5, 7))
    lengths = rng.choice([(1, 1), (1, 2), (2, 1), (2, 2), (1, 1, 1), (1, 1, 2)])
    head, firsts = 1 + sum(lengths), [1 + sum(lengths[:b]) for b in range(len(lengths))]
    to = [firsts, *((i + 1 if i + 1 not in (*firsts, head) else head,) for i in range(1, head)), ()]
    edges = [[_edge(rng, *each)] if each else [] for each in to]
    sizes = [
        sum(e.output_bytes for i, row in enumerate(edges) for e in row if i <= at < max(e.to))
        for at in range(head)
    ]
    layers = tuple(
        Layer(
            name=f"l{i}",
            parameter_bytes=100,
            output_bytes=size,
            gradient_bytes=size,
            activation_bytes=100,
            edges=tuple(row),
        )
        for i, (row, size) in enumerate(zip(edges, [*sizes, 50], strict=True))
    )
    works = [(rng.choice([0.1, 1, 1, 3]), rng.choice([0, 0, 1, 8])) for _ in layers]
    costs = {
        device.name: tuple(
            LayerCost(
                rows=(1, 4),
                forward_s=tuple(0.01 * work / speed * (fixed + n) / (1 + fixed) for n in (1, 4)),
                backward_s=tuple(0.02 * work / speed * (fixed + n) / (1 + fixed) for n in (1, 4)),
            )
            for work, fixed in works
        )
        for device, speed in zip(home.devices, (1.0, rng.choice([1.0, 1.0, 1.5, 3.0])), strict=True)
    }
    batch = rng.choice([2, 3, 4])
    workload = rng.choice([Inference(batch=batch), Training(batch=batch, micro_batch=batch)])
    return replace(home, model="branches", layers=layers, costs=costs, workload=workload)


def _edge(rng, *to):
    size = rng.choice([100, 1000, 10_000])
    return Edge(to=to, output_bytes=size, gradient_bytes=size)
