"""Which stages a plan may have that takes no longer than so many seconds, and what they take at the
least.

No device of a stage needs more than these seconds for its rows of all micro-batches, together with
the quickest way to it and back, or with what is left of a ring once the last replica has its
gradients; and no cable of a device carries for longer.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import inf
from typing import NamedTuple

from potluck.planning.bounds.floors import Floors, Rows
from potluck.planning.bounds.rates import least_updates_s
from potluck.simulate import cost, equations, flows
from potluck.simulate.direct_simulation import ITEM_BYTES

ROUNDED = 1 + 1e-9  # the simulator adds in another order
# Of a ring's transfers, those that cannot begin before the last replica has its gradients: the one
# after it may have passed on one piece of 2 (n - 1) by then, the next two, ... the last n - 1.
RING_BEHIND = 0.75


class StageOption(NamedTuple):
    """A stage of layers up to `stop`: the kinds that can have it alone; of several devices the most
    rows of one of each kind (none: not several), and what comes behind their gradients.
    """

    stop: int
    alone: tuple[int, ...]
    rows: tuple[int, ...]
    behind_s: float


class RowTimes(NamedTuple):
    """What rows take on a device among `size` to `top` of them: forwards and backwards of the
    layers before each, forwards alone, and for a byte of a row what they wait longer than one.
    """

    size: int
    top: int
    both: Sequence[float]
    forward: Sequence[float]
    wait: float


class StageOptions:
    """The stages of plans in one size of micro-batches, and what they take at the least.

    Parameters
    ----------
    table
        Of a problem without branches.
    micro_batch
        Rows of a micro-batch.
    """

    def __init__(self, table: cost.CostTable, micro_batch: int) -> None:
        floors = self.floors = Floors(table, micro_batch)
        problem, self.table = table.problem, table
        self.micro_batch, self.n = micro_batch, problem.workload.batch // micro_batch
        self.n_layers, self.counts = floors.n_layers, floors.counts
        self.most_devices = min(micro_batch, len(problem.devices))
        self.n_looked = 0  # stages that were asked about
        self.both = [[sums(row) for row in rows] for rows in floors.both]
        self.learns, n_layers = flows.learning_layers(problem), self.n_layers
        devices = [problem.device(name) for name in floors.names]
        self.updates = sums(
            [min(row) for row in zip(*(least_updates_s(table, d) for d in devices), strict=True)]
        )
        self.gradients = [
            table.summed_bytes(0, stop) if floors.training else 0 for stop in range(n_layers + 1)
        ]
        whole_bytes = equations.static_bytes(table, 0, n_layers)
        budgets = [table.budgets[name] for name in floors.names]
        self.tight = {kind: b for kind, b in enumerate(budgets) if b < whole_bytes}
        self.trips = [0.0, *(floors.trip_s(i, returns=True) for i in range(n_layers - 1))]
        self.outward = [0.0, *(floors.trip_s(i, returns=False) for i in range(n_layers - 1))]
        # per kind and number of rows, seconds for a byte of a row by which a device waits for all
        # its rows longer than for one
        waits = [
            [max(0.0, into_s * (size + 1) / 2 - floors.byte_s) for size in floors.sizes]
            for into_s in floors.into_s
        ]
        forward = [[sums(row) for row in rows] for rows in floors.forward]
        self.rows_of = [
            [*map(RowTimes, floors.sizes, floors.tops, *each)]
            for each in zip(self.both, forward, waits, strict=True)
        ]  # per kind and number of rows
        self.sent = [0, *floors.sent, 0]  # bytes of a row over the cut in front of each layer
        self.back = [0, *floors.back, 0]
        nothing = [0.0] * (n_layers + 1)
        self.before = nothing if floors.streaming else self._ways(floors.both, self.trips)
        self.first = nothing if floors.streaming else self._ways(floors.forward, self.outward)
        returns = floors.training or floors.streaming
        self.after = nothing if returns else self._ways_behind()

    def _ways(self, rows: Sequence[Rows], trips: Sequence[float]) -> list[float]:
        """Least seconds of a row through the layers in front of each, and on to it."""
        reached, found = [0.0] * len(rows), [0.0]
        for i in range(self.n_layers):
            reached = [s + row[0][i] for s, row in zip(reached, rows, strict=True)]
            passed_s = min(reached) + (trips[i + 1] if i + 1 < self.n_layers else 0.0)
            found.append(passed_s)
            reached = [min(s, passed_s) for s in reached]
        return found

    def _ways_behind(self) -> list[float]:
        """Least seconds of a row from the end of the layers up to each through all others."""
        rows, n = self.floors.forward, self.n_layers
        reached, found = [0.0] * len(rows), [0.0]
        for i in range(n - 1, -1, -1):
            reached = [s + row[0][i] for s, row in zip(reached, rows, strict=True)]
            passed_s = min(reached) + self.outward[i]
            found.append(passed_s)
            reached = [min(s, passed_s) for s in reached]
        return found[::-1]

    # --- what stages there may be -----------------------------------------------------------------

    def options(self, start: int, latency_s: float) -> list[StageOption]:
        """Of plans that take no longer, the stages that begin at a layer.

        Parameters
        ----------
        start
            Their first layer.
        latency_s
            Seconds of a step, or from answer to answer.
        """
        latency_s *= ROUNDED
        floors, found = self.floors, list[StageOption]()
        most: Sequence[int] = [len(floors.sizes)] * len(self.counts)
        for stop in range(start + 1, self.n_layers + 1):
            self.n_looked += 1
            first_s = max(self.before[start], self.first[start] + self.update_s(start, stop))
            before, most = most, self._most(start, stop, latency_s - first_s, most)
            if most != before and self._needed(self._tops(most)) == inf:
                break
            left_s, in_time = latency_s - self.after[stop], most
            if self.after[stop]:
                in_time = self._most(start, stop, left_s - first_s, most)
            alone = tuple[int, ...]()
            if max(in_time) == len(floors.sizes):
                rows = self._rows(start, stop, in_time, latency_s)
                alone = tuple(k for k, n_rows in enumerate(rows) if n_rows >= self.micro_batch)
            several, behind_s = self._several(start, stop, left_s, in_time, latency_s)
            if alone or several:
                found.append(StageOption(stop, alone, several, behind_s))
        return found

    def _tops(self, most: Sequence[int]) -> list[int]:
        """Per kind, of so many of the numbers of rows the largest."""
        tops = self.floors.tops
        return [tops[q - 1] if q else 0 for q in most]

    def update_s(self, start: int, stop: int) -> float:
        """Least seconds of an optimizer step on its weights.

        Parameters
        ----------
        start, stop
            Layers [start, stop).
        """
        return self.updates[stop] - self.updates[start]

    def _most(self, start: int, stop: int, left_s: float, most: Sequence[int]) -> list[int]:
        """Per kind how many of the numbers of rows take no longer, at most as many as before."""
        each_s, found = left_s / self.n, []
        held_bytes = equations.static_bytes(self.table, start, stop) if self.tight else 0
        for kind, (rows, q) in enumerate(zip(self.both, most, strict=True)):
            while q and rows[q - 1][stop] - rows[q - 1][start] > each_s:
                q -= 1
            found.append(q if held_bytes <= self.tight.get(kind, held_bytes) else 0)
        return found

    def _rows(
        self, start: int, stop: int, most: Sequence[int], latency_s: float, ring_bytes: float = 0.0
    ) -> list[int]:
        """Per kind the most rows that a device computes in time, and that its cables carry beside
        what it sends and gets of a ring.
        """
        tops, found = self._tops(most), list[int]()
        floors = self.floors
        sent_bytes = self.n * (self.sent[stop] + self.back[start])
        got_bytes = self.n * (self.sent[start] + self.back[stop])
        sent_s = (max(tops) * sent_bytes + ring_bytes) * max(floors.out_s)
        got_s = (max(tops) * got_bytes + ring_bytes) * max(floors.into_s)
        if max(sent_s, got_s) <= latency_s:
            return tops
        for rows, out_s, into_s in zip(tops, floors.out_s, floors.into_s, strict=True):
            if (rows * sent_bytes + ring_bytes) * out_s > latency_s:
                rows = carried(latency_s / out_s - ring_bytes, sent_bytes)
            if (rows * got_bytes + ring_bytes) * into_s > latency_s:
                rows = carried(latency_s / into_s - ring_bytes, got_bytes)
            found.append(rows)
        return found

    def _several(
        self, start: int, stop: int, left_s: float, most: Sequence[int], latency_s: float
    ) -> tuple[tuple[int, ...], float]:
        """Of a stage of two devices and more the most rows of one of each kind, and what comes
        behind their gradients; no rows where none is in time.
        """
        nbytes, update_s = self.ring_bytes(start, stop), self.update_s(start, stop)
        n_devices = 2.0
        while n_devices <= self.most_devices:
            behind_s = self._behind_s(nbytes, n_devices) + update_s
            first_s = max(self.before[start], self.first[start] + behind_s)
            most = self._most(start, stop, left_s - first_s, most)
            ring_bytes = 2 * (n_devices - 1) / n_devices * nbytes
            rows = self._rows(start, stop, most, latency_s, ring_bytes)
            needed = self._needed(rows)
            if needed <= n_devices or (not nbytes and needed <= self.most_devices):
                return tuple(rows), behind_s
            n_devices = max(n_devices + 1, needed)
        return (), 0.0

    def _needed(self, rows: Sequence[int]) -> float:
        """How many devices it takes at least to have all rows, where one of each kind has at most
        so many; infinite where all together have too few.
        """
        left, n_devices = self.micro_batch, 0
        for most, count in sorted(zip(rows, self.counts, strict=True), reverse=True):
            if not most:
                break
            used = min(count, -(-left // most))
            left, n_devices = left - used * most, n_devices + used
            if left <= 0:
                return n_devices
        return inf

    def ring_bytes(self, start: int, stop: int) -> int:
        """Bytes that replicas of a stage sum at the least, each piece in whole numbers.

        Parameters
        ----------
        start, stop
            Layers [start, stop).
        """
        if not self.learns[stop - 1]:
            return 0
        nbytes = self.gradients[stop] - self.gradients[start]
        return max(0, nbytes - ITEM_BYTES * self.most_devices)

    def _behind_s(self, nbytes: int, n_devices: float) -> float:
        """Least seconds of a ring behind the last replica's gradients."""
        passes = 2 * (n_devices - 1)
        byte_s = max(1.0, passes / n_devices) * self.floors.byte_s
        return nbytes * max(byte_s, RING_BEHIND * passes * self.floors.air_s)


def carried(left_bytes: float, nbytes: int) -> int:
    """How many rows of `nbytes` each these are.

    Parameters
    ----------
    left_bytes
        Bytes that are left for rows; fewer than 0 where not even anything else has room.
    nbytes
        Of a row.
    """
    return max(0, int(left_bytes / nbytes)) if nbytes else 0


def sums(values: Sequence[float]) -> list[float]:
    """Of the first 0, 1, 2 ... values.

    Parameters
    ----------
    values
        Numbers.
    """
    return [*accumulate(values, initial=0.0)]
