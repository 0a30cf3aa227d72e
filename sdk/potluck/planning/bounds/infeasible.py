"""What no plan can do, proved in milliseconds from bounds: then nothing needs to be searched for to
say so.
"""

from potluck.planning.bounds.energy import least_energy_j
from potluck.planning.bounds.latency import quick_bound_s
from potluck.planning.building_blocks import candidates
from potluck.planning.feasibility import Breach, no_plan, too_big
from potluck.provenance import worst
from potluck.records import Problem
from potluck.simulate import cost, equations

ROUNDING = 1e-9


def refuse_impossible(problem: Problem, table: cost.CostTable) -> None:
    """Refuse a problem where a layer fits nowhere, or a bound is above the limit on latency or
    energy.

    Parameters
    ----------
    problem
        With its limits.
    table
        Of this problem.

    Raises
    ------
    Infeasible
        Says which limit, and by how much it is too low.
    """
    if _layer_too_big(problem, table):
        raise too_big(problem)
    qoe = problem.qoe
    if qoe.latency_s is not None:
        least_s = quick_bound_s(problem, in_parts=True)
        if least_s > qoe.latency_s * (1 + ROUNDING):
            raise no_plan(Breach("latency", least_s, qoe.latency_s), problem)
    if qoe.energy_j is not None:
        least_j = least_energy_j(problem, table)
        if least_j > qoe.energy_j * (1 + ROUNDING):
            mark = worst(device.power_mark for device in problem.devices)
            raise no_plan(Breach("energy", least_j, qoe.energy_j, mark=mark), problem)


def _layer_too_big(problem: Problem, table: cost.CostTable) -> bool:
    """Whether what one layer needs at the least, with the rows of the smallest micro-batch on as
    many devices as there are, exceeds what any device may use.
    """
    largest = max(table.budgets.values())
    rows = -(-min(candidates.micro_batches(problem)) // len(problem.devices))
    return any(
        equations.static_bytes(table, i, i + 1) + equations.working_bytes(table, i, i + 1, rows)
        > largest
        for i in range(len(problem.layers))
    )
