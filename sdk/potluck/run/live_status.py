"""What whoever watches a run sees of it at a glance: cheap to take, ten times a second."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck import display_hooks
from potluck.display_hooks import Shown
from potluck.errors import PotluckError, UserError
from potluck.records import Trace
from potluck.schedule import Compiled
from potluck.sessions.events import ExecutionResult
from potluck.simulate.time_spans import in_turn_s

if TYPE_CHECKING:
    from potluck.profile.profiles import Profile
    from potluck.run.engine import RunEngine

NUMBERS = itertools.count()  # of the runs of this process, in order
Traced = Callable[[Sequence[tuple[ExecutionResult, Compiled]]], Trace]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStatus:
    """`n_done`: steps, or requests that were handed out. `recent_s`: seconds of each of the last
    ones, oldest first, as `Trace.step_s`. `ended`: why, if it has. `is_training`: a fit is under
    way. `profile`: what it is predicted by. `latest()`: the trace of the newest one, or None.
    """

    n_done: int
    recent_s: tuple[float, ...]
    ended: PotluckError | None
    is_training: bool
    profile: "Profile | None"
    latest: Callable[[], Trace | None]


def glance(engine: "RunEngine", traced: Traced, is_training: bool) -> LiveStatus:
    """What there is to see now.

    Parameters
    ----------
    engine
        Of the run.
    traced
        Makes a trace of executions.
    is_training
        Whether a fit goes on.
    """
    kept = tuple(engine.kept)
    return LiveStatus(
        n_done=engine.step if engine.compiled_plan.plan.training else engine.n_requests,
        recent_s=in_turn_s([(execution.start_s, execution.stop_s) for execution, _ in kept]),
        ended=engine.failed,
        is_training=is_training,
        profile=engine.compiler.profile,
        latest=lambda: traced(kept[-1:]) if kept else None,
    )


class Watched(Shown):
    """What can be looked at while it goes on, and reported of."""

    def __init__(self) -> None:
        self.number = next(NUMBERS)
        self.open_cockpit: Callable[..., Any] | None = None  # of its home

    def cockpit(self) -> Any:
        """Its home with this run, live, in a notebook: see `Home.cockpit`.

        Raises
        ------
        UserError
            It has no home.
        """
        if self.open_cockpit is None:
            raise UserError("this run has no home that could show it.")
        return self.open_cockpit(run=self)

    def report(self, path: str | Path) -> Path:
        """Write one self-contained page: plan, timelines, prediction against measurement, energy,
        events.

        Parameters
        ----------
        path
            Of the page; what is there is replaced.
        """
        return display_hooks.report(self, path)
