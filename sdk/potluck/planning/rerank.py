"""The first plans again as devices would carry them out, step after step, with their transfers in
order: Dora's second phase (section 4.2) over the plans of the first.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from potluck.contention.transfer_order import with_ordered_transfers
from potluck.planning import feasibility
from potluck.planning.evaluate import compile_plan
from potluck.planning.plans import preference
from potluck.records import Plan, Problem, Training
from potluck.simulate.predict import predict_steps

N_PLANS = 6  # that are looked at again


def rerank(
    problem: Problem, plans: Sequence[Plan], refine_s: float = 0.0, *, also: Sequence[Plan] = ()
) -> list[tuple[Plan, Plan]]:
    """Each of these plans as judged and as predicted: the first of them by what is predicted, then
    the others as judged.

    What is predicted is the steady time of a step: where the transfers of one step meet those of
    the next, that is not the time of a step alone. `refine_s`: seconds that an exact solver has for
    better orders, all plans together (needs ortools). Requests that stream are left as they are:
    only the first of several at once takes turns.

    Dora, section 4.2, its second phase.

    Parameters
    ----------
    problem
        What is planned.
    plans
        Judged, the best first.
    refine_s
        Seconds of CP-SAT, all plans together.
    also
        More plans that are looked at, judged as well.
    """
    as_judged = [(plan, plan) for plan in plans]
    if not isinstance(problem.workload, Training) and problem.workload.streaming:
        return as_judged
    first = {_way(plan): plan for plan in (*plans[:N_PLANS], *also)}
    others = [pair for pair in as_judged if _way(pair[0]) not in first]
    predicted = [
        (plan, _predicted(problem, plan, refine_s / len(first))) for plan in first.values()
    ]
    holding = [pair for pair in predicted if not feasibility.breaches(problem, pair[1])]
    return sorted(holding, key=lambda pair: preference(pair[1], problem)) + others or as_judged


def _way(plan: Plan) -> tuple[object, ...]:
    return plan.stages, plan.micro_batch, plan.schedule


def _predicted(problem: Problem, plan: Plan, refine_s: float) -> Plan:
    """The plan with time, energy and memory of its programs as they are deployed.

    Its gap, of one step, goes.
    """
    compiled = compile_plan(problem, plan)
    ordered = with_ordered_transfers(compiled, problem, refine_s=refine_s)
    before = predict_steps(compiled, problem)
    after = before if ordered is compiled else predict_steps(ordered, problem)
    energy_j = {name: after.energy_j[name] / len(after.step_s) for name in plan.device_energy_j}
    return replace(
        plan,
        latency_s=median(after.step_s),
        energy_j=None if plan.energy_j is None else sum(energy_j.values()),
        device_energy_j=energy_j,
        peak_bytes={
            n: peak + max(0, after.peak_bytes[n] - before.peak_bytes[n])
            for n, peak in plan.peak_bytes.items()
        },
        gap_frac=None,
    )
