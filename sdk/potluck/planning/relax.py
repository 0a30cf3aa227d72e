"""What would make an infeasible problem feasible: one limit loosened at a time, and a plan that
shows it. Pure.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import floor, log10

from potluck.errors import Infeasible
from potluck.planning.building_blocks import candidates
from potluck.planning.feasibility import breaches
from potluck.planning.plans import Plans
from potluck.provenance import marked
from potluck.records import Plan, Problem, QoE, Training
from potluck.simulate import cost

Planning = Callable[[Problem], Plans]
# joules: a limit that every plan holds, yet one that sends the search for the thriftiest
PLENTY = 1e12
CLOSE = 1.1  # how near below the memory that is named planning fails
MAX_DEVICES = 2  # whose memory is tried, the largest first
SENSIBLE = 16  # times the memory of a device that may be advised
FINEST = LARGEST = 1024  # micro-batches, and rows of a batch, that may be advised
MB = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxation:
    """The smallest change of one limit that was found to do: `value` seconds, joules, bytes or
    rows.
    """

    limit: str  # "latency", "energy", "device energy", "memory", "micro-batch", "moments", "batch"
    value: float
    plan: Plan
    device: str = ""

    def __str__(self) -> str:
        match self.limit:
            case "latency":
                return f"a latency of {self.value:g} s"
            case "energy":
                return marked(f"{self.value:g} J", self.plan.energy_source)
            case "device energy":
                problem = self.plan.problem
                mark = problem.device(self.device).power_mark if problem else ""
                return f"{marked(f'{self.value:g} J', mark)} on {self.device}"
            case "memory":
                return f"{self.value / MB:.0f} MB on {self.device}"
            case "micro-batch":
                return (
                    f"micro-batches of {self.value:.0f} "
                    f"({self.plan.batch // int(self.value)} a step)"
                )
            case "moments":
                return (
                    "moments in bfloat16 (Training(..., bfloat16_moments=True), and "
                    "AdamW(..., bfloat16_moments=True))"
                )
            case _:
                return f"a batch of {self.value:.0f}"


def explained(
    error: Infeasible, problem: Problem, planning: Planning, any_plan: Planning
) -> Infeasible:
    """The error with what would do, each held by a plan; the fact `remedies` has them as records.

    `planning` is asked once per limit, unless the fact `plans` of the error, those that were
    nearest, answers already. `any_plan` is asked some ten times where memory is too little.

    Parameters
    ----------
    error
        From a planner that found no plan.
    problem
        What was asked.
    planning
        Plans a problem, as far as wanted; raises `Infeasible`.
    any_plan
        Plans a problem at once, however badly; raises `Infeasible`.
    """
    known = error.facts.get("plans", ())
    found = tuple(remedies(problem, planning, any_plan, known if isinstance(known, tuple) else ()))
    sentence = str(error).removesuffix(error.next_step).rstrip()
    if error.facts.get("limit") == "memory":  # of the devices that there are, who could have helped
        sentence += "".join(f" {name} {why}." for name, why in problem.excluded.items())
    if found:
        step = f"Would do (a plan was found that holds it): {'; or '.join(map(str, found))}."
    elif _n_limits(problem.qoe) > 1:
        step = (
            "No single limit is to blame: loosened alone, none of them is enough. "
            f"{error.next_step}"
        )
    else:
        step = error.next_step
    better = Infeasible(sentence, next_step=step)
    better.device, better.facts = error.device, {**error.facts, "remedies": found}
    return better


def remedies(
    problem: Problem, planning: Planning, any_plan: Planning, known: Sequence[Plan] = ()
) -> Iterator[Relaxation]:
    """One per limit whose loosening alone is enough; `known`: judged plans of this problem.

    Parameters
    ----------
    problem
        What was asked.
    planning
        Plans a problem; raises `Infeasible`.
    any_plan
        Plans a problem at once, however badly; raises `Infeasible`.
    known
        Judged plans of this problem that break a limit.
    """
    qoe = problem.qoe
    if qoe.latency_s is not None:
        loose = replace(problem, qoe=replace(qoe, latency_s=None))
        yield from _loosened(loose, planning, known, "latency")
    if qoe.energy_j is not None:
        loose = replace(problem, qoe=replace(qoe, energy_j=PLENTY))
        yield from _loosened(loose, planning, known, "energy")
    for name in qoe.device_energy_j:
        loose = replace(
            problem, qoe=replace(qoe, device_energy_j={**qoe.device_energy_j, name: PLENTY})
        )
        yield from _loosened(loose, planning, known, "device energy", name)
    free = replace(problem, qoe=QoE(memory_bytes=qoe.memory_bytes))
    if _plans(free, any_plan) is None:  # memory alone is too little already
        yield from _micro_batch(problem, any_plan)
        yield from _moments(problem, any_plan)
        yield from _memory(problem, any_plan)
        yield from _batch(problem, any_plan)


def _loosened(
    loose: Problem, planning: Planning, known: Sequence[Plan], limit: str, device: str = ""
) -> Iterator[Relaxation]:
    """The least that the plans without this limit need of it, rounded up: such a plan then holds
    every limit.
    """
    found: Sequence[Plan] = (
        [plan for plan in known if not breaches(loose, plan)] or _plans(loose, planning) or ()
    )
    if found:
        best = min(found, key=lambda plan: _measure(plan, limit, device))
        yield Relaxation(
            limit=limit, value=round_up(_measure(best, limit, device)), plan=best, device=device
        )


def _measure(plan: Plan, limit: str, device: str) -> float:
    if limit == "device energy":
        return plan.device_energy_j.get(device, 0.0)
    return (plan.latency_s if limit == "latency" else plan.energy_j) or 0.0


def _moments(problem: Problem, any_plan: Planning) -> Iterator[Relaxation]:
    """Two moments in half the memory; `value` is bytes of a number."""
    workload = problem.workload
    if isinstance(workload, Training) and workload.optimizer_copies == 2:
        halved = replace(problem, workload=replace(workload, bfloat16_moments=True))
        if workload != halved.workload and (plan := _plans(halved, any_plan)) is not None:
            yield Relaxation(limit="moments", value=2, plan=plan.best)


def _memory(problem: Problem, planning: Planning) -> Iterator[Relaxation]:
    """For each of the largest devices, the least memory of its own that is enough."""
    budgets = {device.name: cost.budget_bytes(problem, device) for device in problem.devices}
    for name in sorted(budgets, key=lambda item: -budgets[item])[:MAX_DEVICES]:
        found = _plans(granted(problem, {name: 1 << 60}), planning)
        if found is None:
            continue
        low, high = (
            budgets[name],
            max(_mb(min(plan.peak_bytes.get(name, 0) for plan in found)), budgets[name] + MB),
        )
        if high > low * SENSIBLE:
            continue
        best = _plans(granted(problem, {name: high}), planning)
        while best is not None and high > low * CLOSE:
            middle = _mb((low * high) ** 0.5)
            tried = _plans(granted(problem, {name: middle}), planning) if middle < high else None
            if tried is None:
                low = middle
            else:
                high, best = middle, tried
        if best is not None:
            yield Relaxation(limit="memory", value=high, plan=best.best, device=name)


def granted(problem: Problem, memory_bytes: Mapping[str, int]) -> Problem:
    """The problem where these devices may use so much."""
    devices = tuple(
        replace(device, memory_bytes=memory_bytes.get(device.name, device.memory_bytes))
        for device in problem.devices
    )
    remaining = {
        name: limit for name, limit in problem.qoe.memory_bytes.items() if name not in memory_bytes
    }
    return replace(problem, devices=devices, qoe=replace(problem.qoe, memory_bytes=remaining))


def _micro_batch(problem: Problem, planning: Planning) -> Iterator[Relaxation]:
    """Smaller micro-batches than the one that is stated, or than those that planning tries."""
    workload = problem.workload
    if not isinstance(workload, Training):
        return
    finer = candidates.smaller_sizes(problem, FINEST)
    problems = [replace(problem, workload=replace(workload, micro_batch=size)) for size in finer]
    yield from _first(problems, finer, "micro-batch", planning)


def _batch(problem: Problem, planning: Planning) -> Iterator[Relaxation]:
    """A smaller batch, in micro-batches of any size: a power of two, which has the most sizes."""
    workload = problem.workload
    free = replace(workload, micro_batch=None) if isinstance(workload, Training) else workload
    batches = [
        2**power for power in reversed(range((min(workload.batch - 1, LARGEST)).bit_length()))
    ]
    problems = [replace(problem, workload=replace(free, batch=batch)) for batch in batches]
    yield from _first(problems, batches, "batch", planning)


def _first(
    problems: Sequence[Problem], values: Sequence[int], limit: str, planning: Planning
) -> Iterator[Relaxation]:
    """The remedy of the first of ever easier problems that has a plan, found by halving."""
    best: Relaxation | None = None
    low, high = 0, len(problems)
    while low < high:
        middle = (low + high) // 2
        found = _plans(problems[middle], planning)
        if found is None:
            low = middle + 1
        else:
            high, best = middle, Relaxation(limit=limit, value=values[middle], plan=found.best)
    if best is not None:
        yield best


def _plans(problem: Problem, planning: Planning) -> Plans | None:
    with suppress(Infeasible):
        return planning(problem)
    return None


def _n_limits(qoe: QoE) -> int:
    return (
        (qoe.latency_s is not None)
        + (qoe.energy_j is not None)
        + len(qoe.memory_bytes)
        + len(qoe.device_energy_j)
    )


def _mb(nbytes: float) -> int:
    return (int(nbytes) // MB + 1) * MB


def round_up(value: float) -> float:
    """To three digits, upwards.

    >>> round_up(0.12301), round_up(2.0)
    (0.124, 2.0)
    """
    if value <= 0:
        return value
    digits = 2 - floor(log10(value))
    rounded = round(value, digits)
    return rounded if rounded >= value else round(value + 10.0**-digits, digits)
