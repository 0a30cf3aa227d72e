"""A latency that no plan can beat, and so how far at most the best plan found is from the optimum.

Every plan means: contiguous stages, any shares, micro-batches and depths. In a chain each device
has one stage at most: plans that come back to a device can be faster than the bound of the
structure. The bounds of the work and of the longest way hold for those too, and they are the only
ones of a model with parallel branches. Where there is time for what costs more, a chain has two
more: `row_routes`, which holds for plans that come back to a device, and `stage_chains`, in homes
of many devices, too. The bounds here:

- Work. Device d takes at least r[d, l] seconds per row of layer l (its best over all batch sizes).
  Whoever does what, for any weights w[d] >= 0 of sum 1: T >= sum_d w[d] T >= B sum_l min_d w[d]
  r[d, l]. The weights are improved by subgradient steps; any weights give a valid bound.
- The longest way. Some row passes every layer on it, each on the device that
  is fastest there. Backwards are whole, but for `in_parts`: schedules without bubbles are faster.
- Structure, of a chain. The dynamic program of `subset` with every cost replaced by a lower bound
  of it, for every micro-batch size there may be. A device alone takes what it takes for the whole
  micro-batch. A group shares the rows without loss, each at its best rate, and hands on as soon as
  one row is done. Links at what their paths carry together over the media that they share; memory
  of weights, and of a device alone what its forwards keep, which bounds how many are under way. The
  layers in front of a cut take the free devices at least the work bound. Labels never overestimate,
  so the best whole label bounds all plans; those above the best plan found are not even looked at.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations, product
from math import inf, prod

from potluck.planning.bounds.rates import least_pieces, least_rates
from potluck.planning.bounds.row_routes import routes_s
from potluck.planning.bounds.stage_chains import chains_bound_s, micro_batches
from potluck.planning.bounds.stage_options import RING_BEHIND, sums
from potluck.planning.building_blocks.device_classes import Pattern, classes_of
from potluck.planning.search.stage_costs import CommunicationCost, StageCost, StageCostTable
from potluck.planning.search.subset_dp import ParetoLabel, SubsetSearch
from potluck.records import Network, Problem, Training
from potluck.simulate import cost, equations, flows

N_WEIGHTS = 60  # subgradient steps; each is a few hundred operations
MAX_SIZE = 3e6  # structure is not looked at beyond: some seconds
MAX_LABELS = 6  # per state; of more, the worst are merged into one that is better than each


def lower_bound_s(
    problem: Problem,
    table: cost.CostTable,
    upper_s: float,
    *,
    is_late: Callable[[], bool] = lambda: False,
    closely: bool = True,
) -> float:
    """Seconds of latency that no plan goes below; at most `upper_s`, which some plan reaches.

    Of a chain: no plan that gives each device one stage at most.

    Parameters
    ----------
    problem
        What is planned.
    table
        Of this problem.
    upper_s
        Latency of a known plan.
    is_late
        Asked between pieces of work; the bound found by then is given.
    closely
        Structure is looked at, where that takes some seconds.
    """
    bound = min(upper_s, quick_bound_s(problem))
    if problem.branches or not _all_wait(problem) or is_late():
        return bound
    bound = chains_bound_s(table, min(upper_s, max(bound, routes_s(table))), upper_s, is_late)
    if is_late() or not closely or not can_certify(table):
        return bound
    lowest = upper_s
    for micro_batch in micro_batches(problem):
        labels = LowerBoundSearch(table, micro_batch, is_late).run(lowest)
        lowest = min((label.score for label in labels), default=lowest)
        if is_late() or lowest <= bound:
            return bound
    return lowest


def can_certify(table: cost.CostTable) -> bool:
    """Whether structure is looked at: else the bound is there at once."""
    return not table.problem.branches and _size(table) <= MAX_SIZE


def _all_wait(problem: Problem) -> bool:
    """Whether each layer of a chain waits for the one before: of nothing that is handed on, none
    does.
    """
    return all(layer.output_bytes for layer in problem.layers[:-1])


def quick_bound_s(problem: Problem, *, in_parts: bool = False) -> float:
    """The work and the longest way: some milliseconds.

    Parameters
    ----------
    problem
        What is planned.
    in_parts
        Of plans whose backwards are in two parts, too (see `way_s`).
    """
    batch = problem.workload.batch
    return max(
        work_s(batch, [least_rates(problem, device.name, batch) for device in problem.devices]),
        way_s(problem, in_parts=in_parts),
    )


def _size(table: cost.CostTable) -> int:
    """States times patterns times pairs of cuts: what the program costs."""
    n_states = prod(len(members) + 1 for members in classes_of(table))
    return n_states**2 * len(table.problem.layers) ** 2


def work_s(batch: int, rates: Sequence[Sequence[float]]) -> float:
    """The work bound for seconds per row `rates[device][layer]`.

    Two devices of 1 and 3 seconds per row and one layer: weights 3/4 and 1/4 give 3/4 per row,
    which shares of 3 to 1 reach.
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
        weights = [
            w * (1 + (x / mean - 1) / len(load) / (step + 2))
            for w, x in zip(weights, load, strict=True)
        ]
    return batch * best


def way_s(problem: Problem, *, in_parts: bool = False) -> float:
    """The longest way of a row through the layers; streams overlap their requests, so for them it
    is nothing.

    In a chain the row is passed on wherever the next layer is on another device, and its gradient
    back. Of parallel branches each layer takes its least time of any device, on the longest way to
    the end and then on that of the gradients, which need not be the same.

    Parameters
    ----------
    problem
        What is planned.
    in_parts
        Of plans whose backwards are in two parts, too: what is for gradients of weights can wait,
        while the row is passed on, and is left out.
    """
    if not isinstance(problem.workload, Training) and problem.workload.streaming:
        return 0.0
    pieces = {device.name: _pieces(problem, device.name, in_parts) for device in problem.devices}
    if not problem.branches:
        spent = {name: [a + b for a, b in zip(*both, strict=True)] for name, both in pieces.items()}
        return _chain_way_s(problem, spent)
    return _branched_way_s(problem, [*pieces.values()])


def _pieces(problem: Problem, device: str, in_parts: bool) -> tuple[list[float], list[float]]:
    """Per layer the least seconds of a forward there, and of a needed backward, of any rows."""
    forward, backward = least_pieces(problem, device, problem.workload.batch)
    pairs = zip(problem.costs[device], problem.layers, strict=True)
    fracs = [cost.weight_frac(*pair) * in_parts for pair in pairs]
    return forward, [(1 - frac) * s for frac, s in zip(fracs, backward, strict=True)]


def _branched_way_s(problem: Problem, pieces: Sequence[tuple[list[float], list[float]]]) -> float:
    """To the last layer, and from there the longest way along edges that a gradient comes back
    over.
    """
    layers, last = problem.layers, len(problem.layers) - 1
    reached = [min(column) for column in zip(*(forward for forward, _ in pieces), strict=True)]
    least = [min(column) for column in zip(*(backward for _, backward in pieces), strict=True)]
    before = [0.0] * len(layers)
    for i, layer in enumerate(layers):
        reached[i] += before[i]
        for to in (to for edge in layer.edges for to in edge.to):
            before[to] = max(before[to], reached[i])
    back: list[float] = [*[-inf] * last, least[last]]
    for i in range(last - 1, -1, -1):
        takers = (to for edge in layers[i].edges if edge.gradient_bytes for to in edge.to)
        back[i] = least[i] + max((back[to] for to in takers), default=-inf)
    return float(reached[last] + max(back))


def _chain_way_s(problem: Problem, spent: Mapping[str, Sequence[float]]) -> float:
    """The least of all ways, each layer on some device; of layers that wait for each other."""
    network, training = problem.network, isinstance(problem.workload, Training)
    learning = flows.learning_layers(problem)
    # latency, and seconds per byte
    links = {
        (a, b): (network.latency(a, b), 1 / network.bandwidth(a, b))
        for a, b in permutations(spent, 2)
        if (a, b) in network.paths and (b, a) in network.paths
    }
    reached, longest_s = {name: seconds[0] for name, seconds in spent.items()}, 0.0
    for i, layer in enumerate(problem.layers[:-1]):
        if not layer.output_bytes:  # the next layer waits for nothing
            longest_s = max(longest_s, min(reached.values()))
            reached = {name: seconds[i + 1] for name, seconds in spent.items()}
            continue
        goes_back = training and learning[i] and layer.gradient_bytes > 0
        there = dict(reached)
        for (a, b), (wait_s, per_byte) in links.items():
            at_s = reached[a] + wait_s + layer.output_bytes * per_byte
            if goes_back:
                wait_back_s, per_byte_back = links[b, a]
                at_s += wait_back_s + layer.gradient_bytes * per_byte_back
            there[b] = min(there[b], at_s)
        reached = {name: at_s + spent[name][i + 1] for name, at_s in there.items()}
    return max(longest_s, min(reached.values()))


def weighted_s(batch: int, rates: Sequence[Sequence[float]], weights: Sequence[float]) -> float:
    """The work bound for these weights; infinite without devices.

    >>> weighted_s(8, [[1.0], [3.0]], [3.0, 1.0])
    6.0

    Parameters
    ----------
    batch
        Rows.
    rates
        Per device and layer, its least seconds per row.
    weights
        One per device: so much its seconds count.
    """
    total = sum(weights)
    least = (
        min(w * rate for w, rate in zip(weights, layer, strict=True))
        for layer in zip(*rates, strict=True)
    )
    return batch * sum(least) / total if total else inf


class LowerBoundSearch(SubsetSearch):
    """The program over lower bounds of all costs for one micro-batch size.

    Parameters
    ----------
    table
        Of the problem.
    micro_batch
        Rows of a micro-batch.
    is_late
        Asked between pieces of work.
    """

    def __init__(
        self, table: cost.CostTable, micro_batch: int, is_late: Callable[[], bool]
    ) -> None:
        problem = table.problem
        self.is_late = is_late  # the costs of stages are made first
        self.rates = [least_rates(problem, device.name, micro_batch) for device in problem.devices]
        self._fronts: dict[tuple[int, int], float] = {}
        patterns = [
            pattern
            for pattern in product(*(range(len(same) + 1) for same in classes_of(table)))
            if any(pattern)
        ]
        shapes = [pattern for pattern in sorted(patterns, key=sum) if sum(pattern) <= micro_batch]
        super().__init__(
            table,
            micro_batch,
            range(len(problem.layers) + 1),
            keep=MAX_LABELS,
            shapes=shapes,
            is_late=is_late,
        )
        self.thrifty, self.fill = False, 0.0

    def _make_stage_costs(self, micro_batch: int, shapes: Sequence[Pattern]) -> StageCostTable:
        return LowerBoundCosts(
            self.table, micro_batch, self.cuts, self.classes, shapes, self.rates, self.is_late
        )

    def _rates(self, micro_batch: int) -> tuple[list[tuple[float, ...]], list[float]]:
        return [], [1.0] * len(self.problem.devices)

    def _front(self) -> list[float]:
        return [0.0] * len(self.cuts)

    def _front_floor_s(self, i: int, state: int) -> float:
        """The work bound of the layers in front of cut i on the devices that are free."""
        if (i, state) not in self._fronts:
            rates = [
                self.rates[same[0]][: self.cuts[i]]
                for same, count in zip(self.classes, self._free(state), strict=True)
                for _ in range(count)
            ]
            batch = self.problem.workload.batch
            self._fronts[i, state] = weighted_s(
                batch, rates, [1 / max(sum(rate), 1e-30) for rate in rates]
            )
        return self._fronts[i, state]

    def _beats(self, a: ParetoLabel, b: ParetoLabel) -> bool:
        return (
            a.g == b.g and a.trip_s <= b.trip_s and super()._beats(a, b)
        )  # what comes before may reach another group sooner

    def _trim(self, front: list[ParetoLabel]) -> list[ParetoLabel]:
        """Keep a bound of every label: the worst of too many become one, in each respect as good as
        the best.
        """
        if len(front) <= self.keep:
            return front
        groups: dict[int, list[ParetoLabel]] = {}
        for label in front[self.keep - 1 :]:
            groups.setdefault(label.g, []).append(label)
        merged = [
            same[0]._replace(
                score=min(label.score for label in same),
                span_s=min(label.span_s for label in same),
                done_s=min(label.done_s for label in same),
                air_s=min(label.air_s for label in same),
                trip_s=min(label.trip_s for label in same),
            )
            for same in groups.values()
        ]
        return front[: self.keep - 1] + merged


class LowerBoundCosts(StageCostTable):
    """Lower bounds of stages and of communication.

    Parameters
    ----------
    table
        Of the problem.
    micro_batch
        Rows of a micro-batch.
    cuts
        Where stages may begin and end, ascending.
    classes
        Devices that are alike, by number.
    patterns
        Groups that may share a stage.
    rates
        Per device and layer, its least seconds per row.
    is_late
        Asked between pieces of work.
    """

    def __init__(
        self,
        table: cost.CostTable,
        micro_batch: int,
        cuts: Sequence[int],
        classes: Sequence[Sequence[int]],
        patterns: Sequence[Pattern],
        rates: Sequence[Sequence[float]],
        is_late: Callable[[], bool],
    ) -> None:
        self.sums = [sums(rate) for rate in rates]
        self.is_late, self.learning = is_late, flows.learning_layers(table.problem)
        super().__init__(table, micro_batch, cuts, classes, patterns)
        names = [device.name for device in self.problem.devices]
        self._pieces = [
            [sums(least) for least in least_pieces(self.problem, name, micro_batch)]
            for name in names
        ]
        self._between: dict[tuple[int, int], tuple[float, float, bool, float]] = {}
        # of rings: seconds, and seconds of the air, per byte
        self._ring_steps: dict[int, tuple[float, float]] = {}

    def _share(self, group: tuple[int, ...]) -> tuple[int, ...]:
        return (self.micro_batch,) if len(group) == 1 else (1,) * len(group)

    def cost(self, i: int, j: int, g: int, limit_s: float) -> StageCost | None:
        """Layers between the cuts on pattern g: how long one row is in it at least, and all rows
        together.

        Parameters
        ----------
        i, j
            Numbers of the cuts between which the layers lie.
        g
            Number of the pattern.
        limit_s
            Stages that take longer are of no use.
        """
        start = self.cuts[i]
        stop = self.cuts[j]
        table = self.table
        group = self.groups[g]
        static = equations.static_bytes(table, start, stop)
        if self.is_late() or any(static > self._budgets[d] for d in group):
            return None
        made = (
            self._alone(start, stop, group[0])
            if len(group) == 1
            else self._shared(start, stop, g, limit_s)
        )
        if made is None or made.total_s >= limit_s:
            return None
        if not (self.training and self.learning[stop - 1] and table.trained_bytes(start, stop)):
            return made
        update = min(equations.update_s(table, self.problem.devices[d], start, stop) for d in group)
        return made._replace(reduce_s=made.reduce_s + update)

    def _alone(self, start: int, stop: int, d: int) -> StageCost | None:
        """A device that does all of it: every micro-batch takes what it takes, and is kept until
        its backward, at least by its inputs.
        """
        table = self.table
        device = self.problem.devices[d]
        rows = self.micro_batch
        n = self.n_micro_batches
        learns = self.training and self.learning[start]
        forward = table.forward_s(device.name, start, stop, rows) + device.overhead_s
        backward = (
            table.backward_s(device.name, start, stop, rows) + device.overhead_s if learns else 0.0
        )
        room = (
            self._budgets[d]
            - equations.static_bytes(table, start, stop)
            - equations.working_bytes(table, start, stop, rows)
        )
        kept = min(table.of(r).kept_bytes(start, stop) for r in (False, True)) * rows * learns
        depth = min(n, room // kept) if kept else n
        if room < 0 or not depth:
            return None
        return StageCost(forward, backward, 0.0, 0.0, depth, 0.0, n * (forward + backward))

    def _shared(self, start: int, stop: int, g: int, limit_s: float) -> StageCost | None:
        """Rows shared without loss. What is left of a ring once the last replica has its gradients
        is passed on after that.
        """
        group, n = self.groups[g], len(self.groups[g])
        speed = sum(1 / max(self.sums[d][stop] - self.sums[d][start], 1e-30) for d in group)
        shared_s = self.problem.workload.batch / speed
        if shared_s >= limit_s:
            return None
        pieces = [
            (f[stop] - f[start], b[stop] - b[start]) for f, b in (self._pieces[d] for d in group)
        ]
        reduce_s, air_s = 0.0, 0.0
        if self.training and self.learning[stop - 1]:
            if g not in self._ring_steps:
                names, network = [self.problem.devices[d].name for d in group], self.problem.network
                air = min(self.links[pair].air_s for pair in permutations(group, 2))
                out = [1 / max(network.bandwidth(a, b) for b in names if b != a) for a in names]
                into = [1 / max(network.bandwidth(a, b) for a in names if a != b) for b in names]
                self._ring_steps[g] = _behind_the_last(out, into), 2 * (n - 1) * air
            piece_bytes = self.table.summed_bytes(start, stop) // 4 // n * 4
            reduce_s, air_s = (piece_bytes * per_byte for per_byte in self._ring_steps[g])
            reduce_s = max(reduce_s, RING_BEHIND * n * air_s)
        # Every replica has a row of every micro-batch at least.
        total_s = max(shared_s, self.n_micro_batches * max(map(sum, pieces)))
        forward, backward = min(f for f, _ in pieces), min(b for _, b in pieces)
        return StageCost(forward, backward, reduce_s, n * air_s, self.n_micro_batches, 0.0, total_s)

    def communication(self, j: int, g: int, h: int) -> CommunicationCost:
        """A micro-batch over cut j (one row, where a group is involved), over all paths between the
        two at once.

        Parameters
        ----------
        j
            Number of the cut.
        g, h
            Numbers of the patterns before and behind it.
        """
        forward, back, shared, air = self._link(g, h)
        layer, batch = self.problem.layers[self.cuts[j] - 1], self.problem.workload.batch
        f, b = forward * layer.output_bytes, back * layer.gradient_bytes * self.training
        total = (f + b) if shared else max(f, b)
        sent = layer.output_bytes + layer.gradient_bytes * self.training
        rows = self.micro_batch if len(self.groups[g]) == len(self.groups[h]) == 1 else 1
        return CommunicationCost(rows * f, rows * b, batch * total, batch * air * sent, 0.0)

    def _link(self, g: int, h: int) -> tuple[float, float, bool, float]:
        """Least seconds per byte there and back, whether both ways share a medium, least air per
        byte.
        """
        if (g, h) not in self._between:
            right = self.groups[h]
            taken = self.patterns[h]
            left = [
                i
                for c, n in enumerate(self.patterns[g])
                for i in self.classes[c][taken[c] : taken[c] + n]
            ]
            names = (
                [self.problem.devices[i].name for i in left],
                [self.problem.devices[i].name for i in right],
            )
            forward, back = self._rate(*names), self._rate(names[1], names[0])
            one = len(left) == len(right) == 1
            outward, again = ((names[0][0], names[1][0]), (names[1][0], names[0][0]))
            paths = self.problem.network.paths
            shared = (
                one
                and paths[outward].media == paths[again].media
                and len(paths[outward].media) == 1
            )
            pairs = product(left, right)
            air = min(self.links[pair].air_s for i, j in pairs for pair in ((i, j), (j, i)))
            self._between[g, h] = forward, back, shared, air
        return self._between[g, h]

    def _rate(self, left: Sequence[str], right: Sequence[str]) -> float:
        """Least seconds per byte from one group to the other, by all paths together."""
        network = self.problem.network
        by_giver = sum(together(network, [(a, b) for b in right]) for a in left)
        by_taker = sum(together(network, [(a, b) for a in left]) for b in right)
        return 1 / min(by_giver, by_taker, together(network, [(a, b) for a in left for b in right]))

    def _home_s(self, g: int, row_bytes: int, *, from_home: bool) -> list[float]:
        """What home sends and gets is left out of the bound."""
        return [0.0] * len(self.groups[g])


def together(network: Network, pairs: Sequence[tuple[str, str]]) -> float:
    """The most bytes per second over the paths of these pairs at once: no more than what each
    carries alone, and than a medium that all of them cross.
    """
    paths = [dict(network.path(a, b).media) for a, b in pairs]
    capacity = {medium.name: medium.capacity_bytes_per_s for medium in network.media}
    crossed = [name for name in paths[0] if all(name in path for path in paths)]
    shared = (capacity[name] / min(path[name] for path in paths) for name in crossed)
    return min(sum(network.bandwidth(a, b) for a, b in pairs), min(shared, default=inf))


def _behind_the_last(out: Sequence[float], into: Sequence[float]) -> float:
    """Least seconds that a ring takes after the last of its n replicas has its gradients, for a
    piece of one byte.

    The last one passes on all its 2 (n - 1) pieces after that, and gets n - 1 of the others at
    least: the one before it needs nothing of its gradients for its first n - 1. Another one has
    passed on n - 1 pieces before at most, and got n - 2.

    Parameters
    ----------
    out, into
        Of each replica, least seconds per byte that it sends and gets.

    >>> _behind_the_last([1.0, 1e-3], [1e-3, 1.0])  # the slow sender is done early
    1.0
    """
    n = len(out)

    def left_s(last: int) -> float:
        others = [i for i in range(n) if i != last]
        return max(
            2 * (n - 1) * out[last],
            (n - 1) * into[last],
            *((n - 1) * out[i] for i in others),
            *(n * into[i] for i in others),
        )

    return min(map(left_s, range(n)))
