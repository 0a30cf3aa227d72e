"""A fit that is to end by a time: it goes over between plans that take more time and less energy,
as Dora's small program says (section 4.3, eqs. 7 and 8), and corrects itself by its own steps.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from potluck import units
from potluck.adapt.adapter import FAILED, STAY, SWITCH, Decision, same_sums
from potluck.adapt.mixture import Mixture, mix
from potluck.adapt.switch_cost import SwitchCost
from potluck.errors import Infeasible, PotluckError, UserError
from potluck.handle import Task
from potluck.planning import judge, make_plans
from potluck.provenance import marked, worst
from potluck.records import Plan, Problem
from potluck.run.adapting import notify, problem_now

if TYPE_CHECKING:
    from potluck.run.engine import RunEngine

WINDOW = 8  # steps between two looks
FILLING = 2  # steps after a switch that are longer than those to come
SPARE_FRAC = 0.03  # of what is left, kept for steps that take longer
WORTH_FRAC = 0.05  # of the joules to come: less is no reason for another switch
BUDGET_S = 0.5  # of each planning
# Times of a step, by the one that the deadline leaves, within which the least energy is looked for:
# those that are mixed are at most as slow as the slowest of them.
LIMITS = (1.0, 1.5, 2.5, 5.0)


class Pacing:
    """Of one fit.

    Parameters
    ----------
    engine
        Of the run.
    last_step
        The number of steps at the end of the fit.
    deadline_s
        When it is to end, in seconds from now.
    go_over
        Switches the run to a plan; returns when it is in force.

    Raises
    ------
    UserError
        Nobody knows how many steps there are, or how much energy a plan takes.
    Infeasible
        Even the fastest plan takes longer.
    """

    def __init__(
        self,
        engine: "RunEngine",
        last_step: int | None,
        deadline_s: float,
        go_over: Callable[[Plan, Task], None],
    ) -> None:
        if last_step is None:
            raise UserError(
                "how many batches there are is not known, so no deadline can be held.",
                next_step="Give fit a list of batches, or a DataLoader with a length.",
            )
        self._engine = engine
        self._last_step = last_step
        self._go_over = go_over
        self._deadline_s, self._begun_s = deadline_s, time.monotonic()
        self._first = len(engine.history.step_s)
        self._task = Task()
        self._work: threading.Thread | None = None
        plan = engine.compiled_plan.plan
        self._problem = self._problem_of(plan)
        found = _thrifty_plans(self._problem, deadline_s / max(1, last_step - engine.step))
        self._others = [p for p in found if same_sums(plan, p, self._problem.layers)]
        self._since = self._first  # the first step of the plan at work
        # measured by predicted seconds of a step: of each plan's stages, and the latest
        self._slowness: dict[object, float] = {None: 1.0}
        self._due = engine.step
        self._mixed(plan, last_step - engine.step)  # late from the beginning: nothing is begun

    def look(self) -> None:
        """Go over to another plan where it is time for that. For who holds the boundary."""
        engine = self._engine
        is_busy = self._work is not None and self._work.is_alive()
        if is_busy or engine.step < self._due or engine.migration is not None or engine.failed:
            return
        if not set(engine.compiled_plan.plan.devices) <= set(engine.members.staying):
            return  # it is moved off them
        n_left = self._last_step - engine.step
        if n_left < 1:
            return
        self._measure()
        self._due = engine.step + WINDOW
        self._work = threading.Thread(
            target=self._carry_out, args=(n_left,), name="potluck pacing", daemon=True
        )
        self._work.start()

    def stop(self) -> None:
        """No more of it; a switch that is under way is turned back."""
        self._task.cancel()
        if self._work is not None:
            self._work.join()

    def _problem_of(self, plan: Plan) -> Problem:
        engine = self._engine
        profiled = engine.compiler.problem(engine.compiled_plan)
        if profiled is None:
            raise UserError(
                "a deadline is held by what a profile predicts, and there is none.",
                next_step="Use home.profile(model) before home.deploy.",
            )
        return problem_now(engine, plan, profiled)

    def _left_s(self) -> float:
        """Until the deadline."""
        # a home in memory has a clock of its own
        steps_s = sum(self._engine.history.step_s[self._first :])
        return self._deadline_s - max(time.monotonic() - self._begun_s, steps_s)

    def _measure(self) -> None:
        """How much longer a step takes than was predicted for the plan at work."""
        plan = self._engine.compiled_plan.plan
        predicted_s = self._judged(plan).latency_s
        steps_s = self._engine.history.step_s[self._since + FILLING :][-WINDOW:]
        if steps_s and predicted_s:
            self._slowness[plan.stages] = self._slowness[None] = median(steps_s) / predicted_s

    def _judged(self, plan: Plan) -> Plan:
        """As predicted; a plan after a loss may have another name for the same model."""
        return judge(self._problem, replace(plan, model=self._problem.model))

    def _plans(self, plan: Plan) -> list[Plan]:
        """As they are here: the one at work, and all others of devices that are there and stay."""
        staying = set(self._engine.members.staying)
        others = [p for p in self._others if set(p.devices) <= staying]
        return [self._here(p) for p in (self._judged(plan), *others)]

    def _here(self, plan: Plan) -> Plan:
        """As long as its steps take here; whoever computes for longer needs as much more energy."""
        factor = self._slowness.get(plan.stages, self._slowness[None])
        if plan.latency_s is None or plan.energy_j is None:
            return plan
        return replace(plan, latency_s=plan.latency_s * factor, energy_j=plan.energy_j * factor)

    def _mixed(self, plan: Plan, n_left: int) -> Mixture:
        plans = self._plans(plan)
        step_s = plans[0].latency_s or 0.0
        cost = SwitchCost()
        switch_s = max(
            (cost.seconds(plan, p, self._problem, step_s) for p in plans[1:]), default=0.0
        )
        left_s = max(1e-6, self._left_s() * (1 - SPARE_FRAC))
        return mix(plans, n_left, left_s, switch_s=switch_s)

    def _carry_out(self, n_left: int) -> None:
        engine = self._engine
        plan, step = engine.compiled_plan.plan, engine.step
        try:
            target, words = self._chosen(plan, n_left)
            if target is None:
                return
            self._go_over(target, self._task)
            self._since = len(engine.history.step_s)
            action = SWITCH
        except CancelledError:
            return
        except PotluckError as error:
            target = None
            action = FAILED
            words = f"the plan stays: {error}"
        notify(
            engine, Decision(step=step, action=action, words=f"step {step}: {words}", plan=target)
        )

    def _chosen(self, plan: Plan, n_left: int) -> tuple[Plan | None, str]:
        """What to go over to, and why; None where the plan at work stays."""
        try:
            mixture = self._mixed(plan, n_left)
        except Infeasible:
            return self._fastest(plan, n_left)
        first, n_steps = mixture.plans[0], mixture.steps[0]
        if first.stages == plan.stages:
            self._due = min(self._due, self._engine.step + n_steps)
            return None, ""
        alone = self._here(self._judged(plan))
        if (
            alone.latency_s is not None
            and alone.energy_j is not None
            and alone.latency_s * n_left <= self._left_s() * (1 - SPARE_FRAC)
            and mixture.energy_j > (1 - WORTH_FRAC) * alone.energy_j * n_left
        ):
            return None, ""
        target = next(p for p in self._others if p.stages == first.stages)
        source = worst(each.energy_source for each in mixture.plans)
        return target, (
            f"{units.number(n_left, 'step')} to go and {units.duration(self._left_s())}; "
            f"{units.number(n_steps, 'step')} of {target.planner} on {', '.join(target.devices)} "
            f"end in time with {marked(units.energy(mixture.energy_j), source)}."
        )

    def _fastest(self, plan: Plan, n_left: int) -> tuple[Plan | None, str]:
        best = min(self._plans(plan), key=lambda p: p.latency_s or float("inf"))
        seconds = (best.latency_s or 0.0) * n_left
        words = (
            f"{units.number(n_left, 'step')} to go take {units.duration(seconds)} or more, and "
            f"{units.duration(max(0.0, self._left_s()))} are left: it will be late"
        )
        if best.stages == plan.stages:
            history = self._engine.history.decisions
            if not history or history[-1].action != STAY:
                step = self._engine.step
                sentence = f"step {step}: {words}; this plan is the fastest."
                notify(self._engine, Decision(step=step, action=STAY, words=sentence))
            return None, ""
        best = next(p for p in self._others if p.stages == best.stages)
        return best, f"{words}; {best.planner} on {', '.join(best.devices)} is the fastest."


def _thrifty_plans(problem: Problem, step_s: float) -> list[Plan]:
    """The fastest plan, and those with the least energy within several times of a step."""
    found = list(make_plans(problem, clock=time.thread_time, budget_s=BUDGET_S).pareto)
    for factor in LIMITS:
        qoe = replace(problem.qoe, latency_s=factor * step_s)
        with suppress(Infeasible):
            plans = make_plans(replace(problem, qoe=qoe), clock=time.thread_time, budget_s=BUDGET_S)
            found.append(plans.best)
    return list({plan.stages: plan for plan in found}.values())
