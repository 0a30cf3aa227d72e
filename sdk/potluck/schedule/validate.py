"""Proof that a schedule is legal: every action once, dependencies met in the given orders, memory
depth kept.
"""

from collections.abc import Sequence
from functools import lru_cache

from potluck.errors import PlanError
from potluck.schedule.ir import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    KINDS,
    WEIGHT_GRADIENT,
    Action,
    Schedule,
)
from potluck.schedule.rows import meeting
from potluck.schedule.stage_graph import Before, behind, chain

_IN_ORDER = "Deploy with schedule='1f1b', or leave out one_step_late=."


def needs(
    stage: int, kind: str, before: Before, *, split: bool = False
) -> tuple[tuple[int, str], ...]:
    """Stages and kinds of the actions that must be done before one with the same rows.

    Parameters
    ----------
    stage, kind
        Of the action.
    before
        Per stage, the stages that it takes tensors from.
    split
        This schedule's backwards come in two halves, I and W.
    """
    if kind == FORWARD:
        return tuple((source, FORWARD) for source in before[stage])
    if kind == WEIGHT_GRADIENT:
        return ((stage, INPUT_GRADIENT),)
    gradient = INPUT_GRADIENT if split else BACKWARD
    return ((stage, FORWARD), *((taker, gradient) for taker in behind(before)[stage]))


def check(
    schedule: Schedule,
    n_micro_batches: int | Sequence[int],
    *,
    before: Before | None = None,
    training: bool = True,
    max_kept: Sequence[int] | None = None,
) -> tuple[tuple[int, Action], ...]:
    """All actions in a legal order, each with its timestep when every action takes one.

    A row may hold several stages, a stage is in one row.

    Parameters
    ----------
    schedule
        Rows of actions, in the order in which they are taken.
    n_micro_batches
        M; or of each stage, where they differ.
    before
        The graph of stages; default: a chain of as many as rows, or as the schedule shows.
    training
        Backwards belong to it.
    max_kept
        Per stage, how many micro-batches it may keep for their backward at once; default: any
        number.

    Returns
    -------
    tuple[tuple[int, Action], ...]
        Pairs (timestep, action), in order.

    Raises
    ------
    PlanError
        The schedule cannot run to its end. The message draws it up to the first error.
    """
    split = any(action.kind == INPUT_GRADIENT for row in schedule for action in row)
    kinds = (
        FORWARD
        if not training
        else FORWARD + (INPUT_GRADIENT + WEIGHT_GRADIENT if split else BACKWARD)
    )
    shown = max((action.stage for row in schedule for action in row), default=-1) + 1
    before = chain(max(shown, len(schedule))) if before is None else before
    counts = (
        [n_micro_batches] * len(before) if isinstance(n_micro_batches, int) else n_micro_batches
    )
    _each_once(
        schedule, [Action(p, k, m) for p, n in enumerate(counts) for k in kinds for m in range(n)]
    )
    if max_kept is not None:
        _within_depth(schedule, max_kept)
    return in_order(schedule, before, counts, split=split)


def check_one_step_late(schedule: Schedule, steps: Sequence[Sequence[int]]) -> None:
    """Whether a stage has what its updates wait for: it begins a step with all its backwards of the
    step before the last one done, and ends a step's backwards before the next one's begin.

    Parameters
    ----------
    schedule
        Rows of actions, legal otherwise.
    steps
        Per stage, the step of each micro-batch.

    Raises
    ------
    PlanError
        It cannot wait so. The message draws the schedule up to the first error.
    """
    left = [[numbers.count(j) for j in range(max(numbers) + 1)] for numbers in steps]
    for r, row in enumerate(schedule):
        for column, action in enumerate(row):
            p, kind, m = action
            j = steps[p][m]
            if kind == FORWARD and any(left[p][: max(0, j - 1)]):
                why = f"{action} begins step {j}, and backwards of step {j - 2} are not done"
                why += ": its weights would be more than one step late"
                _refuse(schedule, r, column, why, _IN_ORDER)
            if kind in (INPUT_GRADIENT, WEIGHT_GRADIENT):
                why = f"{action} is part of a backward, and updates that come late need whole ones"
                _refuse(schedule, r, column, why, _IN_ORDER)
            if kind == BACKWARD:
                if any(left[p][:j]):
                    why = f"{action} is of step {j}, and backwards of step {j - 1} are not done"
                    _refuse(schedule, r, column, why, _IN_ORDER)
                left[p][j] -= 1


def in_order(
    schedule: Schedule, before: Before, counts: Sequence[int], *, split: bool = False
) -> tuple[tuple[int, Action], ...]:
    """All actions with their timesteps, by timestep and row: one after the last that an action
    waits for, and after the one before it in its row.

    Parameters
    ----------
    schedule
        Rows of actions, each of them once.
    before
        Per stage, the stages that it takes tensors from.
    counts
        Per stage, its micro-batches.
    split
        Backwards come in two halves, I and W.

    Raises
    ------
    PlanError
        Some action waits for ever.
    """
    waits = {
        (p, k): [
            (q, kind, _meetings(counts[p], counts[q]))
            for q, kind in needs(p, k, before, split=split)
        ]
        for p in range(len(before))
        for k in KINDS
    }
    timesteps = dict[tuple[int, str, int], int]()
    position, last = [0] * len(schedule), [-1] * len(schedule)
    found, n_found = list[tuple[int, int, Action]](), -1
    rows = [*enumerate(schedule)]
    while n_found < len(found):
        n_found = len(found)
        for r, row in rows + rows[-2::-1]:  # forwards go down the rows, backwards up again
            for action in row[position[r] :]:
                stage, kind, m = action
                done = [
                    timesteps.get((p, k, n), -1)
                    for p, k, meets in waits[stage, kind]
                    for n in meets[m]
                ]
                if -1 in done:
                    break
                last[r] = timesteps[action] = max([last[r], *done]) + 1
                position[r] += 1
                found.append((last[r], r, action))
    for r, row in rows:
        if position[r] < len(row):
            stage, kind, m = action = row[position[r]]
            missing = [
                Action(p, k, n)
                for p, k, meets in waits[stage, kind]
                for n in meets[m]
                if (p, k, n) not in timesteps
            ]
            why = f"{action} waits for ever for {', '.join(map(str, missing))}"
            _refuse(schedule, r, position[r], why)
    return tuple((timestep, action) for timestep, _, action in sorted(found))


@lru_cache(maxsize=1024)
def _meetings(n: int, others: int) -> tuple[range, ...]:
    """Of each of `n` micro-batches, those of `others` that share rows with it."""
    return tuple(meeting(n, others, m) for m in range(n))


def _each_once(schedule: Schedule, expected: Sequence[Action]) -> None:
    wanted = set(expected)
    seen = set[Action]()
    row_of = dict[int, int]()
    for r, row in enumerate(schedule):
        for column, action in enumerate(row):
            if action not in wanted:
                _refuse(schedule, r, column, f"{action} does not belong to this schedule")
            if row_of.setdefault(action.stage, r) != r:
                other = row_of[action.stage]
                _refuse(
                    schedule,
                    r,
                    column,
                    f"{action} does not belong here, stage {action.stage} is in row {other}",
                )
            if action in seen:
                _refuse(schedule, r, column, f"{action} comes twice")
            seen.add(action)
    missing = [action for action in expected if action not in seen]
    if missing:
        stage = missing[0].stage
        never = ", ".join(str(action) for action in missing if action.stage == stage)
        r = row_of.get(stage, min(stage, len(schedule) - 1))
        _refuse(
            schedule, r, len(schedule[r]) if schedule else 0, f"stage {stage} never does {never}"
        )


def _within_depth(schedule: Schedule, max_kept: Sequence[int]) -> None:
    for r, row in enumerate(schedule):
        kept = dict.fromkeys((action.stage for action in row), 0)
        for column, action in enumerate(row):
            stage = action.stage
            kept[stage] += {FORWARD: 1, BACKWARD: -1, WEIGHT_GRADIENT: -1}.get(action.kind, 0)
            if kept[stage] > max_kept[stage]:
                why = f"{action} would keep {kept[stage]} micro-batches where {max_kept[stage]} fit"
                _refuse(schedule, r, column, why)


def _refuse(schedule: Schedule, row: int, column: int, why: str, next_step: str = "") -> None:
    text = f"The schedule does not hold: {why}.\n{grid(schedule, row, column)}"
    raise PlanError(text + "\n" * bool(next_step), next_step=next_step)


def grid(schedule: Schedule, row: int | None = None, column: int = 0) -> str:
    """The schedule as text, one line per row; `<-- ERROR HERE` behind action `column` of `row`.

    Parameters
    ----------
    schedule
        Rows of actions.
    row
        Where the error is; None draws none.
    column
        The action of that row.
    """
    width = max((len(str(action)) for line in schedule for action in line), default=2)
    lines = []
    for r, line in enumerate(schedule):
        stages = sorted({action.stage for action in line}) or [r]
        shown = line if r != row else line[: column + 1]
        cells = " ".join(str(action).ljust(width) for action in shown)
        name = f"stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))}"
        lines.append(f"{name}: {cells}" + (" <-- ERROR HERE" if r == row else ""))
    return "\n".join(text.rstrip() for text in lines)
