"""How long a schedule takes where each action and transfer has a time, and how much of that devices
stand idle: bubbles.

A plain model for policies: an action takes its stage's time, a medium carries one transfer after
the other. `simulate` says what a compiled plan takes where transfers share media fairly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from potluck.errors import PlanError
from potluck.schedule.ir import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Action, Schedule
from potluck.schedule.rows import meeting
from potluck.schedule.stage_graph import Before

_KINDS = (FORWARD, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """What decides a step, per micro-batch.

    Parameters
    ----------
    forward_s, input_s, weight_s
        Per stage: its forward, and the two parts of its backward.
    handed_s
        (stage, later stage): seconds of a transfer on, and of the gradient back; of the rows of
        the smaller of their micro-batches.
    rows
        The stages of each row of a schedule: those that share devices.
    most_kept
        Per row: forwards whose weight gradients are not done yet, at most, as memory has it.
    media
        (stage, other stage): names of the media that such a transfer takes; default: one of its
        own each way.
    parts
        Per stage: how many of its micro-batches are one of the largest of all stages; default: 1.
    """

    forward_s: tuple[float, ...]
    input_s: tuple[float, ...]
    weight_s: tuple[float, ...]
    handed_s: Mapping[tuple[int, int], tuple[float, float]]
    rows: tuple[tuple[int, ...], ...]
    most_kept: tuple[int, ...]
    media: Mapping[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)
    parts: tuple[int, ...] = ()
    before: Before = field(init=False)
    behind: Before = field(init=False)

    def __post_init__(self) -> None:
        n = len(self.forward_s)
        before = [tuple(sorted(a for a, b in self.handed_s if b == p)) for p in range(n)]
        behind = [tuple(sorted(b for a, b in self.handed_s if a == p)) for p in range(n)]
        object.__setattr__(self, "parts", self.parts or (1,) * n)
        object.__setattr__(self, "before", tuple(before))
        object.__setattr__(self, "behind", tuple(behind))

    @property
    def n_stages(self) -> int:
        """P."""
        return len(self.forward_s)

    @property
    def row_of(self) -> dict[int, int]:
        """Stage -> row."""
        return {stage: r for r, stages in enumerate(self.rows) for stage in stages}

    def action_s(self, stage: int, kind: str) -> float:
        """Seconds of an action of this kind."""
        if kind == BACKWARD:
            return self.input_s[stage] + self.weight_s[stage]
        return {FORWARD: self.forward_s, INPUT_GRADIENT: self.input_s}.get(kind, self.weight_s)[
            stage
        ]

    def n_meeting(self, stage: int, other: int) -> int:
        """Micro-batches of the other stage that share rows with one of this stage."""
        return max(1, self.parts[other] // self.parts[stage])

    def targets(self, stage: int, kind: str) -> tuple[tuple[int, float], ...]:
        """Which stages get something from such an action, and the seconds that it is on its way."""
        if kind == FORWARD:
            return tuple((q, self.handed_s[stage, q][0]) for q in self.behind[stage])
        if kind == WEIGHT_GRADIENT:
            return ()
        return tuple((q, self.handed_s[q, stage][1]) for q in self.before[stage])


def chain_of(
    n_stages: int,
    n_kept: int,
    *,
    times_s: tuple[float, float, float] = (1.0, 1.0, 1.0),
    transfer_s: float = 0.0,
    rows: tuple[tuple[int, ...], ...] | None = None,
) -> StageTimes:
    """The times of equal stages in a chain.

    Parameters
    ----------
    n_stages
        P.
    n_kept
        Forwards whose weight gradients are not done yet, that a row has memory for.
    times_s
        Seconds of a forward, and of the two parts of its backward.
    transfer_s
        Seconds of every transfer, either way.
    rows
        Stages of each row; default: each its own.
    """
    rows = rows or tuple((p,) for p in range(n_stages))
    forward_s, input_s, weight_s = times_s
    row_of = {stage: r for r, stages in enumerate(rows) for stage in stages}
    handed = {
        (p, p + 1): (transfer_s, transfer_s) if row_of[p] != row_of[p + 1] else (0.0, 0.0)
        for p in range(n_stages - 1)
    }
    return StageTimes(
        forward_s=(forward_s,) * n_stages,
        input_s=(input_s,) * n_stages,
        weight_s=(weight_s,) * n_stages,
        handed_s=handed,
        rows=rows,
        most_kept=(n_kept,) * len(rows),
    )


class Arrivals:
    """When each action has what it takes from others, as far as these have been done.

    Parameters
    ----------
    times
        Of the stages.
    split
        Backwards come in two parts.
    """

    def __init__(self, times: StageTimes, *, split: bool) -> None:
        self._times, stages = times, range(times.n_stages)
        self._needed = {(p, kind): self._n_needed(p, kind) for p in stages for kind in _KINDS}
        self._targets = {(p, kind): times.targets(p, kind) for p in stages for kind in _KINDS}
        self._gradient = INPUT_GRADIENT if split else BACKWARD
        self._missing: dict[Action, int] = {}
        self._came_s: dict[Action, float] = {}
        self._free_s: dict[str, float] = {}  # per medium

    def ready_s(self, action: Action) -> float | None:
        """From when on it can be done; None while something is missing."""
        missing = self._missing.get(action)
        if missing is None:
            missing = self._needed[action.stage, action.kind]
        return None if missing else self._came_s.get(action, 0.0)

    def done(self, action: Action, stop_s: float) -> list[tuple[int, float]]:
        """This one has been done: to which other stages something of it comes, and when."""
        stage, kind, m = action
        came = list[tuple[int, float]]()
        if kind == FORWARD:
            self._arrive(Action(stage, self._gradient, m), stop_s)
        elif kind == INPUT_GRADIENT:
            self._arrive(Action(stage, WEIGHT_GRADIENT, m), stop_s)
        for target, on_way_s in self._targets[stage, kind]:
            for n in meeting(self._times.parts[stage], self._times.parts[target], m):
                came_s = self._carried_s(stage, target, stop_s, on_way_s) if on_way_s else stop_s
                arrival = Action(target, FORWARD if kind == FORWARD else self._gradient, n)
                self._arrive(arrival, came_s)
                came.append((target, came_s))
        return came

    def _carried_s(self, stage: int, target: int, ready_s: float, on_way_s: float) -> float:
        """When a transfer arrives that can begin then, behind those before it."""
        media = self._times.media.get((stage, target), (f"{stage}>{target}",))
        came_s = max([ready_s, *(self._free_s.get(name, 0.0) for name in media)]) + on_way_s
        self._free_s.update(dict.fromkeys(media, came_s))
        return came_s

    def _arrive(self, action: Action, at_s: float) -> None:
        needed = self._needed[action.stage, action.kind]
        self._missing[action] = self._missing.get(action, needed) - 1
        self._came_s[action] = max(at_s, self._came_s.get(action, 0.0))

    def _n_needed(self, stage: int, kind: str) -> int:
        """How many come before such an action."""
        times = self._times
        if kind == WEIGHT_GRADIENT:
            return 1
        if kind == FORWARD:
            return sum(times.n_meeting(stage, q) for q in times.before[stage])
        return 1 + sum(times.n_meeting(stage, q) for q in times.behind[stage])


def play(schedule: Schedule, times: StageTimes) -> dict[Action, tuple[float, float]]:
    """When each action starts and stops, each row in its order.

    Parameters
    ----------
    schedule
        Rows of actions.
    times
        Of the stages; its rows are not looked at.

    Raises
    ------
    PlanError
        Some action waits for ever.
    """
    split = any(action.kind == INPUT_GRADIENT for row in schedule for action in row)
    arrivals = Arrivals(times, split=split)
    position, free_s = [0] * len(schedule), [0.0] * len(schedule)
    spans = dict[Action, tuple[float, float]]()
    while len(spans) < sum(map(len, schedule)):
        # the earliest start of all: so that links carry what is ready first
        found: tuple[float, int] | None = None
        for r, row in enumerate(schedule):
            if position[r] < len(row):
                ready_s = arrivals.ready_s(row[position[r]])
                if ready_s is not None:
                    start_s = max(ready_s, free_s[r])
                    found = (start_s, r) if found is None else min(found, (start_s, r))
        if found is None:
            raise PlanError("The schedule waits for ever.")
        start_s, r = found
        action = schedule[r][position[r]]
        free_s[r] = start_s + times.action_s(action.stage, action.kind)
        spans[action] = start_s, free_s[r]
        arrivals.done(action, free_s[r])
        position[r] += 1
    return spans


def makespan_s(schedule: Schedule, times: StageTimes) -> float:
    """Seconds from the first action to the end of the last."""
    return max(stop_s for _, stop_s in play(schedule, times).values())


def work_s(times: StageTimes, n_micro_batches: int) -> list[float]:
    """Per row: seconds of all its actions, of so many of the largest micro-batches."""
    kinds = FORWARD, BACKWARD
    return [
        n_micro_batches
        * sum(times.parts[p] * times.action_s(p, kind) for p in stages for kind in kinds)
        for stages in times.rows
    ]


def bubble_frac(schedule: Schedule, times: StageTimes, n_micro_batches: int) -> float:
    """Which part of the time of all rows is idle.

    By hand: 1F1B of 2 equal stages and 2 micro-batches takes 9 units of F = I = W = 1, of which
    each row works 6: a third.

    Parameters
    ----------
    schedule
        Rows of actions.
    times
        Of the stages.
    n_micro_batches
        M.
    """
    total_s = makespan_s(schedule, times) * len(times.rows)
    return 1 - sum(work_s(times, n_micro_batches)) / total_s


def lower_bound_s(times: StageTimes, n_micro_batches: int) -> float:
    """No schedule is sooner: each row starts when its first input can be there, and then has all
    its work; and one micro-batch has to go all the way there and back.

    Parameters
    ----------
    times
        Of the stages.
    n_micro_batches
        M.
    """
    heads = _heads_s(times)
    there_and_back = max(
        heads[p] + times.forward_s[p] + times.input_s[p] + _tail_s(times, p)
        for p in range(times.n_stages)
    )
    rows = [
        min(heads[p] for p in stages) + work
        for stages, work in zip(times.rows, work_s(times, n_micro_batches), strict=True)
    ]
    return max(there_and_back, *rows)


def _heads_s(times: StageTimes) -> list[float]:
    """When the first input can be at each stage."""
    heads = list[float]()
    for p in range(times.n_stages):
        ways = (heads[q] + times.forward_s[q] + times.handed_s[q, p][0] for q in times.before[p])
        heads.append(max(ways, default=0.0))
    return heads


def _tail_s(times: StageTimes, stage: int) -> float:
    """From the end of a stage's input part to the end of the step, at the least."""
    tails = list[float]()
    for p in range(stage + 1):
        ways = (times.handed_s[q, p][1] + times.input_s[q] + tails[q] for q in times.before[p])
        tails.append(max([times.weight_s[p], *ways]))
    return tails[stage]


def is_within(schedule: Schedule, times: StageTimes) -> bool:
    """Whether every row keeps within the memory that it has."""
    for row, max_kept in zip(schedule, times.most_kept, strict=True):
        kept = 0
        for action in row:
            kept += {FORWARD: 1, WEIGHT_GRADIENT: -1, BACKWARD: -1}.get(action.kind, 0)
            if kept > max_kept:
                return False
    return True


def n_actions(schedule: Sequence[Sequence[Action]]) -> int:
    """Of all rows."""
    return sum(map(len, schedule))
