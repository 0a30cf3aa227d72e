"""The HTTP entrance of a home against direct calls of the same service, and against a plain
Starlette service of the same module on the same machine.

One agent, as one is installed on a machine. Clients are a process of their own. Both sides take one
row as raw bytes over connections that stay open. Throughput is of a closed loop. Waiting times are
of an open loop at a part of the rate that the plain service reached, so that both stand under the
same load. Rounds take turns."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING

from potluck.bench.harness import Result
from potluck.bench.http_processes import network

if TYPE_CHECKING:
    from potluck.serve.runtime.service import Service

SETTINGS: dict[str, float] = {
    "devices": 1,
    "width": 1024,
    "layers": 6,
    "clients": 16,
    "load_frac": 0.6,
    "seconds": 4,
    "rounds": 3,
    "calls": 200,
}
GOALS = {"ratio_throughput": (">=", 1.0), "p99_ratio": ("<=", 1.0)}
LIMIT_S = 5.0


def run(settings: Mapping[str, float]) -> Result:
    """Ask both sides in turn."""
    import torch

    import potluck

    width, n_layers = int(settings["width"]), int(settings["layers"])
    model = potluck.Model.from_torch(network(width, n_layers), torch.zeros(2, width), name="net")
    with potluck.Home.local(int(settings["devices"])) as home, _plain(width, n_layers) as port:
        service = home.serve(model, "net", slo=potluck.Latency(LIMIT_S)).wait()
        with home.gateway() as gateway:
            ports = {"plain": port, "ours": gateway.port}
            closed, opened = _rounds(ports, settings)
            http_s = _ask_one_by_one("ours", gateway.port, settings)
            direct_s = _direct_s(service, width, int(settings["calls"]))
        stats = service.stats
    figures = {
        **{f"{side}_per_s": median(each["per_s"] for each in closed[side]) for side in ports},
        "ratio_throughput": _ratio(closed, "per_s"),
        **{f"{side}_p50_s": median(each["p50_s"] for each in opened[side]) for side in ports},
        **{f"{side}_p99_s": median(each["p99_s"] for each in opened[side]) for side in ports},
        "p99_ratio": _ratio(opened, "p99_s"),
        "direct_s": direct_s,
        "http_added_s": http_s - direct_s,
        "mean_batch": stats.mean_batch,
        "refused": float(stats.n_refused),
    }
    return Result(name="gateway", figures=figures, settings=settings, goals=GOALS)


Rounds = dict[str, list[dict[str, float]]]


def _rounds(ports: Mapping[str, int], settings: Mapping[str, float]) -> tuple[Rounds, Rounds]:
    closed: Rounds = {side: [] for side in ports}
    opened: Rounds = {side: [] for side in ports}
    for _ in range(int(settings["rounds"])):
        for side, port in ports.items():
            closed[side].append(_load(side, port, settings, settings["clients"], 0.0))
        per_s = settings["load_frac"] * closed["plain"][-1]["per_s"]
        for side, port in ports.items():
            opened[side].append(_load(side, port, settings, 8 * settings["clients"], per_s))
    return closed, opened


def _ratio(rounds: Rounds, key: str) -> float:
    pairs = zip(rounds["ours"], rounds["plain"], strict=True)
    return median(ours[key] / theirs[key] for ours, theirs in pairs)


def _ask_one_by_one(side: str, port: int, settings: Mapping[str, float]) -> float:
    return _load(side, port, settings, 1, 0.0)["p50_s"]


def _load(
    side: str, port: int, settings: Mapping[str, float], n_clients: float, per_s: float
) -> dict[str, float]:
    options = (side, port, int(settings["width"]), int(n_clients), per_s, settings["seconds"])
    command = [sys.executable, "-m", "potluck.bench.http_processes", "load", *map(str, options)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _direct_s(service: "Service", width: int, n_calls: int) -> float:
    import torch

    x, taken = torch.zeros(1, width), []
    for _ in range(n_calls):
        begun_s = time.perf_counter()
        service(x)
        taken.append(time.perf_counter() - begun_s)
    return median(taken)


@contextmanager
def _plain(width: int, n_layers: int) -> Iterator[int]:
    command = [
        sys.executable,
        "-m",
        "potluck.bench.http_processes",
        "plain",
        *map(str, (width, n_layers)),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()
