"""Local search over plans in which a device may have several stages: any stage on any devices, cut
in two or joined with its neighbour.

With parallel branches a device can take two of them one by one, or one branch and later the head.
In a chain a device can take the first layers and the last, where these are too large, or too slow,
for all others. Our search over sets of devices knows no such plans. So it goes on from here: from
the best that it found; with branches from every group of devices with a stage for each chain of the
model, whose runs of stages then move to other devices; in a chain from plans that come back to
their first device.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, combinations, islice, pairwise, permutations, product

from potluck.planning.building_blocks import candidates
from potluck.planning.building_blocks.device_classes import ALL_SUBSETS, classes_of
from potluck.planning.building_blocks.row_levels import allocate_by_level
from potluck.planning.building_blocks.stages import make_stage
from potluck.planning.search.local_search import (
    at_edges,
    equal_cuts,
    fits,
    floor_s,
    keeping_less,
    near,
    with_depths,
)
from potluck.records import Plan, Problem, Stage, Training
from potluck.simulate import cost, flows

Group = tuple[str, ...]
Span = tuple[int, int, Group]
MAX_CUTS = 10  # of a chain, between which a device may come back
MAX_PARALLEL = 400  # plans with parts of two branches, each on a device of its own
MAX_APART = 3000  # plans of a stage for each chain: some 0.2 s
MAX_HELPING = 5000  # plans of three stages on any devices: some 0.2 s
WIDENED = (1, 2, 4)  # eighths of a device's rows that one more device takes
N_SPARES = 4  # devices without a stage that one may get


class StagePlacements:
    """The plans of one problem that differ in where stages are, their rows by Algorithm 1, depths
    K_p.
    """

    def __init__(self, table: cost.CostTable) -> None:
        self.table, self.problem = table, table.problem
        self.ends = flows.chain_ends(table.problem)
        self._groups: dict[int, list[Group]] = {}
        self._stages: dict[tuple[Span, int, bool], Stage | None] = {}
        self._work: dict[tuple[int, int, Group, tuple[int, ...]], float] = {}
        self._links: dict[Group, tuple[float, float]] = {}
        self._capacity = {
            medium.name: medium.capacity_bytes_per_s for medium in table.problem.network.media
        }

    def groups(self, micro_batch: int) -> list[Group]:
        """Devices that may share a stage of such micro-batches."""
        if micro_batch not in self._groups:
            self._groups[micro_batch] = _groups(self.problem, micro_batch)
        return self._groups[micro_batch]

    def by_chains(self, micro_batch: int) -> Iterator[Plan]:
        """For every group of devices the plan in which it takes the chains of the model one by
        one.
        """
        template = self._template(micro_batch)
        for group in self.groups(micro_batch):
            found = self._made(
                template, [(start, stop, group) for start, stop in pairwise(self.ends)]
            )
            if found is not None:
                yield found

    def apart(self, micro_batch: int) -> Iterator[Plan]:
        """Plans in which each chain of the model is a stage of its own, on any devices; none where
        those are too many to look at.
        """
        template, groups = self._template(micro_batch), self.groups(micro_batch)
        spans = [*pairwise(self.ends)]
        if len(groups) ** len(spans) > MAX_APART:
            return
        for chosen in product(groups, repeat=len(spans)):
            found = self._made(
                template, [(*span, g) for span, g in zip(spans, chosen, strict=True)]
            )
            if found is not None:
                yield found

    def _template(self, micro_batch: int) -> Plan:
        """A plan whose stages are still to be made."""
        problem = self.problem
        return Plan(
            planner="potluck",
            model=problem.model,
            stages=(
                Stage(
                    start=0,
                    stop=len(problem.layers),
                    devices=("any",),
                    shares=(micro_batch,),
                    recompute=self.table.recomputes,
                ),
            ),
            micro_batch=micro_batch,
            n_micro_batches=problem.workload.batch // micro_batch,
            training=isinstance(problem.workload, Training),
        )

    def returning(self, micro_batch: int) -> Iterator[Plan]:
        """Plans in which a device takes the first layers and the last, and another those
        between.
        """
        pairs = permutations([(device.name,) for device in self.problem.devices], 2)
        return self._in_three(micro_batch, [(a, b, a) for a, b in pairs])

    def helping(self, micro_batch: int) -> Iterator[Plan]:
        """Plans of three stages, each of any devices, whatever else they do; none where those are
        too many to look at.
        """
        groups = self.groups(micro_batch)
        if len(groups) ** 3 * len(self._inner_cuts()) ** 2 / 2 > MAX_HELPING:
            return iter(())
        chosen = product(groups, repeat=3)
        return self._in_three(micro_batch, [(a, b, c) for a, b, c in chosen if a != b != c])

    def _inner_cuts(self) -> list[int]:
        n_layers = len(self.problem.layers)
        return sorted({*candidates.cuts(self.problem, MAX_CUTS), 1, n_layers - 1} - {0, n_layers})

    def _in_three(
        self, micro_batch: int, chosen: Sequence[tuple[Group, Group, Group]]
    ) -> Iterator[Plan]:
        """Plans with two cuts, the stages on each of the groups."""
        template, n_layers = self._template(micro_batch), len(self.problem.layers)
        for (first, last), (a, b, c) in product(combinations(self._inner_cuts(), 2), chosen):
            found = self._made(template, [(0, first, a), (first, last, b), (last, n_layers, c)])
            if found is not None:
                yield found

    def neighbours(self, _: cost.CostTable, plan: Plan) -> Iterator[Plan]:
        """Plans with a run of stages elsewhere, two stages as one, or one as two."""
        seen = {plan.stages}
        for spans in self._rearranged(plan):
            found = self._made(plan, spans)
            if found is not None and found.stages not in seen:
                seen.add(found.stages)
                yield found

    def joined(self, plan: Plan) -> Iterator[Plan]:
        """Plans with two neighbouring stages of the same devices as one."""
        for p, (left, right) in enumerate(pairwise(plan.stages)):
            if left.devices == right.devices:
                one = left.start, right.stop, left.devices
                found = self._made(plan, [*plan.stages[:p], one, *plan.stages[p + 2 :]])
                if found is not None:
                    yield found

    def ranked(self, table: cost.CostTable, plan: Plan) -> Iterator[Plan]:
        """All those, and plans that differ in one cut, share, depth or device: first those that may
        be fastest.
        """
        yield from sorted(chain(near(table, plan), self.neighbours(table, plan)), key=self.least_s)
        yield from at_edges(table, plan)

    def regrouped(self, _: cost.CostTable, plan: Plan) -> Iterator[Plan]:
        """Plans of a home of many devices with two stages as one, one as two, or a device in
        another stage, or also in another: first those that may be fastest.
        """
        found = (self._made(plan, spans) for spans in self._other_groups(plan))
        plans = {made.stages: made for made in found if made is not None}
        yield from sorted(plans.values(), key=self.least_s)

    def _other_groups(self, plan: Plan) -> Iterator[list[Stage | Span]]:
        stages = plan.stages
        for p, (left, right) in enumerate(pairwise(stages)):
            group = tuple(dict.fromkeys(left.devices + right.devices))
            yield [*stages[:p], (left.start, right.stop, group), *stages[p + 2 :]]
        for p, stage in enumerate(stages):
            for cut, (first, second) in product(self._cuts(stage), _halves(stage.devices)):
                parts = [(stage.start, cut, first), (cut, stage.stop, second)]
                yield [*stages[:p], *parts, *stages[p + 1 :]]
        spares = self._spares(plan)
        for p, stage in enumerate(stages):
            neighbours = [other.devices for other in stages[max(p - 1, 0) : p + 2]]
            for wider in self._widened(stage, [*spares, *chain(*neighbours)]):
                yield [*stages[:p], wider, *stages[p + 1 :]]
        alone = {stage.devices for stage in stages if len(stage.devices) == 1}
        for name in (*plan.devices, *spares):
            for q, stage in enumerate(stages):
                if name not in stage.devices and (name,) not in alone:
                    yield _moved(stages, q, name)

    def _spares(self, plan: Plan) -> list[str]:
        """The fastest devices that have nothing to do, of alike ones the first."""
        names = [device.name for device in self.problem.devices]
        used = set(plan.devices)
        free = [[names[i] for i in same if names[i] not in used] for same in classes_of(self.table)]
        n_layers = len(self.problem.layers)
        return sorted(
            (same[0] for same in free if same),
            key=lambda name: self.table.forward_s(name, 0, n_layers, plan.micro_batch),
        )[:N_SPARES]

    def least_s(self, plan: Plan) -> float:
        """The longest way of one micro-batch through the stages, or the busiest device: a step
        takes no less.
        """
        if not plan.training and getattr(self.problem.workload, "streaming", False):
            return floor_s(self.table, plan)  # many are on their way at once
        stages, at_s = plan.stages, [0.0] * len(plan.stages)
        for p, (stage, handed) in enumerate(zip(stages, self.table.handed(stages), strict=True)):
            at_s[p] += self._work_s(stage, plan.training)
            for group in handed:
                for q in group.to:
                    nbytes = group.output_bytes + (group.gradient_bytes if plan.training else 0)
                    at_s[q] = max(
                        at_s[q], at_s[p] + self._link_s(stage, stages[q], nbytes * plan.micro_batch)
                    )
        return max(*at_s, floor_s(self.table, plan))

    def _work_s(self, stage: Stage, training: bool) -> float:
        """What the device that is ready first takes for its rows of one micro-batch."""
        key = stage.start, stage.stop, stage.devices, stage.shares
        if key not in self._work:
            self._work[key] = min(
                self.table.forward_s(name, stage.start, stage.stop, rows)
                + (self.table.backward_s(name, stage.start, stage.stop, rows) if training else 0.0)
                for name, rows in zip(stage.devices, stage.shares, strict=True)
            )
        return self._work[key]

    def _link_s(self, source: Stage, target: Stage, nbytes: int) -> float:
        """Between two devices; rows that several share go many ways, so that nothing is counted."""
        pair = source.devices[0], target.devices[0]
        if len(source.devices) > 1 or len(target.devices) > 1 or pair[0] == pair[1]:
            return 0.0
        if pair not in self._links:
            path = self.problem.network.path(*pair)
            self._links[pair] = (
                path.latency_s,
                max((n / self._capacity[name] for name, n in path.media), default=0.0),
            )
        latency_s, per_byte_s = self._links[pair]
        return latency_s + nbytes * per_byte_s

    def _rearranged(self, plan: Plan) -> Iterator[list[Stage | Span]]:
        """One thing changed: stages that stay, and spans of layers with the group they go to."""
        stages = plan.stages
        n_stages = len(plan.stages)
        groups = self.groups(plan.micro_batch)
        for p, q in ((p, p + n) for n in range(1, n_stages + 1) for p in range(n_stages - n + 1)):
            for group in groups:
                yield [
                    *stages[:p],
                    *((stage.start, stage.stop, group) for stage in stages[p:q]),
                    *stages[q:],
                ]
        for p, (left, right) in enumerate(pairwise(stages)):
            for group in dict.fromkeys((left.devices, right.devices)):
                yield [*stages[:p], (left.start, right.stop, group), *stages[p + 2 :]]
        for p, q in ((p, q) for p in range(n_stages) for q in range(n_stages) if p != q):
            yield from self._exchanged(stages, p, q)
        names = [device.name for device in self.problem.devices]
        for p, stage in enumerate(stages):
            for wider in self._widened(stage, names):
                yield [*stages[:p], wider, *stages[p + 1 :]]
        for p, stage in enumerate(stages):
            for pair in self._in_two(stage, groups, names):
                yield [*stages[:p], *pair, *stages[p + 1 :]]
        both = product(self._parallel, permutations(names, 2))
        for (chain_a, chain_b), (one, other) in islice(both, MAX_PARALLEL):
            yield _overlaid(_overlaid(stages, (*chain_a, (one,))), (*chain_b, (other,)))

    def _in_two(
        self, stage: Stage, groups: Sequence[Group], names: Sequence[str]
    ) -> Iterator[tuple[Stage | Span, Stage | Span]]:
        """The stage cut in two, with one half elsewhere or on one more of the devices."""
        for cut in self._cuts(stage):
            first, second = replace(stage, stop=cut), replace(stage, start=cut)
            for other in self._on_others(first, groups, names):
                yield other, second
            for other in self._on_others(second, groups, names):
                yield first, other

    def _on_others(
        self, stage: Stage, groups: Sequence[Group], names: Sequence[str]
    ) -> Iterator[Stage | Span]:
        yield from ((stage.start, stage.stop, group) for group in groups)
        yield from self._widened(stage, names)

    @cached_property
    def _parallel(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Spans of layers of two branches that may be at work at once: whole ones, and in a small
        model their first layers or their last.
        """
        spans = [*pairwise(self.ends)]
        takes = flows.before(flows.output_groups(self.problem, _each(spans)))
        behind = list[set[int]]()  # of each chain, those that it waits for
        for sources in takes:
            behind.append({*sources}.union(*(behind[p] for p in sources)))
        pairs = [(p, q) for p, q in combinations(range(len(spans)), 2) if p not in behind[q]]
        found = [both for p, q in pairs for both in product(_ends_of(spans[p]), _ends_of(spans[q]))]
        n_pairs = len(self.problem.devices) * (len(self.problem.devices) - 1)
        if len(found) * n_pairs <= MAX_PARALLEL:
            return found
        return [(spans[p], spans[q]) for p, q in pairs]

    def _widened(self, stage: Stage, names: Sequence[str]) -> Iterator[Stage]:
        """The stage with one of these devices more, which takes some rows of the one that has most:
        few, where it has another stage to do.
        """
        lead = stage.devices.index(stage.lead)
        max_rows = stage.shares[lead]
        for name in names:
            if name in stage.devices:
                continue
            for rows in sorted({max_rows * part // 8 for part in WIDENED} - {0}):
                shares = list(stage.shares)
                shares[lead] -= rows
                yield replace(stage, devices=(*stage.devices, name), shares=(*shares, rows))

    def _exchanged(self, stages: Sequence[Stage], p: int, q: int) -> Iterator[list[Stage | Span]]:
        """Stage p goes to the devices of stage q, and the first or the last part of that one to
        those of stage p.
        """
        one, other = stages[p], stages[q]
        if one.devices == other.devices:
            return
        for cut in self._cuts(other):
            for first, second in ((one.devices, other.devices), (other.devices, one.devices)):
                found: list[Stage | Span] = [*stages]
                found[p] = (one.start, one.stop, other.devices)
                found[q : q + 1] = [(other.start, cut, first), (cut, other.stop, second)]
                yield found

    def _cuts(self, stage: Stage) -> Sequence[int]:
        inside = [end for end in self.ends if stage.start < end < stage.stop]
        return inside or equal_cuts(stage)

    def _made(self, plan: Plan, spans: Sequence[Stage | Span]) -> Plan | None:
        """`plan` with these stages, which recompute as those of `plan` with their first layers, or
        where memory asks for it; None where they do not fit.
        """
        known = list[Stage]()
        for span in spans:
            stage = span if isinstance(span, Stage) else self._stage(span, plan)
            if stage is None:
                return None
            known.append(stage)
        deep = with_depths(self.table, known)
        if self.table.recomputes:
            deep = keeping_less(self.table, deep, self.table.budgets)
        return replace(plan, stages=deep) if fits(self.table, plan, deep) else None

    def _stage(self, span: Span, plan: Plan) -> Stage | None:
        again = any(
            stage.recompute and stage.start <= span[0] < stage.stop for stage in plan.stages
        )
        key = span, plan.micro_batch, again
        if key not in self._stages:
            made = make_stage(self.table.of(again), *span, plan.micro_batch, 1, allocate_by_level)
            self._stages[key] = made and made[0]
        return self._stages[key]


def _halves(group: Group) -> Iterator[tuple[Group, Group]]:
    """A group for each of two stages: the same, or some devices in front and the others behind."""
    yield group, group
    for n in sorted({1, len(group) // 2, len(group) - 1} - {0, len(group)}):
        yield group[:n], group[n:]


def _each(spans: Sequence[tuple[int, int]]) -> list[Stage]:
    """A stage for each span, of whatever device."""
    return [Stage(start=a, stop=b, devices=("any",), shares=(1,)) for a, b in spans]


def _ends_of(span: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """A span, and its first and last layers."""
    start, stop = span
    yield span
    for cut in range(start + 1, stop):
        yield start, cut
        yield cut, stop


def _overlaid(stages: Sequence[Stage | Span], span: Span) -> list[Stage | Span]:
    """The stages with those layers on other devices."""
    start, stop, _ = span
    found = list[Stage | Span]()
    for stage in stages:
        first, last, group = (
            (stage.start, stage.stop, stage.devices) if isinstance(stage, Stage) else stage
        )
        if last <= start or first >= stop:
            found.append(stage)
            continue
        if first < start:
            found.append((first, start, group))
        if first <= start < last:
            found.append(span)
        if last > stop:
            found.append((stop, last, group))
    return found


def _moved(stages: Sequence[Stage], q: int, name: str) -> list[Stage | Span]:
    """The stages with a device in stage q, and no longer in another."""
    found: list[Stage | Span] = []
    for number, stage in enumerate(stages):
        others = tuple(other for other in stage.devices if other != name)
        if number == q:
            found.append((stage.start, stage.stop, (*stage.devices, name)))
        else:
            changed = others != stage.devices
            found.append((stage.start, stage.stop, others) if changed else stage)
    return found


def _groups(problem: Problem, rows: int) -> list[Group]:
    """Devices that may share a stage: all subsets with a row for each in a small home, else each
    alone and all.
    """
    names = [device.name for device in problem.devices]
    if len(names) <= ALL_SUBSETS:
        return [
            group for n in range(1, min(len(names), rows) + 1) for group in combinations(names, n)
        ]
    return [*((name,) for name in names), tuple(names)]
