"""Proof that a schedule is legal: every action once, dependencies met in the given orders, memory depth kept."""

from collections.abc import Sequence

from potluck.errors import PlanError
from potluck.schedule.ir import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Action, Schedule


def needs(action: Action, n_stages: int, split: bool = False) -> tuple[Action, ...]:
    """The actions that must be done before `action`; `split`: this schedule's backwards come as I and W."""
    stage, m = action.stage, action.micro_batch
    if action.kind == FORWARD:
        return (Action(stage - 1, FORWARD, m),) if stage else ()
    if action.kind == WEIGHT_GRADIENT:
        return (Action(stage, INPUT_GRADIENT, m),)
    gradient = INPUT_GRADIENT if split else BACKWARD
    behind = (Action(stage + 1, gradient, m),) if stage + 1 < n_stages else ()
    return (Action(stage, FORWARD, m), *behind)


def check(
    schedule: Schedule, n_micro_batches: int, *, training: bool = True, max_kept: Sequence[int] | None = None
) -> tuple[tuple[int, Action], ...]:
    """All actions in a legal order, each with its turn when every action takes one turn.

    Raises `PlanError`, with the grid drawn up to the first error, unless the schedule can run to its end.
    `max_kept[p]`: how many micro-batches stage p may keep for their backward at once.
    """
    split = any(action.kind == INPUT_GRADIENT for row in schedule for action in row)
    kinds = FORWARD if not training else FORWARD + (INPUT_GRADIENT + WEIGHT_GRADIENT if split else BACKWARD)
    for p, row in enumerate(schedule):
        _each_once(schedule, p, row, [Action(p, kind, m) for kind in kinds for m in range(n_micro_batches)])
        if max_kept is not None:
            _within_depth(schedule, p, row, max_kept[p])
    done: set[Action] = set()
    position = [0] * len(schedule)
    order: list[tuple[int, Action]] = []
    turn = 0
    while any(position[p] < len(row) for p, row in enumerate(schedule)):
        ready = [
            p
            for p, row in enumerate(schedule)
            if position[p] < len(row) and done.issuperset(needs(row[position[p]], len(schedule), split))
        ]
        if not ready:
            p = next(p for p, row in enumerate(schedule) if position[p] < len(row))
            action = schedule[p][position[p]]
            missing = [str(n) for n in needs(action, len(schedule), split) if n not in done]
            _refuse(schedule, p, position[p], f"{action} waits for ever for {', '.join(missing)}")
        for p in ready:
            order.append((turn, schedule[p][position[p]]))
            done.add(schedule[p][position[p]])
            position[p] += 1
        turn += 1
    return tuple(order)


def _each_once(schedule: Schedule, stage: int, row: Sequence[Action], expected: Sequence[Action]) -> None:
    wanted, seen = set(expected), set[Action]()
    for column, action in enumerate(row):
        if action not in wanted:
            _refuse(schedule, stage, column, f"{action} does not belong to stage {stage} of this schedule")
        if action in seen:
            _refuse(schedule, stage, column, f"{action} comes twice")
        seen.add(action)
    missing = [str(action) for action in expected if action not in seen]
    if missing:
        _refuse(schedule, stage, len(row), f"stage {stage} never does {', '.join(missing)}")


def _within_depth(schedule: Schedule, stage: int, row: Sequence[Action], depth: int) -> None:
    kept = 0
    for column, action in enumerate(row):
        kept += {FORWARD: 1, BACKWARD: -1, WEIGHT_GRADIENT: -1}.get(action.kind, 0)
        if kept > depth:
            _refuse(schedule, stage, column, f"{action} would keep {kept} micro-batches where {depth} fit")


def _refuse(schedule: Schedule, stage: int, column: int, why: str) -> None:
    raise PlanError(f"The schedule does not hold: {why}.\n{grid(schedule, stage, column)}")


def grid(schedule: Schedule, stage: int | None = None, column: int = 0) -> str:
    """The schedule as text, one line per stage; `<-- ERROR HERE` behind action `column` of `stage`."""
    width = max((len(str(action)) for row in schedule for action in row), default=2)
    lines = []
    for p, row in enumerate(schedule):
        shown = row if p != stage else row[: column + 1]
        cells = " ".join(str(action).ljust(width) for action in shown)
        lines.append(f"stage {p}: {cells}" + (" <-- ERROR HERE" if p == stage else ""))
    return "\n".join(line.rstrip() for line in lines)
