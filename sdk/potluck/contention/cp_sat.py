"""The best order of transfers, and a bound that no order beats, by CP-SAT: the list scheduler is
compared with it.

Needs ortools (`pip install ".[dev]"`); nothing at run time depends on it. Durations are whole units
of a 20,000th of the step, rounded up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from potluck.contention.list_scheduler import alone_s, topological
from potluck.errors import UserError
from potluck.simulate.engine import COMPUTE, TaskGraph, TaskTimes

UNITS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactOrder:
    """`start_s` of every task in the best schedule found, how long that takes, and what none can be
    shorter than.
    """

    start_s: tuple[float, ...]
    latency_s: float
    bound_s: float

    @property
    def proved(self) -> bool:
        """Whether nothing better exists."""
        return self.latency_s <= self.bound_s * (1 + 1e-9)


def solve(
    graph: TaskGraph, hint: TaskTimes, *, limit_s: float = 1.0, n_workers: int = 2, seed: int = 0
) -> ExactOrder:
    """Start times for all tasks of which no two share a resource or a medium.

    `hint`: a schedule that is known.

    Parameters
    ----------
    graph
        The tasks of a step.
    hint
        A schedule that is known, to begin with.
    limit_s
        Seconds that the solver may take.
    n_workers
        Its threads.
    seed
        Of its random numbers.

    Raises
    ------
    UserError
        Where ortools is not installed.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise UserError(
            "the exact scheduler needs ortools.", next_step="pip install ortools"
        ) from error
    unit_s = max(hint.stop_s) / UNITS
    lags = [0.0 if route == COMPUTE else graph.latency_s[route] for route in graph.route]
    lengths = [in_units(alone_s(graph, task) - lag_s, unit_s) for task, lag_s in enumerate(lags)]
    lasts = [length + in_units(lag_s, unit_s) for length, lag_s in zip(lengths, lags, strict=True)]
    groups = _groups(graph)
    order = topological(graph)
    known = _soonest(graph, sorted(order, key=hint.start_s.__getitem__), lengths, lasts)
    model: Any = cp_model.CpModel()
    horizon = max(start + last for start, last in zip(known, lasts, strict=True))
    starts = [model.new_int_var(0, horizon, f"start{task}") for task in range(len(lengths))]
    for start, value in zip(starts, known, strict=True):
        model.add_hint(start, value)
    for group in groups:
        model.add_no_overlap(
            [
                model.new_fixed_size_interval_var(starts[t], lengths[t], f"task{t}")
                for t in group
                if lengths[t]
            ]
        )
    end = model.new_int_var(0, horizon, "end")
    for task, followers in enumerate(graph.followers):
        model.add(end >= starts[task] + lasts[task])
        for follower in followers:
            model.add(starts[follower] >= starts[task] + lasts[task])
    model.minimize(end)
    solver: Any = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = n_workers
    solver.parameters.random_seed = seed
    status = solver.solve(model)
    bound_s = max(solver.best_objective_bound, 0.0) * unit_s
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE) or solver.objective_value >= horizon:
        return ExactOrder(
            start_s=tuple(hint.start_s),
            latency_s=max(hint.stop_s),
            bound_s=min(bound_s, max(hint.stop_s)),
        )
    # A solution may leave gaps that cost it nothing; whoever runs in this order does not wait in
    # them.
    in_order = sorted(order, key=lambda task: solver.value(starts[task]))
    return ExactOrder(
        start_s=tuple(start * unit_s for start in _soonest(graph, in_order, lengths, lasts)),
        latency_s=solver.objective_value * unit_s,
        bound_s=bound_s,
    )


def _groups(graph: TaskGraph) -> list[list[int]]:
    """Tasks of which no two may overlap: by resource and by medium, without those that follow from
    others.
    """
    resources: dict[int, list[int]] = {}
    media: dict[int, list[int]] = {}
    for task, resource in enumerate(graph.resource):
        resources.setdefault(resource, []).append(task)
        for medium in _media(graph, task):
            media.setdefault(medium, []).append(task)
    needed = []
    for tasks in resources.values():
        chained = all(after in graph.followers[before] for before, after in pairwise(tasks))
        shared = set.intersection(*(_media(graph, task) for task in tasks))
        if not chained and not shared:
            needed.append(tasks)
    return [*needed, *media.values()]


def _media(graph: TaskGraph, task: int) -> set[int]:
    route = graph.route[task]
    return set() if route == COMPUTE else {medium for medium, _ in graph.routes[route]}


def _soonest(
    graph: TaskGraph, order: Sequence[int], lengths: Sequence[int], lasts: Sequence[int]
) -> list[int]:
    """Starts in whole units: tasks in this order, each as soon as what it waits for allows."""
    starts, ready = [0] * len(lengths), [0] * len(lengths)
    free: dict[tuple[str, int], int] = {}
    for task in order:
        kept = [
            ("resource", graph.resource[task]),
            *(("medium", medium) for medium in _media(graph, task)),
        ]
        starts[task] = (
            max(ready[task], *(free.get(key, 0) for key in kept)) if lengths[task] else ready[task]
        )
        for key in kept if lengths[task] else ():
            free[key] = starts[task] + lengths[task]
        for follower in graph.followers[task]:
            ready[follower] = max(ready[follower], starts[task] + lasts[task])
    return starts


def in_units(seconds: float, unit_s: float) -> int:
    """Whole units, rounded up; what is a whole number but for rounding stays it."""
    return max(0, -int(-(seconds / unit_s - 1e-6) // 1))
