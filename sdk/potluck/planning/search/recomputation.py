"""Where plans that recompute begin: stages as they are, and cut in segments on the same devices.

After Chen et al., "Training deep nets with sublinear memory cost" (2016): of a device's layers cut
in k segments, k inputs and the activations of one segment are there at once.
"""

from collections.abc import Iterator
from dataclasses import replace

from potluck.records import Plan, Stage
from potluck.simulate import cost

SEGMENTS = (1, 2, 4, 8)  # of each stage


def starts(table: cost.CostTable, plan: Plan) -> Iterator[Plan]:
    """The plan with all its stages recomputing, in ever more segments, as deep as it is and one
    micro-batch after the other.

    Parameters
    ----------
    table
        Of the problem.
    plan
        That memory may not hold.
    """
    seen = set[tuple[Stage, ...]]()
    for n_segments in SEGMENTS:
        for depth in (plan.n_micro_batches, 1):
            stages = tuple(
                replace(part, warm_up=min(stage.warm_up, depth), recompute=True)
                for stage in plan.stages
                for part in _segments(table, stage, n_segments)
            )
            if stages not in seen:
                seen.add(stages)
                yield replace(plan, planner="potluck", stages=stages)


def _segments(table: cost.CostTable, stage: Stage, n: int) -> Iterator[Stage]:
    """The stage cut where about an n-th more of its activations is before the cut."""
    table = table.of(False)
    total_bytes, start = table.activation_bytes(stage.start, stage.stop), stage.start
    for stop in range(stage.start + 1, stage.stop + 1):
        part = table.activation_bytes(start, stop)
        if stop == stage.stop or part * n >= total_bytes > 0:
            yield replace(stage, start=start, stop=stop)
            start = stop
