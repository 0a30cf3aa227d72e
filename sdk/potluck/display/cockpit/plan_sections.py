"""The section of the plans, and of one that somebody looks at before it is switched to. Pure."""

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

from potluck.adapt.switch_cost import SwitchCost, delta
from potluck.records import Plan, Problem
from potluck.sanitized_text import harmless

MOST_SHOWN = 60


def name_of(plan: Plan) -> str:
    """The same for every plan with the same work for the same devices."""
    stages = [(s.start, s.stop, s.devices, s.shares, s.recompute) for s in plan.stages]
    what = repr((stages, plan.micro_batch, plan.n_micro_batches))
    return "p" + hashlib.sha256(what.encode()).hexdigest()[:10]


def plans(found: Iterable[Plan], current: Plan | None) -> dict[str, Any]:
    """By their names: time, joules and the highest memory of each, and which is at work."""
    at_work = name_of(current) if current is not None else ""
    shown: dict[str, Any] = {}
    for place, plan in enumerate(found):
        if not _is_known(plan.latency_s) or len(shown) >= MOST_SHOWN:
            continue
        name = name_of(plan)
        item: dict[str, Any] = {
            "at": place,
            "planner": harmless(plan.planner),
            "devices": [harmless(device) for device in plan.devices],
            "s": plan.latency_s,
            "bytes": max(plan.peak_bytes.values(), default=0),
            "here": name == at_work,
        }
        shown.setdefault(name, item | _energy(plan))
    return shown


def _energy(plan: Plan) -> dict[str, Any]:
    """Its joules, and where its watts come from; nothing where nobody knows."""
    return {"j": plan.energy_j, "mark": plan.energy_source} if _is_known(plan.energy_j) else {}


def _is_known(figure: float | None) -> bool:
    return figure is not None and math.isfinite(figure)


def preview(
    plan: Plan, before: Plan | None, problem: Problem | None, step_s: float | None
) -> dict[str, Any]:
    """Who does what, what moves from whom to whom, and what the switch costs."""
    who = [
        [
            harmless(device),
            stage.start,
            stage.stop,
            share,
            stage.recompute,
            plan.peak_bytes.get(device, 0),
        ]
        for stage in plan.stages
        for device, share in zip(stage.devices, stage.shares, strict=True)
    ]
    found: dict[str, Any] = {"name": name_of(plan), "planner": harmless(plan.planner), "who": who}
    found |= {"micro_batch": plan.micro_batch, "n_micro_batches": plan.n_micro_batches}
    if _is_known(plan.latency_s):
        found["s"] = plan.latency_s
    found |= _energy(plan)
    if before is not None and problem is not None:
        found |= _crossing(plan, before, problem, step_s)
    return found


def _crossing(plan: Plan, before: Plan, problem: Problem, step_s: float | None) -> dict[str, Any]:
    moves = delta(before, plan, problem)
    costs_s = SwitchCost().seconds(before, plan, problem, step_s or before.latency_s or 0.0)
    return {
        "is_here": name_of(before) == name_of(plan),
        "moves": [[harmless(a), harmless(b), nbytes] for (a, b), nbytes in moves.items()],
        "costs_s": costs_s,
    }


def by_name(found: Iterable[Plan]) -> Mapping[str, Plan]:
    """The first of each name."""
    named: dict[str, Plan] = {}
    for plan in found:
        named.setdefault(name_of(plan), plan)
    return named
