"""Adapting to a home that changes, simulated: against a plan that stays, planning anew at every
change, and an oracle that knows the future. And plans mixed to hold a deadline.

Seconds and joules are the simulator's, of homes drawn by seeds (`fluctuations`). Planning anew and
the oracle are told of every change at once and exactly; our adapter sees, every eight steps, what
the plan at work shows, with noise. Nobody is charged for planning.

On most of these homes the best plan stays the best whatever happens, so medians over all say
little: those over the evenings that matter stand beside them. A switch in a stable home is needless
unless the evening was sooner over for it: a planning under noise may find what the first missed.
"""

import random
from collections.abc import Mapping
from statistics import median

from potluck.adapt.mixture import mix
from potluck.bench import adapt_lab, fluctuations
from potluck.bench.harness import Result
from potluck.planning import make_plans

SETTINGS: Mapping[str, float] = {
    "homes": 12,
    "devices": 3,
    "layers": 8,
    "stretches": 10,
    "steps": 100,
    "noise_frac": 0.03,
    "deadlines": 5,
    "switch_steps": 4,
    "lab_evenings": 1,
    "lab_stretches": 3,
    "lab_steps": 100,
    "lab_played_steps": 20,
    "lab_time_scale": 22,
    "seed": 0,
}
GOALS = {"regret_to_oracle_median_frac": ("<=", 0.1), "n_needless_switches": ("<=", 0.0)}
MATTERS_FRAC = (
    0.05  # that the oracle is sooner than the plan that stays: elsewhere all ways are alike
)
ROUNDING = 1e-9
WAYS = {"ours": fluctuations.adapting, "static": fluctuations.static, "anew": fluctuations.anew}


def run(settings: Mapping[str, float]) -> Result:
    """All kinds of evenings, then mixtures."""
    figures: dict[str, float] = {}
    regrets: dict[str, list[float]] = {name: [] for name in WAYS}
    joules: dict[str, list[float]] = {name: [] for name in WAYS}
    mattered: dict[str, list[float]] = {name: [] for name in WAYS}
    n_stable = n_needless = 0
    for kind in fluctuations.KINDS:
        own: dict[str, list[float]] = {name: [] for name in WAYS}
        for number in range(int(settings["homes"])):
            evening = fluctuations.drawn(kind, int(settings["seed"]) + number, settings)
            found = {name: way(evening) for name, way in WAYS.items()}
            best = fluctuations.oracle(evening, found["ours"].plans)
            for name, outcome in found.items():
                own[name].append(outcome.seconds / best.seconds - 1)
                if found["static"].seconds >= (1 + MATTERS_FRAC) * best.seconds:
                    mattered[name].append(own[name][-1])
            if kind == "stable":
                n_stable += found["ours"].n_switches
                is_sooner = found["ours"].seconds < found["static"].seconds * (1 - ROUNDING)
                n_needless += 0 if is_sooner else found["ours"].n_switches
                continue
            for name, outcome in found.items():
                joules[name].append(outcome.energy_j / best.energy_j)
        for name, each in own.items():
            figures[f"regret_{name}_{kind}_median_frac"] = median(each)
            if kind != "stable":
                regrets[name] += each
    figures["regret_to_oracle_median_frac"] = median(regrets["ours"])
    figures["regret_to_oracle_max_frac"] = max(regrets["ours"])
    for name in ("static", "anew"):
        figures[f"regret_{name}_median_frac"] = median(regrets[name])
        figures[f"regret_{name}_max_frac"] = max(regrets[name])
    figures["evenings_that_matter"] = float(len(mattered["ours"]))
    for name, each in mattered.items():
        if each:
            figures[f"regret_{name}_where_it_matters_median_frac"] = median(each)
    for name, each in joules.items():
        figures[f"energy_{name}_to_oracle_median"] = median(each)
    figures["n_switches_stable"] = float(n_stable)
    figures["n_needless_switches"] = float(n_needless)
    figures |= _mixtures(settings)
    if settings["lab_evenings"]:
        figures |= adapt_lab.figures(settings)
    return Result(name="adapt", figures=figures, settings=settings, goals=GOALS)


def _mixtures(settings: Mapping[str, float]) -> dict[str, float]:
    """Joules that mixing saves at equal deadlines, against the thriftiest single plan in time.

    Deadlines are drawn between all steps by the fastest plan and all by the thriftiest. A home
    where these are one plan has nothing to mix: it is counted.
    """
    saved: list[float] = []
    n_steps, n_single = int(settings["steps"] * settings["stretches"]), 0
    for number in range(int(settings["homes"])):
        evening = fluctuations.drawn("stable", int(settings["seed"]) + number, settings)
        plans = make_plans(evening.problem).pareto
        thriftiest = min(plans, key=lambda plan: plan.energy_j or 0.0)
        fast_s, slow_s = (plan.latency_s or 0.0 for plan in (plans[0], thriftiest))
        if fast_s == slow_s:
            n_single += 1
            continue
        rng = random.Random(f"deadlines {number}")
        for _ in range(int(settings["deadlines"])):
            deadline_s = n_steps * rng.uniform(fast_s, slow_s)
            in_time = [p for p in plans if n_steps * (p.latency_s or 0.0) <= deadline_s]
            single_j = n_steps * min(plan.energy_j or 0.0 for plan in in_time)
            switch_s = settings["switch_steps"] * fast_s
            ordered = sorted(plans, key=lambda plan: plan.energy_j != thriftiest.energy_j)
            mixed = mix(ordered, n_steps, deadline_s, switch_s=switch_s)
            saved.append(1 - mixed.energy_j / single_j)
    return {
        "mix_energy_saved_median_frac": median(saved) if saved else 0.0,
        "mix_energy_saved_max_frac": max(saved, default=0.0),
        "mix_homes_of_one_plan": float(n_single),
    }
