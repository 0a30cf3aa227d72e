"""A bound that prices time and devices together: every row takes the cheapest route of its own.

Of a plan that takes T seconds for B rows, the way of each row takes at most T; so does all that a
device computes, and all that passes one medium. So for prices a, w[d], v >= 0 that add up to 1

    T >= a / B sum_r way_r + sum_d w[d] busy_d + v taken

which is the Lagrangian relaxation of these limits (Fisher, Management Science 27, 1981). A row that
device d computes among k rows adds (a + B w[d] / k) t[d, l](k) / B on the right, and one that is
passed on a / B of its trip and its part of the air. Rows that may choose d and k for every layer
anew choose no worse than in any plan, so the right side is at least B times the cheapest route of
one. a = 1 gives the longest way, w alone the work. Prices are bettered step by step; any are valid,
also for plans that come back to a device. A step looks at kinds x layers.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp

from potluck.planning.bounds.floors import Floors, Rows
from potluck.simulate import cost

N_STEPS = 100  # to better the prices
FIRST_STEP = 0.5  # of a price, by how much it goes with what it is for
STEADY = 6  # steps until they are half as long
WAY, AIR = 0.5, 0.1  # prices at first


@dataclass(slots=True)
class RoutePrices:
    """Of a second: of rows' ways, of the air, of a device of each kind."""

    way: float
    air: float
    devices: list[float]


@dataclass(slots=True)
class RouteUse:
    """Seconds of a solution: as the prices."""

    way_s: float = 0.0
    air_s: float = 0.0
    devices_s: list[float] = field(default_factory=list)


def routes_s(table: cost.CostTable) -> float:
    """Seconds that no plan of a chain goes below.

    Parameters
    ----------
    table
        Of a problem without branches.
    """
    floors = Floors(table, table.problem.workload.batch)
    rates = [floors.rates(kind) for kind in range(len(floors.kinds))]
    offers = [_offers(*rows) for rows in zip(floors.both, rates, strict=True)]
    speeds = [1 / max(sum(rows[-1]), 1e-30) for rows in rates]
    total = sum(n * speed for n, speed in zip(floors.counts, speeds, strict=True))
    way, air = WAY * (not floors.streaming), AIR * (floors.air_s > 0)
    prices = RoutePrices(way, air, [(1 - way - air) * speed / total for speed in speeds])
    cuts = range(floors.n_layers - 1)
    trips_s = [floors.trip_s(i, returns=True) for i in cuts]
    air_s = [floors.batch * (floors.sent[i] + floors.back[i]) * floors.air_s for i in cuts]
    best_s = 0.0
    for step in range(N_STEPS):
        found_s, use = _cheapest(floors, offers, trips_s, air_s, prices)
        best_s = max(best_s, found_s)
        if found_s <= 0:
            break
        _better(prices, use, found_s, floors, FIRST_STEP / (1 + step / STEADY))
    return best_s


class LowerHull:
    """Of points (x, y), those of which one is the least in a x + b y, whatever a and b >= 0 are:
    from left to right (Andrew, Information Processing Letters 9, 1979).

    Parameters
    ----------
    points
        In any order.
    """

    def __init__(self, points: Iterable[tuple[float, float]]) -> None:
        hull = list[tuple[float, float]]()
        for x, y in sorted(points):
            if hull and y >= hull[-1][1]:
                continue
            while len(hull) > 1 and _bends(hull[-2], hull[-1]) >= _bends(hull[-1], (x, y)):
                hull.pop()
            hull.append((x, y))
        self.points = hull
        self.bends = [_bends(left, right) for left, right in pairwise(hull)]

    def least(self, a: float, b: float) -> tuple[float, float]:
        """The point that is the least.

        Parameters
        ----------
        a, b
            Of x and y; not both 0.
        """
        return self.points[bisect_left(self.bends, b / a) if a > 0 else -1]


def _bends(left: tuple[float, float], right: tuple[float, float]) -> float:
    """For which b / a two points cost the same: above it the right one is less."""
    return (right[0] - left[0]) / (left[1] - right[1])


def _offers(both: Rows, rates: Rows) -> list[LowerHull]:
    """Per layer, of each number of rows the seconds of one's way, and of the device for one."""
    each = zip(zip(*both, strict=True), zip(*rates, strict=True), strict=True)
    return [LowerHull(zip(*columns, strict=True)) for columns in each]


def _cheapest(
    floors: Floors,
    offers: Sequence[Sequence[LowerHull]],
    trips_s: Sequence[float],
    air_s: Sequence[float],
    prices: RoutePrices,
) -> tuple[float, RouteUse]:
    """The cheapest route of a row, times B, and what it takes.

    `trips_s`, `air_s`: of each cut, a row's way over it and back, and all rows' time of the air.
    """
    batch, last = floors.batch, floors.n_layers - 1
    chosen = [
        [layer.least(prices.way, batch * price) for layer in layers]
        for price, layers in zip(prices.devices, offers, strict=True)
    ]  # per kind and layer, what a row takes there among as many as are cheapest
    costs = [
        [prices.way * row_s + batch * price * rate for row_s, rate in layers]
        for price, layers in zip(prices.devices, chosen, strict=True)
    ]
    reached, came = [row[0] for row in costs], list[list[int]]()
    kinds = range(len(costs))
    for i in range(last):
        near = min(kinds, key=reached.__getitem__)
        passed_s = reached[near] + prices.way * trips_s[i] + prices.air * air_s[i]
        came.append([kind if reached[kind] <= passed_s else near for kind in kinds])
        reached = [min(reached[kind], passed_s) + costs[kind][i + 1] for kind in kinds]
    kind = min(kinds, key=reached.__getitem__)
    found_s, use = reached[kind], RouteUse(devices_s=[0.0] * len(costs))
    for i in range(last, -1, -1):
        row_s, rate = chosen[kind][i]
        use.way_s += row_s
        use.devices_s[kind] += batch * rate / floors.counts[kind]
        if i and came[i - 1][kind] != kind:
            kind = came[i - 1][kind]
            use.way_s, use.air_s = use.way_s + trips_s[i - 1], use.air_s + air_s[i - 1]
    return found_s, use


def _better(
    prices: RoutePrices, use: RouteUse, value_s: float, floors: Floors, step: float
) -> None:
    """What takes longer than the bound gets dearer, what takes less cheaper."""

    def times(seconds: float) -> float:
        return exp(max(-1.0, min(1.0, step * (seconds / value_s - 1))))

    prices.way *= times(use.way_s)
    prices.air *= times(use.air_s)
    prices.devices = [
        price * times(busy) for price, busy in zip(prices.devices, use.devices_s, strict=True)
    ]
    counted = zip(floors.counts, prices.devices, strict=True)
    total = prices.way + prices.air + sum(n * price for n, price in counted)
    prices.way, prices.air = prices.way / total, prices.air / total
    prices.devices = [price / total for price in prices.devices]
