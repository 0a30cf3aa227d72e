"""Small homes for the planners' tests: random ones, and what the simulator says of every plan there is."""

import random

from potluck.plan.cost import CostTable
from potluck.plan.exhaustive import plan_exhaustive
from potluck.records import Device, Inference, Layer, LayerCost, Medium, Network, Path, Problem, QoE, Training
from potluck.simulate.direct import Direct

WORKLOADS = [Training(batch=8, micro_batch=2), Inference(batch=4), Inference(batch=4, streaming=True)]


def random_home(seed, workload=None, *, devices=3, layers=5, qoe=None, capacity=None, speedup=1.0, prefix="d"):
    """Devices `prefix`0, 1, ... on one shared medium; `capacity` and `speedup` (of the first device) for what-if."""
    rng = random.Random(seed)
    n = rng.randint(2, devices)
    names = [f"{prefix}{i}" for i in range(n)]
    drawn = 10 ** rng.uniform(4, 6.5)
    speeds = [rng.uniform(20, 200) for _ in names]
    speeds[0] *= speedup
    weights = [rng.uniform(0.5, 2) for _ in range(rng.randint(3, layers))]
    sizes = [rng.choice([100, 1000, 10_000]) for _ in weights]
    return Problem(
        model="chain", workload=workload or Training(batch=8, micro_batch=2), qoe=qoe or QoE(),
        devices=tuple(Device(name=x, memory_bytes=10**9, idle_w=1.0, busy_w=4.0, radio_w=1.0) for x in names),
        network=Network(
            media=(Medium(name="air", capacity_bytes_per_s=capacity or drawn),),
            paths={(a, b): Path(media=(("air", 1),), latency_s=1e-4) for a in names for b in names if a != b},
        ),
        layers=tuple(
            Layer(name=f"l{i}", parameter_bytes=1000, output_bytes=s, gradient_bytes=s, activation_bytes=s)
            for i, s in enumerate(sizes)
        ),
        costs={
            name: tuple(
                LayerCost(
                    rows=(1, 8), forward_s=(w / speed, 5 * w / speed), backward_s=(2 * w / speed, 10 * w / speed)
                )
                for w in weights
            )
            for name, speed in zip(names, speeds, strict=True)
        },
    )  # fmt: skip


def optimum_s(problem):
    """The least simulated latency of all plans (rows by Algorithm 1, depths K_p)."""
    table = CostTable(problem)
    direct = Direct(problem, table)
    return min(direct.run(plan).latency_s for plan in plan_exhaustive(problem, table))
