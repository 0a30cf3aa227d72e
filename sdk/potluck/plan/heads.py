"""What a stage would take for any run of layers and any pattern of devices, and what a cut between two of them would.

One object serves one micro-batch size. Rows within a group follow the devices' speeds over the whole model; the search
that uses these numbers has the shares of its best plans improved afterwards.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from potluck.plan import choices
from potluck.plan.allocate import offload, proportion
from potluck.plan.groups import Pattern, members
from potluck.records import HOME, Problem, Training
from potluck.schedule.rows import overlaps
from potluck.simulate import cost


class Head(NamedTuple):
    """A stage: seconds of a micro-batch, of its all-reduce and update; air that the reduce takes; depth that fits; and
    seconds of all micro-batches."""

    forward_s: float
    backward_s: float
    reduce_s: float
    air_s: float
    depth: int
    energy_j: float
    total_s: float


class Crossing(NamedTuple):
    """One micro-batch over a cut: seconds forward and back, seconds that its link and the air are taken, joules."""

    forward_s: float
    back_s: float
    link_s: float
    air_s: float
    energy_j: float


class Heads:
    """Stages and crossings of one problem at one micro-batch size, with stages that begin and end at `cuts`."""

    def __init__(
        self, table: cost.CostTable, micro_batch: int, cuts: Sequence[int], classes: Sequence[Sequence[int]],
        patterns: Sequence[Pattern],
    ) -> None:  # fmt: skip
        self.table, self.problem, self.micro_batch, self.cuts, self.classes = (
            table,
            table.problem,
            micro_batch,
            cuts,
            classes,
        )
        self.n_micro_batches = self.problem.workload.batch // micro_batch
        self.training = isinstance(self.problem.workload, Training)
        self.air = busiest_medium(self.problem)
        self.patterns, self.groups, self.shares = [], list[tuple[int, ...]](), list[tuple[int, ...]]()
        for pattern in patterns:
            group = members(pattern, classes, [0] * len(classes))
            shares = self._share(group)
            if all(shares):
                self.patterns.append(pattern)
                self.groups.append(group)
                self.shares.append(shares)
        self._budgets = [cost.budget_bytes(self.problem, device) for device in self.problem.devices]
        self._known_power = all(d.idle_w is not None and d.busy_w is not None for d in self.problem.devices)
        self._units: dict[tuple[int, int], tuple[float, float, float, float, float, float, float]] = {}
        self._rings: dict[int, tuple[float, float]] = {}

    def _share(self, group: tuple[int, ...]) -> tuple[int, ...]:
        if len(group) == 1:
            return (self.micro_batch,)
        names, stop = [self.problem.devices[i].name for i in group], len(self.problem.layers)

        def seconds(name: str, rows: int) -> float:
            return self.table.forward_s(name, 0, stop, rows) + self.table.backward_s(name, 0, stop, rows)

        speeds = [1 / max(seconds(name, self.micro_batch), 1e-12) for name in names]
        shares = proportion(self.micro_batch, speeds)
        if not all(shares):
            return shares
        return offload(shares, shares_limit(shares), [lambda n, name=name: seconds(name, n) for name in names])  # type: ignore[misc]

    def head(self, i: int, j: int, g: int, limit_s: float) -> Head | None:
        """Layers from cut i to cut j on pattern g; None where they do not fit or learn, or take over `limit_s`."""
        table, problem, start, stop = self.table, self.problem, self.cuts[i], self.cuts[j]
        forward, backward, energy, update = 0.0, 0.0, 0.0, 0.0
        group, shares = self.groups[g], self.shares[g]
        if min(shares) == 1 < choices.fewest_rows(problem, start, stop):
            return None
        for index, rows in zip(group, shares, strict=True):
            device = problem.devices[index]
            f = table.forward_s(device.name, start, stop, rows) + device.overhead_s
            b = table.backward_s(device.name, start, stop, rows) + device.overhead_s if self.training else 0.0
            forward, backward = max(forward, f), max(backward, b)
            if (f + b) * self.n_micro_batches >= limit_s:
                return None
            if self._known_power:
                energy += ((device.busy_w or 0.0) - (device.idle_w or 0.0)) * (f + b) * self.n_micro_batches
        depth = min(
            self._depth(start, stop, index, rows, len(group)) for index, rows in zip(group, shares, strict=True)
        )
        if not depth:
            return None
        if not self.training:
            return Head(forward, 0.0, 0.0, 0.0, depth, energy, self.n_micro_batches * forward)
        update = max(cost.update_s(table, problem.devices[index], start, stop) for index in group)
        reduce_s, air_s = 0.0, 0.0
        if len(group) > 1:
            nbytes = table.parameter_bytes(start, stop) + table.buffer_bytes(start, stop)
            per_byte, crossings = self._ring(g)
            n = len(group)
            reduce_s = max(2 * (n - 1) / n * nbytes * per_byte, 2 * (n - 1) / n * nbytes * crossings)
            air_s = 2 * (n - 1) / n * nbytes * crossings
            if reduce_s + self.n_micro_batches * (forward + backward) >= limit_s:
                return None
        total_s = self.n_micro_batches * (forward + backward)
        return Head(forward, backward, reduce_s + update, air_s, depth, energy, total_s)

    def _ring(self, g: int) -> tuple[float, float]:
        """Seconds per byte of the ring's slowest link, and of the air for one byte over every link."""
        if g not in self._rings:
            names, network = [self.problem.devices[i].name for i in self.groups[g]], self.problem.network
            links = list(pairwise([*names, names[0]]))
            slowest = max(1 / network.bandwidth(a, b) for a, b in links)
            self._rings[g] = slowest, sum(self._air_per_byte(a, b) for a, b in links)
        return self._rings[g]

    def _air_per_byte(self, source: str, target: str) -> float:
        if self.air is None or source == target:
            return 0.0
        capacity = next(m.capacity_bytes_per_s for m in self.problem.network.media if m.name == self.air)
        return dict(self.problem.network.path(source, target).media).get(self.air, 0) / capacity

    def _depth(self, start: int, stop: int, index: int, rows: int, replicas: int) -> int:
        """The most micro-batches that the device can keep (all of them at most); 0 when not even one."""
        return cost.depth_that_fits(
            self.table, start, stop, rows, self._budgets[index], replicas=replicas, n_micro_batches=self.n_micro_batches
        )

    def crossing(self, j: int, g: int, h: int) -> Crossing:
        """A micro-batch over cut j from pattern g to pattern h."""
        forward, forward_lag, back, back_lag, air, air_back, watts = self._unit(g, h)
        layer, n = self.problem.layers[self.cuts[j] - 1], self.n_micro_batches
        forward_s = forward * layer.output_bytes + forward_lag
        back_s = back * layer.gradient_bytes + back_lag if self.training and layer.gradient_bytes else 0.0
        air_s = (air * layer.output_bytes + air_back * layer.gradient_bytes * self.training) * n
        alone_s = forward * layer.output_bytes, back * layer.gradient_bytes * self.training
        return Crossing(forward_s, back_s, n * max(alone_s), air_s, watts * n * sum(alone_s))

    def _unit(self, g: int, h: int) -> tuple[float, float, float, float, float, float, float]:
        """Per byte of a row: seconds and latencies both ways, seconds of the air both ways; watts of the radios."""
        if (g, h) not in self._units:
            right = self.groups[h]
            left = members(self.patterns[g], self.classes, self.patterns[h])
            if len(left) < len(self.groups[g]):
                raise ValueError("the two patterns take more devices of a class than it has")
            a, b = ([self.problem.devices[i].name for i in group] for group in (left, right))
            network, shares = self.problem.network, (self.shares[g], self.shares[h])
            big = 1 << 40
            forward, back = (
                cost.cut_s(network, big, a, shares[0], b, shares[1]),
                cost.cut_s(network, big, b, shares[1], a, shares[0]),
            )
            lags = max(network.latency(x, y) for x in a for y in b), max(network.latency(y, x) for x in a for y in b)
            air = [0.0, 0.0]
            for piece in overlaps(*shares):
                x, y, rows = a[piece.left], b[piece.right], piece.stop - piece.start
                air[0] += rows * self._air_per_byte(x, y)
                air[1] += rows * self._air_per_byte(y, x)
            watts = sum((self.problem.devices[i].radio_w or 0.0) for i in (*left, *right)) if self._known_power else 0.0
            self._units[g, h] = forward / big, lags[0], back / big, lags[1], air[0], air[1], watts
        return self._units[g, h]

    def feed_s(self, g: int) -> float:
        """Seconds until home's first micro-batch is at a first stage of pattern g; 0 where no path is known."""
        network, nbytes = self.problem.network, self.problem.input_bytes
        if not nbytes:
            return 0.0
        pairs = zip(self.groups[g], self.shares[g], strict=True)
        return sum(
            rows * nbytes / network.bandwidth(HOME, self.problem.devices[i].name)
            for i, rows in pairs if (HOME, self.problem.devices[i].name) in network.paths
        )  # fmt: skip


def shares_limit(shares: Sequence[int]) -> list[int]:
    """Room for any shift of rows between the devices of a group."""
    return [sum(shares)] * len(shares)


def busiest_medium(problem: Problem) -> str | None:
    """The medium that most paths between devices cross: the air of a home on WiFi; None without a network."""
    counts: dict[str, int] = {}
    for (source, target), path in problem.network.paths.items():
        if HOME not in (source, target):
            for name, _ in path.media:
                counts[name] = counts.get(name, 0) + 1
    return max(counts, key=lambda name: (counts[name], name)) if counts else None
