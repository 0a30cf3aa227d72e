"""Asteroid's Algorithm 1: the rows of a micro-batch over the devices of one stage, by speed and
within memory.
"""

from collections.abc import Callable, Sequence
from functools import partial

from potluck.planning.building_blocks import candidates
from potluck.simulate import cost, footprint

N_BLOCKS = 32  # phase 2 moves 1/32 of a micro-batch at a time, at least one row


def allocate(
    table: cost.CostTable,
    start: int,
    stop: int,
    devices: Sequence[str],
    micro_batch: int,
    *,
    warm_up: int,
    n_micro_batches: int,
) -> tuple[int, ...] | None:
    """Rows per device for layers [start, stop), some maybe 0; None when they do not fit. Asteroid,
    eqs. (7)-(9).

    Parameters
    ----------
    table
        Of the problem.
    start, stop
        Layers [start, stop).
    devices
        Of the stage.
    micro_batch
        Rows of a micro-batch.
    warm_up
        Micro-batches that the stage keeps at once, K_p.
    n_micro_batches
        Of a step.
    """
    rooms = rooms_of(table, start, stop, devices, warm_up=warm_up, n_micro_batches=n_micro_batches)
    return allocate_within(table, start, stop, devices, micro_batch, rooms)


def allocate_within(
    table: cost.CostTable,
    start: int,
    stop: int,
    devices: Sequence[str],
    micro_batch: int,
    rooms: Sequence[int],
) -> tuple[int, ...] | None:
    """The same where it is known how many rows each device has room for.

    Parameters
    ----------
    table
        Of the problem.
    start, stop
        Layers [start, stop).
    devices
        Of the stage.
    micro_batch
        Rows of a micro-batch.
    rooms
        The most rows that memory holds on each.
    """
    rooms = [*rooms]
    times = [partial(table.compute_s, name, start, stop) for name in devices]
    capacities = [1.0 / max(seconds(micro_batch), 1e-12) for seconds in times]  # eq. (9)
    fewest = candidates.fewest_rows(table.problem, start, stop)
    while (shares := balance(micro_batch, capacities, rooms)) is not None:
        shares = offload(shares, rooms, times)
        few = [i for i, rows in enumerate(shares) if 0 < rows < fewest]
        if not few:
            break
        rooms[few[0]] = 0  # it leaves its rows to the others
    return shares


def rooms_of(
    table: cost.CostTable,
    start: int,
    stop: int,
    devices: Sequence[str],
    *,
    warm_up: int,
    n_micro_batches: int,
) -> list[int]:
    """The most rows of layers [start, stop) that memory holds on each device of a stage.

    Parameters
    ----------
    table
        Of the problem.
    start, stop
        Layers [start, stop).
    devices
        Of the stage.
    warm_up
        Micro-batches that the stage keeps at once, K_p.
    n_micro_batches
        Of a step.
    """
    budgets = [table.budgets[name] for name in devices]
    rooms = {
        budget: footprint.rows_that_fit(
            table,
            start,
            stop,
            budget,
            warm_up=warm_up,
            replicas=len(devices),
            n_micro_batches=n_micro_batches,
        )
        for budget in {*budgets}
    }
    return [rooms[budget] for budget in budgets]


def balance(
    n_rows: int, capacities: Sequence[float], rooms: Sequence[int]
) -> tuple[int, ...] | None:
    """Phase 1 (lines 1-12): rows in proportion to capacity.

    What exceeds a device's room goes to those with room left.

    >>> balance(10, [1.0, 1.0, 2.0], [9, 9, 3])
    (4, 3, 3)

    Parameters
    ----------
    n_rows
        To be shared.
    capacities
        Speed of each device.
    rooms
        The most rows that memory holds on each.
    """
    shares, n_left = [0] * len(rooms), n_rows
    while n_left:
        takers = [i for i, room in enumerate(rooms) if shares[i] < room]
        if not takers:
            return None
        for i, rows in zip(
            takers, proportion(n_left, [capacities[i] for i in takers]), strict=True
        ):
            given = min(rows, rooms[i] - shares[i])
            shares[i] += given
            n_left -= given
    return tuple(shares)


def proportion(n_rows: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers in proportion to `weights` that add up to `n_rows`.

    The largest remainders round up.
    """
    total = sum(weights)
    exact = [n_rows * weight / total for weight in weights]
    rows = [int(value) for value in exact]
    order = sorted(range(len(rows)), key=lambda i: (rows[i] - exact[i], i))
    for i in order[: n_rows - sum(rows)]:
        rows[i] += 1
    return tuple(rows)


def offload(
    shares: Sequence[int], rooms: Sequence[int], seconds: Sequence[Callable[[int], float]]
) -> tuple[int, ...]:
    """Phase 2 (lines 13-20): blocks go from the slowest device to the fastest with room while it
    pays.

    Parameters
    ----------
    shares
        Rows of each device, from phase 1.
    rooms
        The most rows that memory holds on each.
    seconds
        Per device, seconds that so many rows take there.
    """
    rows, block = list(shares), max(1, sum(shares) // N_BLOCKS)
    times = [seconds[i](n) for i, n in enumerate(rows)]
    while True:
        slow = max(range(len(rows)), key=lambda i: times[i])
        open_to = [i for i in range(len(rows)) if i != slow and rows[i] < rooms[i]]
        if not open_to:
            return tuple(rows)
        fast = min(open_to, key=lambda i: times[i])
        moved = min(block, rows[slow], rooms[fast] - rows[fast])
        after = {slow: seconds[slow](rows[slow] - moved), fast: seconds[fast](rows[fast] + moved)}
        if moved == 0 or max(after.get(i, times[i]) for i in range(len(rows))) >= times[slow]:
            return tuple(rows)
        rows[slow] -= moved
        rows[fast] += moved
        times[slow], times[fast] = after[slow], after[fast]
