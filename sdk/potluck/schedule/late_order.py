"""In which order stages act where updates come one step late: what keeps them at work, at most one
step ahead. Pure.

One step's 1F1B after the other's would be legal, and so would one 1F1B of all micro-batches. But in
a fixed turn of forward and backward a stage waits for a forward that is on its way while it has a
backward that could be done, or the other way round. So there is a list scheduling beside them: a
row that is free takes what is ready. Which is soonest, times decide.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import product

from potluck.errors import PlanError
from potluck.records import Plan
from potluck.schedule.bubbles import Arrivals, StageTimes, makespan_s
from potluck.schedule.ir import BACKWARD, FORWARD, Action, Schedule
from potluck.schedule.policies import POLICIES, Times, equal_times, warm_ups_of_rows
from potluck.schedule.program_builder import Compiled
from potluck.schedule.stage_graph import Before
from potluck.schedule.validate import check_one_step_late, in_order

Steps = Sequence[Sequence[int]]  # per stage, the step of each micro-batch
Judge = Callable[[Compiled], tuple[int, float]]  # bytes beyond what there is, and seconds
ORDERS = BACKWARD + FORWARD, FORWARD + BACKWARD


def late_orders(
    plans: Sequence[Plan], before: Before, steps: Steps, times: Times | None
) -> tuple[Schedule, ...]:
    """What there is to choose from, by a plain model of transfers the soonest first. Rows keep as
    many micro-batches as by the plan's warm-ups, or as memory has room for.

    Parameters
    ----------
    plans
        The plan with the micro-batches of the first step alone, of the second, and so on; then with
        those of all of them.
    before
        Per stage, the stages that it takes tensors from.
    steps
        Per stage, the step of each micro-batch.
    times
        What the plan's stages take; default: all as long, and transfers no time.

    Raises
    ------
    PlanError
        The schedule of one step is not legal.
    """
    *singles, whole = plans
    known = times(whole) if times is not None else _equal(whole, before)
    counts = [len(numbers) for numbers in steps]
    tried = [_on_rows(each, before, counts, known) for each in _turns(singles, whole, known, steps)]
    planned = [sum(whole.stages[p].warm_up for p in stages) for stages in known.rows]
    rooms = planned, known.most_kept, [*map(min, known.most_kept, _depths(known))]
    for kinds, most in product(ORDERS, rooms):
        kept = [max(n, len(stages)) for n, stages in zip(most, known.rows, strict=True)]
        tried += _listed(known, steps, kinds, kept)
    return tuple(sorted(dict.fromkeys(tried), key=lambda each: makespan_s(each, known)))


def _equal(plan: Plan, before: Before) -> StageTimes:
    """Where nobody knows any times, nor how much memory there is: room for one more of each
    stage.
    """
    known = equal_times(plan)
    return replace(
        known,
        handed_s={(q, p): (0.0, 0.0) for p, sources in enumerate(before) for q in sources},
        most_kept=tuple(
            n + len(stages) for n, stages in zip(known.most_kept, known.rows, strict=True)
        ),
    )


def _turns(
    singles: Sequence[Plan], whole: Plan, known: StageTimes, steps: Steps
) -> Iterator[Schedule]:
    """What 1F1B makes of it: of each step by itself, and of all as one with no deeper warm-ups than
    it needs, where that is no more than one step late.
    """
    policy, offsets = POLICIES["1f1b"], [0] * len(steps)
    rows: list[list[Action]] = [[] for _ in steps]
    for single in singles:
        for p, row in enumerate(policy(single)):
            rows[p] += [
                action._replace(micro_batch=action.micro_batch + offsets[p]) for action in row
            ]
        offsets = [n + each for n, each in zip(offsets, single.counts, strict=True)]
    yield tuple(map(tuple, rows))
    sizes, counts = [stage.rows for stage in whole.stages], [*map(len, steps)]
    depths = warm_ups_of_rows(sizes, counts, known.before)
    stages = zip(whole.stages, depths, strict=True)
    calm = tuple(replace(stage, warm_up=min(stage.warm_up, depth)) for stage, depth in stages)
    schedule = policy(replace(whole, stages=calm))
    try:
        check_one_step_late(schedule, steps)
    except PlanError:
        return
    yield schedule


def _on_rows(
    schedule: Schedule, before: Before, counts: Sequence[int], known: StageTimes
) -> Schedule:
    """The same with one row for all stages that share devices."""
    order = [action for _, action in in_order(schedule, before, counts)]
    return tuple(tuple(a for a in order if a.stage in stages) for stages in known.rows)


def _depths(known: StageTimes) -> list[int]:
    """Per row, what keeps it at work where transfers take as long as stages."""
    n = len(known.rows)
    return [
        sum(2 * (known.n_stages - p) - 1 for p in stages) if len(stages) > 1 else 2 * (n - r) - 1
        for r, stages in enumerate(known.rows)
    ]


class _LateRow:
    """What one row has done."""

    def __init__(self, stages: Sequence[int], steps: Steps, most_kept: int) -> None:
        self.stages, self._steps = stages, steps
        self._most_kept = most_kept
        self._next = {(p, kind): 0 for p in stages for kind in (FORWARD, BACKWARD)}
        self._kept = 0
        self.free_s = 0.0
        self.actions = list[Action]()

    def due(self, kind: str) -> list[Action]:
        """The next of this kind of every stage, the last stage first, that nothing but what others
        send can keep.
        """
        found = []
        for place, p in reversed([*enumerate(self.stages)]):
            m = self._next[p, kind]
            if m < len(self._steps[p]) and (kind == BACKWARD or self._may_begin(place, p, m)):
                found.append(Action(p, kind, m))
        return found

    def _may_begin(self, place: int, p: int, m: int) -> bool:
        """Whether the weights are there, and room, also for one forward of each later stage."""
        n_done, step = self._next[p, BACKWARD], self._steps[p][m]
        is_late = n_done < len(self._steps[p]) and self._steps[p][n_done] < step - 1
        return not is_late and self._kept + len(self.stages) - place <= self._most_kept

    def begin(self, action: Action, start_s: float, seconds: float) -> None:
        """Take this one."""
        self._next[action.stage, action.kind] += 1
        self._kept += 1 if action.kind == FORWARD else -1
        self.free_s = start_s + seconds
        self.actions.append(action)


def _listed(
    known: StageTimes, steps: Steps, kinds: str, most_kept: Sequence[int]
) -> Iterator[Schedule]:
    """One schedule, or none where it would never end."""
    arrivals = Arrivals(known, split=False)
    rows = [_LateRow(stages, steps, n) for stages, n in zip(known.rows, most_kept, strict=True)]
    row_of, looks = known.row_of, [(0.0, r) for r in range(len(rows))]  # when a row looks again
    while looks:
        now_s, r = heappop(looks)
        row = rows[r]
        if row.free_s > now_s:
            continue
        for action in (action for kind in kinds for action in row.due(kind)):
            ready_s = arrivals.ready_s(action)
            if ready_s is None or ready_s > now_s:
                continue
            row.begin(action, now_s, known.action_s(action.stage, action.kind))
            heappush(looks, (row.free_s, r))
            for stage, came_s in arrivals.done(action, row.free_s):
                heappush(looks, (came_s, row_of[stage]))
            break
    if sum(len(row.actions) for row in rows) == 2 * sum(map(len, steps)):
        yield tuple(tuple(row.actions) for row in rows)
