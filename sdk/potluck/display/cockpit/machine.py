"""The cockpit as a machine: what was seen, clicked and found in; what is to be done out. Pure.

It keeps the `state` that pages show. It knows nothing of widgets, threads or clocks: time comes in
with every event, and what takes long goes out as an order with a number, whose answer comes back as
an event. A newer order of a kind takes the place of the one before: answers to older numbers are
not looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from potluck.display.cockpit import home_sections, plan_sections, run_sections
from potluck.display.cockpit.home_events import HomeEvents, News
from potluck.display.cockpit.media import MediaWiring, loads, wiring
from potluck.display.cockpit.observation import CockpitObservation, RunObservation
from potluck.display.cockpit.page_messages import (
    Click,
    Go,
    Imagine,
    Imagined,
    Limits,
    PageOpened,
    PairWith,
    Preview,
    SetLimits,
)
from potluck.display.cockpit.state import MOST_LOSSES, CockpitState
from potluck.display.cockpit.switch_effects import SwitchEffects
from potluck.records import Network, Plan, Trace
from potluck.sanitized_text import harmless

STEPS = 3  # that a page shows
WATTS_S = 190.0  # of power that it shows
MOST_W = 1e6  # of a device: whoever claims more spoils no picture

# --- events, beside the clicks --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeObserved:
    """The home and its run were looked at."""

    observation: CockpitObservation


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The user has these plans already."""

    plans: tuple[Plan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """An order to plan has ended: plans, or why there are none."""

    order: int
    plans: tuple[Plan, ...] = ()
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advanced:
    """How far a switch is."""

    order: int
    done_frac: float
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderDone:
    """An order to switch or pair has ended; `words` say why it failed."""

    order: int
    words: str = ""


Event = Click | HomeObserved | Given | Planned | Advanced | OrderDone


# --- orders ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MakePlans:
    """Plan for the run's workload, within these limits, for this home or an imagined one."""

    order: int
    limits: Limits
    home: Imagined


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchTo:
    """Have the run go over to this plan."""

    order: int
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PairDevice:
    """Pair with a device."""

    order: int
    device: str
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowAll:
    """Whoever looks needs a whole frame."""


Order = MakePlans | SwitchTo | PairDevice | ShowAll


class CockpitMachine:
    """The state of one cockpit."""

    def __init__(self, kinds: Sequence[str] = ()) -> None:
        self.state = CockpitState()
        self.observation = CockpitObservation()
        self._chronicle, self._effects = HomeEvents(), SwitchEffects()
        self._limits, self._imagined = Limits(), Imagined()
        self._plans: tuple[Plan, ...] = ()
        self._imagined_plans: tuple[Plan, ...] = ()
        self._compared: tuple[Plan | None, tuple[Plan, ...] | None] = None, None  # as shown
        self._n_orders = 0
        self._planning = self._imagining = 0  # orders under way; 0: none
        self._switching: tuple[int, Plan] | None = None
        self._pairing: tuple[int, str] | None = None
        self._planned_for: object = None
        self._wired: tuple[Network | None, MediaWiring] = None, MediaWiring(shared={}, ports={})
        self._load: dict[str, float] = {}
        self._watts_s: dict[str, float] = {}
        self.latest: Trace | None = None  # of the newest step that was shown
        self.predicted: Trace | None = None
        self._run_number, self._n_losses = -1, 0
        self._looked_at: tuple[Plan, bool] | None = None  # previewed, and if of an imagined home
        self._looked_under: object = None  # what ran then
        self._steps_began: list[int] = []  # the first rows of the latest ones
        self._plan: Plan | None = None  # the one in force
        self._plan_began = 0  # its first row of tasks
        self._show(kinds={"names": list(kinds)})

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Those that are offered now."""
        return self._plans

    def handle(self, event: Event, now_s: float) -> list[Order]:
        """Take one event in; returns what is to be done."""
        match event:
            case HomeObserved(observation=observation):
                return self._seen(observation, now_s)
            case Given(plans=plans):
                self._plans = plans
                self._show_plans()
                return []
            case Planned():
                return self._planned(event)
            case Advanced(order=order, done_frac=frac, words=words):
                if self._switching is not None and self._switching[0] == order:
                    self._work("switch", words or "switching", round(frac, 2))
                return []
            case OrderDone():
                return self._done(event, now_s)
            case PageOpened():
                return [ShowAll()]
            case SetLimits(limits=limits):
                self._limits = limits
                self._show_limits()
                return self._plan_anew()
            case Imagine(home=home):
                return self._imagine(home)
            case Preview(name=name):
                return self._preview(name)
            case Go(name=name):
                return self._go(name)
            case PairWith(device=device, code=code):
                return self._pair(device, code)

    # --- seeing -----------------------------------------------------------------------------------

    def _seen(self, observation: CockpitObservation, now_s: float) -> list[Order]:
        self.observation, run = observation, observation.run
        if observation.is_closed:  # nobody plans for it any more
            self._planning = self._imagining = 0
            self._work("plan", "")
            self._work("imagine", "")
        if observation.network is not self._wired[0]:
            network, empty = observation.network, MediaWiring(shared={}, ports={})
            self._wired = network, wiring(network) if network else empty
        if run is not None and run.number != self._run_number:  # another one begins anew
            self._begin(run)
        if run is not None and run.plan is not self._plan:  # its outlines are not of steps before
            self._plan, self._plan_began = run.plan, self.state.tasks.end
            self.predicted = None
            self._show(outline={})
        if run is not None and run.latest is not None:
            self._step(run, observation.network)
        if run is None or run.last_s > home_sections.LIT_S + 2 * max(run.step_s[-4:], default=0.0):
            self._load = {}
        wires = self._wired[1]
        self._show(
            home={"closed": observation.is_closed, "n": len(observation.members)}
            | ({"given": harmless(observation.given)[:500]} if observation.given else {}),
            devices=home_sections.devices(observation, wires, self._load),
            media=home_sections.media(observation, wires, self._load),
            ports=home_sections.ports(observation, wires),
            run=run_sections.run(run) if run is not None else {},
        )
        self._note(self._chronicle.look(observation), now_s)
        self._read_meters(now_s)
        if run is None:
            return []
        self._losses(run)
        self._predict(run)
        for words in self._effects.look(run):
            self._note([News(kind="effect", words=words)], now_s)
        self._show(effects={str(i): item for i, item in enumerate(self._effects.shown)})
        self._show_plans()
        if self._looked_at is not None and self._looked_under != (run.plan, bool(run.ended)):
            self._preview(plan_sections.name_of(self._looked_at[0]))
        if self._planned_for != run.plan and run.problem is not None and not run.ended:
            return self._plan_anew()
        return []

    def _begin(self, run: RunObservation) -> None:
        """Another run: nothing of the one before is said of it."""
        self._run_number, self._n_losses = run.number, 0
        self._show(began={"losses": self.state.losses.end, "tasks": self.state.tasks.end})
        self._plans = tuple(plan for plan in self._plans if _same_work(plan, run.plan))
        self._effects, self._planned_for = SwitchEffects(), None
        self.latest, self._looked_at = None, None
        self._show(preview={})

    def _step(self, run: RunObservation, network: Network | None) -> None:
        assert run.latest is not None
        self.latest = run.latest
        self._steps_began = [*self._steps_began, self.state.tasks.end][-STEPS:]
        self.state.tasks.drop_before(self._steps_began[0])
        for row in run_sections.rows(run.latest, run.latest_step, self.state.words):
            self.state.tasks.add(row)
        spans = run.latest.spans
        if network is not None and spans:
            seconds = run.latest.step_s[-1] if run.latest.step_s else spans[-1][1] - spans[-1][0]
            self._load = loads(run.latest.events, network, seconds)

    def _predict(self, run: RunObservation) -> None:
        """The outlines behind the task stream, anew where another plan is in force."""
        if run.predicted is None or run.predicted is self.predicted:
            return
        self.predicted = run.predicted
        number = self.state.predicted.end
        self.state.predicted.drop_before(number)
        for row in run_sections.rows(run.predicted, number, self.state.words):
            self.state.predicted.add(row)
        self._show(outline={"step": number, "from": self._plan_began})

    def _losses(self, run: RunObservation) -> None:
        history, log = run.history, self.state.losses
        for index in range(
            max(self._n_losses, len(history.losses) - MOST_LOSSES), len(history.losses)
        ):
            seconds = history.step_s[index] if index < len(history.step_s) else 0.0
            log.add((float(index + 1), history.losses[index], seconds))
        self._n_losses = len(history.losses)

    def _read_meters(self, now_s: float) -> None:
        for member in self.observation.members:
            reading = member.reading
            if reading is None or self._watts_s.get(member.name) == reading.at_s:
                continue
            self._watts_s[member.name] = reading.at_s
            number = float(self.state.words.number(member.name))
            estimated = float(reading.source != "measured")
            self.state.watts.add((now_s, number, min(reading.watts, MOST_W), estimated))
        watts = self.state.watts
        while watts.oldest is not None and watts.oldest[0] < now_s - WATTS_S:
            watts.drop_before(watts.start + 1)

    def _note(self, news: Sequence[News], now_s: float) -> None:
        for item in news:
            words = harmless(item.words)[:500]
            self.state.events.add({"at": round(now_s, 1), "kind": item.kind, "words": words})

    # --- planning ---------------------------------------------------------------------------------

    def _plan_anew(self) -> list[Order]:
        run = self.observation.run
        if run is None or run.problem is None or self.observation.is_closed:
            return []
        self._planned_for = run.plan
        self._planning = self._next()
        self._work("plan", "planning within your limits")
        orders: list[Order] = [
            MakePlans(order=self._planning, limits=self._limits, home=Imagined())
        ]
        return orders + (self._imagine(self._imagined) if self._imagined else [])

    def _imagine(self, home: Imagined) -> list[Order]:
        if self.observation.is_closed:
            return self._notify("the home is closed: nobody plans for it any more")
        self._imagined = home
        self._show(imagined=_imagined(home))
        if not home:
            self._imagining, self._imagined_plans = 0, ()
            self._work("imagine", "")
            self._show(imagined_plans={})
            return []
        self._imagining = self._next()
        self._work("imagine", "planning for the home that you imagine")
        return [MakePlans(order=self._imagining, limits=self._limits, home=home)]

    def _planned(self, event: Planned) -> list[Order]:
        if event.order == self._planning:
            self._planning = 0
            self._work("plan", "")
            if event.plans:
                self._plans = event.plans
            self._show(no_plan={"words": harmless(event.words)[:500]} if event.words else {})
            self._show_plans()
        elif event.order == self._imagining:
            self._imagining, self._imagined_plans = 0, event.plans
            self._work("imagine", "")
            current = self.observation.run.plan if self.observation.run else None
            shown = plan_sections.plans(event.plans, current)
            self._show(
                imagined_plans=shown,
                imagined={**_imagined(self._imagined), "words": harmless(event.words)[:500]},
            )
        return []

    def _show_plans(self) -> None:
        current = self.observation.run.plan if self.observation.run else None
        found = self._plans
        if self._compared[0] is current and self._compared[1] is found:
            return  # names and figures are as they were
        self._compared = current, found
        if current is not None and current.latency_s is not None:
            names = plan_sections.by_name(found)
            found = found if plan_sections.name_of(current) in names else (current, *found)
        self._show(plans=plan_sections.plans(found, current))

    def _show_limits(self) -> None:
        limits = self._limits
        figures = {
            "latency_s": limits.latency_s,
            "energy_j": limits.energy_j,
            "memory_bytes": limits.memory_bytes,
        }
        self._show(limits={name: value for name, value in figures.items() if value is not None})

    # --- switching --------------------------------------------------------------------------------

    def _named(self, name: str) -> tuple[Plan | None, bool]:
        """A plan of that name, and whether it is of an imagined home."""
        real = plan_sections.by_name(self._plans).get(name)
        run = self.observation.run
        if real is None and run is not None and plan_sections.name_of(run.plan) == name:
            real = run.plan
        if real is not None:
            return real, False
        imagined = plan_sections.by_name(self._imagined_plans).get(name)
        if imagined is None and self._looked_at is not None:  # offered when it was clicked on
            plan, is_imagined = self._looked_at
            if plan_sections.name_of(plan) == name:
                return plan, is_imagined
        return imagined, True

    def _preview(self, name: str) -> list[Order]:
        plan, is_imagined = self._named(name)
        run = self.observation.run
        if plan is None:
            self._looked_at = None
            self._show(preview={})
            if name:
                self._notify("that plan is offered no more")
            return []
        self._looked_at = plan, is_imagined
        self._looked_under = (run.plan, bool(run.ended)) if run is not None else None
        problem = plan.problem if is_imagined else (run.problem if run else plan.problem)
        usual_s = run.step_s[-1] if run is not None and run.step_s else None
        shown = plan_sections.preview(plan, run.plan if run else None, problem, usual_s)
        shown["asked"] = name
        if is_imagined:
            shown["imagined"] = True
        if run is None or run.ended:
            shown["no_run"] = True
        self._show(preview=shown)
        return []

    def _go(self, name: str) -> list[Order]:
        plan, is_imagined = self._named(name)
        run = self.observation.run
        if run is None or run.ended:
            return self._notify("nothing runs that could go over to that plan")
        if plan is None:
            return self._notify("that plan is offered no more: choose another")
        if is_imagined:
            return self._notify("that plan is of the home that you imagine")
        if plan_sections.name_of(run.plan) == name:
            return self._notify("that plan is at work already")
        if self._switching is not None:
            return self._notify(
                "a switch is under way already; the plan can be chosen again after it"
            )
        self._switching = self._next(), plan
        self._work("switch", "switching", 0.0)
        costs_s = self.state.sections.get("preview", {}).get("costs_s")
        if not run.is_imagined:
            self._effects.begin(run, plan, costs_s)
        self._looked_at = None
        self._show(preview={})
        return [SwitchTo(order=self._switching[0], plan=plan)]

    def _done(self, event: OrderDone, now_s: float) -> list[Order]:
        if self._switching is not None and self._switching[0] == event.order:
            plan, self._switching = self._switching[1], None
            self._work("switch", "")
            run = self.observation.run
            if run is not None and run.is_imagined and not event.words:
                return []
            if event.words:
                self._effects.failed()
                words = (
                    f"the switch to {plan.planner} failed, the plan before stands: {event.words}"
                )
                self._note([News(kind="failed", words=words)], now_s)
            else:
                n_done = self.observation.run.n_done if self.observation.run else 0
                self._effects.crossed(n_done)
                who = ", ".join(plan.devices)
                words = f"switched by a click to {plan.planner} on {who}"
                self._note([News(kind="switched", words=words)], now_s)
        elif self._pairing is not None and self._pairing[0] == event.order:
            device, self._pairing = self._pairing[1], None
            self._work("pair", "")
            news = News(kind="paired", words=f"paired with {device}")
            if event.words:
                news = News(kind="failed", words=f"pairing with {device} failed: {event.words}")
            self._note([news], now_s)
        return []

    def _pair(self, device: str, code: str) -> list[Order]:
        seen = self.observation
        member = next((item for item in seen.members if item.name == device), None)
        if member is None or member.key or not seen.can_pair or self._pairing is not None:
            return []
        self._pairing = self._next(), device
        self._work("pair", f"pairing with {device}")
        return [PairDevice(order=self._pairing[0], device=device, code=code)]

    # --- the state --------------------------------------------------------------------------------

    def _next(self) -> int:
        self._n_orders += 1
        return self._n_orders

    def _show(self, **sections: dict[str, Any]) -> None:
        self.state.sections |= sections

    def _work(self, what: str, words: str, done_frac: float | None = None) -> None:
        """Say what is under way; no words: nothing any more."""
        left = {k: v for k, v in self.state.sections.get("work", {}).items() if k != what}
        if words:
            item: dict[str, Any] = {"words": harmless(words)[:200]}
            left[what] = item if done_frac is None else {**item, "frac": done_frac}
        self._show(work=left)

    def _notify(self, words: str) -> list[Order]:
        """Say it; nothing is ordered."""
        self._show(said={"n": self._next(), "words": words})
        return []


def _same_work(plan: Plan, other: Plan) -> bool:
    """Whether both are for the same model, and both train or both do not."""
    mine, its = ((p.model, p.training, p.stages[-1].stop) for p in (plan, other))
    return mine == its


def _imagined(home: Imagined) -> dict[str, Any]:
    return {"media": dict(home.media), "without": list(home.without), "added": list(home.added)}
