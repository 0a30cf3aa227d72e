"""GPipe: one stage per device, cut so that all stages compute alike.

All forwards, then all backwards.

Huang et al., "GPipe", NeurIPS 2019: the partition minimises the variance of the stages' estimated
cost; here the slowest stage, on a mean device. Its best shot: every number of the fastest devices,
every micro-batch size. It recomputes activations where memory is short; its plans here do
not, and fall back to the depths K_p there.
"""

from collections.abc import Iterator

from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.build import (
    build,
    each_balanced,
    mean_problem,
    orders,
    shared_s,
)
from potluck.records import Plan, Problem
from potluck.simulate import cost


def plan_gpipe(problem: Problem, table: cost.CostTable | None = None) -> Iterator[Plan]:
    """Even pipelines over the first devices of each order."""
    table = table or cost.CostTable(problem)
    mean = cost.CostTable(mean_problem(problem))
    places, known = candidates.cuts(problem), dict[tuple[str, int], list[float]]()
    for micro_batch in candidates.micro_batches(problem):
        n_micro_batches = problem.workload.batch // micro_batch
        most_stages = min(len(problem.devices), len(places) - 1)
        stage_s = shared_s(mean, [("0",)] * most_stages, micro_batch, known)
        for n_stages, bounds in enumerate(each_balanced(places, most_stages, stage_s), 1):
            if bounds is None:
                continue
            for order in orders(table):
                groups = [(name,) for name in order[:n_stages]]
                plan = build(
                    table, "gpipe", bounds, groups, micro_batch, depths=[n_micro_batches] * n_stages
                )
                plan = plan or build(table, "gpipe", bounds, groups, micro_batch)
                if plan is not None:
                    yield plan
