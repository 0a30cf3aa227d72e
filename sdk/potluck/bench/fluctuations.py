"""Homes that change while they train, and what plans and ways to adapt make of them. Pure.

A home is one of `small_homes` (plain) with powers. It goes through stretches of so many steps each,
within which nothing changes. Kinds:

- stable: nothing ever changes.
- bandwidth: in some stretches a medium carries 40 to 60 % less (as in DeepCEE, section 5).
- load: in some stretches another program takes 20 to 80 % of a device.
- leaving: in some stretches a device is away; at most all but one in turn. It is drained first.
- recorded-like: all media wander as WiFi does in a home, by a walk on the scale of ratios that is
  drawn back to the profile.
"""

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import exp

from potluck.adapt.adapter import PLAN, SWITCH, Adapter, StepsSeen, same_sums
from potluck.adapt.alternatives import still_wanted, trained_alike
from potluck.adapt.conditions import DEVICE, MEDIUM, Conditions, Thing, under
from potluck.adapt.switch_cost import SwitchCost
from potluck.bench.small_homes import random_problem
from potluck.planning import judge, make_plans
from potluck.planning.scenario import only
from potluck.records import Plan, Problem, Stage, Training
from potluck.run.rejoin import BACK_S, pays

KINDS = ("stable", "bandwidth", "load", "leaving", "recorded_like")
WINDOW = 8  # steps of a look
KEPT = 4  # of the plans of a stretch
CHANGED = 0.4  # of the stretches
WANDERING = 0.25  # per stretch, on the scale of ratios
ASKING_S = 0.1  # of a medium
RETURNING = 0.3  # of the way back to the profile, per stretch


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptOutcome:
    """Seconds and joules of all steps and switches, and the plans that were used."""

    seconds: float
    energy_j: float
    n_switches: int
    plans: tuple[Plan, ...] = ()


@dataclass(slots=True, kw_only=True)
class Evening:
    """A home and what it goes through: the conditions of every stretch of `n_steps`, and who is
    away in it.
    """

    problem: Problem
    stretches: tuple[Conditions, ...]
    away: tuple[str, ...]  # a device, or "" for nobody
    n_steps: int
    rng: random.Random
    noise: float
    _plans: dict[int, tuple[Plan, ...]] = field(default_factory=dict)
    _judged: dict[tuple[int, tuple[Stage, ...]], Plan] = field(default_factory=dict)

    def problem_in(self, problem: Problem, number: int) -> Problem:
        """The problem with the devices that are there in a stretch."""
        names = [d.name for d in problem.devices if d.name != self.away[number]]
        return only(problem, names) if self.away[number] else problem

    def can(self, plan: Plan, number: int) -> bool:
        """Whether all its devices are there."""
        return self.away[number] not in plan.devices

    def now(self, number: int) -> Problem:
        """The home in a stretch, those that are away as if they were there."""
        return under(self.problem, self.stretches[number])

    def same_as(self, number: int) -> int:
        """The first stretch that is like this one."""
        like = list(zip(self.stretches, self.away, strict=True))
        return like.index(like[number])

    def plans(self, number: int) -> tuple[Plan, ...]:
        """The best plans for a stretch."""
        number = self.same_as(number)
        if number not in self._plans:
            home = self.problem_in(self.now(number), number)
            self._plans[number] = make_plans(home).items[:KEPT]
        return self._plans[number]

    def judged(self, plan: Plan, number: int) -> Plan:
        """What a plan takes in a stretch."""
        number = self.same_as(number)
        if (number, plan.stages) not in self._judged:
            self._judged[number, plan.stages] = judge(self.now(number), plan)
        return self._judged[number, plan.stages]

    def taking(self, plan: Plan, number: int, n_steps: int) -> tuple[float, float]:
        """Seconds and joules of so many steps of a plan in a stretch."""
        found = self.judged(plan, number)
        return n_steps * (found.latency_s or 0.0), n_steps * (found.energy_j or 0.0)

    def switching(self, before: Plan, after: Plan, number: int) -> tuple[float, float]:
        """Seconds and joules of a switch; none where the plans are one."""
        if before.stages == after.stages:
            return 0.0, 0.0
        step_s, step_j = self.taking(before, number, 1)
        seconds = SwitchCost().seconds(before, after, self.now(number), step_s)
        return seconds, seconds * step_j / step_s


def drawn(kind: str, seed: int, settings: Mapping[str, float]) -> Evening:
    """The evening of that kind and seed.

    Parameters
    ----------
    kind
        One of `KINDS`.
    seed
        Of all that is drawn.
    settings
        "devices", "layers", "stretches", "steps" of one, "noise_frac" of a look.
    """
    rng = random.Random(f"{kind} {seed}")
    problem = random_problem(rng, settings)
    devices = tuple(
        replace(
            device,
            idle_w=(idle_w := rng.uniform(1.0, 5.0)),
            busy_w=idle_w + rng.uniform(2.0, 60.0),
            radio_w=rng.uniform(0.0, 1.0),
        )
        for device in problem.devices
    )
    workload = Training(batch=8, micro_batch=2, optimizer_copies=2)
    n = int(settings["stretches"])
    stretches = tuple(_stretches(kind, problem, n, rng))
    return Evening(
        problem=replace(problem, devices=devices, workload=workload),
        stretches=stretches,
        away=tuple(_away(kind, problem, n, rng)),
        n_steps=int(settings["steps"]),
        rng=rng,
        noise=settings["noise_frac"],
    )


def _stretches(kind: str, problem: Problem, n: int, rng: random.Random) -> list[Conditions]:
    names = [medium.name for medium in problem.network.media]
    walk, found = dict.fromkeys(names, 0.0), [Conditions()]
    for _ in range(n - 1):
        factors: dict[Thing, float] = {}
        if kind == "recorded_like":
            for name in names:
                walk[name] = walk[name] * (1 - RETURNING) + rng.gauss(0.0, WANDERING)
                factors[MEDIUM, name] = exp(walk[name])
        elif kind == "bandwidth" and rng.random() < CHANGED:
            factors[MEDIUM, rng.choice(names)] = 1 / (1 - rng.uniform(0.4, 0.6))
        elif kind == "load" and rng.random() < CHANGED:
            device = rng.choice(problem.devices).name
            factors[DEVICE, device] = 1 / (1 - rng.uniform(0.2, 0.8))
        found.append(Conditions(factors={**_as_profiled(problem), **factors}))
    found[0] = Conditions(factors=_as_profiled(problem))
    return found


def _away(kind: str, problem: Problem, n: int, rng: random.Random) -> list[str]:
    if kind != "leaving":
        return [""] * n
    names = [device.name for device in problem.devices]
    return ["", *(rng.choice(names) if rng.random() < CHANGED else "" for _ in range(n - 1))]


def _as_profiled(problem: Problem) -> dict[Thing, float]:
    """As profiled: what conditions say of everything where nobody has to guess."""
    devices = {(DEVICE, device.name): 1.0 for device in problem.devices}
    return devices | {(MEDIUM, medium.name): 1.0 for medium in problem.network.media}


# --- ways through an evening ----------------------------------------------------------------------


class _Way:
    """What has been taken so far, by whom."""

    def __init__(self, evening: Evening) -> None:
        self._evening = evening
        self.plan = evening.plans(0)[0]
        self.seconds = self.energy_j = 0.0
        self.n_switches = 0
        self.plans: tuple[Plan, ...] = (self.plan,)

    def take(self, number: int, n_steps: int) -> None:
        seconds, joules = self._evening.taking(self.plan, number, n_steps)
        self.seconds, self.energy_j = self.seconds + seconds, self.energy_j + joules

    def go_over(self, plan: Plan, number: int) -> float:
        """Switch; the seconds that it takes."""
        seconds, joules = self._evening.switching(self.plan, plan, number)
        self.seconds, self.energy_j = self.seconds + seconds, self.energy_j + joules
        self.n_switches += plan.stages != self.plan.stages
        self.plan, self.plans = plan, (*self.plans, plan)
        return seconds

    def ask(self, adapter: Adapter, things: Collection[Thing], number: int, step: int) -> None:
        """Those that no step shows; a medium answers with some bytes, in the run's own time."""
        true, rng = self._evening.stretches[number], self._evening.rng
        heard = {t: true.of(t) * rng.lognormvariate(0.0, self._evening.noise) for t in things}
        self.seconds += ASKING_S * sum(kind == MEDIUM for kind, _ in heard)
        adapter.update_slowness(heard, step)

    @property
    def outcome(self) -> AdaptOutcome:
        return AdaptOutcome(
            seconds=self.seconds,
            energy_j=self.energy_j,
            n_switches=self.n_switches,
            plans=self.plans,
        )


def static(evening: Evening) -> AdaptOutcome:
    """The plan of the profile, whatever happens; where a device leaves, the best without it."""
    way = _Way(evening)
    for number in range(len(evening.stretches)):
        if not evening.can(way.plan, number):
            way.go_over(evening.plans(number)[0], number)
        way.take(number, evening.n_steps)
    return way.outcome


def anew(evening: Evening) -> AdaptOutcome:
    """At every change, told of it at once and exactly, over to what is best then."""
    way = _Way(evening)
    for number in range(len(evening.stretches)):
        way.go_over(evening.plans(number)[0], number)
        way.take(number, evening.n_steps)
    return way.outcome


def oracle(evening: Evening, more: Collection[Plan] = ()) -> AdaptOutcome:
    """The best way of all over the best plans of all stretches, by one that knows the future:
    shortest path, with the switches between stretches. Its plans are those of the stretches.

    Parameters
    ----------
    evening
        All of it.
    more
        Plans that others have found: a search under other conditions may find a better one.
    """
    numbers = range(len(evening.stretches))
    plans = {plan.stages: plan for number in numbers for plan in evening.plans(number)}
    plans |= {plan.stages: plan for plan in more}
    start = evening.plans(0)[0]
    best = {start.stages: AdaptOutcome(seconds=0.0, energy_j=0.0, n_switches=0, plans=(start,))}
    for number in numbers:
        best = {
            stages: min(
                (_longer(evening, way, plan, number) for way in best.values()),
                key=lambda way: (way.seconds, way.energy_j, way.n_switches),
            )
            for stages, plan in plans.items()
            if evening.can(plan, number)
        }
    found = min(best.values(), key=lambda way: (way.seconds, way.energy_j, way.n_switches))
    return replace(found, plans=found.plans[1:])


def _longer(evening: Evening, way: AdaptOutcome, plan: Plan, number: int) -> AdaptOutcome:
    """The way and a stretch by this plan."""
    before = way.plans[-1]
    cost_s, cost_j = evening.switching(before, plan, number)
    more_s, more_j = evening.taking(plan, number, evening.n_steps)
    return AdaptOutcome(
        seconds=way.seconds + cost_s + more_s,
        energy_j=way.energy_j + cost_j + more_j,
        n_switches=way.n_switches + (before.stages != plan.stages),
        plans=(*way.plans, plan),
    )


def adapting(evening: Evening) -> AdaptOutcome:
    """Our adapter: it sees what the plan at work shows, with noise, and learns what switches
    cost.
    """
    ours = _AdapterWay(evening)
    for number in range(len(evening.stretches)):
        ours.leave(number)
        for _ in range(evening.n_steps // WINDOW):
            ours.take(number, WINDOW)
            ours.look(number)
        ours.take(number, evening.n_steps % WINDOW)
    return ours.way.outcome


class _AdapterWay:
    """The adapter's way, and what a run does beside it where devices leave and come back."""

    def __init__(self, evening: Evening) -> None:
        self._evening, self._adapter = evening, Adapter()
        self.way = _Way(evening)
        self._wanted = self.way.plan
        self._found: list[Plan] = []  # while a change is open
        self._left = len(evening.stretches) * evening.n_steps
        self._done = 0
        self._back_s = 0.0  # since who is missing is there again

    def take(self, number: int, n_steps: int) -> None:
        """Some steps."""
        begun_s = self.way.seconds
        self.way.take(number, n_steps)
        self._done, self._left = self._done + n_steps, self._left - n_steps
        missing = not set(self._wanted.devices) <= set(self.way.plan.devices)
        is_back = missing and self._evening.can(self._wanted, number)
        self._back_s = self._back_s + self.way.seconds - begun_s if is_back else 0.0

    def leave(self, number: int) -> None:
        """Go over to the best plan of those that stay, where one of the plan leaves."""
        if not self._evening.can(self.way.plan, number):
            home = self._evening.problem_in(self._problem, number)
            layers = home.layers
            plans = [p for p in make_plans(home) if same_sums(self.way.plan, p, layers)]
            self._go_over(plans[0], number)

    def look(self, number: int) -> None:
        """As a run does: back to who is there again, else what the adapter says."""
        if self._back_s >= BACK_S and self._evening.can(self._wanted, number):
            self._back_s = 0.0
            plans = [judge(self._problem, p) for p in (self.way.plan, self._wanted)]
            if pays(plans[0], plans[1], self._problem, self._left):
                self._go_over(self._wanted, number)
                return
        self._adapt(number)

    def _adapt(self, number: int) -> None:
        adapter, plan = self._adapter, self.way.plan
        look = _look(self._evening, plan, adapter, number, self._done, self._left)
        self.way.ask(adapter, adapter.doubtful(look.ratios), number, self._done)
        if adapter.look(look, plan) == PLAN:
            self._choose(look, number)
        self._found = [] if adapter.is_settled else self._found

    def _choose(self, look: StepsSeen, number: int) -> None:
        adapter, plan = self._adapter, self.way.plan
        home = self._evening.problem_in(self._problem, number)
        devices = [(DEVICE, device.name) for device in home.devices]
        if not self._found:
            unseen = [each for each in devices if each not in look.ratios]
            self.way.ask(adapter, unseen, number, self._done)
        home = self._evening.problem_in(self._problem, number)
        if not self._found:
            self._found = trained_alike(home, plan, make_plans(home), KEPT)
        others = [judge(home, p) for p in self._found if p.stages != plan.stages]
        decision = adapter.choose(look, judge(home, plan), others, home)
        if decision.action == SWITCH and decision.plan is not None:
            cost_s = self._go_over(decision.plan, number)
            adapter.cost = adapter.cost.learned(decision.cost_s, cost_s)
            self._wanted = still_wanted(self._wanted, plan, decision.plan)

    @property
    def _problem(self) -> Problem:
        """As the adapter knows it, with all devices."""
        return under(self._evening.problem, self._adapter.known)

    def _go_over(self, plan: Plan, number: int) -> float:
        self._found = []
        self._adapter.settle()
        return self.way.go_over(plan, number)


def _look(
    evening: Evening, plan: Plan, adapter: Adapter, number: int, step: int, n_left: int
) -> StepsSeen:
    """What some steps of a plan show: its devices and the media between them, with noise."""

    def noisy() -> float:
        return evening.rng.lognormvariate(0.0, evening.noise)

    true = evening.stretches[number]
    paths = evening.problem.network.paths
    media = {
        name
        for (source, target), path in paths.items()
        if source in plan.devices and target in plan.devices
        for name, _ in path.media
    }
    things: list[Thing] = [(DEVICE, name) for name in plan.devices]
    things += [(MEDIUM, name) for name in sorted(media)]
    predicted = judge(under(evening.problem, adapter.known), plan)
    return StepsSeen(
        step=step,
        step_s=(evening.judged(plan, number).latency_s or 0.0) * noisy(),
        predicted_s=predicted.latency_s or 0.0,
        ratios={t: true.of(t) / adapter.known.of(t) * noisy() for t in things},
        steps_left=n_left,
    )
