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
from typing import Any, Protocol

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
from potluck.display.cockpit.observation import CockpitObservation
from potluck.display.cockpit.page_messages import Limits, click_of
from potluck.errors import PotluckError, UserError
from potluck.planning import make_plans
from potluck.profile.profiles import Profile
from potluck.profile.what_if import kinds
from potluck.records import Inference, Plan, QoE, Training
from potluck.sanitized_text import quoted

TICK_S = 0.1
FULL_FRAME_S = 2.0  # between whole frames, for pages that came later or missed one
STILL_S = 5.0  # between pictures for those who read the notebook later
BUDGET_S = 0.6  # of a planning: of this thread's own time

Show = Callable[[bytes], None]
_FAULTS = logging.getLogger("potluck.faults")


class Observed(Protocol):
    """What a cockpit shows and acts on: see `ObservedHome` and `ObservedPlans`."""

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to see."""

    def start(self) -> None:
        """Somebody begins to look."""

    def close(self) -> None:
        """Nobody looks any more."""

    def observe(self) -> CockpitObservation:
        """One look."""

    def planning_inputs(self) -> tuple[Profile, Training | Inference]:
        """What plans are made of: a profile of the devices, and the work."""

    def of_those_here(self, profile: Profile) -> Profile:
        """The profile without devices that cannot be given work now."""

    def switch(self, plan: Plan, advanced: Callable[[float, str], None]) -> None:
        """Go over to this plan, and say how far that is."""

    def pair(self, device: str, code: str) -> None:
        """Pair with a device, by the code that it shows."""


class CockpitObserver:
    """The edge of one cockpit.

    Parameters
    ----------
    observed
        What is watched; its end ends this.
    plans
        Which the user has made already, to be shown before any is made here.
    """

    def __init__(self, observed: Observed, plans: tuple[Plan, ...] = ()) -> None:
        self._observed = observed
        self.machine = CockpitMachine(kinds())
        self._frames = Frames()
        self._views: list[Show] = []
        self._stills: list[Callable[[], None]] = []
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._begun_s = time.monotonic()
        self._full_s = float("-inf")
        self._still_s = float("-inf")
        self._is_drawn = False  # what has changed is in those pictures
        self._at_work: dict[str, int] = {}  # by kind, the order whose answer counts
        self._thread: threading.Thread | None = None
        self._fault = ""  # of the latest look
        if plans:
            self._handle(Given(plans=plans))
        self.look()

    # --- who shows it -----------------------------------------------------------------------------

    def show(self, view: Show) -> Callable[[], None]:
        """Give this view every frame from now on, a whole one first; its result ends that."""
        with self._lock:
            frame, self._full_s = self._frames.full(self.machine.state), time.monotonic()
            self._views.append(view)
            for each in self._views:  # what follows changes this frame
                with suppress(Exception):
                    each(frame)
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
            self._observed.start()
            self._thread = threading.Thread(target=self._go_on, name="potluck cockpit", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Look no more; pages keep what they have. Safe to call twice."""
        self._ended.set()
        self._observed.close()

    @property
    def is_closed(self) -> bool:
        """Whether it looks no more."""
        return self._ended.is_set()

    def _go_on(self) -> None:
        while not self._ended.wait(TICK_S):
            is_over = self._observed.is_over  # before the look: the last one sees the end
            try:
                self.look()
                self._fault = ""
            except Exception as error:  # the next may go well: what shows a run never ends with it
                if repr(error) != self._fault:  # once, not ten times a second
                    _FAULTS.exception("a look at the home failed")
                self._fault = repr(error)
            if is_over:
                self.close()

    # --- in and out -------------------------------------------------------------------------------

    def look(self) -> None:
        """One look now, and its frame to all views."""
        # it changed while it was looked at: the next look sees it
        with suppress(PotluckError, KeyError, RuntimeError):
            self._handle(HomeObserved(observation=self._observed.observe()))
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
            self._is_drawn = self._is_drawn and frame is None
            if now_s - self._full_s >= FULL_FRAME_S and self._views:
                frame, self._full_s = self._frames.full(self.machine.state), now_s
            views = tuple(self._views)
            draws: tuple[Callable[[], None], ...] = ()
            if not self._is_drawn and (now_s - self._still_s >= STILL_S or self._observed.is_over):
                draws, self._still_s = tuple(self._stills), now_s
                self._is_drawn = True
        if frame is not None:
            for view in views:
                with suppress(Exception):  # a broken display must never stop the others
                    view(frame)
        for draw in draws:
            with suppress(Exception):
                draw()

    # --- doing ------------------------------------------------------------------------------------

    def _do(self, order: Order) -> None:
        match order:
            case ShowAll():
                self._full_s = float("-inf")
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
        except Exception as error:  # whatever it was, the page has to hear that it is over
            _FAULTS.exception("planning for a page failed")
            found, words = (), f"{type(error).__name__}: {error}"
        self._answer(Planned(order=order.order, plans=found, words=words))

    def _plans_for(self, order: MakePlans, kind: str) -> tuple[Plan, ...]:
        def clock() -> float:
            if self._at_work.get(kind) != order.order or self._ended.is_set():
                raise CancelledError
            return time.thread_time()

        profile, workload = self._observed.planning_inputs()
        for added in order.home.added:
            if added not in kinds():  # a page may not name a file
                raise UserError(f"the library has no device {quoted(added)!r}.")
            profile = profile.with_device(added)
        for name in order.home.without:
            profile = profile.without_device(name)
        for medium, rate in order.home.media.items():
            profile = profile.with_medium(medium, rate)
        if not order.home:
            profile = self._observed.of_those_here(profile)
        problem = profile.problem(workload, _qoe(order.limits, profile))
        return make_plans(problem, clock=clock, budget_s=BUDGET_S).items

    def _switch(self, order: SwitchTo) -> None:
        def advanced(done_frac: float, words_so_far: str = "") -> None:
            self._answer(Advanced(order=order.order, done_frac=done_frac, words=words_so_far))

        words = ""
        try:
            self._observed.switch(order.plan, advanced)
        except (PotluckError, CancelledError) as error:
            words = str(error) or "it was cancelled"
        except Exception as error:  # whatever it was, the page has to hear that it is over
            words = f"{type(error).__name__}: {error}"
        self._answer(OrderDone(order=order.order, words=words))

    def _pair(self, order: PairDevice) -> None:
        words = ""
        try:
            self._observed.pair(order.device, order.code)
        except PotluckError as error:
            words = str(error)
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
        self._answer(OrderDone(order=order.order, words=words))


def _qoe(limits: Limits, profile: "Profile") -> QoE:
    memory = (
        {}
        if limits.memory_bytes is None
        else {device.name: int(limits.memory_bytes) for device in profile.devices}
    )
    return QoE(latency_s=limits.latency_s, energy_j=limits.energy_j, memory_bytes=memory)
