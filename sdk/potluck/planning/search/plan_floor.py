"""What a plan takes at the least, told without simulating it: a search need not look at plans that
cannot be the best.

Of a stage the busiest device, from the first micro-batch's way to it until the last one's way back;
of a ring what each device sends once its gradients are done; of each device all that it sends; of
each medium all that passes.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from potluck.planning.search.link_costs import links_of, media_of, numbers_of
from potluck.planning.search.local_search import floor_s
from potluck.records import Plan, Stage, Training
from potluck.schedule.rows import Overlap, overlaps
from potluck.simulate import cost

SAFE = 1 - 1e-9  # the simulator adds in another order
PACE = 0.98  # of a stream's links: where answers come in bursts, its pace is not known more exactly


def least_s(table: cost.CostTable, plan: Plan) -> float:
    """Seconds that the simulator will not undercut; of a plan with branches, where many things are
    under way at once, what its busiest device computes.

    Parameters
    ----------
    table
        Of the problem.
    plan
        Any.
    """
    busiest_s = floor_s(table, plan)
    if table.branches:
        return busiest_s
    sent_s, passed_s = _traffic(table, plan)
    if not plan.training and _is_stream(table):
        links_s = (*sent_s.values(), *passed_s.values())
        return max((busiest_s, *(PACE * seconds for seconds in links_s)))
    return SAFE * max((busiest_s, *_ways(table, plan), *sent_s.values(), *passed_s.values()))


def least_in_any_order_s(table: cost.CostTable, plan: Plan) -> float:
    """The same whatever the schedule, also where backwards come in two parts: what the busiest
    device computes, and what passes between the stages.

    Parameters
    ----------
    table
        Of the problem; without branches.
    plan
        Any.
    """
    busy_s = floor_s(table, plan)
    if table.branches:
        return SAFE * busy_s
    sent_s, passed_s = _traffic(table, plan)
    return SAFE * max((busy_s, *sent_s.values(), *passed_s.values()))


def _is_stream(table: cost.CostTable) -> bool:
    workload = table.problem.workload
    return not isinstance(workload, Training) and workload.streaming


def _ways(table: cost.CostTable, plan: Plan) -> Iterator[float]:
    """Per stage: one micro-batch there, all of them on its busiest device, and one of them on,
    or back; or the ring, too.
    """
    times = [_row_times(table, stage, plan.training) for stage in plan.stages]
    least = [(min(f for f, _ in each), min(b for _, b in each)) for each in times]
    links, counts = links_of(table), plan.counts
    for p, stage in enumerate(plan.stages):
        outward_s = sum(f for f, _ in least[:p])
        back = sum(b for _, b in least[:p]) if plan.training else sum(f for f, _ in least[p + 1 :])
        all_s = [counts[p] * (f + b) for f, b in times[p]]
        yield outward_s + max(all_s) + back
        n = len(stage.devices)
        if n == 1 or not plan.training:
            continue
        learned = 0 if table.runs_ahead(stage.start, stage.stop) else 1
        nbytes = learned * table.summed_bytes(stage.start, stage.stop)
        nbytes += table.averaged_bytes(stage.start, stage.stop)
        sent_bytes = max(0, 2 * (n - 1) * (nbytes // n - 8))
        numbers = numbers_of(table)
        ring = [numbers[name] for name in (*stage.devices, stage.devices[0])]
        for seconds, pair in zip(all_s, pairwise(ring), strict=True):
            yield outward_s + seconds + sent_bytes * links[pair].byte_s


def _row_times(table: cost.CostTable, stage: Stage, training: bool) -> list[tuple[float, float]]:
    """Per device, seconds forward and back of a micro-batch."""
    again, place = table.of(stage.recompute), (stage.start, stage.stop)
    returns = training and not table.runs_ahead(*place)
    return [
        (
            table.forward_s(name, *place, rows),
            again.backward_s(name, *place, rows) if returns else 0.0,
        )
        for name, rows in zip(stage.devices, stage.shares, strict=True)
    ]


def _traffic(table: cost.CostTable, plan: Plan) -> tuple[dict[int, float], dict[str, float]]:
    """Seconds for which each device sends, and for which each medium is taken, at the least, by
    what goes from stage to stage.
    """
    links = links_of(table)
    media = media_of(table)
    numbers = numbers_of(table)
    sent_s, passed_s = defaultdict[int, float](float), defaultdict[str, float](float)
    most_rows = plan.sizes[0]
    n_times = plan.batch // most_rows
    for left, right in pairwise(plan.stages):
        layer = table.problem.layers[left.stop - 1]
        learns = plan.training and not table.runs_ahead(left.start, left.stop)
        back_bytes = layer.gradient_bytes if learns else 0
        for piece in _overlaps(left, right, most_rows):
            i = numbers[left.devices[piece.left % len(left.devices)]]
            j = numbers[right.devices[piece.right % len(right.devices)]]
            if i == j:
                continue
            rows = (piece.stop - piece.start) * n_times
            for pair, nbytes in (((i, j), layer.output_bytes), ((j, i), back_bytes)):
                sent_s[pair[0]] += rows * nbytes * links[pair].byte_s
                for name, byte_s in media.get(pair, ()):
                    passed_s[name] += rows * nbytes * byte_s
    return sent_s, passed_s


def _overlaps(left: Stage, right: Stage, rows: int) -> tuple[Overlap, ...]:
    """What passes of so many rows: a micro-batch of each stage, or several."""
    return overlaps(left.shares * (rows // left.rows), right.shares * (rows // right.rows))
