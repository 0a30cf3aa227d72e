"""A request shared by the paper's robot and server in a lab: predicted and measured, next to either
alone; and what dividing costs."""

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from potluck.bench import estimators, harness
from potluck.errors import UserError
from potluck.lab.scenario import Bandwidth
from potluck.offload.compile import Sides
from potluck.offload.plan.baselines import WAYS
from potluck.offload.plan.lowering import DEVICE, HELPER, Shareable, SharedPiece, lower
from potluck.offload.plan.problem import OffloadProblem
from potluck.offload.plan.split import Splitter
from potluck.offload.rows.operator_times import operator_times
from potluck.offload.stats import Answer
from potluck_wire.graph import Graph

if TYPE_CHECKING:
    import torch

    from potluck.home import Home
    from potluck.offload.accelerated import AcceleratedModel

# Intra-DP's, on its WiFi
HOME = "robot-indoors"
ROBOT = "robot"
SERVER = "server"
# channels, in the lab: 0.7 Mflop for each pixel that is sent, VGG-19 does 0.8
WIDE = (96, 192, 384)
SMALL, PIXELS = (32, 64, 128), 96  # where pieces are computed one after the other
# in the home's own time; the last are the paper's means outdoors and indoors
MB_PER_S = (4.0, 9.125, 11.625)
TABLE_MB_PER_S = (0.0, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0)
FAST_BYTES_PER_S = 50e6  # in the lab, while weights are loaded
DEADLINE = 1.0  # times what the device takes alone: until then joules are saved
MEANWHILE_S = 0.005  # after a request has begun, the air changes
# between two sides as fast as this process: five times a Raspberry Pi
WIFI_MB_PER_S, WIRED_MB_PER_S = 60.0, 600.0
LAYER_REPEATS = 9
PIECE_S = 2e-5  # what the interpreter takes for a graph of any size
SETTLING = 2  # requests after a change of the air, until the estimate has followed


def figures(
    pixels: int, requests: int, turns: int, time_scale: float, repeats: int = 15
) -> dict[str, float]:
    """The median error of predictions, what requests take on steady and on fading air, and the
    overhead.

    Seconds and joules are the lab's: `lab_times` the home's, which is `time_scale`, or more on a
    slow machine.
    """
    import torch

    from potluck.graph import Model

    before = torch.get_num_threads()
    torch.set_num_threads(1)  # leave the cores to the devices
    _keep_memory()
    try:
        net, x = _network(pixels, WIDE)
        found = _in_the_lab(
            Model.from_torch(net, x, max_layers=6, name="wide-vgg"), x, requests, turns, time_scale
        )
        net, x = _network(PIXELS, SMALL)
        model = Model.from_torch(net, x, max_layers=6, name="small-vgg")
        for name, mb_per_s in (("split", WIFI_MB_PER_S), ("split_wired", WIRED_MB_PER_S)):
            costs = overhead(model, x, mb_per_s * 1e6, repeats)
            found |= {f"{name}_{key}": value for key, value in costs.items()}
        return found
    finally:
        torch.set_num_threads(before)


def _keep_memory() -> None:
    """What tensors gave back stays for the next ones, as in a worker.

    The whole model would pay more for pages.
    """
    from potluck_agent.worker.launch import MALLOC

    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for parameter, name in ((-3, "MALLOC_MMAP_THRESHOLD_"), (-1, "MALLOC_TRIM_THRESHOLD_")):
            library.mallopt(parameter, int(MALLOC[name]))


def _network(pixels: int, widths: Sequence[int]) -> "tuple[torch.nn.Module, torch.Tensor]":
    """Six convolutions in the shape of VGG, and a picture."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers: list[nn.Module] = []
    channels = 3
    for width in widths:
        layers += [
            nn.Conv2d(channels, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
        ]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    net = nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(channels * 16, 100)
    )
    return net.eval(), torch.randn(1, 3, pixels, pixels)


def _in_the_lab(
    model: Any, x: "torch.Tensor", requests: int, turns: int, time_scale: float
) -> dict[str, float]:
    """`_played`, slower where this machine is too slow for that."""
    try:
        return _played(model, x, requests, turns, time_scale)
    except UserError as error:
        needed = error.facts.get("time_scale")
        if not isinstance(needed, float):
            raise
        return _played(model, x, requests, turns, needed)


def _played(
    model: Any, x: "torch.Tensor", requests: int, turns: int, time_scale: float
) -> dict[str, float]:
    from potluck.home import Home
    from potluck.offload.accelerate import accelerate

    with Home.lab(HOME, time_scale=time_scale) as home:
        _air(home, FAST_BYTES_PER_S * time_scale / 1e6)
        bandwidths = [mb * 1e6 / time_scale for mb in TABLE_MB_PER_S]
        made = accelerate(model, x, helper=home[SERVER], device=home[ROBOT], bandwidths=bandwidths)
        with made.wait() as fast:
            found = {"lab_times": time_scale} | _steady(home, fast, x, requests)
            return found | (_fading(home, fast, x, turns, time_scale) if turns else {})


def _steady(
    home: "Home", fast: "AcceleratedModel", x: "torch.Tensor", requests: int
) -> dict[str, float]:
    """Predicted and measured where the air stays as it is."""
    found: dict[str, float] = {}
    errors: list[float] = []
    for mb in reversed(MB_PER_S):
        _air(home, mb)
        n_before = fast.stats.requests + SETTLING
        for _ in range(SETTLING + requests):
            fast(x)
        answers = fast.stats.since(n_before).answers
        errors += [abs(a.predicted_s - a.latency_s) / a.latency_s for a in answers]
        found[f"lab, {mb:g} MB/s: shared_s"] = median(answer.latency_s for answer in answers)
    return {"prediction_error_median_frac": median(errors), **found}


def _fading(
    home: "Home", fast: "AcceleratedModel", x: "torch.Tensor", turns: int, time_scale: float
) -> dict[str, float]:
    """Requests on traces that drop to near zero, of ours and of every baseline: one per step, which
    begins while the request is under way. All go by the same estimator, and answer alone where the
    helper is late."""
    deadline_s = DEADLINE * fast.alone_s
    ways: dict[str, tuple[str, float | None]] = {
        "shared": ("", None),
        "shared thriftily": ("", deadline_s),
    }
    ways |= {way: (way, deadline_s if "thrift" in way else None) for way in WAYS}
    seen: dict[tuple[str, str], tuple[Answer, ...]] = {}
    for way, (baseline, limit_s) in ways.items():
        _air(home, FAST_BYTES_PER_S * time_scale / 1e6)
        with fast.like(baseline, deadline_s=limit_s) as other:
            for place in estimators.PLACES:
                _air(home, estimators.PLACES[place][0] / 1e6)
                for _ in range(SETTLING):
                    other(x)
                for rate in estimators.fade(place, turns):
                    home.play([Bandwidth(at_s=MEANWHILE_S, medium="air", rate=rate)])
                    other(x)
                seen[place, way] = other.stats.since(other.stats.requests - turns).answers
    found: dict[str, float] = {}
    for place in estimators.PLACES:
        seconds = {way: [answer.latency_s for answer in seen[place, way]] for way in ways}
        joules = {way: [answer.joules or 0.0 for answer in seen[place, way]] for way in ways}
        for way in ways:
            found |= {
                f"lab {place}, {way}: latency_{name}_s": v
                for name, v in _middle_and_tail(seconds[way]).items()
            }
            found |= {
                f"lab {place}, {way}: energy_{name}_j": v
                for name, v in _middle_and_tail(joules[way]).items()
            }
        found[f"lab_{place}_latency_ratio_to_best_baseline"] = _ratio_to_best(seconds, "shared")
        found[f"lab_{place}_energy_ratio_to_thriftiest_cut"] = fmean(
            joules["shared thriftily"]
        ) / fmean(joules["thriftiest cut"])
    return found


def _middle_and_tail(values: Sequence[float]) -> dict[str, float]:
    return {"median": median(values), "p95": sorted(values)[math.ceil(0.95 * len(values)) - 1]}


def _ratio_to_best(seconds: Mapping[str, Sequence[float]], ours: str) -> float:
    """Our mean by that of whichever baseline has the least on this trace, though nobody knows
    beforehand which.
    """
    return fmean(seconds[ours]) / min(fmean(seconds[way]) for way in WAYS)


def _air(home: "Home", mb_per_s: float) -> None:
    home.play([Bandwidth(at_s=0, medium="air", rate=mb_per_s * 1e6)])


def overhead(model: Any, x: "torch.Tensor", bytes_per_s: float, repeats: int) -> dict[str, float]:
    """What it costs that a request is divided between two equals, all pieces of which one process
    computes here.

    `overhead_frac`: how much longer that takes than the undivided model; rows that both sides
    compute count twice, sending counts nothing. `error_frac`: how far it is from what was predicted
    of these pieces.
    """
    shareable = Shareable(model.traced_line())
    sharing = _between_equals(model, shareable, x)
    split = Splitter(sharing).share(bytes_per_s)
    shared = lower(shareable, split.divisions, split.tiles)
    state = model.state()
    undivided = _ready(model.traced_line().traced.graph, state)
    pieces = [step for step in shared.steps if isinstance(step, SharedPiece)]
    ready = {piece.name: _ready(piece.graph, state) for piece in pieces}

    def divided() -> None:
        have: dict[int, dict[Any, Any]] = {DEVICE: {shareable.input_part: x}, HELPER: {}}
        for step in shared.steps:
            if isinstance(step, SharedPiece):
                made = ready[step.name]([have[step.side][part] for part in step.takes])
                have[step.side].update(zip(step.gives, made, strict=True))
            else:
                part, rows = step.part, have[step.side].get(step.part)
                have[step.to][part] = (
                    x.narrow(2, part.start, part.stop - part.start) if rows is None else rows
                )

    seconds = harness.interleaved({"divided": divided, "whole": lambda: undivided([x])}, repeats)
    sides = Sides(names=("device", "helper"), kinds={}, sharing=sharing, batch=len(x))
    predicted_s = sum(sides.piece_s(shareable, piece) + sharing.piece_s for piece in pieces)
    return {
        "overhead_frac": harness.ratio(seconds, "divided", "whole") - 1,
        "error_frac": abs(predicted_s / min(seconds["divided"]) - 1),
    }


def _ready(
    graph: Graph, state: "Mapping[str, torch.Tensor]"
) -> Callable[[list[Any]], Sequence[Any]]:
    """A graph with its weights in the agent's interpreter."""
    from potluck_agent.worker.interpreter import Interpreter

    interpreter = Interpreter(graph)
    names = [row.name for row in graph.parameters] + [row.name for row in graph.buffers]
    weights = [state[name] for name in names]
    return lambda inputs: interpreter.run(inputs, weights, train=False)


def _between_equals(model: Any, shareable: Shareable, x: "torch.Tensor") -> OffloadProblem:
    """The problem of two sides that are as fast as this process, layer by layer in sequence."""
    state = model.state()
    values = [x]
    layers = {}
    for index in range(len(model.layers())):
        layer = _ready(model.segment(index, index + 1)[1], state)
        layers[str(index)] = partial(layer, values)
        values = list(layer(values))
    seconds = harness.interleaved(layers, LAYER_REPEATS)
    equal = operator_times(model.laid_out(), [min(several) for several in seconds.values()], len(x))
    return OffloadProblem(
        operators=shareable.operators((equal, equal), batch=len(x)),
        bytes_per_s=0.0,
        piece_s=PIECE_S,
    )
