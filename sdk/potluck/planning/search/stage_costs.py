"""What a stage would take for any run of layers and any pattern of devices, and what a cut between
two of them would.

One object serves one micro-batch size. Rows within a group follow the devices' speeds over the
whole model, where they fit; else the speeds over the stage's own layers and who has room for them.
The search that uses these numbers has the shares of its best plans improved afterwards.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.device_classes import Pattern, members
from potluck.planning.building_blocks.row_allocation import offload, proportion
from potluck.planning.building_blocks.row_levels import allocate_by_level, levelled
from potluck.planning.search.link_costs import LinkCost, busiest_medium, links_of, media_of
from potluck.planning.search.row_choices import block_rows, in_blocks
from potluck.records import HOME, Training
from potluck.schedule.rows import overlaps
from potluck.simulate import cost, equations, footprint


class StageCost(NamedTuple):
    """A stage: seconds of a micro-batch, of its all-reduce and update; air that the reduce takes;
    depth that fits, 0 where none does; and seconds of all micro-batches.
    """

    forward_s: float
    backward_s: float
    reduce_s: float
    air_s: float
    depth: int
    energy_j: float
    total_s: float


NO_ROOM = StageCost(0.0, 0.0, 0.0, 0.0, 0, 0.0, 0.0)


class CommunicationCost(NamedTuple):
    """One micro-batch over a cut: seconds forward and back, seconds that its link and the air are
    taken, joules.
    """

    forward_s: float
    back_s: float
    link_s: float
    air_s: float
    energy_j: float


class _Way:
    """The transfers of one byte of every row over a cut, in one direction: all that a device sends
    goes one by one, all that a medium carries shares it, and the busiest of them decides.
    """

    def __init__(self) -> None:
        self.latency_s, self.air_s = 0.0, 0.0
        self._sending = defaultdict[int, float](float)
        self._carrying = defaultdict[str, float](float)

    def add(
        self, source: int, rows: int, link: LinkCost, media: Sequence[tuple[str, float]] = ()
    ) -> None:
        """So many rows go from one device to another, over media of so many seconds per byte."""
        self._sending[source] += rows * link.byte_s
        for name, byte_s in media:
            self._carrying[name] += rows * byte_s
        if link.latency_s > self.latency_s:
            self.latency_s = link.latency_s
        self.air_s += rows * link.air_s

    @property
    def busiest_s(self) -> float:
        """Seconds of the busiest device, or medium."""
        return max(*self._sending.values(), *self._carrying.values(), 0.0)


class StageCostTable:
    """Costs of stages and of communication of one problem at one micro-batch size, with stages that
    begin and end at `cuts`.

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
    own_shares
        Rows are shared by the times of each stage's own layers.
    n_shares
        So many ways to share rows there are for all patterns together, about; by default one for
        each.
    """

    def __init__(
        self,
        table: cost.CostTable,
        micro_batch: int,
        cuts: Sequence[int],
        classes: Sequence[Sequence[int]],
        patterns: Sequence[Pattern],
        *,
        own_shares: bool = False,
        n_shares: int = 0,
    ) -> None:
        self.table = table
        self.problem = table.problem
        self.micro_batch = micro_batch
        self.cuts = cuts
        self.classes = classes
        self.n_micro_batches = self.problem.workload.batch // micro_batch
        self.training, self._all_own = isinstance(self.problem.workload, Training), own_shares
        self.air, self.links = busiest_medium(self.problem), links_of(table)
        self._media = media_of(table)
        # of every device, the first that is alike
        self._first = {i: same[0] for same in classes for i in same}
        self.patterns = []
        self.groups = list[tuple[int, ...]]()
        self.shares = list[tuple[int, ...]]()
        block = block_rows(micro_batch, [*map(sum, patterns)], n_shares) if n_shares else 0
        for pattern in patterns:
            group = members(pattern, classes, [0] * len(classes))
            for shares in self._choices(group, block):
                self.patterns.append(pattern)
                self.groups.append(group)
                self.shares.append(shares)
        self._budgets = [cost.budget_bytes(self.problem, device) for device in self.problem.devices]
        self._least_budgets = [min(self._budgets[d] for d in group) for group in self.groups]
        self._known_power = all(
            d.idle_w is not None and d.busy_w is not None for d in self.problem.devices
        )
        # some layers can learn nothing from a single row
        self._normalises = candidates.fewest_rows(self.problem) > 1
        self._units: dict[
            tuple[int, int], tuple[float, float, float, float, float, float, float]
        ] = {}
        self._rings: dict[int, tuple[float, float]] = {}
        self._updates: dict[tuple[int, int, int], float] = {}
        # of stages whose shares are not `shares`
        self._own_shares: dict[tuple[int, int, int], tuple[int, ...]] = {}

    def _choices(self, group: tuple[int, ...], block: int) -> list[tuple[int, ...]]:
        """Rows of each device of a group: by speed, and all in blocks of so many."""
        usual = self._share(group)
        others = in_blocks(self.micro_batch, len(group), block) if block else ()
        return [shares for shares in dict.fromkeys((usual, *others)) if all(shares)]

    def _share(self, group: tuple[int, ...]) -> tuple[int, ...]:
        if len(group) == 1:
            return (self.micro_batch,)
        names, stop = [self.problem.devices[i].name for i in group], len(self.problem.layers)
        alone = [partial(self.table.compute_s, name, 0, stop) for name in names]
        speeds = [1 / max(seconds(self.micro_batch), 1e-12) for seconds in alone]
        shares = proportion(self.micro_batch, speeds)
        shares = _at_least_one(offload(shares, shares_limit(shares), alone))
        return levelled(self.table, 0, stop, names, shares, shares_limit(shares))

    def cost(self, i: int, j: int, g: int, limit_s: float) -> StageCost | None:
        """Layers from cut i to cut j on pattern g; None where neither these nor more of them from
        cut i fit, or take less than `limit_s` a step.

        Parameters
        ----------
        i, j
            Numbers of the cuts between which the layers lie.
        g
            Number of the pattern.
        limit_s
            Stages that take longer are of no use.
        """
        start, stop = self.cuts[i], self.cuts[j]
        if self._standing_bytes(start, stop, len(self.groups[g])) > self._least_budgets[g]:
            return None
        made = None
        fewest = candidates.fewest_rows(self.problem, start, stop) if self._normalises else 1
        alone = len(self.groups[g]) == 1
        if alone and self.micro_batch < fewest:
            return None
        if min(self.shares[g]) >= fewest and (not self._all_own or alone):
            made = self._made(start, stop, g, self.shares[g], limit_s)
            if made is None or made.depth or alone:
                return made
        shares = self._by_room(start, stop, g)
        if min(shares) < fewest:
            return made or NO_ROOM
        self._own_shares[i, j, g] = shares
        return self._made(start, stop, g, shares, limit_s)

    def stage_shares(self, i: int, j: int, g: int) -> tuple[int, ...]:
        """The rows of each device of pattern g for the layers from cut i to cut j.

        Parameters
        ----------
        i, j
            Numbers of the cuts between which the layers lie.
        g
            Number of the pattern.
        """
        return self._own_shares.get((i, j, g), self.shares[g])

    def _standing_bytes(self, start: int, stop: int, replicas: int) -> int:
        """What a device of the stage needs however few rows it has: never less for more layers."""
        return equations.static_bytes(self.table, start, stop) + footprint.reducing_bytes(
            self.table, start, stop, replicas
        )

    def _by_room(self, start: int, stop: int, g: int) -> tuple[int, ...]:
        """Rows by speed within memory, by Algorithm 1.

        A 0 where that leaves a device out, or there is no room.
        """
        names = [self.problem.devices[i].name for i in self.groups[g]]
        n = self.n_micro_batches
        return allocate_by_level(
            self.table, start, stop, names, self.micro_batch, warm_up=1, n_micro_batches=n
        ) or (0,)

    def _made(
        self, start: int, stop: int, g: int, shares: Sequence[int], limit_s: float
    ) -> StageCost | None:
        """The stage with these shares; None where it takes `limit_s` or more a step."""
        table = self.table
        problem = self.problem
        group = self.groups[g]
        forward = 0.0
        backward = 0.0
        energy = 0.0
        kinds = Counter(
            (self._first[index], rows) for index, rows in zip(group, shares, strict=True)
        )
        for (index, rows), n_alike in kinds.items():
            device = problem.devices[index]
            f = table.forward_s(device.name, start, stop, rows) + device.overhead_s
            b = (
                table.backward_s(device.name, start, stop, rows) + device.overhead_s
                if self.training
                else 0.0
            )
            forward, backward = max(forward, f), max(backward, b)
            if (f + b) * self.n_micro_batches >= limit_s:
                return None
            if self._known_power:
                added_w = n_alike * ((device.busy_w or 0.0) - (device.idle_w or 0.0))
                energy += added_w * (f + b) * self.n_micro_batches
        depth = self._depth(start, stop, g, kinds)
        if not self.training:
            return StageCost(forward, 0.0, 0.0, 0.0, depth, energy, self.n_micro_batches * forward)
        reduce_s, air_s = 0.0, 0.0
        if len(group) > 1:
            nbytes = table.summed_bytes(start, stop) + table.averaged_bytes(start, stop)
            per_byte, medium_per_byte = self._ring(g)
            n = len(group)
            reduce_s = max(
                2 * (n - 1) / n * nbytes * per_byte, 2 * (n - 1) / n * nbytes * medium_per_byte
            )
            air_s = 2 * (n - 1) / n * nbytes * medium_per_byte
            if reduce_s + self.n_micro_batches * (forward + backward) >= limit_s:
                return None
        total_s = self.n_micro_batches * (forward + backward)
        update = max(self._update_s(start, stop, index) for index, _ in kinds)
        return StageCost(forward, backward, reduce_s + update, air_s, depth, energy, total_s)

    def _update_s(self, start: int, stop: int, index: int) -> float:
        """A step of the optimizer: however rows are shared, it is the same."""
        key = start, stop, index
        if key not in self._updates:
            device = self.problem.devices[index]
            self._updates[key] = equations.update_s(self.table, device, start, stop)
        return self._updates[key]

    def _ring(self, g: int) -> tuple[float, float]:
        """Seconds per byte of the ring's slowest link, and of the air for one byte over every
        link.
        """
        if g not in self._rings:
            group = self.groups[g]
            ring = [self.links[pair] for pair in pairwise([*group, group[0]])]
            self._rings[g] = max(link.byte_s for link in ring), sum(link.air_s for link in ring)
        return self._rings[g]

    def _depth(self, start: int, stop: int, g: int, kinds: Iterable[tuple[int, int]]) -> int:
        """The most micro-batches that every device of pattern g can keep (all of them at most); 0
        when not even one. `kinds`: its devices, and the rows of each.
        """
        kinds = [*kinds]

        def fits(rows: int, budget: int) -> int:
            return footprint.depth_that_fits(
                self.table,
                start,
                stop,
                rows,
                budget,
                replicas=len(self.groups[g]),
                n_micro_batches=self.n_micro_batches,
            )

        # where the most rows find room in the least memory, each device has room
        depth = fits(max(rows for _, rows in kinds), self._least_budgets[g])
        if len(kinds) == 1 or depth == self.n_micro_batches:
            return depth
        return min(fits(rows, self._budgets[index]) for index, rows in kinds)

    def communication(self, j: int, g: int, h: int) -> CommunicationCost:
        """A micro-batch over cut j from pattern g to pattern h.

        Parameters
        ----------
        j
            Number of the cut.
        g, h
            Numbers of the patterns before and behind it.
        """
        forward, forward_lag, back, back_lag, air, air_back, watts = self._unit(g, h)
        layer, n = self.problem.layers[self.cuts[j] - 1], self.n_micro_batches
        forward_s = forward * layer.output_bytes + forward_lag
        back_s = (
            back * layer.gradient_bytes + back_lag
            if self.training and layer.gradient_bytes
            else 0.0
        )
        air_s = (air * layer.output_bytes + air_back * layer.gradient_bytes * self.training) * n
        alone_s = forward * layer.output_bytes, back * layer.gradient_bytes * self.training
        return CommunicationCost(
            forward_s, back_s, n * max(alone_s), air_s, watts * n * sum(alone_s)
        )

    def _unit(self, g: int, h: int) -> tuple[float, float, float, float, float, float, float]:
        """Per byte of a row: seconds and latencies both ways, seconds of the air both ways.

        Watts of the radios.
        """
        if (g, h) not in self._units:
            right = self.groups[h]
            left = members(self.patterns[g], self.classes, self.patterns[h])
            if len(left) < len(self.groups[g]):
                raise ValueError("the two patterns take more devices of a class than it has")
            forward, back = _Way(), _Way()
            for piece in overlaps(self.shares[g], self.shares[h]):
                i = left[piece.left]
                j = right[piece.right]
                rows = piece.stop - piece.start
                forward.add(
                    i, rows, self.links[i, j], self._media.get((i, j), ()) if len(left) > 1 else ()
                )
                back.add(
                    j, rows, self.links[j, i], self._media.get((j, i), ()) if len(right) > 1 else ()
                )
            watts = (
                sum((self.problem.devices[i].radio_w or 0.0) for i in (*left, *right))
                if self._known_power
                else 0.0
            )
            self._units[g, h] = (
                forward.busiest_s,
                forward.latency_s,
                back.busiest_s,
                back.latency_s,
                forward.air_s,
                back.air_s,
                watts,
            )
        return self._units[g, h]

    def feed_s(self, g: int) -> float:
        """Seconds until home's first micro-batch is at a first stage of pattern g; 0 where no path
        is known.
        """
        return sum(self._home_s(g, self.problem.input_bytes, from_home=True))

    def feed_lag_s(self, j: int, g: int) -> float:
        """Seconds by which the first micro-batch leaves a first stage later than if its rows were
        there at once: home sends one device's rows after the other's, first to whom takes longest.

        Parameters
        ----------
        j
            Number of the cut behind the stage.
        g
            Number of the pattern.
        """
        feeds, stop = self._home_s(g, self.problem.input_bytes, from_home=True), self.cuts[j]
        rows = zip(self.groups[g], self.stage_shares(0, j, g), strict=True)
        seconds = [self.table.forward_s(self.problem.devices[i].name, 0, stop, n) for i, n in rows]
        there_s = last_s = 0.0
        for computes_s, feed_s in sorted(zip(seconds, feeds, strict=True), reverse=True):
            there_s += feed_s
            last_s = max(last_s, there_s + computes_s)
        return last_s - max(seconds)

    def answer_s(self, g: int) -> float:
        """Seconds that a last stage of pattern g and home take for the answers to a micro-batch, or
        for its targets; 0 where no path is known.
        """
        if self.training:
            return sum(self._home_s(g, self.problem.target_bytes, from_home=True))
        return sum(self._home_s(g, self.problem.result_bytes, from_home=False))

    def _home_s(self, g: int, row_bytes: int, *, from_home: bool) -> list[float]:
        """Per device of pattern g, seconds of its rows on the way from home, or back."""
        network, seconds = self.problem.network, list[float]()
        for i, rows in zip(self.groups[g], self.shares[g], strict=True):
            name = self.problem.devices[i].name
            pair = (HOME, name) if from_home else (name, HOME)
            known = row_bytes and pair in network.paths
            seconds.append(rows * row_bytes / network.bandwidth(*pair) if known else 0.0)
        return seconds


def _at_least_one(shares: Sequence[int]) -> tuple[int, ...]:
    """The shares with a row for each device, taken from those with the most.

    A 0 is left where rows are too few.

    >>> _at_least_one([4, 0, 0])
    (2, 1, 1)
    """
    found = list(shares)
    while 0 in found and max(found) > 1:
        found[found.index(max(found))] -= 1
        found[found.index(0)] += 1
    return tuple(found)


def shares_limit(shares: Sequence[int]) -> list[int]:
    """Room for any shift of rows between the devices of a group."""
    return [sum(shares)] * len(shares)
