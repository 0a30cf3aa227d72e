"""Where a job is trained as a coordinator begins with it: on the devices of its plan; where some of
them stay away, or fail, on the others.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.coordinator.job import Job
from potluck.coordinator.open_home import OpenHome
from potluck.errors import HomeError, OutOfMemory, PotluckError, UserError
from potluck.records import Plan
from potluck.run.checkpoint import load as load_checkpoint
from potluck.run.plan_compiler import PlanCompiler
from potluck.run.recovery import TRIES, plans_on
from potluck.run.snapshots import is_loss

if TYPE_CHECKING:
    from potluck.handle import Handle
    from potluck.home import Home
    from potluck.profile.profiles import Profile
    from potluck.run.run import Run

JOIN_S = 2.0  # between two looks for devices that are not there yet
LOOK_S = 0.1
END_S = 30.0  # for what devices do when it is told to stop


class JobStart:
    """Brings a job onto devices, once.

    Parameters
    ----------
    job
        What is asked for.
    model
        That is trained.
    saved
        Its latest state.
    profile
        What the run is predicted by; None: nothing.
    last_step
        To which it is trained.
    prepare
        Called with the home before it is asked for a run.
    """

    def __init__(
        self,
        job: Job,
        model: Any,
        saved: Path,
        profile: "Profile | None",
        *,
        last_step: int,
        prepare: "Callable[[Home], None]",
    ) -> None:
        self._job, self._model = job, model
        self._profile, self._prepare = profile, prepare
        self._saved, self._state = saved, load_checkpoint(saved)
        self._wanted = self._state.wanted or self._state.plan
        self._n_left = last_step - self._state.step
        self._failures = Counter[str]()
        self._failure: PotluckError = HomeError("nobody is there.")

    def begun(self, home: "Home", homes: OpenHome, stopping: threading.Event) -> "Run | None":
        """The run on its devices; None where it is told to stop before.

        Devices that are away are looked for once more; then the others go on without them. Where
        these cannot, it waits as long as the job is patient.

        Parameters
        ----------
        home, homes
            The home, which somebody uses.
        stopping
            Set to end the waiting.

        Raises
        ------
        HomeError
            Devices stay away.
        PotluckError
            It goes wrong on those that are there.
        """
        end_s, has_looked = time.monotonic() + self._job.patience_s, False
        while not stopping.is_set():
            plans = self._plans(home, has_looked)
            if (run := self._deployed(home, plans, stopping)) is not None:
                return run
            if stopping.is_set():
                break
            ready = home.devices.staying
            away = [name for name in self._wanted.devices if name not in ready]
            if not plans and not away:
                raise self._failure
            if has_looked and time.monotonic() > end_s:
                raise _not_there(away) if away else self._failure
            if stopping.wait(JOIN_S):
                break
            home, has_looked = homes.looked_for(away) if away else home, True
        return None

    def note(self, run: "Run") -> str:
        """Who of its plan is not part of a run; empty: nobody.

        Parameters
        ----------
        run
            That was begun.
        """
        away = [name for name in self._wanted.devices if name not in run.plan.devices]
        if not away:
            return ""
        return f"Step {run.step}: without {', '.join(away)}, on {', '.join(run.plan.devices)}."

    def _plans(self, home: "Home", has_looked: bool) -> list[Plan]:
        """What it may be trained by now, the best first."""
        plan = self._state.plan
        there = [name for name in home.devices.staying if self._failures[name] < TRIES]
        if known := [each for each in (self._wanted, plan) if set(each.devices) <= set(there)]:
            return known[:1]
        if self._job.protect is False or not has_looked:
            return []
        compiler = PlanCompiler(self._model, home.devices, self._profile, 0.0)
        problem = compiler.problem_of(plan, self._state.optimizer)
        if problem is not None:
            there = [device.name for device in problem.devices if device.name in there]
        return plans_on(
            self._model, plan, there, problem, n_left=self._n_left, policy=self._job.recovery
        )

    def _deployed(
        self, home: "Home", plans: Sequence[Plan], stopping: threading.Event
    ) -> "Run | None":
        """The run by the first of these plans that holds; None where a device is lost, or where it
        is told to stop.
        """
        job = self._job
        for number, chosen in enumerate(plans, 1):
            self._prepare(home)
            try:
                deploying = home.deploy(
                    chosen,
                    self._model,
                    resume=self._saved,
                    profile=self._profile,
                    protect=job.protect,
                    patience_s=job.patience_s,
                    recovery=job.recovery,
                )
                run = deploying.wait() if has_ended(deploying, stopping) else None
            except CancelledError:
                return None
            except PotluckError as error:
                if isinstance(error, UserError) and number < len(plans):
                    continue  # it cannot be cut so, say
                if job.protect is False or not is_loss(error):
                    raise
                self._failures[error.device] += TRIES if isinstance(error, OutOfMemory) else 1
                self._failure = error
                return None
            if run is not None:
                run.return_to(self._wanted)
            return run
        return None


def has_ended(work: "Handle[Any]", stopping: threading.Event) -> bool:
    """Wait for the end of what devices do: whether that has come. Told to stop, it waits no longer
    than half a minute: a device may say for ever that it gets on with it.

    Parameters
    ----------
    work
        Cancelled when it is told to stop.
    stopping
        Set to tell it.

    Raises
    ------
    CancelledError
        It has ended where nothing was half done.
    Exception
        Whatever the work raised.
    """
    while not (work.done or stopping.wait(LOOK_S)):
        pass
    if not work.done:
        work.cancel()
    try:
        work.wait(END_S)
    except TimeoutError:
        if work.done:
            raise
    return work.done


def _not_there(away: Sequence[str]) -> HomeError:
    return HomeError(
        f"{', '.join(away)} {'is' if len(away) == 1 else 'are'} not there.",
        next_step="Start it again when they are.",
    )
