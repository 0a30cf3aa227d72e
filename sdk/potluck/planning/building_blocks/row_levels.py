"""Rows over the devices of a stage where times go in steps: the fewest seconds in which all of them
together take a micro-batch, each as many rows as those seconds buy.

Matrix units take rows in tiles, so that one row more may cost as much as sixteen. A share in
proportion to speed then ends just beyond a step, and no exchange of a few rows helps. Between the
batch sizes that were measured times are linear: all of a curve is in its corners.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.row_allocation import allocate_within, rooms_of
from potluck.records import LayerCost
from potluck.simulate import cost

STEP_FRAC = 0.05  # of the time at the next size, that it exceeds the line before: noise is less
PAYS = 1e-3  # of the time of the slowest device
HALVINGS = 40

Curve = tuple[tuple[int, float], ...]
"""Corners: rows, ascending, and the seconds of so many."""


@cost.kept_by_table
def edges_of(table: cost.CostTable) -> Mapping[str, tuple[int, ...]]:
    """Per device the measured batch sizes beyond which rows cost clearly more than before.

    Parameters
    ----------
    table
        Of the problem.
    """
    return {name: _edges(costs) for name, costs in table.problem.costs.items()}


def _edges(costs: Sequence[LayerCost]) -> tuple[int, ...]:
    beyond, total = defaultdict[int, float](float), defaultdict[int, float](float)
    for layer in costs:
        back = layer.backward_s or (0.0,) * len(layer.rows)
        seconds = [f + b for f, b in zip(layer.forward_s, back, strict=True)]
        corners = [(0, 0.0), *zip(layer.rows, seconds, strict=True)]
        for (a, before), (b, at_corner), (c, after) in zip(
            corners, corners[1:], corners[2:], strict=False
        ):
            total[b] += after
            beyond[b] += max(0.0, after - at_corner - (at_corner - before) / (b - a) * (c - b))
    return tuple(sorted(rows for rows in beyond if beyond[rows] > STEP_FRAC * total[rows]))


def allocate_by_level(
    table: cost.CostTable,
    start: int,
    stop: int,
    devices: Sequence[str],
    micro_batch: int,
    *,
    warm_up: int,
    n_micro_batches: int,
) -> tuple[int, ...] | None:
    """As `allocate`; where times go in steps, at their edges.

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
    shares = allocate_within(table, start, stop, devices, micro_batch, rooms)
    if shares is None:
        return None
    fewest = candidates.fewest_rows(table.problem, start, stop)
    return levelled(table, start, stop, devices, shares, rooms, fewest)


def may_level(table: cost.CostTable, devices: Sequence[str]) -> bool:
    """Whether several share rows, and the time of one of them goes in steps.

    Parameters
    ----------
    table
        Of the problem.
    devices
        Of a stage.
    """
    return len(devices) > 1 and any(edges_of(table)[name] for name in devices)


def levelled(
    table: cost.CostTable,
    start: int,
    stop: int,
    devices: Sequence[str],
    shares: Sequence[int],
    rooms: Sequence[int],
    fewest: int = 1,
) -> tuple[int, ...]:
    """The shares, or others whose slowest device takes less time, where times go in steps.

    Parameters
    ----------
    table
        Of the problem.
    start, stop
        Layers [start, stop).
    devices
        Of the stage.
    shares
        Rows of each, by speed.
    rooms
        The most rows that memory holds on each.
    fewest
        Rows that a device has at least.
    """
    if not may_level(table, devices) or 0 in shares:
        return tuple(shares)
    curves = [
        _curve(table, name, start, stop, min(room, sum(shares)))
        for name, room in zip(devices, rooms, strict=True)
    ]
    return level(curves, shares, fewest)


def _curve(table: cost.CostTable, name: str, start: int, stop: int, max_rows: int) -> Curve:
    sizes = {rows for layer in table.problem.costs[name][start:stop] for rows in layer.rows}
    corners = sorted({1, max_rows, *(rows for rows in sizes if rows < max_rows)})
    return tuple((rows, table.compute_s(name, start, stop, rows)) for rows in corners)


def level(curves: Sequence[Curve], shares: Sequence[int], fewest: int = 1) -> tuple[int, ...]:
    """As many rows in all, by the least time that buys them; as they are where that is no less.

    What that time buys beyond is taken from those that would have most more than before.

    >>> tiles_of_16, tiles_of_8 = ((16, 1.0), (17, 2.0), (24, 2.0)), ((8, 1.0), (9, 2.0), (16, 2.0))
    >>> level([tiles_of_16, tiles_of_8], (14, 10))
    (16, 8)

    Parameters
    ----------
    curves
        Of each device.
    shares
        Rows of each.
    fewest
        Rows that a device has at least.
    """
    n_rows, now_s = sum(shares), max(map(seconds_of, curves, shares))

    def bought(seconds: float) -> list[int]:
        return [max(fewest, most_rows(curve, seconds)) for curve in curves]

    low, high = 0.0, now_s * (1 - PAYS)
    if sum(bought(high)) < n_rows:
        return tuple(shares)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if sum(bought(middle)) >= n_rows else (middle, high)
    rows = bought(high)
    while sum(rows) > n_rows:
        spare = [i for i, n in enumerate(rows) if n > fewest]
        if not spare:
            return tuple(shares)
        i = max(spare, key=lambda i: (rows[i] - shares[i], rows[i]))
        rows[i] -= 1
    return tuple(rows) if max(map(seconds_of, curves, rows)) < now_s else tuple(shares)


def seconds_of(curve: Curve, rows: int) -> float:
    """Seconds of so many rows; beyond the corners in proportion to the nearest.

    >>> seconds_of(((2, 1.0), (4, 3.0)), 3), seconds_of(((2, 1.0), (4, 3.0)), 1)
    (2.0, 0.5)
    """
    for (a, before), (b, after) in pairwise(((0, 0.0), *curve)):
        if rows <= b:
            return before + (after - before) * (rows - a) / (b - a)
    return curve[-1][1] * rows / curve[-1][0]


def most_rows(curve: Curve, seconds: float) -> int:
    """The most rows that a device takes in `seconds`.

    >>> most_rows(((1, 1.0), (8, 1.0), (9, 2.0), (13, 6.0)), 3.5)
    10
    """
    for (a, before), (b, after) in pairwise([*reversed(curve), (0, 0.0)]):
        if before <= seconds:
            return a
        if after <= seconds:
            return b + int((seconds - after) / (before - after) * (a - b))
    return 0
