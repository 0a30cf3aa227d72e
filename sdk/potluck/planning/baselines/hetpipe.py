"""HetPipe: virtual workers that are pipelines, data parallelism between them.

Park et al., "HetPipe", ATC 2020: equal distribution gives every virtual worker the same mix of
devices, and each cuts the model to balance its own stages.

Where we differ: synchronous all-reduce instead of a parameter server with bounded staleness. With
the same mix in every worker, all have the same cuts, so the p-th devices of all workers form one
replicated stage; their rows follow speed.
"""

from collections.abc import Iterator

from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.build import balanced, build, shared_s
from potluck.records import Plan, Problem
from potluck.simulate import cost


def plan_hetpipe(problem: Problem, table: cost.CostTable | None = None) -> Iterator[Plan]:
    """For every number of virtual workers, with the fast devices in front or behind, every
    micro-batch size.
    """
    table = table or cost.CostTable(problem)
    stop, places = len(problem.layers), candidates.cuts(problem)
    names = sorted(
        (d.name for d in problem.devices), key=lambda name: table.forward_s(name, 0, stop, 1)
    )
    known: dict[tuple[str, int], list[float]] = {}
    for n_workers in range(1, len(names) + 1):
        n_stages = len(names) // n_workers
        groups = [tuple(names[p * n_workers : (p + 1) * n_workers]) for p in range(n_stages)]
        for order in (groups, groups[::-1]):
            for micro_batch in candidates.micro_batches(problem):
                bounds = balanced(places, n_stages, shared_s(table, order, micro_batch, known))
                if bounds is not None:
                    plan = build(table, "hetpipe", bounds, order, micro_batch)
                    if plan is not None:
                        yield plan
