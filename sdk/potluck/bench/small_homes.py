"""Random homes of a few devices and a short chain of layers, of several kinds: what may make a home
hard to plan for.

plain: WiFi, a switch, or both. The other kinds change one thing about a plain home:

- tight: memory binds. Of what the whole model takes on one device, each has 0.45 to 1.1, all alike
  or each its own part; or all together have that.
- asymmetric: every device sends up to 100 times slower, or faster, than it receives.
- latency: links on which a micro-batch waits longer than it is under way.
- batch: rates that depend on the batch: devices that gain by more rows, in steps or not, or lose by
  them.
- powerline: two switches, and between them one slow segment that all share.
- far: two sites, each with a slow uplink of high latency and a faster downlink.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil

from potluck.planning.building_blocks import candidates
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
from potluck.simulate import cost, footprint

WORKLOADS: tuple[Training | Inference, ...] = (
    Training(batch=8, micro_batch=2),
    Training(batch=16, micro_batch=4),
    Training(batch=8),
    Inference(batch=4),
    Inference(batch=8),
    Inference(batch=4, streaming=True),
    Inference(batch=8, streaming=True),
)
ROWS = (1, 2, 4, 8, 16)


def draw(kind: str, seed: str, settings: Mapping[str, float]) -> Problem:
    """The home of that kind and seed, of at most `settings` "devices" and "layers"."""
    rng = random.Random(f"{kind} {seed}")
    problem = random_problem(rng, settings)
    return CHANGES[kind](problem, rng) if kind in CHANGES else problem


def random_problem(rng: random.Random, settings: Mapping[str, float]) -> Problem:
    """A home of two or more devices on WiFi, a switch or both, and a chain of layers.

    Every workload.
    """
    n_devices, n_layers = (
        rng.randint(2, int(settings["devices"])),
        rng.randint(3, int(settings["layers"])),
    )
    names = [f"d{i}" for i in range(n_devices)]
    capacity, wired = 10 ** rng.uniform(4, 7), {name for name in names if rng.random() < 0.5}
    media = [Medium(name="air", capacity_bytes_per_s=capacity)]
    media += [
        Medium(name=f"{n} {way}", capacity_bytes_per_s=4 * capacity)
        for n in names
        for way in ("up", "down")
    ]

    def path(a: str, b: str) -> Path:
        parts = [(f"{a} up", 1)] if a in wired else []
        parts += [(f"{b} down", 1)] if b in wired else []
        air = (a not in wired) + (b not in wired)
        return Path(media=(*parts, *([("air", air)] if air else [])), latency_s=0.001)

    speeds = {name: 10 ** rng.uniform(1, 2.5) for name in names}
    work = [rng.uniform(0.3, 3.0) for _ in range(n_layers)]
    costs = {
        name: tuple(
            LayerCost(
                rows=(1, 4, 16),
                forward_s=tuple(w / speeds[name] * (0.5 + n) for n in (1, 4, 16)),
                backward_s=tuple(2 * w / speeds[name] * (0.5 + n) for n in (1, 4, 16)),
            )
            for w in work
        )
        for name in names
    }
    sizes = [rng.choice([300, 3000, 30_000]) for _ in range(n_layers)]
    return Problem(
        model="random",
        devices=tuple(Device(name=name, memory_bytes=10**9) for name in names),
        network=Network(
            media=tuple(media), paths={(a, b): path(a, b) for a in names for b in names if a != b}
        ),
        layers=tuple(
            Layer(
                name=f"l{i}",
                parameter_bytes=rng.choice([400, 4000, 40_000]),
                output_bytes=size,
                gradient_bytes=size,
                activation_bytes=size,
            )
            for i, size in enumerate(sizes)
        ),
        costs=costs,
        workload=rng.choice(WORKLOADS),
    )


def _tight(problem: Problem, rng: random.Random) -> Problem:
    table, rows = cost.CostTable(problem), rng.choice(candidates.micro_batches(problem))
    n_micro_batches = problem.workload.batch // rows
    n, n_layers = len(problem.devices), len(problem.layers)
    total_bytes = footprint.memory_bytes(
        table, 0, n_layers, rows, warm_up=1, n_micro_batches=n_micro_batches
    )
    share, how = rng.uniform(0.45, 1.1), rng.choice(["alike", "mixed", "total"])
    parts = [share] * n if how == "alike" else [rng.uniform(0.45, 1.1) for _ in range(n)]
    if how == "total":
        parts = [share * part / sum(parts) for part in parts]
    devices = zip(problem.devices, parts, strict=True)
    return replace(
        problem,
        devices=tuple(replace(d, memory_bytes=int(part * total_bytes)) for d, part in devices),
    )


def _asymmetric(problem: Problem, rng: random.Random) -> Problem:
    names, middle = [device.name for device in problem.devices], rng.uniform(4, 6)
    rates = {
        f"{name} {way}": 10 ** (middle + rng.uniform(-1, 1))
        for name in names
        for way in ("up", "down")
    }
    return _joined(
        problem, rates, lambda a, b: Path(media=((f"{a} up", 1), (f"{b} down", 1)), latency_s=0.001)
    )


def _latency(problem: Problem, rng: random.Random) -> Problem:
    paths = {
        pair: replace(path, latency_s=10 ** rng.uniform(-2, 0))
        for pair, path in sorted(problem.network.paths.items())
    }
    media = tuple(
        replace(m, capacity_bytes_per_s=100 * m.capacity_bytes_per_s) for m in problem.network.media
    )
    return replace(problem, network=Network(media=media, paths=paths))


def _batch(problem: Problem, rng: random.Random) -> Problem:
    costs = {}
    for device in problem.devices:
        speed = 10 ** rng.uniform(1, 2.5)
        power = rng.uniform(0.2, 1.3)
        tile = rng.choice([1, 1, 2, 4])
        fixed = rng.choice([0.0, 1.0, 4.0])
        seconds = [(fixed + (tile * ceil(n / tile)) ** power) / speed for n in ROWS]
        costs[device.name] = tuple(
            LayerCost(
                rows=ROWS,
                forward_s=tuple(w * s for s in seconds),
                backward_s=tuple(2 * w * s for s in seconds),
            )
            for w in (rng.uniform(0.3, 3.0) for _ in problem.layers)
        )
    return replace(problem, costs=costs)


def _powerline(problem: Problem, rng: random.Random) -> Problem:
    room = _two_groups(problem, rng)
    rates = {f"{name} {way}": 1e7 for name in room for way in ("up", "down")} | {
        "powerline": 10 ** rng.uniform(3.5, 5)
    }

    def path(a: str, b: str) -> Path:
        slow = () if room[a] == room[b] else (("powerline", 1),)
        return Path(
            media=((f"{a} up", 1), *slow, (f"{b} down", 1)), latency_s=0.004 if slow else 0.0005
        )

    return _joined(problem, rates, path)


def _far(problem: Problem, rng: random.Random) -> Problem:
    site, latency_s = _two_groups(problem, rng), rng.uniform(0.01, 0.1)
    rates = {f"{name} {way}": 1e7 for name in site for way in ("up", "down")}
    for number in range(2):
        up = 10 ** rng.uniform(3.5, 5.5)
        rates |= {f"site {number} up": up, f"site {number} down": up * rng.uniform(1, 10)}

    def path(a: str, b: str) -> Path:
        line = (
            () if site[a] == site[b] else ((f"site {site[a]} up", 1), (f"site {site[b]} down", 1))
        )
        return Path(
            media=((f"{a} up", 1), *line, (f"{b} down", 1)), latency_s=latency_s if line else 0.0005
        )

    return _joined(problem, rates, path)


def _two_groups(problem: Problem, rng: random.Random) -> dict[str, int]:
    names = [device.name for device in problem.devices]
    return {name: i if i < 2 else rng.randrange(2) for i, name in enumerate(names)}


def _joined(
    problem: Problem, rates: Mapping[str, float], path: Callable[[str, str], Path]
) -> Problem:
    names = [device.name for device in problem.devices]
    media = tuple(Medium(name=name, capacity_bytes_per_s=rate) for name, rate in rates.items())
    paths = {(a, b): path(a, b) for a in names for b in names if a != b}
    return replace(problem, network=Network(media=media, paths=paths))


CHANGES: Mapping[str, Callable[[Problem, random.Random], Problem]] = {
    "tight": _tight,
    "asymmetric": _asymmetric,
    "latency": _latency,
    "batch": _batch,
    "powerline": _powerline,
    "far": _far,
}
KINDS = ("plain", *CHANGES)
