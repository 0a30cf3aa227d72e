"""Which limits a plan breaks, and, where every plan breaks one, an error that says what would make
it possible.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from potluck.errors import Infeasible
from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.device_classes import alike
from potluck.planning.evaluate import excess_bytes
from potluck.provenance import marked
from potluck.records import Plan, Problem, Training
from potluck.simulate import cost, footprint

PLENTY = 1 << 60  # bytes
ADVICE_FRAC = 0.001  # numbers of four digits are that much more, so that following them suffices
GUARD_FRAC = 0.005  # peaks are rounded up to whole MB below, so that following the advice suffices


@dataclass(frozen=True, slots=True)
class Breach:
    """One limit that a plan does not hold; `mark`: where joules come from (see `provenance`)."""

    limit: str  # "memory", "rows", "latency", "energy" or "device energy"
    needed: float
    available: float
    device: str = ""
    mark: str = ""

    @property
    def need(self) -> str:
        """Seconds or joules that are needed, in words."""
        figure = f"{self.needed:.4g} {'s' if self.limit == 'latency' else 'J'}"
        return marked(figure, self.mark)


def breaches(problem: Problem, plan: Plan) -> list[Breach]:
    """Every limit that the judged `plan` breaks, the one that it is furthest from first."""
    qoe, found = problem.qoe, []
    for name, excess in excess_bytes(problem, plan).items():
        found.append(Breach("memory", plan.peak_bytes[name], plan.peak_bytes[name] - excess, name))
    for stage in plan.stages:
        fewest = candidates.fewest_rows(problem, stage.start, stage.stop)
        pairs = zip(stage.devices, stage.shares, strict=True)
        found += [Breach("rows", fewest, rows, name) for name, rows in pairs if rows < fewest]
    if qoe.latency_s is not None and plan.latency_s is not None and plan.latency_s > qoe.latency_s:
        found.append(Breach("latency", plan.latency_s, qoe.latency_s))
    if qoe.energy_j is not None and plan.energy_j is not None and plan.energy_j > qoe.energy_j:
        found.append(Breach("energy", plan.energy_j, qoe.energy_j, mark=plan.energy_source))
    for name, limit in qoe.device_energy_j.items():
        if plan.device_energy_j.get(name, 0.0) > limit:
            mark = problem.device(name).power_mark
            found.append(Breach("device energy", plan.device_energy_j[name], limit, name, mark))
    return sorted(found, key=_excess, reverse=True)


def infeasible(problem: Problem, judged: Sequence[Plan]) -> Infeasible:
    """The error when no plan of `judged` holds: the plan that comes nearest to it, and what would
    have to be allowed for it, every limit that it breaks.
    """
    if not judged:
        return too_big(problem)
    if all(any(b.limit == "memory" for b in breaches(problem, plan)) for plan in judged):
        blamed = too_big(problem)
        if "layer" in blamed.facts:
            return blamed
    broken = min((breaches(problem, plan) for plan in judged), key=lambda found: _excess(found[0]))
    return _error(broken, problem, judged)


def _excess(breach: Breach) -> float:
    """How many times what there is a plan needs."""
    return breach.needed / breach.available if breach.available else inf


def no_plan(breach: Breach, problem: Problem) -> Infeasible:
    """The error where a bound (`needed`) proves that no plan holds a limit on latency or energy."""
    unit = "s" if breach.limit == "latency" else "J"
    return Infeasible(
        f"Every plan for {problem.model} needs more than {breach.need} per "
        f"{_one(problem)}; the {breach.limit} limit is {breach.available:.4g} {unit}.",
        next_step="Allow more, or add a device.",
        limit=breach.limit,
        needed=breach.needed,
        available=breach.available,
    )


def _error(broken: Sequence[Breach], problem: Problem, judged: Sequence[Plan]) -> Infeasible:
    """`broken`: the limits that the nearest plan breaks, the one to be blamed first."""
    model, breach = problem.model, broken[0]
    needed, available = breach.needed, breach.available
    facts: dict[str, Any] = {
        "limit": breach.limit,
        "needed": needed,
        "available": available,
        "breaches": tuple(broken),
        "plans": tuple(judged),
    }
    if breach.limit == "rows":
        text = (
            f"no plan for {model} gives it {needed:.0f} rows of every micro-batch, as its "
            "batch norm needs to learn."
        )
        step = "Use a larger batch, or allow it more memory."
    elif breach.limit == "memory":
        again = any(stage.recompute for plan in judged for stage in plan.stages)
        text = (
            f"no plan for {model} fits{', not even one that recomputes activations' * again}: it "
            f"would need {_mb(needed)}, and may use {_given(available)}."
        )
        step = f"{_allowance(broken)}, or use a smaller batch."
    else:
        unit = "s" if breach.limit == "latency" else "J"
        text = (
            f"The best plan for {model} needs {breach.need} per {_one(problem)}; "
            f"the {breach.limit} limit is {available:.4g} {unit}."
        )
        step = f"{_allowance(broken)}, or add a device."
    return Infeasible(text, device=breach.device, next_step=step, **facts)


def _allowance(broken: Sequence[Breach]) -> str:
    """What would have to be allowed, so that none of these limits is broken."""
    if len(broken) == 1 and broken[0].limit == "memory":
        return f"Allow it {_mb(broken[0].needed)}"
    if len(broken) == 1:
        return f"Allow {_amount(broken[0])}"
    *others, last = (
        f"{_amount(breach)} {'on ' + breach.device if breach.device else 'in all'}"
        for breach in broken
        if breach.limit != "rows"
    )
    return f"Allow {', '.join(others)} and {last}, all of them" if others else f"Allow {last}"


def _amount(breach: Breach) -> str:
    """So much more than is needed that following the advice suffices."""
    if breach.limit == "memory":
        return _mb(breach.needed)
    return f"{breach.needed * (1 + ADVICE_FRAC):.4g} {'s' if breach.limit == 'latency' else 'J'}"


def _one(problem: Problem) -> str:
    return "step" if isinstance(problem.workload, Training) else "request"


def too_big(problem: Problem) -> Infeasible:
    """No plan is within memory: blame the largest layer where it fits nowhere, else the sum."""
    table = cost.CostTable(problem, n_waiting=0)
    rows = min(candidates.micro_batches(problem))
    biggest = max(problem.devices, key=lambda device: cost.budget_bytes(problem, device))
    budget = cost.budget_bytes(problem, biggest)
    needs = [
        footprint.memory_bytes(
            table, i, i + 1, 1, warm_up=1, n_micro_batches=problem.workload.batch // rows
        )
        for i in range(len(problem.layers))
    ]
    worst = max(range(len(needs)), key=lambda i: needs[i])
    if needs[worst] > budget:
        return Infeasible(
            f"layer {problem.layers[worst].name!r} of {problem.model} fits on no device: it needs "
            f"{_mb(needs[worst])}, and the largest device may use {_given(budget)}.",
            device=biggest.name,
            next_step=f"Allow {biggest.name} {_mb(needs[worst])} for this layer, and more for what "
            "else it is to hold, or use a smaller batch.",
            limit="memory",
            needed=needs[worst],
            available=budget,
            layer=problem.layers[worst].name,
        )
    total = sum(cost.budget_bytes(problem, device) for device in problem.devices)
    needed = footprint.memory_bytes(table, 0, len(problem.layers), rows, warm_up=1)
    return Infeasible(
        f"{problem.model} does not fit: it needs some {_mb(needed)} in micro-batches of {rows}"
        f"{_why_no_smaller(problem, rows)}, all devices together may use {_given(total)}, "
        f"the largest ({biggest.name}) {_given(budget)}.",
        next_step="Allow the devices more memory, add one, or use a smaller batch.",
        limit="memory",
        needed=needed,
        available=total,
    )


def _why_no_smaller(problem: Problem, rows: int) -> str:
    """Says so where the batch has too few divisors for small micro-batches."""
    if rows == 1 or getattr(problem.workload, "micro_batch", None) is not None:
        return ""
    return (
        f" (the smallest that make up {problem.workload.batch}, at most "
        f"{candidates.LAST_MICRO_BATCHES} a step)"
    )


def _mb(nbytes: float) -> str:
    return f"{int(nbytes * (1 + GUARD_FRAC) / 1e6) + 1} MB"


def _given(nbytes: float) -> str:
    return f"{nbytes / 1e6:.0f} MB" if nbytes >= 1e8 else f"{nbytes / 1e6:.3g} MB"


def why_unused(problem: Problem, best: Plan, judged: Sequence[Plan]) -> dict[str, str]:
    """For each device that `best` leaves out, the reason as measured on the other plans.

    It is the same for alike devices, of which plans name the first.

    Parameters
    ----------
    problem
        What was asked.
    best
        The plan that was chosen.
    judged
        All plans, judged.

    Returns
    -------
    dict[str, str]
        Device name to a sentence.
    """
    reasons = {name: f"it {why}" for name, why in problem.excluded.items()}
    names = [device.name for device in problem.devices]
    for members in alike(problem):
        same = [names[i] for i in members]
        left_out = [name for name in same if name not in best.devices]
        if not left_out:
            continue
        used = [name for name in same if name in best.devices]
        using = [plan for plan in judged if len({*same} & {*plan.devices}) > len(used)]
        reason = _why_fewer(problem, best, using, left_out[0], "one more" if used else "it")
        verb = "is" if len(used) == 1 else "are"
        alike_to = f"alike to {' and '.join(used)}, which {verb} used" if used else ""
        measured = any(not breaches(problem, plan) for plan in using)
        for name in left_out:
            reasons[name] = (
                reason if not used else f"{alike_to}: {reason}" if measured else alike_to
            )
    return reasons


def _why_fewer(problem: Problem, best: Plan, using: Sequence[Plan], device: str, what: str) -> str:
    """Why `best` is preferred to the plans `using` this device, or one more of those that are
    alike: `what`.
    """
    holding = [p for p in using if not breaches(problem, p) and p.latency_s is not None]
    budget = cost.budget_bytes(problem, problem.device(device))
    if holding and best.latency_s:
        fastest = min(holding, key=lambda plan: plan.latency_s or 0.0)
        return f"the best plan that uses {what} ({fastest.planner}) is {_compared(fastest, best)}"
    if budget < _smallest_part(problem):
        return f"its {_given(budget)} hold no part of the model"
    if using:
        return f"no plan that uses {what} holds the limits"
    times = _alone_s(problem, device) / (best.latency_s or 1.0)
    return f"too slow to help: alone it would compute {times:.1f} times as long"


def _compared(plan: Plan, best: Plan) -> str:
    more = (plan.latency_s or 0.0) / (best.latency_s or 1.0) - 1
    if 0 <= more < 0.005:
        return "no faster"
    percent = f"{abs(100 * more):.0f} %"
    if more > 0:
        return f"{percent} slower"
    if best.energy_j and plan.energy_j:
        return f"{percent} faster, at {plan.energy_j / best.energy_j:.1f} times the energy"
    return f"{percent} faster, but not better within the limits"


def _alone_s(problem: Problem, device: str) -> float:
    table, rows = cost.CostTable(problem), max(candidates.micro_batches(problem))
    seconds = table.forward_s(device, 0, len(problem.layers), rows)
    if isinstance(problem.workload, Training):
        seconds += table.backward_s(device, 0, len(problem.layers), rows)
    return seconds * (problem.workload.batch // rows)


def _smallest_part(problem: Problem) -> int:
    table = cost.CostTable(problem)
    return min(
        footprint.memory_bytes(table, i, i + 1, 1, warm_up=1) for i in range(len(problem.layers))
    )


def with_more_memory(problem: Problem, factor: float) -> Problem:
    """The same problem on devices of `factor` times the memory that they may use."""
    devices = tuple(
        replace(device, memory_bytes=int(min(cost.budget_bytes(problem, device) * factor, PLENTY)))
        for device in problem.devices
    )
    return replace(problem, devices=devices, qoe=replace(problem.qoe, memory_bytes={}))
