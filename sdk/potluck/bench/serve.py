"""Serving by categories against EPARA and its baselines, simulated: the five workloads of EPARA's
Fig. 11 on servers of P100s (`serve/simulate/epara_services.py`), with open-loop arrivals.

A goodput ratio is ours over a baseline's, both with placements made for the same requests, at
`load` times what equal parts of all processors do. Baselines have their strong forms, and as
`..._printed` those that EPARA's paper grants them (`serve/baselines/schemes.py`). The paper
compares EPARA; its own ratios are `epara_over_...`.

`served_below_capacity_frac`: of all that is asked for at half of the load 1 on `large_servers`.
`goodput_above_capacity_frac_of_peak`: placements made for load 1, then 1, 1.5, 2 and 3 times as
much; the least goodput after the peak over the peak, the worst workload counts.

`lab_...`: the same on real agents, see `serve_lab`.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import replace

from potluck.bench import serve_lab
from potluck.bench.harness import Result
from potluck.serve.baselines.schemes import EPARA, OURS, RIVALS, as_printed
from potluck.serve.simulate.cases import SweepCase
from potluck.serve.simulate.engine import simulate
from potluck.serve.simulate.epara_services import WORKLOADS
from potluck.serve.sweep import sweep

SETTINGS: Mapping[str, float] = {
    "servers": 6,
    "processors": 2,
    "duration_s": 15,
    "load": 1.2,
    "seed": 1,
    "large_servers": 30,
    "large_duration_s": 6,
    "processes": 2,
    "simulated": 1,
    "lab_duration_s": 30,
    "lab_time_scale": 20,
    "lab_load": 1.2,
    "lab_frames": 20,
}
GOALS = {
    "served_below_capacity_frac": (">=", 0.994),
    "goodput_above_capacity_frac_of_peak": (">=", 0.981),
    "ours_over_epara_worst": (">=", 1.0),
    "lab_prediction_error_max_frac": ("<=", 0.1),
    "lab_ours_over_others_worst": (">=", 1.0),
    "epara_over_interedge_printed_mixed": (">=", 2.1),
    "epara_over_alpaserve_printed_mixed": (">=", 2.2),
    "epara_over_galaxy_printed_mixed": (">=", 2.5),
    "epara_over_serv-p_printed_mixed": (">=", 3.2),
}
ABOVE = (1.0, 1.5, 2.0, 3.0)  # times the load that was placed for
SHORT = {
    "mixed": "mixed",
    "frequency, one processor": "frequency_one",
    "frequency, several processors": "frequency_several",
    "latency, one processor": "latency_one",
    "latency, several processors": "latency_several",
}


def run(settings: Mapping[str, float]) -> Result:
    """Ratios of goodput by workload, what is served below and above capacity, and the lab.

    `simulated` 0, or `lab_duration_s` 0: without that half.
    """
    figures: dict[str, float] = {}
    if settings["simulated"]:
        with ProcessPoolExecutor(max_workers=int(settings["processes"])) as pool:
            figures |= compared(settings, pool)
            below = pool.submit(served_below, settings)
            above = [pool.submit(above_capacity, name, settings) for name in WORKLOADS]
            figures["served_below_capacity_frac"] = below.result()
            figures["goodput_above_capacity_frac_of_peak"] = min(each.result() for each in above)
    if settings["lab_duration_s"]:
        figures |= serve_lab.figures(
            settings["lab_duration_s"],
            settings["lab_time_scale"],
            settings["lab_load"],
            int(settings["lab_frames"]),
            int(settings["seed"]),
        )
    return Result(name="serve", figures=figures, settings=dict(settings), goals=GOALS)


def compared(settings: Mapping[str, float], pool: Executor) -> dict[str, float]:
    """Ours and EPARA over each baseline, by workload."""
    cases = {name: case(name, settings) for name in WORKLOADS}
    printed = [as_printed(scheme) for scheme in RIVALS.values()]
    schemes = [OURS, EPARA, *RIVALS.values(), *printed]
    played = sweep([*cases.values()], schemes, executor=pool)
    figures: dict[str, float] = {}
    ratios = []
    for name, each in cases.items():
        goodput = {s.name: played[each, s.name].goodput_per_s for s in schemes}
        ratios.append(goodput[OURS.name] / goodput[EPARA.name])
        figures[f"goodput_per_s_{SHORT[name]}"] = goodput[OURS.name]
        figures[f"ours_over_epara_{SHORT[name]}"] = ratios[-1]
        for baseline in RIVALS:
            for suffix, theirs in (("", baseline), ("_printed", f"{baseline}, as printed")):
                end = f"{baseline.replace(' ', '_')}{suffix}_{SHORT[name]}"
                figures[f"ours_over_{end}"] = over(goodput[OURS.name], goodput[theirs])
                figures[f"epara_over_{end}"] = over(goodput[EPARA.name], goodput[theirs])
    figures["ours_over_epara_worst"] = min(ratios)
    return figures


def over(ours: float, theirs: float) -> float:
    """A ratio; of nothing at all, a thousand."""
    return ours / theirs if theirs > ours / 1000 else 1000.0


def case(workload: str, settings: Mapping[str, float], load: float | None = None) -> SweepCase:
    """One of the five, on the testbed."""
    return SweepCase(
        workload=workload,
        n_servers=int(settings["servers"]),
        n_processors=int(settings["processors"]),
        load=load or settings["load"],
        duration_s=settings["duration_s"],
        seed=int(settings["seed"]),
    )


def served_below(settings: Mapping[str, float]) -> float:
    """The part that is satisfied at half load, on more servers, so that no service has too few."""
    large = SweepCase(
        n_servers=int(settings["large_servers"]),
        load=0.5,
        duration_s=settings["large_duration_s"],
        seed=int(settings["seed"]),
    )
    return simulate(large.scenario(), OURS).satisfied_frac


def above_capacity(workload: str, settings: Mapping[str, float]) -> float:
    """The least goodput after its peak, over the peak."""
    placed_for = case(workload, settings, 1.0).scenario().demand
    goodputs = [
        simulate(
            replace(case(workload, settings, load).scenario(), demand=placed_for), OURS
        ).goodput_per_s
        for load in ABOVE
    ]
    return after_peak(goodputs)


def after_peak(goodputs: Sequence[float]) -> float:
    """The least of the peak and what follows, over the peak.

    >>> after_peak([1.0, 4.0, 3.0, 5.0, 4.5])
    0.9
    """
    at = max(range(len(goodputs)), key=lambda index: goodputs[index])
    return min(goodputs[at:]) / goodputs[at]
