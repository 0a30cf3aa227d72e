"""Homes of many devices, drawn by seed: how many, which kinds, which network, which model, which
workload.
"""

import random
from collections.abc import Iterator, Mapping
from itertools import product
from typing import NamedTuple

from potluck.records import (
    Device,
    Inference,
    Layer,
    LayerCost,
    Medium,
    Network,
    Path,
    Problem,
    Training,
)

SIZES = (24, 32, 64)
KINDS = ("alike", "two kinds", "mixed")
NETWORKS = ("wifi", "switch", "sites")
WORKLOADS: Mapping[str, Training | Inference] = {
    "training": Training(batch=64),
    "streaming": Inference(batch=4, streaming=True),
    "single": Inference(batch=4),
}
ROWS = (1, 4, 16, 64)  # batch sizes at which layers are timed


class LargeHome(NamedTuple):
    """One cell of the class; `seed` draws what is left open in it."""

    n_devices: int
    kind: str
    network: str
    workload: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.n_devices} {self.kind}, {self.network}, {self.workload}, seed {self.seed}"

    def problem(self) -> Problem:
        """The home and a chain of 12 to 120 layers: speeds, sizes and links over orders of
        magnitude.
        """
        rng = random.Random(self.name)
        names = [f"d{i}" for i in range(self.n_devices)]
        n_layers = rng.randint(12, 120)
        speeds = _speeds(rng, self.kind, self.n_devices)
        work = [rng.uniform(0.3, 3.0) / n_layers for _ in range(n_layers)]
        # of a forward, the time that does not depend on its rows
        fixed = rng.choice([0.1, 0.5, 2.0])
        costs = [_costs(work, speed, fixed) for speed in speeds]
        parameter_bytes = 10 ** rng.uniform(5, 8) / n_layers
        row_bytes = 10 ** rng.uniform(3, 5.5)
        sizes = [int(row_bytes * rng.choice([0.3, 1, 1, 3])) for _ in range(n_layers)]
        return Problem(
            model="chain",
            workload=WORKLOADS[self.workload],
            devices=tuple(
                Device(name=name, memory_bytes=1 << 33, overhead_s=1e-4) for name in names
            ),
            network=_network(rng, self.network, names),
            layers=tuple(
                Layer(
                    name=f"l{i}",
                    parameter_bytes=4 * int(parameter_bytes * rng.uniform(0, 2) / 4),
                    output_bytes=size,
                    gradient_bytes=size,
                    activation_bytes=2 * size,
                )
                for i, size in enumerate(sizes)
            ),
            costs=dict(zip(names, costs, strict=True)),
        )


def of_each_class(n_devices: int, seed: int) -> Iterator[LargeHome]:
    """A home of this size of every kind, network and workload."""
    for kind, network, workload in product(KINDS, NETWORKS, WORKLOADS):
        yield LargeHome(n_devices, kind, network, workload, seed)


def drawn(n_homes: int, seed: int) -> Iterator[LargeHome]:
    """So many homes, the sizes in turn, all else by `seed`."""
    rng = random.Random(seed)
    for number in range(n_homes):
        size = SIZES[number % len(SIZES)]
        yield LargeHome(
            size, rng.choice(KINDS), rng.choice(NETWORKS), rng.choice([*WORKLOADS]), number
        )


def _speeds(rng: random.Random, kind: str, n: int) -> list[float]:
    """How many times as fast as one of speed 1 each device is."""
    drawn = [10 ** rng.uniform(0, 1.5) for _ in range(n)]
    if kind == "mixed":
        return drawn
    n_first = n if kind == "alike" else rng.randint(1, n - 1)
    speeds = [drawn[0]] * n_first + [drawn[1]] * (n - n_first)
    rng.shuffle(speeds)
    return speeds


def _costs(work: list[float], speed: float, fixed: float) -> tuple[LayerCost, ...]:
    return tuple(
        LayerCost(
            rows=ROWS,
            forward_s=tuple(w / speed * (fixed + n) for n in ROWS),
            backward_s=tuple(2 * w / speed * (fixed + n) for n in ROWS),
        )
        for w in work
    )


def _network(rng: random.Random, kind: str, names: list[str]) -> Network:
    """One radio; cables to one switch; or switches at two to four sites with an uplink each, slower
    than a cable.
    """
    rate, latency_s = 10 ** rng.uniform(6, 8), 10 ** rng.uniform(-4, -2.5)
    if kind == "wifi":
        over_air = Path(media=(("air", 2),), latency_s=latency_s)
        return Network(
            media=(Medium(name="air", capacity_bytes_per_s=rate),),
            paths={(a, b): over_air for a in names for b in names if a != b},
        )
    n_sites = 1 if kind == "switch" else rng.randint(2, 4)
    site = {name: rng.randrange(n_sites) for name in names}
    rates = [(name, rate) for name in names]
    if n_sites > 1:
        rates += [(f"site{s}", rate * 10 ** rng.uniform(-1.5, -0.3)) for s in range(n_sites)]
    media = tuple(
        Medium(name=f"{name} {way}", capacity_bytes_per_s=r)
        for name, r in rates
        for way in ("up", "down")
    )

    def path(a: str, b: str) -> Path:
        parts = [(f"{a} up", 1), (f"{b} down", 1)]
        if site[a] == site[b]:
            return Path(media=tuple(parts), latency_s=latency_s)
        parts += [(f"site{site[a]} up", 1), (f"site{site[b]} down", 1)]
        return Path(media=tuple(parts), latency_s=latency_s + 0.01)

    return Network(media=media, paths={(a, b): path(a, b) for a in names for b in names if a != b})
