"""The soonest schedule of a step's actions that memory has room for, and a bound that none beats,
by CP-SAT: policies are compared with it.

Needs ortools (`pip install ".[dev]"`); nothing at run time depends on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from potluck.contention.cp_sat import in_units
from potluck.errors import UserError
from potluck.schedule.bubbles import StageTimes, makespan_s, play
from potluck.schedule.ir import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Action, Schedule
from potluck.schedule.zero_bubble import zb_compact

UNITS = 2_000  # of a known schedule, that times are rounded up to
_KINDS = FORWARD + INPUT_GRADIENT + WEIGHT_GRADIENT


@dataclass(frozen=True, slots=True, kw_only=True)
class BestSchedule:
    """The best schedule found, how long it takes, and what none can be shorter than."""

    schedule: Schedule
    makespan_s: float
    bound_s: float

    @property
    def is_proved(self) -> bool:
        """Whether none is sooner."""
        return self.makespan_s <= self.bound_s * (1 + 1e-9)


def best_schedule(
    times: StageTimes, n_micro_batches: int, *, limit_s: float = 5.0, seed: int = 0
) -> BestSchedule:
    """The soonest order of forwards and of both parts of backwards, micro-batches in order.

    Equal micro-batches lose nothing by that order. Exact where all times are whole parts of a unit,
    else to 1 in `UNITS`.

    Parameters
    ----------
    times
        Of the stages, and how many micro-batches each row has room for.
    n_micro_batches
        M.
    limit_s
        Seconds that the solver may take.
    seed
        Of its random numbers.

    Raises
    ------
    UserError
        Where ortools is not installed, or stages have micro-batches of their own sizes.
    """
    if len(set(times.parts)) > 1:
        raise UserError(
            "the exact scheduler takes micro-batches of one size, and here stages have their own.",
            next_step="Leave `micro_batch` of the stages out.",
        )
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise UserError(
            "the exact scheduler needs ortools.", next_step="pip install ortools"
        ) from error
    known = zb_compact(times, n_micro_batches)
    known_s = makespan_s(known, times)
    unit_s = _unit_s(times, known_s)
    model: Any = cp_model.CpModel()
    horizon = round(known_s / unit_s) + 1
    starts = _variables(model, times, n_micro_batches, horizon)
    for action, (start_s, _) in play(known, times).items():
        model.add_hint(starts[action], round(start_s / unit_s))
    lasts = {action: in_units(times.action_s(*action[:2]), unit_s) for action in starts}
    _precede(model, times, n_micro_batches, starts, lasts, unit_s, horizon)
    _share(model, times, starts, lasts)
    end = model.new_int_var(0, horizon, "end")
    for action, start in starts.items():
        model.add(end >= start + lasts[action])
    model.minimize(end)
    solver: Any = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = 2
    solver.parameters.random_seed = seed
    status = solver.solve(model)
    bound_s = max(solver.best_objective_bound, 0.0) * unit_s
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return BestSchedule(schedule=known, makespan_s=known_s, bound_s=min(bound_s, known_s))
    found = tuple(
        tuple(
            sorted(
                (action for action in starts if action.stage in stages),
                key=lambda action: (solver.value(starts[action]), lasts[action] > 0, action),
            )
        )
        for stages in times.rows
    )
    found_s = makespan_s(found, times)
    if found_s > known_s:
        found, found_s = known, known_s
    return BestSchedule(schedule=found, makespan_s=found_s, bound_s=min(bound_s, found_s))


def _variables(
    model: Any, times: StageTimes, n_micro_batches: int, horizon: int
) -> dict[Action, Any]:
    return {
        (action := Action(p, kind, m)): model.new_int_var(0, horizon, str(action))
        for p in range(times.n_stages)
        for kind in _KINDS
        for m in range(n_micro_batches)
    }


def _precede(
    model: Any,
    times: StageTimes,
    n_micro_batches: int,
    starts: Mapping[Action, Any],
    lasts: Mapping[Action, int],
    unit_s: float,
    horizon: int,
) -> None:
    """What each action waits for, and the order of micro-batches; links take one at a time."""
    arrivals = dict[tuple[int, int, str, int], Any]()
    for (stage, kind, m), start in starts.items():
        action = Action(stage, kind, m)
        stop = start + lasts[action]
        if m + 1 < n_micro_batches:
            model.add(starts[Action(stage, kind, m + 1)] >= stop)
        after = {FORWARD: INPUT_GRADIENT, INPUT_GRADIENT: WEIGHT_GRADIENT}.get(kind)
        if after:
            model.add(starts[Action(stage, after, m)] >= stop)
        for target, on_way_s in times.targets(stage, kind):
            on_way = in_units(on_way_s, unit_s)
            model.add(starts[Action(target, kind, m)] >= stop + on_way)
            if on_way:
                came = model.new_int_var(0, horizon, f"{action}>{target}")
                arrivals[stage, target, kind, m] = came
                model.add(came >= stop + on_way)
                model.add(starts[Action(target, kind, m)] >= came)
    for (stage, target, kind, m), came in arrivals.items():
        if m:
            on_way = in_units(dict(times.targets(stage, kind))[target], unit_s)
            model.add(came >= arrivals[stage, target, kind, m - 1] + on_way)


def _share(
    model: Any, times: StageTimes, starts: Mapping[Action, Any], lasts: Mapping[Action, int]
) -> None:
    """A row does one thing at a time, and keeps no more than it has room for."""
    for stages, max_kept in zip(times.rows, times.most_kept, strict=True):
        own = [action for action in starts if action.stage in stages]
        model.add_no_overlap(
            [
                model.new_fixed_size_interval_var(starts[action], lasts[action], str(action))
                for action in own
                if lasts[action]
            ]
        )
        begun = [action for action in own if action.kind == FORWARD]
        ended = [action for action in own if action.kind == WEIGHT_GRADIENT]
        model.add_reservoir_constraint(
            [starts[a] for a in begun] + [starts[a] + lasts[a] for a in ended],
            [1] * len(begun) + [-1] * len(ended),
            0,
            max_kept,
        )


def _unit_s(times: StageTimes, known_s: float) -> float:
    """A unit that all times are whole parts of where there is a simple one."""
    seconds = {*times.forward_s, *times.input_s, *times.weight_s}
    seconds |= {s for both in times.handed_s.values() for s in both}
    for parts in (1, 2, 4, 5, 10, 20):
        if all(abs(s * parts - round(s * parts)) < 1e-9 for s in seconds):
            return 1 / parts
    return known_s / UNITS
