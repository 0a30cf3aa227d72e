"""A bound from chains of stages: the cheapest of them at prices of time, devices and air.

Is there a plan in micro-batches of m rows, n of them, that takes at most T seconds and gives each
device one stage? Each of its stages then is an option: no device of it needs more than T for its
rows of all micro-batches, together with the quickest way to it and back, or with what is left of a
ring once the last replica has its gradients; and no cable of a device carries for longer. Over all
options, the stages also keep to limits that they share:

- devices: each kind has as many as it has, so their prices w[d] >= 0 count once each;
- air: all rows cross all cuts, and rings pass every gradient 2 (g - 1) times (g replicas), over a
  medium that all paths share: at most T seconds of it;
- time: row r waits for the devices s' that have it before stage s, and that of s for all its
  micro-batches, so sum_{s' < s} t_{s'} + n t_s <= T; and with the mean over rows, where replica d
  has k_d of m rows, t_s = sum_d k_d / m t_d(k_d). In training t is forward and backward; the same
  holds for forwards alone in front of s, with the ring of s behind it. Of a request that does not
  overlap with others all stages count: sum_s' t_s' + (n - 1) t_s <= T. A device with k rows waits
  for them all, from devices that have them at times e_p in pieces of o_p rows. What comes no
  earlier than piece p is still to cross its cable then, c seconds for a row; the mean over its rows
  of e_p + c (o_p and all that come later) is at least the mean e_p and c (k + 1) / 2.

The last are one limit for every stage. A price of each layer, added up over the layers of a stage,
prices them all, whatever the stages are. With prices that add up to 1 (each limit as a part of
itself), a plan costs at most 1, and so does the cheapest chain of options, found by dynamic
programming over layers (Lagrangian relaxation: Fisher, Management Science 27, 1981; the chains are
those of PipeDream, SOSP 2019). Where it costs more, no plan takes T seconds. Prices are bettered
step by step, from the best so far by the mean of what chains took (as in the volume algorithm:
Barahona and Anbil, Mathematical Programming 87, 2000), in longer steps while that helps, and begin
with the best for the T before. T is found by bisection. A step looks at layers^2 / 2 x kinds x
numbers of rows.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from math import exp, inf, isqrt, sqrt
from typing import NamedTuple

from potluck.planning.bounds.stage_options import ROUNDED, RowTimes, StageOption, StageOptions, sums
from potluck.planning.building_blocks.device_classes import classes_of
from potluck.planning.search.work_budget import COST_S, WorkBudget
from potluck.records import Problem, Training
from potluck.simulate import cost

N_STEPS = 12  # at most, to better the prices for one number of seconds
N_HALVINGS = 7  # of the range in which the bound lies
NEAR = 1.002  # of the bound, a range that is not halved any more
EXACT_ROWS = 4  # of a micro-batch up to which devices of a stage are chosen exactly
AIR, TIME = 0.2, 0.4  # prices at first; the rest is for devices
# how long a step is at first; how many times as long after one to better prices, and to worse
FIRST_STEP = 1.0
LONGER, SHORTER = 1.3, 0.6
MOST_WORSE = 5  # steps to worse prices; better ones are hardly found then
# counted for an option, and for a kind of device, and a number of its rows that is looked at
OPTION_S = 6e-6
KIND_S, LOOK_S = 1e-6, 0.1e-6
STREAM_PART = 0.4  # of an option's, of a stream
GIVEN_S = 0.7  # counted, for all


class _Filled(NamedTuple):
    """Rows of a knapsack: those of the last device, and of the others."""

    kind: int
    rows: int
    others: "_Filled | None"


class DevicePart(NamedTuple):
    """Devices of a stage: of a kind, with so many rows each; of a relaxed choice also parts of a
    device.
    """

    kind: int
    rows: int
    n_devices: float


Choice = tuple[float, list[DevicePart]]  # a price, and what it is for


class PerLimit(NamedTuple):
    """A number for each limit, what all of it costs or which part of it a chain takes: of one
    device of each kind, of the air, and of the time of the stage that has a layer, with what comes
    back to the stages before it, or with its ring.
    """

    devices: list[float]
    air: float
    paces: list[float]
    rings: list[float]

    def with_others(self, others: "PerLimit", of: Callable[[float, float], float]) -> "PerLimit":
        """What is made of each number and the other one of the same limit.

        Parameters
        ----------
        others
            As many.
        of
            Makes one of two.
        """
        return PerLimit(
            [*map(of, self.devices, others.devices)],
            of(self.air, others.air),
            [*map(of, self.paces, others.paces)],
            [*map(of, self.rings, others.rings)],
        )

    def scaled(self, counts: Sequence[int]) -> "PerLimit":
        """Prices that add up to 1.

        Parameters
        ----------
        counts
            Of each kind, how many devices there are.
        """
        total = self.air + sum(self.paces) + sum(self.rings)
        total += sum(n * price for n, price in zip(counts, self.devices, strict=True))
        return self.with_others(self, lambda price, _: price / total)


class StageRate(NamedTuple):
    """What a stage pays: for a second of forward and backward, of forwards alone, and once; and of
    its waits for a byte of each row.
    """

    both: float
    forward: float
    once: float
    bytes: float

    def price(self, rows: RowTimes, start: int, stop: int) -> float:
        """Of a device that takes as long as if all rows were each among so many.

        Parameters
        ----------
        rows
            What it takes.
        start, stop
            Layers [start, stop).
        """
        price = self.both * (rows.both[stop] - rows.both[start]) + self.bytes * rows.wait
        return price + self.forward * (rows.forward[stop] - rows.forward[start])


class Chain:
    """The cheapest chain of options at some prices.

    Parameters
    ----------
    known
        Costs of stages.
    latency_s
        What is to be refuted.
    prices
        Of all limits.
    """

    def __init__(self, known: StageOptions, latency_s: float, prices: PerLimit) -> None:
        self.known, self.prices = known, prices
        self.latency_s = latency_s
        self.paces = sums(prices.paces)
        self.rings = sums(prices.rings)
        self.taken = [
            known.floors.batch * (sent + back) * known.floors.air_s / latency_s
            for sent, back in zip(known.sent, known.back, strict=True)
        ]  # of the air's time, by all rows over the cut in front of each layer
        self.stages: list[tuple[int, StageOption]] = []
        self.n_options = 0  # that were looked at

    def cheapest(self, options: Callable[[int], Sequence[StageOption]]) -> float:
        """Its price: infinite where there is none, and not exact above 1.

        Parameters
        ----------
        options
            Called with a first layer.
        """
        n_layers = self.known.n_layers
        reached, came = [0.0] + [inf] * n_layers, dict[int, tuple[int, StageOption]]()
        priced: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
        for start in range(n_layers):
            so_far = reached[start] + self._cut(start)
            if so_far > ROUNDED:
                continue
            behind = options(start)
            self.n_options += len(behind)
            for option in behind:
                if self.known.floors.streaming:  # what is computed has no price
                    key = option.alone, option.rows
                    if key not in priced:
                        priced[key] = self._group(start, option)[0]
                    price = priced[key]
                else:
                    price = self._group(start, option, reached[option.stop] - so_far)[0]
                if so_far + price < reached[option.stop]:
                    reached[option.stop], came[option.stop] = so_far + price, (start, option)
        at = n_layers
        while at in came:
            self.stages.append(came[at])
            at = came[at][0]
        self.stages.reverse()
        return reached[n_layers]

    def _cut(self, start: int) -> float:
        """Price of the cut in front of a layer."""
        known = self.known
        waits = self.paces[-1] - self.paces[start] * known.floors.training
        time_s = waits * known.trips[start]
        time_s += (self.rings[-1] - self.rings[start]) * known.outward[start]
        return self.prices.air * self.taken[start] + time_s / self.latency_s

    def _rate(self, start: int, stop: int) -> StageRate:
        """Prices of a second in a stage."""
        known = self.known
        paces, rings = self.paces, self.rings
        pace, ring = paces[stop] - paces[start], rings[stop] - rings[start]
        later, after = paces[-1] - paces[stop], rings[-1] - rings[stop]
        if known.floors.training:
            both = known.n * (pace + ring) + later
        else:
            both = paces[-1] + (known.n - 1) * pace
        nbytes = known.sent[start] * self._waiting(start) + known.back[stop] * later
        scale = 1 / self.latency_s
        return StageRate(both * scale, after * scale, ring * scale, nbytes * scale)

    def _waiting(self, start: int) -> float:
        """Price of a second that all of a stage and behind it wait."""
        paces, rings = self.paces, self.rings
        waits = paces[-1] - paces[start] * self.known.floors.training
        return waits + rings[-1] - rings[start]

    def _group(self, start: int, option: StageOption, enough: float = inf) -> Choice:
        """The cheapest devices for a stage: of few rows exactly, else at most as dear. What costs
        `enough` is not looked at closely.
        """
        known, rate = self.known, self._rate(start, option.stop)
        devices, best = self.prices.devices, inf
        parts = list[DevicePart]()
        update_s = known.update_s(start, option.stop)
        for kind in option.alone:
            price = rate.price(known.rows_of[kind][-1], start, option.stop) + devices[kind]
            if price + rate.once * update_s < best:
                best = price + rate.once * update_s
                parts = [DevicePart(kind, known.micro_batch, 1.0)]
        if not option.rows:
            return best, parts
        ring = self._ring(start, option.stop)
        once = rate.once * option.behind_s - ring  # the first replica needs none of it
        if known.micro_batch <= EXACT_ROWS:
            price, several = self._exactly(start, option, rate, ring, min(best, enough) - once)
        else:
            price, several = self._in_parts(start, option, rate, ring)
        return (price + once, several) if price + once < best else (best, parts)

    def _ring(self, start: int, stop: int) -> float:
        """Price of the air that one more replica takes."""
        known = self.known
        nbytes = 2 * known.ring_bytes(start, stop)
        return self.prices.air * nbytes * known.floors.air_s / self.latency_s

    def _exactly(
        self, start: int, option: StageOption, rate: StageRate, ring: float, enough: float
    ) -> Choice:
        """Devices that have all rows, each its own: a knapsack that is filled device by device."""
        known, m = self.known, self.known.micro_batch
        offers = list[tuple[int, list[float]]]()
        per_row = inf
        for kind, most in enumerate(option.rows):
            device = self.prices.devices[kind] + ring
            prices = [
                device + row.size / m * rate.price(row, start, option.stop)
                for row in known.rows_of[kind][:most]
            ]
            per_row = min([per_row, *(price / k for k, price in enumerate(prices, 1))])
            offers.append((kind, prices))
        if m * per_row >= enough:
            return inf, []
        nothing: tuple[float, _Filled | None] = inf, None
        best = [nothing] * (m + 1)
        best[0] = 0.0, None
        for kind, prices in offers:
            for _ in range(min(known.counts[kind], m) if prices else 0):
                is_same = True
                for rows in range(m, 0, -1):  # those of fewer rows are without this device
                    for k, price in enumerate(prices, 1):
                        before, filled = best[max(0, rows - k)]
                        if before + price < best[rows][0]:
                            best[rows] = before + price, _Filled(kind, k, filled)
                            is_same = False
                if is_same:
                    break
        price, filled = best[m]
        parts = list[DevicePart]()
        while filled is not None:
            parts.append(DevicePart(filled.kind, filled.rows, 1.0))
            filled = filled.others
        return price, parts

    def _in_parts(self, start: int, option: StageOption, rate: StageRate, ring: float) -> Choice:
        """Devices that have all rows, also parts of them: those that are cheapest per row first."""
        known, m = self.known, self.known.micro_batch
        offers = list[tuple[float, int, int, int]]()
        for kind, most in enumerate(option.rows):
            if most:
                device = self.prices.devices[kind] + ring
                least = self._least_of_row(rate, kind, most, device, (start, option.stop))
                offers.append((*least, kind, most * known.counts[kind]))
        price, left = 0.0, m
        parts = list[DevicePart]()
        for row, rows, kind, most in sorted(offers):
            taken = min(left, most)
            price, left = price + taken * row, left - taken
            parts.append(DevicePart(kind, rows, taken / rows))
            if not left:
                break
        return price, parts

    def _least_of_row(
        self, rate: StageRate, kind: int, most: int, device: float, layers: tuple[int, int]
    ) -> tuple[float, int]:
        """The least that a row costs on a device of a kind, which costs as much itself, and among
        how many of at most `most` rows that is.
        """
        m, (start, stop) = self.known.micro_batch, layers
        least, at = inf, 0
        of_both, of_forward = rate.both / m, rate.forward / m
        of_wait = rate.bytes / m
        for size, top, both, forward, wait in self.known.rows_of[kind]:
            price = of_both * (both[stop] - both[start]) + of_wait * wait
            price += of_forward * (forward[stop] - forward[start])
            if size > most or price >= least:  # more rows take no less
                break
            rows = top if top < most else most
            if price + device / rows < least:
                least, at = price + device / rows, rows
        return least, at

    def groups(self) -> list[list[DevicePart]]:
        """Per stage, its devices."""
        return [self._group(start, option)[1] for start, option in self.stages]

    def taken_parts(self) -> PerLimit:
        """Which part of each limit the chain takes."""
        known, groups = self.known, self.groups()
        devices, air_s = [0.0] * len(known.counts), 0.0
        for (start, option), parts in zip(self.stages, groups, strict=True):
            for part in parts:
                devices[part.kind] += part.n_devices / known.counts[part.kind]
            more = max(0.0, sum(part.n_devices for part in parts) - 1)
            ring_bytes = 2 * more * known.ring_bytes(start, option.stop)
            air_s += self.taken[start] * self.latency_s + ring_bytes * known.floors.air_s
        paces, rings = list[float](), list[float]()
        for (start, option), (pace_s, ring_s) in zip(self.stages, self._times(groups), strict=True):
            paces += [pace_s / self.latency_s] * (option.stop - start)
            rings += [ring_s / self.latency_s] * (option.stop - start)
        return PerLimit(devices, air_s / self.latency_s, paces, rings)

    def _times(self, groups: Sequence[Sequence[DevicePart]]) -> list[tuple[float, float]]:
        """Per stage the seconds until all has come back from it, and until its ring is done."""
        known, found = self.known, list[tuple[float, float]]()
        times = list[tuple[float, float, float]]()
        for (start, option), parts in zip(self.stages, groups, strict=True):
            both = forward = 0.0
            wait = 0.0
            for kind, rows, n in parts:
                q = bisect_right(known.floors.sizes, rows) - 1
                part = n * rows / known.micro_batch
                row = known.rows_of[kind][q]
                both += part * (row.both[option.stop] - row.both[start])
                forward += part * (row.forward[option.stop] - row.forward[start])
                wait += part * row.wait * known.sent[start]
            times.append((both, forward, wait))
        all_s = sum(both + wait for both, _, wait in times)
        all_s += sum(known.trips[i] for i, _ in self.stages)
        before_s = first_s = 0.0
        for (start, option), (both, forward, wait) in zip(self.stages, times, strict=True):
            before_s += known.trips[start] + wait * (1 + known.floors.training)  # and back, about
            first_s += known.outward[start] + wait
            ring_s = first_s + known.n * both + option.behind_s
            if known.floors.training:
                found.append((before_s + known.n * both, ring_s))
            else:
                found.append((all_s + (known.n - 1) * both, 0.0))
            before_s, first_s = before_s + both, first_s + forward
        return found


def chains_bound_s(
    table: cost.CostTable, low_s: float, high_s: float, is_late: Callable[[], bool]
) -> float:
    """Seconds that no plan goes below that gives each device one stage at most, from `low_s`, which
    is proven, to `high_s`.

    Parameters
    ----------
    table
        Of a problem without branches.
    low_s, high_s
        Seconds.
    is_late
        Asked between pieces of work; the bound found by then is given.
    """
    budget = WorkBudget()

    def is_over() -> bool:
        return budget() >= GIVEN_S or is_late()

    sizes, known = micro_batches(table.problem), dict[int, StageOptions]()
    prices = dict[int, PerLimit]()
    n_costs = len(classes_of(table)) * len(table.problem.layers)
    for _ in range(N_HALVINGS):
        if low_s <= 0 or high_s <= low_s * NEAR or is_over():
            break
        middle_s = sqrt(low_s * high_s) if high_s < inf else 2 * low_s
        for rows in sizes:
            if is_over():
                return low_s
            if rows not in known:
                known[rows] = StageOptions(table, rows)
                budget.count(n_costs * len(known[rows].floors.sizes), COST_S)
                prices[rows] = first_prices(known[rows])
            refutes, prices[rows] = _refutes(known[rows], middle_s, prices[rows], budget, is_over)
            if not refutes:
                high_s = middle_s
                sizes.remove(rows)
                sizes.insert(0, rows)  # the one that is proved last is asked first
                break
        else:
            low_s = middle_s
    return low_s


def _refutes(
    known: StageOptions,
    latency_s: float,
    prices: PerLimit,
    budget: WorkBudget,
    is_over: Callable[[], bool],
) -> tuple[bool, PerLimit]:
    """Whether no plan of this micro-batch takes at most so many seconds, as far as that is proved
    when it is over; and the best prices found, which are good ones for other seconds, too.
    """
    best = 0.0
    for price, chain in priced(known, latency_s, prices, budget):
        if best < price < inf:
            best, prices = price, chain.prices
        if price > ROUNDED:
            return True, prices
        if is_over():
            break
    return False, prices


def priced(
    known: StageOptions, latency_s: float, prices: PerLimit, budget: WorkBudget
) -> Iterator[tuple[float, Chain]]:
    """The cheapest chains for these seconds at ever better prices, each with what it costs: more
    than 1 (or infinite, and the last one) where no plan takes no longer.

    Parameters
    ----------
    known
        The stages that there may be.
    latency_s
        Seconds of a step, or from answer to answer.
    prices
        At first.
    budget
        Counts the work.
    """
    floors, n_kinds = known.floors, len(known.counts)
    n_looks = n_kinds * len(floors.sizes)
    if known.micro_batch <= EXACT_ROWS:
        n_looks *= known.micro_batch
    # of a stream most options cost the same as others
    looked_s = STREAM_PART * OPTION_S if floors.streaming else OPTION_S + n_looks * LOOK_S

    @cache
    def options(start: int) -> list[StageOption]:
        before, found = known.n_looked, known.options(start, latency_s)
        budget.count(known.n_looked - before, OPTION_S + n_kinds * KIND_S)
        return found

    best, step = 0.0, FIRST_STEP
    base, taken = prices, None
    n_worse = 0
    for _ in range(N_STEPS):
        chain = Chain(known, latency_s, prices)
        price = chain.cheapest(options)
        budget.count(chain.n_options, looked_s)
        yield price, chain
        if price == inf:
            return
        parts = chain.taken_parts()
        taken = parts if taken is None else taken.with_others(parts, _mean)
        if price > best:
            step *= LONGER if best else 1
            best, base = price, prices
        else:
            step, n_worse = step * SHORTER, n_worse + 1
            if n_worse == MOST_WORSE:
                return
        prices = base.with_others(taken, partial(_dearer, step)).scaled(known.counts)


def first_prices(known: StageOptions) -> PerLimit:
    """Prices to begin with.

    Parameters
    ----------
    known
        The stages that there may be.
    """
    floors = known.floors
    air, time = AIR * (floors.air_s > 0), TIME * (not floors.streaming)
    speeds = [1 / max(rows[-1][-1], 1e-30) for rows in known.both]
    total = sum(n * speed for n, speed in zip(known.counts, speeds, strict=True))
    paces = [time / known.n_layers] * known.n_layers
    rings = [pace * floors.training for pace in paces]
    devices = [(1 - air - time) * speed / total for speed in speeds]
    return PerLimit(devices, air, paces, rings).scaled(known.counts)


def _mean(a: float, b: float) -> float:
    return (a + b) / 2


def _dearer(step: float, price: float, taken: float) -> float:
    """The price of a limit of which such a part is taken."""
    return price * exp(max(-1.0, min(1.0, step * (taken - 1))))


def micro_batches(problem: Problem) -> list[int]:
    """Every micro-batch size that a plan may have, small ones first.

    Parameters
    ----------
    problem
        What is planned.
    """
    fixed = problem.workload.micro_batch if isinstance(problem.workload, Training) else None
    batch = problem.workload.batch
    small = [size for size in range(1, isqrt(batch) + 1) if batch % size == 0]
    return [fixed] if fixed is not None else sorted({*small, *(batch // size for size in small)})
