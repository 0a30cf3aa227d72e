"""A run that adapts: looks at its steps (or requests) in the background, and does what the adapter
decides at a boundary. What decides is in `adapt`.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from potluck.adapt.adapter import (
    FAILED,
    NOTHING,
    ORDER,
    PLAN,
    SWITCH,
    WAIT,
    Adapter,
    Decision,
    StepsSeen,
)
from potluck.adapt.alternatives import still_wanted, trained_alike
from potluck.adapt.conditions import DEVICE, Thing, ratios, under
from potluck.adapt.look_times import WINDOW, LookTimes, rest_steps
from potluck.contention.transfer_order import one_at_a_time, with_ordered_transfers
from potluck.errors import Infeasible, PotluckError
from potluck.handle import Task
from potluck.planning import judge, make_plans
from potluck.planning.scenario import only
from potluck.records import Plan, Problem, Trace
from potluck.run.comparison import compare
from potluck.run.compiled_plan import INFER, train_name
from potluck.run.probing import Prober
from potluck.schedule import Compiled
from potluck.sessions.events import ExecutionResult
from potluck.simulate.predict import IN_FLIGHT, predict_steps
from potluck.simulate.time_spans import most_at_once

if TYPE_CHECKING:
    from potluck.run.engine import RunEngine

BUDGET_S = 0.5  # of a planning
FEW = 4  # of the plans that were found, those that the next looks judge again
LOOK_S = 0.1  # between two looks whether requests are to be looked at
Steps = Sequence[tuple[ExecutionResult, Compiled]]


class Adapting:
    """The adapter of one fit, or of the requests of a run for inference, at work.

    Parameters
    ----------
    engine
        Of the run.
    last_step
        The number of steps at the end; None where nobody knows.
    traced
        Makes the measured trace of some steps.
    go_over
        Switches the run to a plan; returns when it is in force.
    """

    def __init__(
        self,
        engine: "RunEngine",
        last_step: int | None,
        traced: Callable[[Steps], Trace],
        go_over: Callable[[Plan, Task], None],
    ) -> None:
        self._engine, self._last_step = engine, last_step
        self._traced, self._go_over = traced, go_over
        self._trains = engine.compiled_plan.plan.training
        self._adapter = Adapter(self._n_done, "step" if self._trains else "request")
        self._task = Task()
        self._prober = Prober(engine, self._task)
        self._next_probe_step = self._n_done  # from when on somebody may be asked
        self._times = LookTimes(self._n_done)
        self._waiting = False  # for a switch to pay
        self._found: Sequence[Plan] = ()  # at the latest planning
        self._work: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._crossed: tuple[Decision, int, float] | None = None  # not measured yet

    @property
    def _n_done(self) -> int:
        """Steps or requests."""
        return self._engine.step if self._trains else self._engine.n_requests

    def look(self) -> None:
        """Look at the latest steps, where it is time for that and the look before is over.

        For who holds the boundary.
        """
        engine = self._engine
        busy = self._work is not None and self._work.is_alive()
        n_done = self._n_done
        if busy or engine.migration is not None or engine.failed:
            return
        plan = engine.compiled_plan.plan
        if not set(plan.devices) <= set(engine.members.staying):
            return  # it is moved off them
        name = train_name(plan.batch, plan) if self._trains else INFER
        own = engine.compiled_plan.compiled[name]
        steps = [(execution, made) for execution, made in engine.kept if made is own][-WINDOW:]
        if len(steps) < WINDOW:
            return
        took_s = median(execution.stop_s - execution.start_s for execution, _ in steps)
        if not self._times.is_due(n_done, plan.stages, took_s):
            return
        self._learn_cost()
        self._work = threading.Thread(
            target=self._carry_out, args=(plan, steps, n_done), name="adapting", daemon=True
        )
        self._work.start()

    def keep_looking(self, task: Task) -> None:
        """Look again and again while a run for inference answers; until the task is cancelled, or
        the run ends.

        Parameters
        ----------
        task
            Says when to end.
        """
        try:
            while self._engine.failed is None:
                task.check()
                with self._engine.boundary():
                    self.look()
                time.sleep(LOOK_S)
        finally:
            self.stop()

    def stop(self) -> None:
        """No more of it; a switch that is under way is turned back.

        Raises
        ------
        PotluckError
            What went wrong meanwhile.
        """
        self._task.cancel()
        if self._work is not None:
            self._work.join()
        if self._failure is not None and self._engine.failed is None:
            raise self._failure

    def _carry_out(self, plan: Plan, steps: Steps, step: int) -> None:
        begun_s = time.thread_time()
        try:
            looked = self._decide(plan, steps, step)
            spent_s = time.thread_time() - begun_s
            if looked is not None:
                look, decision = looked
                action = NOTHING if decision is None else decision.action
                self._waiting = action == WAIT
                self._times.looked(
                    step, spent_s, look.step_s, acts=action == SWITCH, waits=self._waiting
                )
                self._act(plan, look, decision)
        except CancelledError:
            pass
        except PotluckError as error:  # no plan fits any more, or this one cannot be judged
            self._adapter.settle()
            notify(
                self._engine,
                Decision(step=step, action=FAILED, words=f"step {step}: the plan stays: {error}"),
            )
        except BaseException as error:  # raised again where the fit ends
            self._failure = error

    # --- looking ----------------------------------------------------------------------------------

    def _decide(
        self, plan: Plan, steps: Steps, step: int
    ) -> tuple[StepsSeen, Decision | None] | None:
        engine, adapter = self._engine, self._adapter
        profiled = engine.compiler.problem(engine.compiled_plan)
        if profiled is None:
            return None
        compiled, problem = steps[-1][1], under(profiled, adapter.known)
        look = self._seen(steps, compiled, problem, step)
        self._ask(adapter.doubtful(look.ratios), look, plan, profiled)
        todo = adapter.look(look, plan)
        if todo == NOTHING:
            return look, None
        if todo == PLAN and not self._waiting:  # whom it may go to
            others = problem_now(engine, plan, profiled).devices
            unseen = [(DEVICE, d.name) for d in others if (DEVICE, d.name) not in look.ratios]
            self._ask(unseen, look, plan, profiled)
        problem = under(profiled, adapter.known)
        if todo == ORDER:  # requests come when they come
            return look, self._ordering(look, compiled, problem) if self._trains else None
        return look, self._planning(look, plan, problem)

    def _ask(self, things: Iterable[Thing], look: StepsSeen, plan: Plan, profiled: Problem) -> None:
        """Those that no step shows, for a small part of the run's time."""
        if look.step < self._next_probe_step or not (unseen := tuple(things)):
            return
        prober, adapter = self._prober, self._adapter
        adapter.update_slowness(prober.slowness(unseen, plan, profiled, adapter.known), look.step)
        self._next_probe_step = look.step + rest_steps(prober.spent_s, look.step_s)

    def _seen(self, steps: Steps, compiled: Compiled, problem: Problem, step: int) -> StepsSeen:
        spans = [(execution.start_s, execution.stop_s) for execution, _ in steps]
        in_flight = IN_FLIGHT if self._trains else most_at_once(spans)
        predicted = predict_steps(compiled, problem, in_flight)
        measured = self._traced(steps)
        compared = compare(predicted, measured, compiled.programs, problem.network)
        flows = {(each.source, each.target): each.median_s for each in compared.transfers}
        return StepsSeen(
            step=step,
            step_s=compared.measured_step_s,
            predicted_s=compared.predicted_step_s,
            ratios=ratios(predicted, measured, compiled, problem, flows),
            steps_left=None if self._last_step is None else max(0, self._last_step - step),
        )

    def _ordering(self, look: StepsSeen, compiled: Compiled, problem: Problem) -> Decision:
        if self._engine.compiled_plan.order_transfers is False:
            return self._adapter.order(look, 1.0, 1.0)
        new = with_ordered_transfers(one_at_a_time(compiled, problem), problem)
        before_s, after_s = (
            median(predict_steps(each, problem, IN_FLIGHT).step_s) for each in (compiled, new)
        )
        return self._adapter.order(look, before_s, after_s)

    def _planning(self, look: StepsSeen, plan: Plan, problem: Problem) -> Decision:
        problem = problem_now(self._engine, plan, problem)
        if self._waiting:  # does what was found still look good?
            found: Sequence[Plan] = [judge(problem, other) for other in self._found]
        else:
            problem, found = _planned(problem)
            if self._trains:
                found = trained_alike(problem, plan, found, FEW)
            else:
                found = [p for p in found if p.stages != plan.stages][:FEW]
        self._found = found
        return self._adapter.choose(look, judge(problem, plan), found, problem)

    # --- acting -----------------------------------------------------------------------------------

    def _act(self, plan: Plan, look: StepsSeen, decision: Decision | None) -> None:
        engine = self._engine
        if decision is None:
            return
        if decision.action not in (ORDER, SWITCH):
            notify(engine, decision)
            return
        self._task.check()
        engine.compiler.conditions = self._adapter.known
        begun = len(engine.history.step_s)
        try:
            if decision.plan is not None:
                wanted = engine.wanted
                self._go_over(decision.plan, self._task)
                engine.wanted = still_wanted(wanted, plan, decision.plan)
                self._crossed = decision, begun, look.step_s
                self._adapter.settle()
            else:
                self._order_anew(plan)
        except PotluckError as error:
            decision = replace(
                decision, action=FAILED, words=f"{decision.words} It failed: {error}"
            )
            self._adapter.settle()
        notify(engine, decision)

    def _order_anew(self, plan: Plan) -> None:
        engine = self._engine
        with engine.boundary():
            if engine.compiled_plan.plan == plan and engine.migration is None:
                engine.renew(plan, engine.compiled_plan.optimizer, engine.sizes)

    def _learn_cost(self) -> None:
        """What the last switch has cost, against usual steps of the plan before."""
        if self._crossed is None or not self._trains:
            return
        (decision, begun, usual_s), self._crossed = self._crossed, None
        history = self._engine.history.step_s
        during = history[begun : len(history) - WINDOW + 1]
        lost_s = sum(during) - usual_s * len(during)
        self._adapter.cost = self._adapter.cost.learned(decision.cost_s, lost_s)


def problem_now(engine: "RunEngine", plan: Plan, problem: Problem) -> Problem:
    """What a run may be planned for now: with the devices that stay, of those that the user has
    planned for, and its plan's limits.

    Parameters
    ----------
    engine
        Of the run.
    plan
        At work.
    problem
        With all devices.
    """
    names, planned = set(engine.members.staying), engine.chosen.problem
    if planned is not None:
        names &= {device.name for device in planned.devices} | set(plan.devices)
    problem = only(problem, [d.name for d in problem.devices if d.name in names])
    return problem if plan.problem is None else replace(problem, qoe=plan.problem.qoe)


def notify(engine: "RunEngine", decision: Decision) -> None:
    """Put a decision into the history, where it is not what was said before.

    Parameters
    ----------
    engine
        Of the run.
    decision
        The latest.
    """
    with engine.boundary():
        h = engine.history
        last = h.decisions[-1] if h.decisions else None
        if last is None or (last.action, decision.action) != (WAIT, WAIT):
            engine.history = replace(h, decisions=(*h.decisions, decision))


def _planned(problem: Problem) -> tuple[Problem, Sequence[Plan]]:
    """Plans for these conditions, the best first; where none holds the limits on time and energy,
    without them: a run that goes on more slowly is better than none. And what they are for.
    """
    try:
        return problem, make_plans(problem, clock=time.thread_time, budget_s=BUDGET_S).items
    except Infeasible:
        qoe = replace(problem.qoe, latency_s=None, energy_j=None, device_energy_j={})
        problem = replace(problem, qoe=qoe)
        return problem, make_plans(problem, clock=time.thread_time, budget_s=BUDGET_S).items
