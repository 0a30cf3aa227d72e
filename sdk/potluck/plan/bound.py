"""A latency that no plan can beat, and so how far at most the best plan found is from the optimum.

Every plan means: contiguous stages, each device in one stage at most, any shares, micro-batches and depths. The bounds:

- Work. Device d takes at least r[d, l] seconds per row of layer l (its best over all batch sizes). Whoever does what,
  for any weights w[d] >= 0 of sum 1: T >= sum_d w[d] T >= B sum_l min_d w[d] r[d, l]. The weights are improved by
  subgradient steps; any weights give a valid bound.
- The longest way, of parallel branches. Some row passes every layer on it, each on the device that is fastest there.
- Structure, of a chain. The dynamic program of `subset` with every cost replaced by a lower bound: rows one at a time
  at the best rate per row, shared among a group without loss; links at the sum of what their paths carry; memory of
  weights alone. Its labels never overestimate, so the best whole label bounds all plans; those above the best plan
  found are not even looked at.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, permutations

from potluck.plan import cost, flows
from potluck.plan.groups import Pattern
from potluck.plan.heads import Crossing, Head, Heads
from potluck.plan.subset import Label, SubsetSearch
from potluck.records import LayerCost, Problem, Stage, Training

N_WEIGHTS = 60  # subgradient steps; each is a few hundred operations
MAX_LAYERS = 40  # structure is not looked at beyond: the program grows with their square
MAX_LABELS = 12  # per state; of more, the worst are merged into one that is better than each


def lower_bound_s(
    problem: Problem, table: cost.CostTable, upper_s: float, *, is_late: Callable[[], bool] = lambda: False
) -> float:
    """Seconds of latency that no plan goes below; at most `upper_s`, which some plan reaches."""
    rates = [_rates(problem, device.name) for device in problem.devices]
    bound = min(upper_s, work_s(problem.workload.batch, rates))
    if problem.branches:
        return max(bound, min(upper_s, way_s(problem)))
    if len(problem.layers) > MAX_LAYERS or len(problem.devices) > 5 or is_late():
        return bound
    labels = FloorSearch(table, rates, is_late).run(upper_s)
    if is_late():
        return bound
    return max(bound, min((label.score for label in labels), default=upper_s))


def work_s(batch: int, rates: Sequence[Sequence[float]]) -> float:
    """The work bound for seconds per row `rates[device][layer]`.

    Two devices of 1 and 3 seconds per row and one layer: weights 3/4 and 1/4 give 3/4 per row, which shares of 3 to 1
    reach.
    """
    weights = [1 / max(sum(rate), 1e-30) for rate in rates]
    best = 0.0
    for step in range(N_WEIGHTS):
        total = sum(weights)
        weights = [weight / total for weight in weights]
        load, value = [0.0] * len(rates), 0.0
        for layer in range(len(rates[0])):
            d = min(range(len(rates)), key=lambda d, layer=layer: weights[d] * rates[d][layer])  # type: ignore[misc]
            value += weights[d] * rates[d][layer]
            load[d] += rates[d][layer]
        best = max(best, value)
        mean = sum(load) / len(load)
        if mean <= 0:
            break
        # Who got more than its part was too cheap: dearer next time, by less and less.
        weights = [w * (1 + (x / mean - 1) / len(load) / (step + 2)) for w, x in zip(weights, load, strict=True)]
    return batch * best


def way_s(problem: Problem) -> float:
    """The longest way through the layers where each takes its least time of any device and batch size; streams overlap
    their requests, so for them it is nothing."""
    if not isinstance(problem.workload, Training) and problem.workload.streaming:
        return 0.0
    batch, learning, reached = problem.workload.batch, _learning(problem), [0.0] * len(problem.layers)
    for i, layer in enumerate(problem.layers):
        tables = [costs[i] for costs in problem.costs.values()]
        reached[i] += min(_least_s(table, table.forward_s, batch) for table in tables)
        if isinstance(problem.workload, Training) and learning[i]:
            reached[i] += min(_least_s(table, table.backward_s, batch) for table in tables)
        for to in (to for edge in layer.edges for to in edge.to):
            reached[to] = max(reached[to], reached[i])
    return reached[-1]


def _least_s(costs: LayerCost, seconds: Sequence[float], batch: int) -> float:
    """Least seconds at any batch size up to `batch`: between measured sizes time is linear."""
    return min(cost.interpolate(costs.rows, seconds, n) for n in {1, batch, *(n for n in costs.rows if n < batch)})


def _rates(problem: Problem, device: str) -> list[float]:
    """Least seconds per row of each layer, forward and the backward that every plan needs."""
    training, rates = isinstance(problem.workload, Training), []
    learning = _learning(problem)
    for costs, learns in zip(problem.costs[device], learning, strict=True):
        backward = per_row(costs, costs.backward_s, problem.workload.batch) if training and learns else 0.0
        rates.append(per_row(costs, costs.forward_s, problem.workload.batch) + backward)
    return rates


def _learning(problem: Problem) -> list[bool]:
    """Per layer, whether a gradient passes every cut behind it: then its backward is done in every plan."""
    if problem.branches:
        alone = [Stage(start=i, stop=i + 1, devices=("any",), shares=(1,)) for i in range(len(problem.layers))]
        return list(flows.learning(flows.bundles(problem, alone)))
    passes = [layer.gradient_bytes > 0 for layer in problem.layers[:-1]] + [True]
    return list(accumulate(reversed(passes), lambda a, b: a and b))[::-1]


def per_row(costs: LayerCost, seconds: Sequence[float], batch: int) -> float:
    """Least seconds per row at any batch size up to `batch`: between measured sizes the best is at one of them."""
    sizes = {1, batch, *(n for n in costs.rows if n < batch)}
    return min(cost.interpolate(costs.rows, seconds, n) / n for n in sizes)


class FloorSearch(SubsetSearch):
    """The program over lower bounds of all costs: rows one at a time, `micro_batch` 1."""

    def __init__(self, table: cost.CostTable, rates: Sequence[Sequence[float]], is_late: Callable[[], bool]) -> None:
        problem = table.problem
        self.rates, self.is_late = rates, is_late
        super().__init__(table, 1, range(len(problem.layers) + 1), keep=MAX_LABELS)
        self.thrifty, self.fill = False, 0.0

    def _make_heads(self, micro_batch: int, shapes: Sequence[Pattern]) -> Heads:
        return FloorHeads(self.table, self.cuts, self.classes, shapes, self.rates, self.is_late)

    def _front(self, micro_batch: int) -> tuple[list[float], list[float]]:
        least = [min(rate[layer] for rate in self.rates) for layer in range(len(self.problem.layers))]
        return list(accumulate(least, initial=0.0)), [1.0] * len(self.problem.devices)

    def _beats(self, a: Label, b: Label) -> bool:
        return a.g == b.g and super()._beats(a, b)  # what comes before may reach another group sooner

    def _trim(self, front: list[Label]) -> list[Label]:
        """Keep a bound of every label: the worst of too many become one, in each respect as good as the best."""
        if len(front) <= self.keep:
            return front
        groups: dict[int, list[Label]] = {}
        for label in front[self.keep - 1 :]:
            groups.setdefault(label.g, []).append(label)
        merged = [
            same[0]._replace(
                score=min(label.score for label in same), span_s=min(label.span_s for label in same),
                done_s=min(label.done_s for label in same), air_s=min(label.air_s for label in same),
                trip_s=min(label.trip_s for label in same),
            )
            for same in groups.values()
        ]  # fmt: skip
        return front[: self.keep - 1] + merged


class FloorHeads(Heads):
    """Lower bounds of stages and crossings for one row at a time."""

    def __init__(
        self, table: cost.CostTable, cuts: Sequence[int], classes: Sequence[Sequence[int]],
        patterns: Sequence[Pattern], rates: Sequence[Sequence[float]], is_late: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.sums = [tuple(accumulate(rate, initial=0.0)) for rate in rates]
        self.is_late, self.learning = is_late, _learning(table.problem)
        super().__init__(table, 1, cuts, classes, patterns)
        problem = table.problem
        self._forward = [
            tuple(
                accumulate(
                    (per_row(c, c.forward_s, problem.workload.batch) for c in problem.costs[d.name]), initial=0.0
                )
            )
            for d in problem.devices
        ]
        self._links: dict[tuple[int, int], tuple[float, float, bool, float]] = {}

    def _share(self, group: tuple[int, ...]) -> tuple[int, ...]:
        return (1,) * len(group)

    def head(self, i: int, j: int, g: int, limit_s: float) -> Head | None:
        """Layers between the cuts on pattern g, the rows shared without loss."""
        start, stop, table = self.cuts[i], self.cuts[j], self.table
        group = self.groups[g]
        static = cost.static_bytes(table, start, stop)
        if self.is_late() or any(static > self._budgets[d] for d in group):
            return None
        speed = sum(1 / max(self.sums[d][stop] - self.sums[d][start], 1e-30) for d in group)
        work = 1 / speed
        if work * self.n_micro_batches >= limit_s:
            return None
        forward = min(min(self._forward[d][stop] - self._forward[d][start] for d in group) / len(group), work)
        reduce_s, air_s, n = 0.0, 0.0, len(group)
        if n > 1 and self.training and self.learning[stop - 1]:
            # Every replica passes each piece on once per turn; the slowest one's own piece takes 2 (n - 1) turns more.
            piece_bytes = table.parameter_bytes(start, stop) // 4 // n * 4
            names = [self.problem.devices[d].name for d in group]
            pairs = list(permutations(names, 2))
            reduce_s = 2 * (n - 1) * piece_bytes / max(self.problem.network.bandwidth(a, b) for a, b in pairs)
            air_s = 2 * (n - 1) * n * piece_bytes * min(self._air_per_byte(a, b) for a, b in pairs)
        return Head(forward, work - forward, reduce_s, air_s, self.n_micro_batches, 0.0)

    def crossing(self, j: int, g: int, h: int) -> Crossing:
        """One row over cut j, over all paths between the two groups at once."""
        forward, back, shared, air = self._link(g, h)
        layer, n = self.problem.layers[self.cuts[j] - 1], self.n_micro_batches
        f, b = forward * layer.output_bytes, back * layer.gradient_bytes * self.training
        total = (f + b) if shared else max(f, b)
        sent = layer.output_bytes + layer.gradient_bytes * self.training
        return Crossing(f, b, n * total, n * air * sent, 0.0)

    def _link(self, g: int, h: int) -> tuple[float, float, bool, float]:
        """Least seconds per byte there and back, whether both ways share a medium, least air per byte."""
        if (g, h) not in self._links:
            right = self.groups[h]
            taken = self.patterns[h]
            left = [i for c, n in enumerate(self.patterns[g]) for i in self.classes[c][taken[c] : taken[c] + n]]
            names = [self.problem.devices[i].name for i in left], [self.problem.devices[i].name for i in right]
            forward, back = self._rate(*names), self._rate(names[1], names[0])
            one = len(left) == len(right) == 1
            there, again = ((names[0][0], names[1][0]), (names[1][0], names[0][0]))
            paths = self.problem.network.paths
            shared = one and paths[there].media == paths[again].media and len(paths[there].media) == 1
            air = min(self._air_per_byte(a, b) for x, y in (names, names[::-1]) for a in x for b in y)
            self._links[g, h] = forward, back, shared, air
        return self._links[g, h]

    def _rate(self, left: Sequence[str], right: Sequence[str]) -> float:
        """Least seconds per byte from one group to the other, by all paths together."""
        network = self.problem.network
        return 1 / sum(network.bandwidth(a, b) for a in left for b in right)

    def feed_s(self, g: int) -> float:
        """Home's inputs are left out of the bound."""
        return 0.0
