"""Our own search: dynamic programming over the devices used so far, in any order, with Pareto
labels.

Pipelines are built from the last stage to the first, as in Asteroid's Algorithm 2, but the state is
the *set* of devices that are taken: how many of each class of alike ones. So every order of devices
is tried. Every state keeps several labels, because what is best behind a cut depends on what comes
before it. A label counts what shared links do too: the seconds for which all transfers together
take the busiest medium.

Glossary. M: micro-batches. A label describes the stages behind a cut: `span_s` from their first
input to their last gradient (inference: the way of one micro-batch), `done_s` to the end of all
updates (inference: the slowest step), `air_s` the load of the busiest medium over the round,
`energy_j` beyond idling.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from math import inf
from operator import le, mul
from typing import NamedTuple, Optional

from potluck.planning.building_blocks.device_classes import Pattern, classes_of, patterns
from potluck.planning.plans import is_thrifty
from potluck.planning.search.stage_costs import CommunicationCost, StageCost, StageCostTable
from potluck.planning.search.work_budget import HEAD_S, LABEL_S, WorkBudget
from potluck.records import Plan, QoE, Stage, Training
from potluck.schedule.policies import warm_up_depths
from potluck.simulate import cost

WINDOW = 5  # layers to either side that a stage's begin may move when the order of devices is given
SMALL = 3e4  # states x patterns x cuts^2: some 10 ms
COARSELY = 10  # cuts of a first look: of a long chain, the way from one to the next instead
KEEP = 6  # labels per state; more find no better plan in bench `optimality`


class ParetoLabel(NamedTuple):
    """The stages from cut `i` on, the first of them up to cut `j` on pattern `g`.

    `score` rates them alone.
    """

    score: float
    span_s: float
    done_s: float
    air_s: float
    energy_j: float
    trip_s: float  # one micro-batch there and back
    i: int
    j: int
    g: int
    depth: int
    behind: Optional["ParetoLabel"]


class SubsetSearch:
    """The search for one micro-batch size and one set of cuts.

    `pipelines_only`: no device shares a stage. `along`: only the groups of this plan's stages, in
    their order. `own_shares`: every stage shares its rows by the times of its own layers. Once it
    `is_late` nothing is found. `budget`: counts the labels looked at.

    Parameters
    ----------
    table
        Of the problem.
    micro_batch
        Rows of a micro-batch.
    cuts
        Where stages may begin and end, ascending.
    keep
        Labels kept per state.
    beam
        States kept per step; None keeps all.
    pipelines_only
        No device shares a stage.
    along
        Only the groups of this plan's stages, in their order.
    shapes
        Only these patterns.
    own_shares
        Rows are shared by the times of each stage's own layers.
    n_shares
        So many ways to share rows are tried, about; by default one for each pattern.
    is_late
        Asked between pieces of work; then nothing more is found.
    budget
        Counts the labels looked at.
    """

    def __init__(
        self,
        table: cost.CostTable,
        micro_batch: int,
        cuts: Sequence[int],
        *,
        keep: int = KEEP,
        beam: int | None = None,
        pipelines_only: bool = False,
        along: Plan | None = None,
        shapes: Sequence[Pattern] | None = None,
        own_shares: bool = False,
        n_shares: int = 0,
        is_late: Callable[[], bool] = lambda: False,
        budget: WorkBudget | None = None,
    ) -> None:
        problem = self.problem = table.problem
        self.is_late, self._budget = is_late, budget or WorkBudget()
        self.table = table
        self.keep = keep
        self.beam = beam
        self.cuts = cuts
        self.classes = classes_of(table)
        self.training = isinstance(problem.workload, Training)
        self.streaming = not isinstance(problem.workload, Training) and problem.workload.streaming
        self.own_shares = own_shares
        self.layers_s, speeds = self._rates(micro_batch)
        self.front_s = self._front()
        order = [self._pattern(stage) for stage in along.stages] if along is not None else []
        shapes = shapes or list(dict.fromkeys(order)) or patterns(problem, self.classes, speeds)
        shapes = [pattern for pattern in shapes if sum(pattern) == 1] if pipelines_only else shapes
        self._shares = any(sum(pattern) > 1 for pattern in shapes)
        self._n_shares = n_shares
        self.stage_costs = self._make_stage_costs(micro_batch, shapes)
        self.n_micro_batches = self.stage_costs.n_micro_batches
        self.sizes = [len(members) for members in self.classes]
        self.radix = [1]
        for size in self.sizes:
            self.radix.append(self.radix[-1] * (size + 1))
        # then a state has a bit for each device
        self._are_unlike = all(size == 1 for size in self.sizes)
        self.codes = [
            sum(n * r for n, r in zip(p, self.radix, strict=False))
            for p in self.stage_costs.patterns
        ]
        self._only = self._in_order(order)
        self._near = self._windows(along) if along is not None else {}
        self._feeds: dict[tuple[int, int], tuple[float, float]] = {}
        self._joins: dict[tuple[int, int], bool] = {}
        self._communication: dict[tuple[int, int, int], CommunicationCost] = {}
        self._idle_w: dict[int, float] = {}
        self._floors: dict[tuple[int, int], float] = {}
        self._frees: dict[int, tuple[int, ...]] = {}
        self.is_small = self.radix[-1] * len(self.codes) * len(cuts) ** 2 <= SMALL
        self.thrifty = is_thrifty(problem)
        self.fill = 1.0  # how much of the time of the layers before a cut is added to a label's

    def _make_stage_costs(self, micro_batch: int, shapes: Sequence[Pattern]) -> StageCostTable:
        return StageCostTable(
            self.table,
            micro_batch,
            self.cuts,
            self.classes,
            shapes,
            own_shares=self.own_shares,
            n_shares=self._n_shares,
        )

    def _pattern(self, stage: Stage) -> Pattern:
        names = [{self.problem.devices[i].name for i in members} for members in self.classes]
        return tuple(len(members & set(stage.devices)) for members in names)

    def _in_order(self, order: Sequence[Pattern]) -> dict[int, int]:
        """State -> the pattern that comes next in front, where the order is given.

        Empty where it cannot be kept.
        """
        state, only = 0, {}
        for pattern in reversed(order):
            if pattern not in self.stage_costs.patterns:
                return {-1: -1}
            only[state] = self.stage_costs.patterns.index(pattern)
            state += self.codes[only[state]]
        return only

    def _windows(self, along: Plan) -> dict[int, tuple[int, int]]:
        """State in front of which a stage comes -> the first and last layer at which that stage may
        begin.
        """
        windows, states = {}, list(self._only)
        around = max(WINDOW, len(self.problem.layers) // COARSELY)
        for state, stage in zip(states, reversed(along.stages), strict=False):
            windows[state] = (stage.start - around, stage.start + around) if stage.start else (0, 0)
        return windows

    def _rates(self, micro_batch: int) -> tuple[list[tuple[float, ...]], list[float]]:
        """Per device the seconds of the layers before each cut.

        Micro-batches per second of each device.
        """
        table = self.table
        names = [d.name for d in self.problem.devices]
        stop = len(self.problem.layers)

        def seconds(name: str, layer: int) -> float:
            forward_s = table.forward_s(name, 0, layer, micro_batch)
            if not self.training:
                return forward_s
            return forward_s + table.backward_s(name, 0, layer, micro_batch)

        before = [tuple(seconds(name, cut) for cut in self.cuts) for name in names]
        return before, [1 / max(seconds(name, stop), 1e-12) for name in names]

    def _front(self) -> list[float]:
        """Seconds of the layers before each cut, each between two cuts on the device that is
        fastest there.
        """
        parts = [
            min(before[i + 1] - before[i] for before in self.layers_s)
            for i in range(len(self.cuts) - 1)
        ]
        return list(accumulate(parts, initial=0.0))

    # --- the program ------------------------------------------------------------------------------

    def run(self, limit: float = inf) -> list[ParetoLabel]:
        """Whole pipelines whose estimate scores below `limit`, the best first."""
        last = len(self.cuts) - 1
        limit_s = self._longest_s(limit)
        behind: list[dict[int, list[ParetoLabel]]] = [{} for _ in range(last + 1)]
        for i in range(last - 1, -1, -1):
            found: dict[int, list[ParetoLabel]] = {}
            for g, code in enumerate(self.codes):
                if self.is_late():
                    return []
                for j in range(i + 1, last + 1):
                    if self._near and not self._wanted(i, g, behind[j] if j < last else (0,)):
                        continue
                    self._budget.count(1, HEAD_S)
                    stage = self.stage_costs.cost(i, j, g, limit_s)
                    if stage is None:
                        break  # a longer stage neither fits nor is faster
                    if not stage.depth:
                        continue  # a longer one may: what waits at its end is less
                    if j == last:
                        if self._only and self._only.get(0) != g:
                            continue
                        label = self._last(stage, i, g, limit)
                        if label is not None:
                            found.setdefault(code, []).append(label)
                        continue
                    self._put_before(stage, i, j, g, behind[j], found, limit)
            behind[i] = self._pruned(found)
        return sorted(
            (label for labels in behind[0].values() for label in labels),
            key=lambda label: label.score,
        )

    def _wanted(self, i: int, g: int, states: Iterable[int]) -> bool:
        """Whether a stage of pattern g that begins at cut i is what the given order has in front of
        one of `states`.
        """
        at = self.cuts[i]
        for state in states:
            if self._only.get(state) == g and state in self._near:
                first, last = self._near[state]
                if first <= at <= last:
                    return True
        return False

    def _fits(self, state: int, g: int) -> bool:
        """Whether pattern g finds its devices free when those of `state` are taken."""
        if self._only:
            return self._only.get(state) == g
        if self._are_unlike:
            return not state & self.codes[g]
        known = self._joins.get((state, g))
        if known is None:
            known = all(map(le, self.stage_costs.patterns[g], self._free(state)))
            self._joins[state, g] = known
        return known

    def _last(self, stage: StageCost, i: int, g: int, limit: float) -> ParetoLabel | None:
        work = stage.forward_s + stage.backward_s
        stop = len(self.cuts) - 1
        n = self.n_micro_batches
        answer = self.stage_costs.answer_s(g)
        if self.training:
            span = max(stage.total_s, n * answer)
            done = span + stage.reduce_s
        else:
            span, done = work + answer, max(stage.total_s / n, answer)
        score = self._score(span, done, stage.air_s, stage.energy_j, i, stop, g, self.codes[g])
        if score >= limit:
            return None
        return ParetoLabel(
            score, span, done, stage.air_s, stage.energy_j, work, i, stop, g, stage.depth, None
        )

    def _put_before(
        self,
        stage: StageCost,
        i: int,
        j: int,
        g: int,
        behind: Mapping[int, Sequence[ParetoLabel]],
        found: dict[int, list[ParetoLabel]],
        limit: float,
    ) -> None:
        """Add to `found` what `stage` makes of each label behind it, where that may score below
        `limit`.
        """
        n, training = self.n_micro_batches, self.training
        work, depth = stage.forward_s + stage.backward_s, min(stage.depth, n)
        for before, labels in behind.items():
            if not self._fits(before, g):
                continue
            state = before + self.codes[g]
            kept = found.setdefault(state, [])
            self._budget.count(len(labels), LABEL_S)
            for rest in labels:
                forward, back, link, air, joules = self._communication_s(j, g, rest.g)
                air_s = rest.air_s + air + stage.air_s
                energy = rest.energy_j + joules + stage.energy_j
                trip = work + forward + back + rest.trip_s
                if training:
                    # All M micro-batches through the stage; or one there and back around all that
                    # is behind; or around the link; or, where memory keeps only `depth` on the way
                    # at once, that many per round trip.
                    span = max(
                        stage.total_s,
                        work + forward + back + rest.span_s,
                        work + link,
                        n * trip / depth,
                    )
                    done = max(span + stage.reduce_s, stage.forward_s + forward + rest.done_s)
                else:
                    span = work + forward + rest.span_s
                    done = max(stage.total_s / n, link / n, rest.done_s)
                score = self._score(span, done, air_s, energy, i, j, g, state)
                if score < limit:
                    kept.append(
                        ParetoLabel(
                            score, span, done, air_s, energy, trip, i, j, g, stage.depth, rest
                        )
                    )

    def _communication_s(self, j: int, g: int, h: int) -> CommunicationCost:
        found = self._communication.get((j, g, h))
        if found is None:
            found = self._communication[j, g, h] = self.stage_costs.communication(j, g, h)
        return found

    def _pruned(self, found: dict[int, list[ParetoLabel]]) -> dict[int, list[ParetoLabel]]:
        """Per state the labels that no other beats in everything, at most `keep`.

        Of all states the best `beam`.
        """
        kept = {}
        for state, labels in found.items():
            labels.sort(key=lambda label: label.score)
            front: list[ParetoLabel] = []
            for label in labels:
                # Of whole pipelines, and along one order, the runners-up are wanted too: estimates
                # err.
                if (
                    label.i == 0
                    or self._only
                    or not any(self._beats(other, label) for other in front)
                ):
                    front.append(label)
            if front:
                kept[state] = self._trim(front)
        if self.beam is not None and len(kept) > self.beam:
            kept = dict(sorted(kept.items(), key=lambda item: item[1][0].score)[: self.beam])
        return kept

    def _trim(self, front: list[ParetoLabel]) -> list[ParetoLabel]:
        return front[: self.keep]

    def _beats(self, a: ParetoLabel, b: ParetoLabel) -> bool:
        if self.is_small and a.g != b.g:
            # estimates tie where shared links decide; where there is time, let the simulator see
            # both
            return False
        return (
            a.span_s <= b.span_s
            and a.done_s <= b.done_s
            and a.air_s <= b.air_s
            and (not self.thrifty or a.energy_j <= b.energy_j)
        )

    # --- estimates --------------------------------------------------------------------------------

    def _score(
        self,
        span: float,
        done: float,
        air: float,
        energy: float,
        i: int,
        j: int,
        g: int,
        state: int,
    ) -> float:
        """What the stages from cut i on score when the layers before go as fast as they can on what
        is free.
        """
        front, n = self.front_s[i], self.n_micro_batches
        floor_s = self._front_floor_s(i, state) if i else 0.0
        if i and self._shares:
            front = min(front, floor_s / n)
        if self.training:
            latency = max(done + self.fill * front / 3, span + self.fill * front, air)
        elif self.streaming:
            latency = max(n * done, air)
        else:
            latency = max(span + self.fill * front + (n - 1) * done, air)
        if i:
            latency = max(latency, floor_s)
        else:
            feed, lag = self._fed_s(j, g)
            latency = max(latency + (0.0 if self.streaming else lag), n * feed)
        if not self.thrifty:
            return latency
        return objective(self.problem.qoe, latency, energy + self._idle(state) * latency)

    def _fed_s(self, j: int, g: int) -> tuple[float, float]:
        """Seconds of home's rows for a first stage up to cut j on pattern g, and by how much later
        it is done for them.
        """
        found = self._feeds.get((j, g))
        if found is None:
            feed = self.stage_costs.feed_s(g)
            lag = self.stage_costs.feed_lag_s(j, g) if feed else 0.0
            found = self._feeds[j, g] = feed, lag
        return found

    def _front_floor_s(self, i: int, state: int) -> float:
        """About the least time for the layers in front of cut i on the devices that are free."""
        found = self._floors.get((i, state))
        if found is None:
            speed = sum(map(mul, self._free(state), self._speeds[i]))
            found = self._floors[i, state] = self.n_micro_batches / speed if speed else inf
        return found

    @cached_property
    def _speeds(self) -> list[tuple[float, ...]]:
        """Per cut, how often in a second a device of each class computes the layers before it."""
        firsts = [self.layers_s[same[0]] for same in self.classes]
        return [
            tuple(1 / max(before[i], 1e-12) for before in firsts) for i in range(len(self.cuts))
        ]

    def _free(self, state: int) -> tuple[int, ...]:
        """How many devices of each class are free when those of `state` are taken."""
        found = self._frees.get(state)
        if found is None:
            classes = zip(self.radix, self.sizes, strict=False)
            found = tuple(size - state // radix % (size + 1) for radix, size in classes)
            self._frees[state] = found
        return found

    def _idle(self, state: int) -> float:
        """Idle watts of the devices of `state`."""
        if state not in self._idle_w:
            self._idle_w[state] = sum(
                (self.problem.devices[members[0]].idle_w or 0.0)
                * (state // radix % (len(members) + 1))
                for members, radix in zip(self.classes, self.radix, strict=False)
            )
        return self._idle_w[state]

    def _longest_s(self, limit: float) -> float:
        """The latency from which on no plan scores below `limit`."""
        qoe = self.problem.qoe
        return (
            (qoe.latency_s or 0.0) + limit / max(qoe.lambda_j_per_s, 1e-12)
            if self.thrifty
            else limit
        )

    # --- plans ------------------------------------------------------------------------------------

    def plan(self, label: ParetoLabel) -> Plan:
        """The plan that a label stands for, its warm-up as deep as memory allows up to K_p."""
        stage_costs = self.stage_costs
        used = [0] * len(self.classes)
        stages = []
        chain: list[ParetoLabel] = []
        at: ParetoLabel | None = label
        while at is not None:
            chain.append(at)
            at = at.behind
        depths = warm_up_depths([part.depth for part in chain], self.n_micro_batches)
        for part, depth in zip(chain, depths, strict=True):
            pattern, names = stage_costs.patterns[part.g], []
            for c, size in enumerate(pattern):
                names += [
                    self.problem.devices[i].name for i in self.classes[c][used[c] : used[c] + size]
                ]
                used[c] += size
            stages.append(
                Stage(
                    start=self.cuts[part.i],
                    stop=self.cuts[part.j],
                    devices=tuple(names),
                    shares=stage_costs.stage_shares(part.i, part.j, part.g),
                    warm_up=depth if self.training else 1,
                    recompute=stage_costs.table.recomputes,
                )
            )
        return Plan(
            planner="potluck",
            model=self.problem.model,
            stages=tuple(stages),
            micro_batch=stage_costs.micro_batch,
            n_micro_batches=self.n_micro_batches,
            training=self.training,
            latency_s=label.score,
        )


def objective(qoe: QoE, latency_s: float, energy_j: float) -> float:
    """Dora, eq. (2): joules, and lambda for every second beyond the latency that was asked for.

    Parameters
    ----------
    qoe
        The latency asked for, and lambda.
    latency_s
        Of a plan.
    energy_j
        Of a plan.
    """
    return energy_j + qoe.lambda_j_per_s * max(0.0, latency_s - (qoe.latency_s or 0.0))
