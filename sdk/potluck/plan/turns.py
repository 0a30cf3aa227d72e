"""The first plans again with their transfers in order, as devices would send them (Dora, section 4.2, phase 2)."""

from collections.abc import Sequence
from dataclasses import replace

from potluck.plan import feasibility
from potluck.plan.judge import compile_plan
from potluck.plan.plans import preference
from potluck.records import Plan, Problem, Trace, Training
from potluck.schedule.network import in_turns
from potluck.simulate.foretell import foretell

N_PLANS = 6  # that are looked at again
NEAR = 1.2  # times the first plan's latency: turns have not brought more


def put_in_order(problem: Problem, plans: Sequence[Plan], refine_s: float = 0.0) -> list[Plan]:
    """The same plans, the first of them with what an order of their transfers brings, best first.

    `refine_s`: seconds that an exact solver has for better orders, all plans together (needs ortools). Requests that
    stream are left as they are: only the first of several at once takes turns.
    """
    if not isinstance(problem.workload, Training) and problem.workload.streaming:
        return list(plans)
    near_s = NEAR * (plans[0].latency_s or 0.0)
    some = [i for i, plan in enumerate(plans) if len(plan.devices) > 1 and (plan.latency_s or 0.0) <= near_s][:N_PLANS]
    found = list(plans)
    for i in some:
        found[i] = _in_order(problem, plans[i], refine_s / len(some))
    return sorted(found, key=lambda plan: preference(plan, problem.qoe))


def _in_order(problem: Problem, plan: Plan, refine_s: float) -> Plan:
    """The plan as it was judged, but for what turns change in its programs; itself where they bring nothing."""
    compiled = compile_plan(problem, plan)
    ordered = in_turns(compiled, problem, refine_s=refine_s)
    if ordered is compiled:
        return plan
    before, after = foretell(compiled, problem), foretell(ordered, problem)
    energy_j = {name: j * after.energy_j[name] / before.energy_j[name] for name, j in plan.device_energy_j.items()}
    turned = replace(
        plan,
        latency_s=(plan.latency_s or 0.0) * _step_s(after) / _step_s(before),
        energy_j=None if plan.energy_j is None else sum(energy_j.values()),
        device_energy_j=energy_j,
        peak_bytes={
            n: peak + max(0, after.peak_bytes[n] - before.peak_bytes[n]) for n, peak in plan.peak_bytes.items()
        },
    )
    return plan if feasibility.breaches(problem, turned) else turned


def _step_s(trace: Trace) -> float:
    return max(trace.step_s)
