"""A training goes back to devices that it has lost, or that wanted to leave, once they are there
again for a while and it pays: by a live switch, in the background.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from potluck.adapt.switch_cost import SwitchCost
from potluck.errors import PotluckError
from potluck.handle import Task
from potluck.planning import judge
from potluck.records import Plan, Problem
from potluck.run.history import DevicesReturned
from potluck.run.recovery import plans_with

if TYPE_CHECKING:
    from potluck.run.engine import RunEngine

BACK_S = (
    10.0  # how long a device is there again before it is relied upon; twice that after each loss
)
MOST_BACK_S = 600.0
GAIN = 2.0  # times what the switch costs: that much sooner the training must end


class Rejoin:
    """Of one fit. Of its plans, the one that the user chose is the one to go back to.

    Parameters
    ----------
    engine
        Of the run.
    go_over
        Switches the run to a plan; returns when it is in force.
    """

    def __init__(self, engine: "RunEngine", go_over: Callable[[Plan, Task], None]) -> None:
        self._engine, self._go_over = engine, go_over
        self._since_s: dict[str, float] = {}  # when devices were first seen to be back
        self._considered: tuple[Plan, frozenset[str]] | None = None
        self._task = Task()
        self._work: threading.Thread | None = None

    def look(self) -> None:
        """See who is back, and go back to them where that pays. For who holds the boundary."""
        engine = self._engine
        plan, now_s = engine.compiled_plan.plan, time.monotonic()
        missing = [name for name in engine.wanted.devices if name not in plan.devices]
        staying = engine.members.staying if missing else ()
        self._since_s = {n: self._since_s.get(n, now_s) for n in missing if n in staying}
        back = frozenset(n for n, s in self._since_s.items() if now_s - s >= self._patience_s(n))
        is_busy = self._work is not None and self._work.is_alive()
        if not back or is_busy or engine.migration is not None or engine.one_migration.locked():
            return
        if self._considered == (plan, back):  # it did not pay, and now less is left
            return
        self._considered = plan, back
        self._work = threading.Thread(
            target=self._carry_out, args=(plan, back), name="potluck rejoin", daemon=True
        )
        self._work.start()

    def stop(self) -> None:
        """No more of it; a switch that is under way is turned back."""
        self._task.cancel()
        if self._work is not None:
            self._work.join()

    def _patience_s(self, name: str) -> float:
        n_lost = sum(lost.device == name for lost in self._engine.history.recoveries)
        return min(MOST_BACK_S, BACK_S * 2.0 ** max(0, n_lost - 1))

    def _carry_out(self, plan: Plan, back: frozenset[str]) -> None:
        engine, begun_s = self._engine, time.monotonic()
        with suppress(PotluckError, CancelledError):  # the plan of now stands
            chosen = self._chosen(plan, back)
            if chosen is None:
                return
            self._go_over(chosen, self._task)
            with engine.boundary():
                arrival = DevicesReturned(
                    step=engine.step,
                    back=tuple(name for name in chosen.devices if name in back),
                    devices=chosen.devices,
                    seconds=time.monotonic() - begun_s,
                )
                history = engine.history
                engine.history = replace(history, arrivals=(*history.arrivals, arrival))
                engine.note(arrival.words)

    def _chosen(self, plan: Plan, back: frozenset[str]) -> Plan | None:
        """What to go over to, where that pays."""
        engine = self._engine
        names = {*plan.devices, *back} & set(engine.members.staying)
        holders = [stage.devices for stage in plan.stages for _ in range(stage.start, stage.stop)]
        found = plans_with(engine, names, holders, base=engine.wanted)
        chosen = found[0] if found else None
        if chosen is None or not back & set(chosen.devices):
            return None
        problem = engine.compiler.problem(engine.compiled_plan)
        if problem is None:
            return chosen if chosen == engine.wanted else None
        n_steps = engine.last_step and engine.last_step - engine.step
        return chosen if pays(plan, chosen, problem, n_steps, engine.wanted) else None


def pays(
    before: Plan, after: Plan, problem: Problem, n_left: int | None, wanted: Plan | None = None
) -> bool:
    """Whether a training that goes over to another plan ends enough sooner.

    Parameters
    ----------
    before, after
        The plans.
    problem
        That they solve.
    n_left
        Steps of the training; None where nobody knows, and there may be many.
    wanted
        A plan that the user has chosen: for a reason, if it is not the faster one.
    """
    old_s, new_s = (judge(problem, plan).latency_s or 0.0 for plan in (before, after))
    cost_s = SwitchCost().seconds(before, after, problem, old_s)
    if n_left is not None and n_left * old_s <= GAIN * cost_s:
        return False
    if new_s >= old_s:
        return after == wanted
    return n_left is None or n_left * (old_s - new_s) > GAIN * cost_s
