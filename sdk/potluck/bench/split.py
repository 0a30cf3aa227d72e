"""One request shared inside its operators against all on one side, the best cuts between layers,
and other searches.

The paper's networks on its robot and server (Intra-DP, section V-A), their operators' seconds by
roofline, at bandwidths from 0 to 50 MB/s, carried out in virtual time. Then the same robot and
server in a lab, where all takes `lab_times` as long as at home, or as long as this machine needs:
`split_lab`.
"""

import time
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median

from potluck.bench import estimators, split_lab
from potluck.bench.harness import Result
from potluck.offload.plan import baselines
from potluck.offload.plan.bandwidths import over
from potluck.offload.plan.problem import DEVICE, Division, OffloadProblem, SharedLink
from potluck.offload.plan.split import Split, Splitter
from potluck.offload.plan.steps import TILES
from potluck.offload.split_table import BANDWIDTHS, N_SEARCHES

SETTINGS: Mapping[str, float] = {
    "models": 7,
    "step_mb_per_s": 5,
    "most_mb_per_s": 50,
    "table_step_mb_per_s": 1,
    "de_s": 5,
    "lab": 1,
    "lab_pixels": 48,
    "lab_times": 600,
    "requests": 6,
    "turns": 10,
    "robot_times": 1,
    "server_times": 1,
}
GOALS = {
    "latency_saving_vs_best_single": (">=", 0.5),  # Intra-DP: up to 0.50
    "latency_ratio_to_layer_cut_median": ("<=", 0.92),  # Intra-DP: 0.74 to 0.92
    "never_worse_than_baselines_frac": (">=", 1.0),
    "energy_saving_max": (">=", 0.75),  # Intra-DP: up to 0.75
    "loss_solve_s_per_bandwidth": ("<=", 0.5),
    "table_loss_mean_frac": ("<=", 0.01),
    "table_loss_max_frac": ("<=", 0.02),
    "ratio_to_de": ("<=", 1.0),
    "second_helper_latency_ratio": ("<=", 1.0),
    "prediction_error_median_frac": ("<=", 0.1),
}
MODELS = (
    "vgg19",
    "densenet121",
    "resnet50",
    "convnext-t",
    "regnet-y-040",
    "mobilenet-v2",
    "efficientnet-b1",
)
TABLED = "mobilenet-v2"  # the one whose best split changes most with the bandwidth
HOME = "robot-indoors"
ROBOT = "robot"
SERVER = "server"
# to robots that are alike, and between the helpers among them
ALIKE_BYTES_PER_S, WIRED_BYTES_PER_S = 50e6, 125e6
OTHERS = tuple(name for name in baselines.WAYS if name != "thriftiest cut")  # that needs a deadline
DEADLINE = 1.2  # times what the soonest of the others takes: then joules are saved
DE_MB_PER_S = (10.0, 25.0)
SAME = 1 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPoint:
    """One model at one bandwidth: ours, what it took to find, and what others do.

    `thrifty`: within the deadline.
    """

    bytes_per_s: float
    solve_s: float
    ours: Split
    thrifty: Split
    thriftiest_cut: Split
    others: Mapping[str, Split]

    @property
    def single_s(self) -> float:
        """The sooner of all on the device and all on the helper."""
        return min(
            self.others[name].latency_s for name in ("device", "helper") if name in self.others
        )

    @property
    def energy_saving_frac(self) -> float:
        """The joules of the device that are saved, of those that it takes alone."""
        return 1 - self.thrifty.energy_j / self.others["device"].energy_j

    @property
    def is_never_worse(self) -> bool:
        """Later than none of the others.

        And with no more joules, by the deadline, than the thriftiest cut.
        """
        soonest_s = min(split.latency_s for split in self.others.values())
        return (
            self.ours.latency_s <= soonest_s * SAME
            and self.thrifty.energy_j <= self.thriftiest_cut.energy_j * SAME
        )


def run(settings: Mapping[str, float]) -> Result:
    """Figures over all models first, then those of each model."""
    rates = _rates(settings["step_mb_per_s"], settings["most_mb_per_s"])
    names = MODELS[: int(settings["models"])]
    slower = settings["robot_times"], settings["server_times"]
    splitters = {name: Splitter(sharing_of(name, slower)) for name in names}
    points = {
        name: [_point(splitter, rate) for rate in rates] for name, splitter in splitters.items()
    }
    figures = _figures([point for several in points.values() for point in several])
    first = splitters[names[0]]
    figures["ratio_to_de"] = max(
        _ratio_to_de(first, mb * 1e6, settings["de_s"]) for mb in DE_MB_PER_S
    )
    figures |= _table_losses(
        splitters.get(TABLED, first), settings["table_step_mb_per_s"], settings["most_mb_per_s"]
    )
    figures["second_helper_latency_ratio"] = _second_helper_ratio(first.shares.sharing)
    if settings["lab"]:
        figures |= split_lab.figures(
            int(settings["lab_pixels"]),
            int(settings["requests"]),
            int(settings["turns"]),
            settings["lab_times"],
        )
    figures |= estimators.figures()
    for name, several in points.items():
        figures |= {f"{name}: {key}": value for key, value in _figures(several).items()}
    return Result(name="split", figures=figures, settings=settings, goals=GOALS)


def sharing_of(name: str, slower: tuple[float, float] = (1.0, 1.0)) -> OffloadProblem:
    """The planner's problem of a model of the catalog on the paper's robot with its server.

    The link is still open.

    `slower`: both take so many times as long as their rooflines.
    """
    from potluck.graph.partition.cuts import line
    from potluck.offload import what_if
    from potluck.profile import catalog, library

    sharing = what_if.sharing_of(
        library.load_home(HOME), (ROBOT, SERVER), line(catalog.traced(name))
    )
    operators = (
        replace(
            operator,
            side_s=tuple(
                seconds * times for seconds, times in zip(operator.side_s, slower, strict=False)
            ),
            side_fixed_s=tuple(
                seconds * times
                for seconds, times in zip(operator.side_fixed_s, slower, strict=False)
            ),
        )
        for operator in sharing.operators
    )
    return replace(sharing, operators=tuple(operators))


def _rates(step_mb: float, most_mb: float) -> tuple[float, ...]:
    return tuple(1e6 * step_mb * k for k in range(int(most_mb / step_mb) + 1))


def _point(splitter: Splitter, bytes_per_s: float) -> SplitPoint:
    begun_s = time.process_time()
    ours = splitter.share(bytes_per_s)
    solve_s = time.process_time() - begun_s
    others = baselines.answers(OTHERS, splitter, bytes_per_s)
    deadline_s = DEADLINE * min(split.latency_s for split in others.values())
    return SplitPoint(
        bytes_per_s=bytes_per_s,
        solve_s=solve_s,
        ours=ours,
        thrifty=splitter.share(bytes_per_s, deadline_s=deadline_s),
        thriftiest_cut=baselines.thriftiest_cut(splitter, bytes_per_s, deadline_s),
        others=others,
    )


def _figures(points: list[SplitPoint]) -> dict[str, float]:
    linked = [point for point in points if point.bytes_per_s > 0]
    shared = [point for point in linked if point.ours.sent_bytes]
    ratios = [point.ours.latency_s / point.others["layer cut"].latency_s for point in linked]
    return {
        "latency_saving_vs_best_single": max(
            1 - point.ours.latency_s / point.single_s for point in linked
        ),
        "latency_ratio_to_layer_cut_median": median(ratios),
        "latency_ratio_to_layer_cut_min": min(ratios),
        "sharing_pays_frac": len(shared) / len(linked),
        "never_worse_than_baselines_frac": sum(point.is_never_worse for point in points)
        / len(points),
        "energy_saving_max": max(point.energy_saving_frac for point in linked),
        "energy_ratio_to_thriftiest_cut_median": median(
            p.thrifty.energy_j / p.thriftiest_cut.energy_j for p in linked
        ),
        "loss_solve_s_per_bandwidth": sum(point.solve_s for point in points) / len(points),
    }


def _table_losses(splitter: Splitter, step_mb: float, most_mb: float) -> dict[str, float]:
    """How much later requests are by the table than by a search at the bandwidth of now, half-way
    between steps.
    """
    begun_s = time.process_time()
    table = over(
        BANDWIDTHS,
        splitter,
        lambda rate, near: splitter.share(rate, near=near),
        max_searches=N_SEARCHES,
    )
    table_s = time.process_time() - begun_s
    starts, losses = [rate for rate, _ in table], []
    for below, above in pairwise(_rates(step_mb, most_mb)):
        rate = (below + above) / 2
        entry = table[bisect_right(starts, rate) - 1][1]
        sought = splitter.share(rate, near=(entry,))
        losses.append(
            splitter.evaluate(entry.divisions, rate, entry.tiles).latency_s / sought.latency_s - 1
        )
    return {
        "table_loss_mean_frac": fmean(losses),
        "table_loss_max_frac": max(losses),
        "table_entries": len(table),
        "table_s": table_s,
    }


def _second_helper_ratio(sharing: OffloadProblem) -> float:
    """The time of a request of three robots that are alike, two of them joined by a wire, by that
    of two.
    """
    operators = (operator.among((DEVICE,) * 3) for operator in sharing.operators)
    wire = SharedLink(media=((1, 1),), latency_s=sharing.latency_s)
    three = replace(
        sharing,
        operators=tuple(operators),
        n_sides=3,
        lines={(1, 2): wire, (2, 1): wire},
        media_bytes_per_s=(WIRED_BYTES_PER_S,),
    )
    two = Splitter(three.among((0, 1))).share(ALIKE_BYTES_PER_S)
    return Splitter(three).share(ALIKE_BYTES_PER_S).latency_s / two.latency_s


def _ratio_to_de(splitter: Splitter, bytes_per_s: float, budget_s: float) -> float:
    """Our latency by that of the best split which differential evolution finds in so many seconds
    of this processor.
    """
    return (
        splitter.share(bytes_per_s).latency_s
        / differential_evolution(splitter, bytes_per_s, budget_s).latency_s
    )


def differential_evolution(splitter: Splitter, bytes_per_s: float, budget_s: float) -> Split:
    """Intra-DP's own search (section IV-C5): two numbers for every operator, where the device's
    rows end and where the helper's begin; it starts among others from the best layer cut."""
    from scipy.optimize import differential_evolution as evolve

    operators = splitter.shares.operators[1:-1]
    layers = baselines.least_cut(splitter.shares, bytes_per_s)
    best = splitter.evaluate(layers, bytes_per_s)
    begun_s = time.process_time()

    def latency_s(genes: "list[float]") -> float:
        nonlocal best
        if time.process_time() - begun_s > budget_s:
            return float("inf")
        found = splitter.tried(_divisions(splitter, genes), bytes_per_s, TILES)
        if found is not None and found.latency_s < best.latency_s:
            best = found
        return found.latency_s if found is not None else float("inf")

    start = [float(division[DEVICE][1] > 0) for division in layers[1:-1] for _ in range(2)]
    evolve(
        latency_s,
        [(0.0, 1.0)] * (2 * len(operators)),
        x0=start,
        maxiter=10**6,
        popsize=5,
        tol=0,
        polish=False,
        rng=0,
        callback=lambda *_: time.process_time() - begun_s > budget_s,
    )
    return best


def _divisions(splitter: Splitter, genes: "list[float]") -> tuple[Division, ...]:
    operators = splitter.shares.operators
    found: list[Division] = []
    for place, operator in enumerate(operators[1:-1]):
        end, begin = genes[2 * place], genes[2 * place + 1]
        if not operator.divisible:
            end = begin = float(end >= 0.5)
        device = round(end * operator.count)
        found.append(((0, device), (min(device, round(begin * operator.count)), operator.count)))
    return (((0, operators[0].count), (0, 0)), *found, ((0, 1), (0, 0)))
