"""The plans of a home that is only imagined, as the cockpit looks at them: its steps are simulated,
and going over to another plan shows that one.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from potluck.display.cockpit.observation import CockpitObservation, RunObservation
from potluck.display.timeline import typical
from potluck.errors import UserError
from potluck.planning.evaluate import predict
from potluck.profile.profiles import Profile
from potluck.records import Inference, Plan, Training
from potluck.run.history import History
from potluck.sessions.members import Member

IMAGINED = "imagined"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImaginedDevice(Member):
    """A device of a profile: nobody can ask it."""

    memory_bytes: int

    @property
    def capability(self) -> Mapping[str, Any]:
        """The memory that plans may use."""
        return {"memory_bytes": self.memory_bytes}

    @property
    def status(self) -> str:
        """What it is."""
        return IMAGINED


class ObservedPlans:
    """Plans of one profile, and the one that is looked at.

    Parameters
    ----------
    profile
        Of the devices and the model.
    workload
        What is planned.
    plan
        Which is looked at first.
    """

    is_over = False

    def __init__(self, profile: Profile, workload: Training | Inference, plan: Plan) -> None:
        self._profile, self._workload = profile, workload
        self._members = tuple(
            ImaginedDevice(name=device.name, memory_bytes=device.memory_bytes)
            for device in profile.devices
        )
        self._lock = threading.Lock()
        self._shown = self._of(plan)

    def start(self) -> None:
        """There are no meters to read."""

    def close(self) -> None:
        """Nothing goes on without a look."""

    def observe(self) -> CockpitObservation:
        """One look; a step is shown once."""
        with self._lock:
            run, self._shown = self._shown, replace(self._shown, latest=None)
        return CockpitObservation(members=self._members, network=self._profile.network, run=run)

    def _of(self, plan: Plan) -> RunObservation:
        """A step of this plan as it is simulated, in the place of one that was measured."""
        problem = plan.problem or self._profile.problem(self._workload)
        trace = predict(problem, plan)
        return RunObservation(
            plan=plan,
            n_done=0,
            history=History(),
            is_imagined=True,
            problem=problem,
            used_bytes=plan.peak_bytes,
            step_s=trace.step_s[-1:],
            latest=typical(trace),
            latest_step=1,
            last_s=0.0,
        )

    def planning_inputs(self) -> tuple[Profile, Training | Inference]:
        """What plans are made of: the profile, and the work."""
        return self._profile, self._workload

    def of_those_here(self, profile: Profile) -> Profile:
        """All of them: nobody is away."""
        return profile

    def switch(self, plan: Plan, advanced: Callable[[float, str], None]) -> None:
        """Look at this plan instead.

        Parameters
        ----------
        plan
            The other one.
        advanced
            Is told nothing: it takes no time.
        """
        shown = self._of(plan)
        with self._lock:
            self._shown = shown

    def pair(self, device: str, code: str) -> None:
        """Nobody can pair with what is imagined.

        Parameters
        ----------
        device
            Its name.
        code
            Of no use.

        Raises
        ------
        UserError
            Always.
        """
        raise UserError(f"{device} is imagined.", next_step="Home.discover() finds real devices.")
