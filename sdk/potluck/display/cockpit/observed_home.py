"""A home and one of its runs, as the cockpit looks at them and acts on them."""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from potluck.display.cockpit.observation import CockpitObservation, RunObservation
from potluck.errors import PotluckError, UserError
from potluck.handle import Handle, quietly
from potluck.records import Inference, Plan, Problem, Trace, Training

if TYPE_CHECKING:
    from potluck.home import Home
    from potluck.profile.profiles import Profile
    from potluck.records import Network
    from potluck.run.run import Run
    from potluck.sessions.readings import Stream

STEPS_S = 0.5  # between steps that are shown: nobody sees more
RATE_HZ = 1.0  # of power readings


class ObservedHome:
    """A home, and one of its runs.

    Parameters
    ----------
    home
        Whose end ends the cockpit.
    run
        One of its runs; None follows the newest.
    """

    def __init__(self, home: "Home", run: "Run | None" = None) -> None:
        self._home, self._chosen = home, run
        self._followed: Run | None = None  # the newest, also when it has ended
        self._step_s = float("-inf")
        self._n_shown: object = None
        self._simulated: tuple[object, Trace | None] = None, None
        self._simulating: threading.Thread | None = None
        self._network: tuple[object, Network | None] = None, None  # for whom, and which
        self._needed: tuple[Plan | None, Mapping[str, int]] = None, {}
        self._readings: Stream | None = None

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to see."""
        return self._home.closed

    def start(self) -> None:
        """Have the devices read their meters."""
        with suppress(PotluckError):
            self._readings = self._home.readings(rate_hz=RATE_HZ)

    def close(self) -> None:
        """They need not any more."""
        if self._readings is not None:
            self._readings.close()

    def observe(self) -> CockpitObservation:
        """One look."""
        home = self._home
        run = self._run()
        network = None
        if run is not None and (problem := run.problem) is not None:
            network = problem.network
        elif not home.closed:
            with suppress(PotluckError):
                network = self._known_network()
        return CockpitObservation(
            members=tuple(home.devices.values()),
            network=network,
            run=self._of_run(run) if run is not None else None,
            is_closed=home.closed,
            given=home.given,
            can_pair=home.can_pair,
        )

    def _known_network(self) -> "Network | None":
        """As the home has it; looked up again only where its members have changed."""
        ready = self._home.devices.ready
        if self._network[0] != ready:
            self._network = ready, self._home.network.records
        return self._network[1]

    def _run(self) -> "Run | None":
        if self._chosen is not None:
            return self._chosen
        if runs := self._home.runs:
            self._followed = runs[-1]
        return self._followed

    def _of_run(self, run: "Run") -> RunObservation:
        glance, now_s = run.glance, time.monotonic()
        problem, latest = run.problem, None
        new = (run.plan, glance.n_done)
        if new != self._n_shown and now_s - self._step_s >= STEPS_S:
            self._n_shown, self._step_s = new, now_s
            latest = glance.latest()
        return RunObservation(
            number=run.number,
            plan=run.plan,
            n_done=glance.n_done,
            history=run.history,
            ended="" if glance.ended is None else str(glance.ended),
            is_training=glance.is_training,
            problem=problem,
            used_bytes=self._needed_bytes(run),
            step_s=glance.recent_s,
            latest=latest,
            latest_step=glance.n_done,
            last_s=now_s - self._step_s,
            predicted=self._predicted(run, problem),
        )

    def _needed_bytes(self, run: "Run") -> Mapping[str, int]:
        """Of each device, reckoned once for each plan."""
        if self._needed[0] is not run.plan:
            self._needed = run.plan, run.memory_bytes
        return self._needed[1]

    def _predicted(self, run: "Run", problem: Problem | None) -> Trace | None:
        """A typical step as predicted, simulated in a thread of its own, once for each plan."""
        if problem is None:
            return None
        if self._simulated[0] is not run.plan and self._simulating is None:
            plan = run.plan

            def simulate() -> None:
                from potluck.display.timeline import typical

                found = None
                with suppress(PotluckError):
                    trace = run.predicted
                    if trace is not None:
                        found = replace(typical(trace), step_s=trace.step_s)
                self._simulated, self._simulating = (plan, found), None

            self._simulating = threading.Thread(target=simulate, name="simulating", daemon=True)
            self._simulating.start()
        return self._simulated[1] if self._simulated[0] is run.plan else None

    def planning_inputs(self) -> tuple["Profile", Training | Inference]:
        """What plans are made of: a profile of the devices, and the work.

        Raises
        ------
        UserError
            There is none yet.
        """
        run = self._run()
        profile = run.glance.profile if run is not None else None
        if run is None or profile is None:
            raise UserError("plans need a profile of the model.", next_step="home.profile(model)")
        return profile, _workload(run.plan)

    def of_those_here(self, profile: "Profile") -> "Profile":
        """Devices that are away now get no work."""
        staying = set(self._home.devices.staying)
        for device in profile.devices:
            if device.name not in staying and len(profile.devices) > 1:
                profile = profile.without_device(device.name)
        return profile

    def switch(self, plan: Plan, advanced: Callable[[float, str], None]) -> None:
        """Have the run go over to this plan.

        Parameters
        ----------
        plan
            The one to go over to.
        advanced
            Is told how far it is, 0 to 1, and in words.

        Raises
        ------
        PotluckError
            It could not; the plan before stands.
        """
        run = self._run()
        if run is None:
            raise UserError("there is no run to switch.")
        with quietly():
            crossing: Handle[Run] = run.switch(plan)
        crossing.listen(advanced)
        crossing.wait()

    def pair(self, device: str, code: str) -> None:
        """Pair with a device.

        Parameters
        ----------
        device
            Its name.
        code
            Which it shows.

        Raises
        ------
        PotluckError
            It did not come about.
        """
        self._home.pair(device, code)


def _workload(plan: Plan) -> Training | Inference:
    """What the plan at work is for: the same micro-batches, so that losses stay what they are."""
    if plan.problem is not None:
        kept = plan.problem.workload
        if isinstance(kept, Training):
            return replace(kept, micro_batch=plan.micro_batch)
        return kept
    if plan.training:
        return Training(batch=plan.batch, micro_batch=plan.micro_batch)
    return Inference(batch=plan.batch)
