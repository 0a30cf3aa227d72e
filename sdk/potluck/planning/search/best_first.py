"""Plans of a small problem by what its busiest device or medium takes, the least first: every layer
on any devices, rows shared in any way, devices in several stages too.

Where links are quick enough a stream is as fast as its busiest device, and so is much of a training
step. Local search ends where only several changes at once make the busiest device less busy. Here
nothing that is better by that measure is left out, as long as there are not too many such plans.

A state is the layers so far with the seconds that each device computes and sends, and that each
medium is taken, for all micro-batches. It is never said to take more than it will (A*): what the
layers behind it take at the least is added, weighted so that no device is better off by taking more
of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush, nsmallest
from itertools import combinations, islice
from typing import NamedTuple, Optional

from potluck.planning.building_blocks.device_classes import classes_of
from potluck.planning.search.branch_placement import StagePlacements
from potluck.planning.search.candidate_pool import CandidatePool
from potluck.planning.search.link_costs import links_of, media_of
from potluck.planning.search.local_search import with_depths
from potluck.planning.search.plan_floor import least_s
from potluck.planning.search.row_choices import block_rows, in_blocks
from potluck.planning.search.tight_memory import score_flat_too
from potluck.planning.search.work_budget import LABEL_S, WorkBudget
from potluck.records import Plan, Stage, Training
from potluck.schedule.rows import overlaps
from potluck.simulate import cost, equations, flows

MAX_OPTIONS = 60  # ways to share the rows of a micro-batch; of more, rows go in blocks
MAX_TRIED = 12_000  # layers put on devices, some 0.05 s
# plans of one size whose busiest device takes least, and how many of them are simulated; the same
# where memory is taken to be more than it is, so that few of them hold
N_LEAST_BUSY, N_TRIED_BUSY = 200, 24
N_LEAST_BUSY_TIGHT, N_TRIED_BUSY_TIGHT = 400, 60


def least_busy(
    pool: CandidatePool, places: StagePlacements, sizes: Sequence[int]
) -> Iterator[None]:
    """The plans whose busiest device or medium takes the least time, those first of which a
    micro-batch is through soonest.

    Parameters
    ----------
    pool
        Where plans are simulated and kept.
    places
        Of its problem.
    sizes
        Rows of a micro-batch, all that are tried.
    """

    def least(plan: Plan) -> float:
        return max(places.least_s(plan), least_s(pool.table, plan))

    tight = pool.budgets is not pool.table.budgets
    n_found = N_LEAST_BUSY_TIGHT if tight else N_LEAST_BUSY
    n_tried = N_TRIED_BUSY_TIGHT if tight else N_TRIED_BUSY
    for size in sizes:
        search = BestFirst(pool.table, size, pool.budgets, pool.budget)
        found = islice(search.plans(pool.best), n_found)
        for plan in nsmallest(n_tried, found, key=least):
            if least(plan) < pool.best:
                score_flat_too(pool, plan)
            yield


class _Option(NamedTuple):
    """Devices by number, and the rows of each."""

    devices: tuple[int, ...]
    shares: tuple[int, ...]


class _State(NamedTuple):
    """The first `n_layers` layers are on devices, the last of them on option `option`."""

    least_s: float
    number: int  # ties go to the one found first
    n_layers: int
    option: int
    taken_s: tuple[float, ...]  # per device computing, per device sending, per medium
    held_bytes: tuple[int, ...]
    before: Optional["_State"]


class BestFirst:
    """The search in micro-batches of one size.

    Parameters
    ----------
    table
        Of the problem.
    micro_batch
        Rows of a micro-batch.
    budgets
        Bytes that each device may use: layers that exceed them are not put there.
    work
        Counts what is done.
    """

    def __init__(
        self, table: cost.CostTable, micro_batch: int, budgets: Mapping[str, int], work: WorkBudget
    ) -> None:
        self.table, self.problem = table, table.problem
        self._done = work
        self.n_micro_batches = self.problem.workload.batch // micro_batch
        self._training = isinstance(self.problem.workload, Training)
        self._names = [device.name for device in self.problem.devices]
        numbers = range(len(self._names))
        self._classes = [[self._names[i] for i in same] for same in classes_of(table)]
        groups = [
            group
            for n in range(1, min(len(self._names), micro_batch) + 1)
            for group in combinations(numbers, n)
        ]
        block = block_rows(micro_batch, [*map(len, groups)], MAX_OPTIONS)
        self.options = [
            _Option(group, shares)
            for group in groups
            for shares in in_blocks(micro_batch, len(group), block)
        ]
        media = sorted({name for crossed in media_of(table).values() for name, _ in crossed})
        self._medium = {name: 2 * len(self._names) + i for i, name in enumerate(media)}
        self._n_taken = 2 * len(self._names) + len(media)
        self._sent: dict[tuple[int, int, int], tuple[tuple[int, float], ...]] = {}
        # layers of which nothing is kept are a stage of their own, and so are chains of a model
        learns = flows.learning_layers(self.problem)
        self._cut_at = {i for i in range(1, len(learns)) if learns[i] != learns[i - 1]}
        self._cut_at |= {*flows.chain_ends(self.problem)} if self.problem.branches else set()
        self._works = [
            [self._work(layer, option) for option in self.options]
            for layer in range(len(self.problem.layers))
        ]
        self._holds = [
            [self._held(layer, option) for option in self.options]
            for layer in range(len(self.problem.layers))
        ]
        self._room = [budgets[name] - table.floor_bytes for name in self._names]
        self._weights = self._device_weights()
        self._rest = self._least_rest()

    def _work(self, layer: int, option: _Option) -> tuple[tuple[int, float], ...]:
        """Seconds of all micro-batches of a layer, per device of an option."""
        learns = self._training and not self.table.runs_ahead(layer, layer + 1)
        found = []
        for number, rows in zip(option.devices, option.shares, strict=True):
            place = self._names[number], layer, layer + 1, rows
            seconds = self.table.forward_s(*place)
            seconds += self.table.backward_s(*place) if learns else 0.0
            found.append((number, seconds * self.n_micro_batches))
        return tuple(found)

    def _held(self, layer: int, option: _Option) -> tuple[int, ...]:
        """Bytes of a layer on each device of an option at the least: of one micro-batch, where
        activations are kept, all of them when its backward begins.
        """
        standing = equations.static_bytes(self.table, layer, layer + 1) - self.table.floor_bytes
        keeps = self._training and not self.table.recomputes
        keeps = keeps and not self.table.runs_ahead(layer, layer + 1)
        row_bytes = self.table.activation_bytes(layer, layer + 1) if keeps else 0
        return tuple(standing + rows * row_bytes for rows in option.shares)

    def _device_weights(self) -> list[float]:
        """Per device, so that each takes as long for all layers alone, together one."""
        speeds = []
        for number in range(len(self._names)):
            alone = next(i for i, o in enumerate(self.options) if o.devices == (number,))
            speeds.append(sum(works[alone][0][1] for works in self._works))
        inverse = [1 / max(seconds, 1e-12) for seconds in speeds]
        return [1 / max(seconds, 1e-12) / sum(inverse) for seconds in speeds]

    def _least_rest(self) -> list[float]:
        """Per layer, the weighted seconds from there on at the least."""
        rest = [0.0]
        for works in reversed(self._works):
            rest.append(rest[-1] + min(self._weighted(work) for work in works))
        return rest[::-1]

    def _weighted(self, work: Sequence[tuple[int, float]]) -> float:
        return sum(self._weights[number] * seconds for number, seconds in work)

    def plans(self, limit_s: float) -> Iterator[Plan]:
        """Those whose busiest device or medium takes less than `limit_s`, the least first."""
        n, seen = self.n_micro_batches, set[tuple[Stage, ...]]()
        for stages in map(self._by_turns, self._stages_of(limit_s)):
            if stages in seen:
                continue
            seen.add(stages)
            yield Plan(
                planner="potluck",
                model=self.problem.model,
                stages=with_depths(self.table, stages),
                micro_batch=self.problem.workload.batch // n,
                n_micro_batches=n,
                training=self._training,
            )

    def _stages_of(self, limit_s: float) -> Iterator[tuple[Stage, ...]]:
        n_devices, n_layers = len(self._names), len(self.problem.layers)
        weights, rooms = self._weights, self._room
        number, tried = 0, 0
        heap = [_State(0.0, 0, 0, -1, (0.0,) * self._n_taken, (0,) * n_devices, None)]
        while heap and tried < MAX_TRIED:
            state = heappop(heap)
            at = state.n_layers
            if at == n_layers:
                yield self._stages(state)
                continue
            tried += len(self.options)
            self._done.count(len(self.options), LABEL_S)
            for i in range(len(self.options)):
                taken, held = [*state.taken_s], [*state.held_bytes]
                for (device, seconds), nbytes in zip(
                    self._works[at][i], self._holds[at][i], strict=True
                ):
                    taken[device] += seconds
                    held[device] += nbytes
                if i != state.option and at and not self.problem.branches:
                    for place, seconds in self._sending(at, state.option, i):
                        taken[place] += seconds
                rest_s = self._rest[at + 1]
                for device in range(n_devices):
                    rest_s += weights[device] * taken[device]
                least_s = max(rest_s, *taken)
                if least_s >= limit_s or any(h > room for h, room in zip(held, rooms, strict=True)):
                    continue
                number += 1
                made = _State(least_s, number, at + 1, i, tuple(taken), tuple(held), state)
                heappush(heap, made)

    def _by_turns(self, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        """The stages with alike devices in their order: the first that has something to do is the
        first of them.
        """
        free = dict[str, Iterator[str]]()
        for same in self._classes:
            free |= dict.fromkeys(same, iter(same))
        named = dict[str, str]()
        for name in (name for stage in stages for name in stage.devices):
            if name not in named:
                named[name] = next(free[name])
        return tuple(
            replace(stage, devices=tuple(named[name] for name in stage.devices)) for stage in stages
        )

    def _sending(self, cut: int, left: int, right: int) -> tuple[tuple[int, float], ...]:
        """Seconds of all micro-batches over a cut: of each sender, and of each medium."""
        key = cut, left, right
        if key not in self._sent:
            links, media = links_of(self.table), media_of(self.table)
            layer, found = self.problem.layers[cut - 1], dict[int, float]()
            learns = self._training and not self.table.runs_ahead(cut - 1, cut)
            a, b = self.options[left], self.options[right]
            for piece in overlaps(a.shares, b.shares):
                i, j = a.devices[piece.left], b.devices[piece.right]
                rows = (piece.stop - piece.start) * self.n_micro_batches
                back_bytes = layer.gradient_bytes if learns else 0
                for pair, nbytes in (((i, j), layer.output_bytes), ((j, i), back_bytes)):
                    if i == j or not nbytes:
                        continue
                    place = len(self._names) + pair[0]
                    found[place] = found.get(place, 0.0) + rows * nbytes * links[pair].byte_s
                    for name, byte_s in media.get(pair, ()):
                        at = self._medium[name]
                        found[at] = found.get(at, 0.0) + rows * nbytes * byte_s
            self._sent[key] = tuple(found.items())
        return self._sent[key]

    def _stages(self, state: _State) -> tuple[Stage, ...]:
        """Neighbouring layers of one option as one stage; of a model with branches no further than
        a chain of it goes.
        """
        chosen = list[int]()
        at: _State | None = state
        while at is not None and at.n_layers:
            chosen.append(at.option)
            at = at.before
        chosen.reverse()
        stages, start = list[Stage](), 0
        for stop in range(1, len(chosen) + 1):
            goes_on = stop < len(chosen) and chosen[stop] == chosen[start]
            if goes_on and stop not in self._cut_at:
                continue
            devices, shares = self.options[chosen[start]]
            names = tuple(self._names[i] for i in devices)
            stages.append(
                Stage(
                    start=start,
                    stop=stop,
                    devices=names,
                    shares=shares,
                    recompute=self.table.recomputes,
                )
            )
            start = stop
        return tuple(stages)
