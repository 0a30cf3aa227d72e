"""DeepCEE: groups of well connected devices in a compact zero-bubble pipeline, by beam search.

Wang et al., "DeepCEE": section 3.3.2 (eq. 1) and 3.3.3 (Algorithm 1). The first level is a pipeline
over groups by network, in an order and with cuts that the beam finds; inside a group, asymmetric
data or pipeline parallelism in proportion to speed.

Glossary: `T` cost of a candidate; `B` micro-batches of a step; per stage `t_f` fill (a forward and
its transfer), `t_c` computing of a micro-batch, `t_l` transfer that computing does not hide, `AL`
the group's collective.

Where we differ: the batch is the user's, so that Algorithm 1's outer loop has one; `t_l` counts for
every micro-batch, as each waits for it; thresholds of groups are not set but tried, all of them
(`planning.grouping`). Tensor parallelism inside a group is left out. It is synchronous: theirs
takes 6 to 8 % more iterations, as gradients are of older weights (section 4.2).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, combinations, pairwise, permutations
from math import inf
from random import Random

from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.build import balanced, build, shared_s
from potluck.planning.building_blocks.row_allocation import proportion
from potluck.planning.grouping import Grouping, best_grouping, groupings
from potluck.records import Plan, Problem, Training
from potluck.simulate import cost, direct_simulation, equations

BEAM = 6  # l of Algorithm 1
MAX_ITERATIONS = 12
MAX_REGIONS = 12  # orders of more are beyond a beam
MOST_JUDGED = 3  # plans of a grouping, to choose among groupings
FEW = 3  # groups, all orders of which are begun with

Order = tuple[tuple[str, ...], ...]
StageKey = tuple[tuple[str, ...], int, int]  # group, layers [start, stop)


@dataclass(frozen=True, slots=True)
class GroupedPipeline:
    """Groups in the order of the pipeline, and the cuts between them."""

    order: Order
    bounds: tuple[int, ...]


def plan_deepcee(problem: Problem, table: cost.CostTable | None = None) -> Iterator[Plan]:
    """Its plans for every grouping and micro-batch: for each the best of the beam, with data and
    with pipeline parallelism inside the groups.
    """
    for _, plan in grouped_plans(problem, table or cost.CostTable(problem)):
        yield plan


def grouped_plans(problem: Problem, table: cost.CostTable) -> Iterator[tuple[Grouping, Plan]]:
    """The plans, each with its grouping.

    Parameters
    ----------
    problem
        What is planned.
    table
        Of this problem.
    """
    known, places = dict[tuple[str, int], list[float]](), candidates.cuts(problem)
    searches = dict[int, BeamSearch]()
    found_of = dict[tuple[Order, int], list[GroupedPipeline]]()
    for grouping in groupings(problem):
        if len(grouping.regions) >= min(len(places), MAX_REGIONS + 1):
            continue
        for micro_batch in candidates.micro_batches(problem):
            if micro_batch not in searches:
                searches[micro_batch] = BeamSearch(table, places, micro_batch, known)
            search, key = searches[micro_batch], (grouping.regions, micro_batch)
            if key not in found_of:
                found_of[key] = search.run(grouping.regions)[:2]
            for found in found_of[key]:
                for plan in _built(table, grouping, found, micro_batch, search):
                    yield grouping, plan


def chosen_grouping(
    problem: Problem, table: cost.CostTable | None = None
) -> tuple[Grouping, Mapping[tuple[float, float], float]]:
    """The grouping whose best plan the simulator thinks soonest, and the seconds by thresholds.

    Parameters
    ----------
    problem
        What is planned.
    table
        Of this problem, if there is one already.
    """
    table, plans = table or cost.CostTable(problem), dict[tuple[Order, ...], list[Plan]]()
    simulator = direct_simulation.Direct(problem, table)
    for grouping, plan in grouped_plans(problem, table):
        plans.setdefault(grouping.groups, []).append(plan)

    def plan_s(grouping: Grouping) -> float:
        found = sorted(plans.get(grouping.groups, ()), key=lambda plan: plan.latency_s or inf)
        return min((simulator.run(plan).latency_s for plan in found[:MOST_JUDGED]), default=inf)

    return best_grouping(problem, plan_s)


class BeamSearch:
    """Algorithm 1 for one micro-batch size.

    Parameters
    ----------
    table
        Of the problem.
    places
        Where stages may begin and end, ascending.
    micro_batch
        Rows.
    known
        Kept between searches on this table.
    """

    def __init__(
        self,
        table: cost.CostTable,
        places: Sequence[int],
        micro_batch: int,
        known: dict[tuple[str, int], list[float]],
    ) -> None:
        self.table = table
        self.places = places
        self.micro_batch = micro_batch
        self.known = known
        self._costs: dict[GroupedPipeline, float] = {}
        self._stages: dict[StageKey, StageTerms] = {}
        self._crossings: dict[tuple[StageKey, StageKey], float] = {}

    def run(self, regions: Order) -> list[GroupedPipeline]:
        """The best candidates first: swap groups, shift layers, keep l (lines 3 to 11)."""
        beam = self._started(regions)
        for _ in range(MAX_ITERATIONS):
            wider = dict.fromkeys([*beam, *(o for c in beam for o in self._expanded(c))])
            best = sorted(wider, key=self.cost_s)[:BEAM]
            if best == beam:
                break
            beam = best
        return beam

    def cost_s(self, candidate: GroupedPipeline) -> float:
        """T of eq. (1)."""
        if candidate not in self._costs:
            ends = pairwise(candidate.bounds)
            keys = [(group, *end) for group, end in zip(candidate.order, ends, strict=True)]
            stages = [self._terms(key) for key in keys]
            crossings_s = [self._crossing_s(*pair) for pair in pairwise(keys)]
            n_micro_batches = self.table.problem.workload.batch // self.micro_batch
            self._costs[candidate] = equation_1_s(stages, crossings_s, n_micro_batches)
        return self._costs[candidate]

    def _terms(self, key: StageKey) -> "StageTerms":
        if key not in self._stages:
            self._stages[key] = stage_terms(self.table, *key, self.micro_batch)
        return self._stages[key]

    def _crossing_s(self, left: StageKey, right: StageKey) -> float:
        """Seconds of a micro-batch from one stage to the next."""
        if (left, right) not in self._crossings:
            problem, shares = self.table.problem, [self._terms(k).shares for k in (left, right)]
            row_bytes = problem.layers[left[2] - 1].output_bytes
            self._crossings[left, right] = equations.cut_s(
                problem.network, row_bytes, left[0], shares[0], right[0], shares[1]
            )
        return self._crossings[left, right]

    def _started(self, regions: Order) -> list[GroupedPipeline]:
        """Candidates of l orders, layers in proportion to compute (line 3)."""
        if len(regions) <= FEW:
            orders = list(permutations(regions))
        else:
            rng = Random(0)
            shuffled = [tuple(rng.sample(regions, len(regions))) for _ in range(BEAM - 2)]
            orders = [regions, regions[::-1], *shuffled]
        found = filter(None, map(self._balanced, orders))
        return sorted(found, key=self.cost_s)[:BEAM]

    def _balanced(self, order: Order) -> GroupedPipeline | None:
        stage_s = shared_s(self.table, order, self.micro_batch, self.known)
        bounds = balanced(self.places, len(order), stage_s)
        return None if bounds is None else GroupedPipeline(order, tuple(bounds))

    def _expanded(self, candidate: GroupedPipeline) -> Iterator[GroupedPipeline]:
        """Two groups swapped, each with as many layers as before; a cut shifted (line 6)."""
        order, places = candidate.order, self.places
        at = [places.index(bound) for bound in candidate.bounds]
        for i, j in combinations(range(len(order)), 2):
            swapped, widths = [*order], [b - a for a, b in pairwise(at)]
            swapped[i], swapped[j] = order[j], order[i]
            widths[i], widths[j] = widths[j], widths[i]
            bounds = tuple(places[k] for k in accumulate(widths, initial=0))
            yield GroupedPipeline(tuple(swapped), bounds)
        for p in range(1, len(order)):
            for k in (at[p] - 1, at[p] + 1):
                if at[p - 1] < k < at[p + 1]:
                    bounds = (*candidate.bounds[:p], places[k], *candidate.bounds[p + 1 :])
                    yield GroupedPipeline(order, bounds)


@dataclass(frozen=True, slots=True)
class StageTerms:
    """Of a stage in eq. (1), seconds: its forward, `t_c`, and `AL`; and the rows of each device."""

    forward_s: float
    computing_s: float
    collective_s: float = 0.0
    shares: tuple[int, ...] = ()


def equation_1_s(
    stages: Sequence[StageTerms], crossings_s: Sequence[float], n_micro_batches: int
) -> float:
    """T = max over stages s of sum t_f + B t_c + sum t_l + AL, eq. (1).

    By hand: two stages of 1 s forward and 3 s in all, 4 s between them, 2 micro-batches. The first
    has 2 x 3 = 6; the second (1 + 4) + 2 x 3 + 2 x (4 - 3) = 13.

    >>> equation_1_s([StageTerms(1.0, 3.0)] * 2, [4.0], 2)
    13.0

    Parameters
    ----------
    stages
        In the order of the pipeline.
    crossings_s
        Seconds of a micro-batch between each two.
    n_micro_batches
        B.
    """
    fill_s = 0.0
    late_s = 0.0
    worst_s = 0.0
    for stage, crossing_s in zip(stages, [*crossings_s, 0.0], strict=True):
        running_s = n_micro_batches * stage.computing_s
        worst_s = max(worst_s, fill_s + running_s + late_s + stage.collective_s)
        fill_s += stage.forward_s + crossing_s  # t_f
        late_s += n_micro_batches * max(0.0, crossing_s - stage.computing_s)  # t_l
    return worst_s


def stage_terms(
    table: cost.CostTable, group: Sequence[str], start: int, stop: int, micro_batch: int
) -> StageTerms:
    """What eq. (1) has to know of a group that computes layers [start, stop) in data parallelism.

    Parameters
    ----------
    table
        Of the problem.
    group
        Its devices.
    start, stop
        Layers [start, stop).
    micro_batch
        Rows.
    """
    shares = _shares(table, group, start, stop, micro_batch)
    rows = [(name, n) for name, n in zip(group, shares, strict=True) if n]
    forward_s = [table.forward_s(name, start, stop, n) for name, n in rows]
    backward_s = [table.backward_s(name, start, stop, n) for name, n in rows]
    collective_s = 0.0  # AL = V / min(bandwidth)
    if isinstance(table.problem.workload, Training) and len(rows) > 1:
        nbytes = table.summed_bytes(start, stop)
        collective_s = equations.all_reduce_s(table.problem.network, [n for n, _ in rows], nbytes)
    computing_s = max(f + b for f, b in zip(forward_s, backward_s, strict=True))
    return StageTerms(max(forward_s), computing_s, collective_s, shares)


def _shares(
    table: cost.CostTable, group: Sequence[str], start: int, stop: int, micro_batch: int
) -> tuple[int, ...]:
    """Rows in proportion to speed (section 3.3.3, asymmetric DP)."""
    seconds = [max(table.forward_s(name, start, stop, micro_batch), 1e-12) for name in group]
    return tuple(proportion(micro_batch, [1 / s for s in seconds]))


def _built(
    table: cost.CostTable,
    grouping: Grouping,
    found: GroupedPipeline,
    micro_batch: int,
    search: BeamSearch,
) -> Iterator[Plan]:
    """Plans of a candidate: every group one stage (DP), or its second-level groups, or its devices,
    a stage each (PP).
    """
    parts = dict(zip(grouping.regions, grouping.groups, strict=True))
    ways: list[Callable[[tuple[str, ...]], Order]] = [
        lambda region: (region,),
        parts.__getitem__,
        lambda region: tuple((name,) for name in region),
    ]
    made = dict.fromkeys(_stages(search, found, way) for way in ways)
    for stages in filter(None, made):
        plan = build(table, "deepcee", stages.bounds, stages.order, micro_batch)
        if plan is not None:
            pipelined = plan.training and len(plan.stages) > 1
            yield replace(
                plan, latency_s=search.cost_s(stages), schedule="zb-compact" if pipelined else ""
            )


def _stages(
    search: BeamSearch, found: GroupedPipeline, way: Callable[[tuple[str, ...]], Order]
) -> GroupedPipeline | None:
    """The layers of every group divided over its parts in proportion to their speed; None where
    they are too few.
    """
    order, bounds = list[tuple[str, ...]](), [found.bounds[0]]
    for region, (start, stop) in zip(found.order, pairwise(found.bounds), strict=True):
        inner = way(region)
        places = [place for place in search.places if start <= place <= stop]
        stage_s = shared_s(search.table, inner, search.micro_batch, search.known)
        ends = balanced(places, len(inner), stage_s)
        if ends is None:
            return None
        order += inner
        bounds += ends[1:]
    return GroupedPipeline(tuple(order), tuple(bounds))
