"""Local search in a home of many devices: take work from the busiest stage.

There a plan has hundreds of neighbours, and of most the busiest stage has as much to do as before.
So those come first that give its rows to devices with less to do, its layers to stages with less,
or devices of those to it. Rows of a stage go where they take the least time, whatever a first row
costs.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heapreplace
from itertools import pairwise

from potluck.planning.search.link_costs import numbers_of
from potluck.planning.search.local_search import fits, near, terminates
from potluck.records import Plan, Stage
from potluck.simulate import cost

N_LIGHTEST = 3  # stages that take layers, or give a device
N_BUSIEST = 4  # stages from which work is taken
N_MOVED = (1, 2, 4)  # layers, or rows, that move at once
N_ADDED = (1, 2, 4, 8)  # devices that come to a stage at once
MAX_PARTS = 64  # steps in which the rows of a micro-batch are given out

Stages = tuple[Stage, ...]


def relieving(table: cost.CostTable, plan: Plan) -> Iterator[Plan]:
    """Plans in which one of the busiest stages may have less to do, and that fit in memory; then
    all others next to `plan`.

    Parameters
    ----------
    table
        Of the problem.
    plan
        Of a home of many devices.
    """
    seen = {plan.stages}
    for stages in _Relief(table, plan).changes():
        if stages in seen or not terminates(table, plan, stages):
            continue
        seen.add(stages)
        if fits(table, plan, stages):
            yield replace(plan, stages=stages)
    yield from near(table, plan)


class _Relief:
    """The changes of one plan, its busiest stages first."""

    def __init__(self, table: cost.CostTable, plan: Plan) -> None:
        self.table = table
        self.plan, self.stages = plan, plan.stages
        self.spares = self._by_speed({d.name for d in table.problem.devices} - {*plan.devices})
        self.busy_s = [self._stage_s(stage) for stage in plan.stages]
        numbers = range(len(plan.stages))
        self.busiest = sorted(numbers, key=lambda p: self.busy_s[p], reverse=True)

    def changes(self) -> Iterator[Stages]:
        """Those of rows first, then of layers, then of devices."""
        for relief in self._fewer_rows, self._fewer_layers, self._other_devices:
            for p in self.busiest[:N_BUSIEST]:
                yield from relief(p)

    def _by_speed(self, names: Iterable[str]) -> list[str]:
        """The fastest first; of alike ones, as they are listed."""
        n_layers, order = len(self.table.problem.layers), numbers_of(self.table)
        seconds = self.table.forward_s
        return sorted(names, key=lambda name: (seconds(name, 0, n_layers, 1), order[name]))

    # --- what a stage takes -----------------------------------------------------------------------

    def _device_s(self, stage: Stage, name: str, rows: int) -> float:
        """Of one micro-batch."""
        seconds = self.table.forward_s(name, stage.start, stage.stop, rows)
        if self.plan.training and not self.table.runs_ahead(stage.start, stage.stop):
            backward_s = self.table.of(stage.recompute).backward_s
            seconds += backward_s(name, stage.start, stage.stop, rows)
        return seconds

    def _stage_s(self, stage: Stage) -> float:
        pairs = zip(stage.devices, stage.shares, strict=True)
        return max(self._device_s(stage, name, rows) for name, rows in pairs)

    def _level(self, stage: Stage, names: Sequence[str]) -> Stage:
        """The stage on those of the devices that help, as few rows at a time as there are steps,
        each to who is then done first.
        """
        part = max(1, stage.rows // MAX_PARTS)
        shares, left = dict.fromkeys(names, 0), stage.rows
        heap = [(self._device_s(stage, name, part), k) for k, name in enumerate(names)]
        heapify(heap)
        while left:
            given, (_, k) = min(part, left), heap[0]
            shares[names[k]] += given
            left -= given
            heapreplace(heap, (self._device_s(stage, names[k], shares[names[k]] + part), k))
        used = [name for name in names if shares[name]]
        return replace(stage, devices=tuple(used), shares=tuple(shares[name] for name in used))

    # --- changes of stage p -----------------------------------------------------------------------

    def _with(self, *changed: tuple[int, Stage]) -> Stages:
        stages = list(self.stages)
        for p, stage in changed:
            stages[p] = stage
        return tuple(stages)

    def _fewer_rows(self, p: int) -> Iterator[Stages]:
        """Rows of its slowest device to others of its own, or to devices with nothing to do."""
        stage = self.stages[p]
        yield self._with((p, self._level(stage, stage.devices)))
        for n in sorted({min(n, len(self.spares)) for n in N_ADDED} - {0}):
            yield self._with((p, self._level(stage, (*stage.devices, *self.spares[:n]))))
        pairs = [*zip(stage.devices, stage.shares, strict=True)]
        times = [self._device_s(stage, name, rows) for name, rows in pairs]
        slowest = times.index(max(times))
        others = sorted(set(range(len(pairs))) - {slowest}, key=lambda k: times[k])
        for rows in N_MOVED:
            for k in others[:N_LIGHTEST]:
                if stage.shares[slowest] > rows:
                    shares = list(stage.shares)
                    shares[slowest] -= rows
                    shares[k] += rows
                    yield self._with((p, replace(stage, shares=tuple(shares))))

    def _fewer_layers(self, p: int) -> Iterator[Stages]:
        """Its last layers to the next stage, or its first to the one before; what lies between it
        and a stage with less to do moves along.
        """
        for n_layers in N_MOVED:
            for q in self._lighter(p):
                moved = self._shifted(p, q, n_layers)
                if moved is not None:
                    yield moved
                    first, last = self._level(moved[p], moved[p].devices), moved[q]
                    last = self._level(last, last.devices)
                    yield tuple(
                        first if i == p else last if i == q else stage
                        for i, stage in enumerate(moved)
                    )

    def _lighter(self, p: int) -> list[int]:
        """Its neighbours, and the stages with the least to do."""
        beside = [q for q in (p - 1, p + 1) if 0 <= q < len(self.stages)]
        lightest = self.busiest[: -N_LIGHTEST - 1 : -1]
        return [q for q in dict.fromkeys((*beside, *lightest)) if q != p]

    def _shifted(self, p: int, q: int, n_layers: int) -> Stages | None:
        """All cuts between stages p and q, so that p loses layers and q gains them; None where one
        of them would have no layer left.
        """
        ends, by = [0, *(stage.stop for stage in self.stages)], n_layers if q < p else -n_layers
        for k in range(min(p, q), max(p, q)):
            ends[k + 1] += by
        if any(start >= stop for start, stop in pairwise(ends)):
            return None
        spans = zip(self.stages, pairwise(ends), strict=True)
        return tuple(replace(stage, start=start, stop=stop) for stage, (start, stop) in spans)

    def _other_devices(self, p: int) -> Iterator[Stages]:
        """Those of a stage with less to do for its own, one of them beside its own, or for one."""
        stage = self.stages[p]
        for q in self._lighter(p):
            other = self.stages[q]
            if set(stage.devices) & set(other.devices):
                continue
            here, there = self._level(stage, other.devices), self._level(other, stage.devices)
            yield self._with((p, here), (q, there))
            names = self._by_speed(other.devices)
            for name in dict.fromkeys((names[0], names[-1])):
                rest = tuple(one for one in other.devices if one != name)
                if rest:
                    here = self._level(stage, (*stage.devices, name))
                    yield self._with((p, here), (q, self._level(other, rest)))
                for mine in dict.fromkeys((stage.devices[0], stage.devices[-1], stage.lead)):
                    ours = tuple(name if one == mine else one for one in stage.devices)
                    theirs = tuple(mine if one == name else one for one in other.devices)
                    here, there = self._level(stage, ours), self._level(other, theirs)
                    yield self._with((p, here), (q, there))
