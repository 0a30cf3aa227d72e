"""The closed form of memory: the most that a device can hold of a plan, however slow links and
other devices are; for a table with `n_waiting` what it holds where they are quick.

Never less than `simulate.memory` finds, but for such a table. Asteroid (Ye et al., MobiCom 2024)
eq. (3): model + optimizer + K_p activations, where K_p is the schedule's real depth (`warm_up`).
Beyond the paper: what one task works on, what waits on either side of a stage, the flat vectors of
the all-reduce, and second gradients.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from potluck.records import Stage, Training
from potluck.simulate import memory
from potluck.simulate.cost import CostTable, kept_by_table
from potluck.simulate.equations import resting_bytes, static_bytes, working_bytes


def memory_bytes(
    table: CostTable,
    start: int,
    stop: int,
    rows: int,
    *,
    warm_up: int,
    replicas: int = 1,
    n_micro_batches: int = 1,
    depth_before: int | None = None,
    in_flight: int = 1,
) -> int:
    """Peak bytes of a device that computes layers [start, stop) on `rows` rows of every
    micro-batch.

    `depth_before`: the warm-up of the stage before; unless given `warm_up` and two more, as default
    depths differ. `in_flight`: requests of a stream that are under way at once.

    Asteroid, eq. (3).

    Parameters
    ----------
    table
        Of the problem.
    start, stop
        Layers [start, stop).
    rows
        Of every micro-batch, that this device takes.
    warm_up
        Micro-batches that the stage keeps at once, K_p.
    replicas
        Devices of the stage.
    n_micro_batches
        Of a step.
    depth_before
        Warm-up of the stage before; default: two more than this one's.
    in_flight
        Requests of a stream at once.
    """
    depth_before = warm_up + 2 if depth_before is None else depth_before
    return _needed_bytes(
        table, start, stop, rows, warm_up, replicas, n_micro_batches, depth_before, in_flight
    )


@kept_by_table
def _needed_bytes(table: CostTable, start: int, stop: int, *moving: int) -> int:
    return static_bytes(table, start, stop) + _moving_bytes(table, start, stop, *moving)


def plan_bytes(table: CostTable, stages: Sequence[Stage], in_flight: int = 1) -> dict[str, int]:
    """`memory_bytes` of every device of a plan with these stages, of which it may have several.

    Parameters
    ----------
    table
        Of the problem.
    stages
        Of the plan.
    in_flight
        Requests of a stream at once.
    """
    needed, kept_rows = dict[str, int](), [stage.warm_up * stage.rows for stage in stages]
    for p, stage in enumerate(stages):
        before = max(kept_rows[:p] if table.branches else kept_rows[p - 1 : p], default=0)
        for name, rows in zip(stage.devices, stage.shares, strict=True):
            nbytes = memory_bytes(
                table.of(stage.recompute),
                stage.start,
                stage.stop,
                rows,
                warm_up=stage.warm_up,
                replicas=len(stage.devices),
                n_micro_batches=table.problem.workload.batch // stage.rows,
                depth_before=-(-before // stage.rows),
                in_flight=in_flight,
            )
            needed[name] = needed[name] + nbytes - table.floor_bytes if name in needed else nbytes
    return needed


def least_bytes(table: CostTable, stages: Sequence[Stage]) -> dict[str, int]:
    """What every device of a plan with these stages holds at once at the least, however quick links
    and other devices are: all its layers, and of one stage what its warm-up keeps and a task works
    on.

    Parameters
    ----------
    table
        Of the problem.
    stages
        Of the plan.
    """
    workload = table.problem.workload
    ranges, moving = dict[str, set[tuple[int, int]]](), dict[str, int]()
    for stage in stages:
        place = stage.start, stage.stop
        learns = isinstance(workload, Training) and not table.runs_ahead(*place)
        own = table.of(stage.recompute and learns)
        depth = min(stage.warm_up, workload.batch // stage.rows) if learns else 0
        for name, rows in zip(stage.devices, stage.shares, strict=True):
            kept = depth * (own.kept_bytes(*place) * rows + own.copied_bytes(*place))
            nbytes = kept + working_bytes(own, *place, rows)
            ranges.setdefault(name, set()).add(place)
            moving[name] = max(moving.get(name, 0), nbytes)
    return {name: nbytes + resting_bytes(table, ranges[name]) for name, nbytes in moving.items()}


def rows_that_fit(
    table: CostTable,
    start: int,
    stop: int,
    budget: int,
    *,
    warm_up: int,
    replicas: int = 1,
    n_micro_batches: int = 1,
) -> int:
    """The most rows of a micro-batch for which `memory_bytes` stays within `budget`.

    Parameters
    ----------
    table
        Of the problem.
    start, stop
        Layers [start, stop).
    budget
        Bytes that the device may use.
    warm_up
        Micro-batches that the stage keeps at once.
    replicas
        Devices of the stage.
    n_micro_batches
        Of a step.
    """
    room = budget - static_bytes(table, start, stop)
    working, reducing = _moving_parts(
        table, start, stop, warm_up, replicas, n_micro_batches, warm_up + 2
    )
    if room < max(working[0], reducing[0]):
        return 0
    return min(
        (room - fixed) // per_row if per_row else 1 << 60 for fixed, per_row in (working, reducing)
    )


def depth_that_fits(
    table: CostTable,
    start: int,
    stop: int,
    rows: int,
    budget: int,
    *,
    replicas: int = 1,
    n_micro_batches: int = 1,
) -> int:
    """The most micro-batches kept at once (at most all) for which `memory_bytes` stays within
    `budget`; 0: not one.

    Parameters
    ----------
    table
        Of the problem.
    start, stop
        Layers [start, stop).
    rows
        Of every micro-batch, that this device takes.
    budget
        Bytes that the device may use.
    replicas
        Devices of the stage.
    n_micro_batches
        Of a step.
    """
    room = budget - static_bytes(table, start, stop)
    traffic = _traffic(table, start, stop, n_micro_batches, 1)
    early, reducing = _ring(table, start, stop, replicas)

    def needed(depth: int) -> int:
        working, waiting = traffic.row_bytes(depth, depth + 2)
        at_work = traffic.second_gradient + depth * traffic.copied + early + rows * working
        return max(at_work, reducing + rows * waiting) if reducing else at_work

    if room < 0 or needed(1) > room:
        return 0
    if not isinstance(table.problem.workload, Training) or needed(n_micro_batches) <= room:
        return n_micro_batches
    return bisect_right(range(1, n_micro_batches + 1), room, key=needed)


class _Traffic(NamedTuple):
    """What comes and goes in layers [start, stop), of one row unless it says otherwise, for any
    depth of the pipeline.
    """

    at_work: int  # fed and worked on
    at_rest: int  # waits whatever the depths
    kept: int  # by each micro-batch for its backward
    taken: int  # waits in front of the stage, of each micro-batch; and behind it
    given: int
    n_micro_batches: int
    n_before: int  # micro-batches in front whatever the depths; 0: as they say
    n_behind: int  # and behind
    second_gradient: int  # of all rows
    copied: int  # of all rows, by each micro-batch: statistics

    def row_bytes(self, depth: int, depth_before: int) -> tuple[int, int]:
        """While the device computes, and while it reduces gradients."""
        before = self.n_before or min(depth_before, self.n_micro_batches)
        waiting = self.at_rest + (self.n_behind or depth) * self.given + before * self.taken
        return self.at_work + waiting + depth * self.kept, waiting


@kept_by_table
def _traffic(
    table: CostTable, start: int, stop: int, n_micro_batches: int, in_flight: int
) -> _Traffic:
    """Tensors that wait behind the stage belong to micro-batches that it keeps, those before it to
    ones that the stage before keeps, and to any of the step where there is no backward; one more of
    each while pieces are cut or joined. Of the last stage every loss waits, and all of them as one
    value. Without training all micro-batches of all requests may wait.

    A table may take fewer to wait.
    """
    taken, given = table.crossing_bytes(start, stop)
    n_fed = n_micro_batches * in_flight
    n_waiting = (n_micro_batches + 1) * in_flight
    if table.n_waiting is not None:
        n_fed, n_waiting = min(n_fed, table.n_waiting + 1), min(n_waiting, table.n_waiting)
    feeds = _feed_bytes(table, start, stop) * n_fed
    at_work = feeds + working_bytes(table, start, stop, 1)
    second_gradient = table.second_gradient_bytes(start, stop, first=n_micro_batches == 1)
    if not isinstance(table.problem.workload, Training):
        at_rest = n_waiting * (taken + given)
        return _Traffic(at_work, at_rest, 0, 0, 0, n_micro_batches, 0, 0, second_gradient, 0)
    is_last = stop == len(table.problem.layers)
    runs_ahead = table.runs_ahead(start, stop) and table.n_waiting is None
    behind = n_micro_batches * (1 + is_last) * (is_last or runs_ahead)
    return _Traffic(
        at_work=at_work,
        at_rest=taken + given,
        kept=table.kept_bytes(start, stop),
        taken=taken,
        given=given,
        n_micro_batches=n_micro_batches,
        n_before=n_micro_batches * (table.follows_ahead(start, stop) and table.n_waiting is None),
        n_behind=behind,
        second_gradient=second_gradient,
        copied=table.copied_bytes(start, stop),
    )


def _moving_bytes(
    table: CostTable,
    start: int,
    stop: int,
    rows: int,
    warm_up: int,
    replicas: int,
    n_micro_batches: int,
    depth_before: int,
    in_flight: int = 1,
) -> int:
    """What comes and goes in a step, at the most."""
    parts = _moving_parts(
        table, start, stop, warm_up, replicas, n_micro_batches, depth_before, in_flight
    )
    return max(fixed + rows * per_row for fixed, per_row in parts)


def _moving_parts(
    table: CostTable,
    start: int,
    stop: int,
    warm_up: int,
    replicas: int,
    n_micro_batches: int,
    depth_before: int,
    in_flight: int = 1,
) -> tuple[tuple[int, int], tuple[int, int]]:
    """(bytes, bytes per row) while the device computes, and while it reduces gradients, when no
    activation is left.

    While it computes: what `warm_up` micro-batches keep for their backward, what one task works on,
    home's whole batch, all that waits, a second gradient, and pieces that the replica before sends
    early.
    """
    traffic = _traffic(table, start, stop, n_micro_batches, in_flight)
    ring = _ring(table, start, stop, replicas)
    depth = min(warm_up, n_micro_batches)
    working, waiting = traffic.row_bytes(depth, depth_before)
    fixed = traffic.second_gradient + depth * traffic.copied + ring[0]
    return (fixed, working), (ring[1], waiting if ring[1] else 0)


@kept_by_table
def _ring(table: CostTable, start: int, stop: int, replicas: int) -> tuple[int, int]:
    """Bytes of an all-reduce: those that the replica before sends early, and all at the end. Of
    gradients that go to other stages with the same weights: vectors before and after, and pieces.
    """
    if not isinstance(table.problem.workload, Training):
        return 0, 0
    if table.shares(start, stop):
        pieces = 3 * _vector_bytes(table, start, stop)
        early = (replicas - 1) * _piece_bytes(table, start, stop, replicas)
        return early, pieces + reducing_bytes(table, start, stop, replicas)
    if replicas == 1:
        return 0, 0
    early = (replicas - 1) * _piece_bytes(table, start, stop, replicas)
    return early, reducing_bytes(table, start, stop, replicas)


def reducing_bytes(table: CostTable, start: int, stop: int, replicas: int) -> int:
    """Bytes of the all-reduce, see `memory.reducing_bytes`.

    Parameters
    ----------
    table
        Of the problem.
    start, stop
        Layers [start, stop).
    replicas
        Devices of the stage.
    """
    if replicas == 1 or not isinstance(table.problem.workload, Training):
        return 0
    return memory.reducing_bytes(_vector_bytes(table, start, stop), replicas)


def _piece_bytes(table: CostTable, start: int, stop: int, replicas: int) -> int:
    return _vector_bytes(table, start, stop) // replicas + 4


def _vector_bytes(table: CostTable, start: int, stop: int) -> int:
    return table.summed_bytes(start, stop) + table.averaged_bytes(start, stop)


def _feed_bytes(table: CostTable, start: int, stop: int) -> int:
    return table.target_bytes(stop) + table.feed_bytes(start, stop)
