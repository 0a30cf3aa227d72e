"""A bound that prices time and devices together: every row takes the cheapest route of its own.

Of a plan that takes T seconds for B rows, the way of each row takes at most T; so does all that a
device computes, and all that passes one medium. So for prices a, w[d], v >= 0 that add up to 1

    T >= a / B sum_r way_r + sum_d w[d] busy_d + v taken

which is the Lagrangian relaxation of these limits (Fisher, Management Science 27, 1981). A row that
device d computes among k rows adds (a + B w[d] / k) t[d, l](k) / B on the right, and one that is
passed on a / B of its trip and its part of the air. Rows that may choose d and k for every layer
anew choose no worse than in any plan, so the right side is at least B times the cheapest route of
one. a = 1 gives the longest way, w alone the work. Prices are bettered step by step; any are valid,
also for plans that come back to a device. A step looks at kinds x numbers of rows x layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
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
    speeds = [1 / max(sum(rows[-1]), 1e-30) for rows in rates]
    total = sum(n * speed for n, speed in zip(floors.counts, speeds, strict=True))
    way, air = WAY * (not floors.streaming), AIR * (floors.air_s > 0)
    prices = RoutePrices(way, air, [(1 - way - air) * speed / total for speed in speeds])
    best_s = 0.0
    for step in range(N_STEPS):
        found_s, use = _cheapest(floors, rates, prices)
        best_s = max(best_s, found_s)
        if found_s <= 0:
            break
        _better(prices, use, found_s, floors, FIRST_STEP / (1 + step / STEADY))
    return best_s


def _cheapest(floors: Floors, rates: Sequence[Rows], prices: RoutePrices) -> tuple[float, RouteUse]:
    """The cheapest route of a row, times B, and what it takes."""
    batch, last = floors.batch, floors.n_layers - 1
    costs = [
        _by_layer(floors.both[kind], rates[kind], prices.way, batch * price)
        for kind, price in enumerate(prices.devices)
    ]
    trips = [floors.trip_s(i, returns=True) for i in range(last)]
    aired = [batch * (floors.sent[i] + floors.back[i]) * floors.air_s for i in range(last)]
    reached, came = [row[0] for row in costs], list[list[int]]()
    kinds = range(len(costs))
    for i in range(last):
        near = min(kinds, key=reached.__getitem__)
        passed_s = reached[near] + prices.way * trips[i] + prices.air * aired[i]
        came.append([kind if reached[kind] <= passed_s else near for kind in kinds])
        reached = [min(reached[kind], passed_s) + costs[kind][i + 1] for kind in kinds]
    kind = min(kinds, key=reached.__getitem__)
    found_s, use = reached[kind], RouteUse(devices_s=[0.0] * len(costs))
    for i in range(last, -1, -1):
        q = _rows(floors.both[kind], rates[kind], prices.way, batch * prices.devices[kind], i)
        use.way_s += floors.both[kind][q][i]
        use.devices_s[kind] += batch * rates[kind][q][i] / floors.counts[kind]
        if i and came[i - 1][kind] != kind:
            kind = came[i - 1][kind]
            use.way_s, use.air_s = use.way_s + trips[i - 1], use.air_s + aired[i - 1]
    return found_s, use


def _by_layer(both: Rows, rates: Rows, way: float, busy: float) -> list[float]:
    """Per layer what a row costs there, among as many as are cheapest."""
    columns = [
        [way * s + busy * rate for s, rate in zip(*rows, strict=True)]
        for rows in zip(both, rates, strict=True)
    ]
    return [min(column) for column in zip(*columns, strict=True)]


def _rows(both: Rows, rates: Rows, way: float, busy: float, i: int) -> int:
    """Among how many rows that is, by its place in the sizes."""
    return min(range(len(both)), key=lambda q: way * both[q][i] + busy * rates[q][i])


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
