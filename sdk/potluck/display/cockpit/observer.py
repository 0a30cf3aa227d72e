"""The edge of the cockpit: looks at a home and its run ten times a second, does what the machine
orders in threads of its own, and hands frames to whoever shows them.

Nothing here blocks the kernel, and nothing that fails here reaches the run.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from potluck.display.cockpit.frames import Frames
from potluck.display.cockpit.machine import (
    Advanced,
    CockpitMachine,
    Event,
    Given,
    HomeObserved,
    MakePlans,
    Order,
    OrderDone,
    PairDevice,
    Planned,
    ShowAll,
    SwitchTo,
)
from potluck.display.cockpit.observation import CockpitObservation, RunObservation
from potluck.display.cockpit.page_messages import Limits, click_of
from potluck.errors import PotluckError, UserError
from potluck.handle import Handle, quietly
from potluck.planning import make_plans
from potluck.profile.library import names
from potluck.records import Inference, Plan, Problem, QoE, Trace, Training

if TYPE_CHECKING:
    from potluck.home import Home
    from potluck.profile.profiles import Profile
    from potluck.records import Network
    from potluck.run.run import Run

TICK_S = 0.1
WHOLE_S = 2.0  # between whole frames, for pages that came later or missed one
STEPS_S = 0.3  # between steps that are shown: nobody sees more
STILL_S = 5.0  # between pictures for those who read the notebook later
BUDGET_S = 0.6  # of a planning: of this thread's own time
RATE_HZ = 1.0  # of power readings

Show = Callable[[bytes], None]
_FAULTS = logging.getLogger("potluck.faults")


class HomeObserver:
    """The cockpit of one home, and of one run of it (default: the newest that is open).

    Parameters
    ----------
    home
        Which is watched; its end ends this.
    run
        One of its runs; None follows the newest.
    plans
        Which the user has made already, to be shown before any is made here.
    """

    def __init__(
        self, home: "Home", run: "Run | None" = None, plans: tuple[Plan, ...] = ()
    ) -> None:
        self._home, self._chosen = home, run
        self._followed: Run | None = None  # the newest, also when it has ended
        self.machine = CockpitMachine(names("devices"))
        self._frames = Frames()
        self._views: list[Show] = []
        self._stills: list[Callable[[], None]] = []
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._begun_s = time.monotonic()
        self._whole_s = float("-inf")
        self._step_s = float("-inf")
        self._still_s = float("-inf")
        self._n_shown: object = None
        self._simulated: tuple[object, Trace | None] = None, None
        self._simulating: threading.Thread | None = None
        self._at_work: dict[str, int] = {}  # by kind, the order whose answer counts
        self._stream: Any = None
        self._network: tuple[object, Network | None] = None, None  # for whom, and which
        self._problem: tuple[Plan | None, Problem | None] = None, None
        self._thread: threading.Thread | None = None
        if plans:
            self._handle(Given(plans=plans))
        self.look()

    # --- who shows it -----------------------------------------------------------------------------

    def show(self, view: Show) -> Callable[[], None]:
        """Give this view every frame from now on, a whole one first; its result ends that."""
        with self._lock:
            whole, self._whole_s = self._frames.whole(self.machine.state), time.monotonic()
            self._views.append(view)
            for each in self._views:  # what follows changes this frame
                with suppress(Exception):
                    each(whole)
        self.start()

        def leave() -> None:
            with self._lock, suppress(ValueError):
                self._views.remove(view)

        return leave

    def give(self, plans: tuple[Plan, ...]) -> None:
        """The user has made these plans."""
        self._answer(Given(plans=plans))

    def keep_still(self, draw: Callable[[], None]) -> None:
        """Call this now and then, when something has changed: it draws a picture that lasts."""
        with self._lock:
            self._stills.append(draw)

    def start(self) -> None:
        """Begin to look, where that has not begun."""
        with self._lock:
            if self._thread is not None or self._ended.is_set():
                return
            with suppress(PotluckError):
                self._stream = self._home.readings(rate_hz=RATE_HZ)
            self._thread = threading.Thread(target=self._go_on, name="potluck cockpit", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Look no more; pages keep what they have. Safe to call twice."""
        self._ended.set()
        if self._stream is not None:
            self._stream.close()

    @property
    def is_closed(self) -> bool:
        """Whether it looks no more."""
        return self._ended.is_set()

    def _go_on(self) -> None:
        while not self._ended.wait(TICK_S):
            try:
                self.look()
            except Exception:  # the next look may go well: what shows a run must never end with it
                _FAULTS.exception("a look at the home failed")
            if self._home.closed:
                self.close()

    # --- in and out -------------------------------------------------------------------------------

    def look(self) -> None:
        """One look now, and its frame to all views."""
        # it changed while it was looked at: the next look sees it
        with suppress(PotluckError, KeyError, RuntimeError):
            self._handle(HomeObserved(sight=self._sight()))
        self._send()

    def clicked(self, content: Any, *, may_act: bool = True) -> None:
        """A page asks for something.

        Parameters
        ----------
        content
            Its message.
        may_act
            Whether it may change anything; who may not can look and imagine.

        Raises
        ------
        UserError
            It is no message of a page, or not for this one to ask.
        """
        click = click_of(content)
        if not may_act and content.get("ask") in ("go", "pair"):
            raise UserError("this page is only to look at.", next_step="potluck watch --act")
        self._handle(click)
        self._send()

    def _handle(self, event: Event) -> None:
        with self._lock:
            orders = self.machine.handle(event, time.monotonic() - self._begun_s)
        for order in orders:
            self._do(order)

    def _send(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            frame = self._frames.change(self.machine.state)
            if now_s - self._whole_s >= WHOLE_S and self._views:
                frame, self._whole_s = self._frames.whole(self.machine.state), now_s
            views = tuple(self._views)
            draws: tuple[Callable[[], None], ...] = ()
            if now_s - self._still_s >= STILL_S or self._home.closed:
                draws, self._still_s = tuple(self._stills), now_s
        if frame is not None:
            for view in views:
                with suppress(Exception):  # a broken display must never stop the others
                    view(frame)
        for draw in draws:
            with suppress(Exception):
                draw()

    # --- looking ----------------------------------------------------------------------------------

    def _sight(self) -> CockpitObservation:
        home = self._home
        run = self._run()
        network = None
        if run is not None and run.problem is not None:
            network = run.problem.network
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
        problem, latest = self._problem_of(run), None
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
            used_bytes=run.memory_bytes,
            step_s=glance.recent_s,
            latest=latest,
            latest_step=glance.n_done,
            last_s=now_s - self._step_s,
            predicted=self._predicted(run, problem),
        )

    def _problem_of(self, run: "Run") -> Problem | None:
        """The run's own, made once for each plan."""
        if self._problem[0] is not run.plan:
            self._problem = run.plan, run.problem
        return self._problem[1]

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
                    whole = run.predicted
                    if whole is not None:
                        found = replace(typical(whole), step_s=whole.step_s)
                self._simulated, self._simulating = (plan, found), None

            self._simulating = threading.Thread(target=simulate, name="simulating", daemon=True)
            self._simulating.start()
        return self._simulated[1] if self._simulated[0] is run.plan else None

    # --- doing ------------------------------------------------------------------------------------

    def _do(self, order: Order) -> None:
        match order:
            case ShowAll():
                self._whole_s = float("-inf")
            case MakePlans():
                kind = "imagine" if order.home else "plan"
                self._at_work[kind] = order.order
                self._begin(lambda: self._plan(order, kind))
            case SwitchTo():
                self._begin(lambda: self._switch(order))
            case PairDevice():
                self._begin(lambda: self._pair(order))

    def _begin(self, work: Callable[[], None]) -> None:
        threading.Thread(target=work, name="potluck cockpit at work", daemon=True).start()

    def _answer(self, event: Event) -> None:
        self._handle(event)
        self._send()

    def _plan(self, order: MakePlans, kind: str) -> None:
        try:
            found = self._plans_for(order, kind)
            words = ""
        except CancelledError:
            return
        except PotluckError as error:
            found, words = (), str(error)
        self._answer(Planned(order=order.order, plans=found, words=words))

    def _plans_for(self, order: MakePlans, kind: str) -> tuple[Plan, ...]:
        def clock() -> float:
            if self._at_work.get(kind) != order.order or self._ended.is_set():
                raise CancelledError
            return time.thread_time()

        run = self._run()
        profile = run.glance.profile if run is not None else None
        if run is None or profile is None:
            raise UserError("plans need a profile of the model.", next_step="home.profile(model)")
        for name in order.home.without:
            profile = profile.without_device(name)
        for medium, rate in order.home.media.items():
            profile = profile.with_medium(medium, rate)
        for added in order.home.added:
            profile = profile.with_device(added)
        if not order.home:
            profile = self._of_those_here(profile)
        problem = profile.problem(_workload(run.plan), _qoe(order.limits, profile))
        return make_plans(problem, clock=clock, budget_s=BUDGET_S).items

    def _of_those_here(self, profile: "Profile") -> "Profile":
        """Devices that are away now get no work."""
        staying = set(self._home.devices.staying)
        for device in profile.devices:
            if device.name not in staying and len(profile.devices) > 1:
                profile = profile.without_device(device.name)
        return profile

    def _switch(self, order: SwitchTo) -> None:
        run, words = self._run(), ""
        try:
            if run is None:
                raise UserError("there is no run to switch.")
            with quietly():
                crossing: Handle[Run] = run.switch(order.plan)

            def advanced(done_frac: float, said: str = "") -> None:
                self._answer(Advanced(order=order.order, done_frac=done_frac, words=said))

            crossing.listen(advanced)
            crossing.wait()
        except (PotluckError, CancelledError) as error:
            words = str(error) or "it was cancelled"
        except Exception as error:  # whatever it was, the page has to hear that it is over
            words = f"{type(error).__name__}: {error}"
        self._answer(OrderDone(order=order.order, words=words))

    def _pair(self, order: PairDevice) -> None:
        words = ""
        try:
            self._home.pair(order.device, order.code)
        except PotluckError as error:
            words = str(error)
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
        self._answer(OrderDone(order=order.order, words=words))


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


def _qoe(limits: Limits, profile: "Profile") -> QoE:
    memory = (
        {}
        if limits.memory_bytes is None
        else {device.name: int(limits.memory_bytes) for device in profile.devices}
    )
    return QoE(latency_s=limits.latency_s, energy_j=limits.energy_j, memory_bytes=memory)
