"""A run that has lost a device goes on with what is left. A training goes back to its snapshot, and
the steps since come once more from the same batches; requests under way are asked again.

Whoever holds the boundary and meets the loss recovers. A device with a session may take part again
(its worker is started anew). One that fails a second time before a further step or answer is done
is left out.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from potluck.adapt.lightweight_replay import SOONEST, plans_after
from potluck.adapt.recovery_cost import recovery_s
from potluck.errors import OutOfMemory, PotluckError, UserError
from potluck.planning.scenario import only
from potluck.records import Plan, Problem
from potluck.run.device_wait import reasons_to_leave, wait_for_one
from potluck.run.history import Recovery
from potluck.run.surviving_copies import SurvivingCopies, go_on_from, surviving_copies

if TYPE_CHECKING:
    from potluck.run.engine import RunEngine

T = TypeVar("T")
# planning takes this part of what is left of the training, within these bounds
PLANNING_FRAC = 0.01
PLANNING_S = 0.1
MOST_PLANNING_S = 1.0
TRIES = 2  # of a device that is there, without a step in between


def surviving(engine: "RunEngine", work: Callable[[], T]) -> T:
    """Do this at a boundary; where a device is lost meanwhile, recover and do it again.

    Parameters
    ----------
    engine
        Of the run; the caller holds its boundary.
    work
        What is done; may be done twice.
    """
    while True:
        try:
            return work()
        except PotluckError as error:
            if not engine.can_recover(error):
                raise
            recover(engine, error)


def see_all(engine: "RunEngine") -> None:
    """See that all devices of the plan still know the run: they finish what is under way, and tell
    their weights.
    """
    engine.members.need(engine.compiled_plan.plan.devices)
    engine.state.weights()


def recover(engine: "RunEngine", error: PotluckError) -> None:
    """Go on after this loss, or end the run with its cause.

    Parameters
    ----------
    engine
        Of the run; the caller holds its boundary.
    error
        What went wrong, on which device.

    Raises
    ------
    PotluckError
        Nobody is left, or it goes wrong on all of them; the run has ended with this.
    """
    begun_s = time.monotonic()
    before = engine.compiled_plan.plan
    cause = error
    copies = None
    if engine.recovery != "heavy":  # they may be newer than what we went back to
        copies = surviving_copies(engine, error)
    known, n_again = engine.n_requests, engine.requests.n_unanswered
    if engine.protection is not None:
        known = engine.first_step + len(engine.history.losses)
        n_again = known - engine.protection.snapshot.step
        engine.protection.lost()
    failures = engine.failures.copy()
    engine.failures[error.device] += TRIES if isinstance(error, OutOfMemory) else 1
    engine.forget_all(but_copies=copies is not None)
    try:
        way = _go_on(engine, cause, copies)
    except BaseException:
        if engine.failed is None:  # whoever waits has had enough, say; the next one begins here
            _stand_at(engine, known)
            engine.failures = failures
        raise
    plan, problem = engine.compiled_plan.plan, engine.compiler.problem(engine.compiled_plan)
    predicted_s = None
    if problem is not None and plan.latency_s is not None:
        predicted_s = way.chosen_s - begun_s + recovery_s(plan, problem, n_again, way.holders)
    record = Recovery(
        step=known,
        device=cause.device,
        cause=str(cause).removesuffix(f" {cause.next_step}"),
        devices=plan.devices,
        planner=plan.planner if plan != before else "",
        n_again=n_again,
        seconds=time.monotonic() - begun_s,
        what="step" if plan.training else "request",
        predicted_s=predicted_s,
    )
    history = engine.history
    history = replace(history, recoveries=(*history.recoveries, record))
    engine.history = history.with_note(record.words)


def _stand_at(engine: "RunEngine", step: int) -> None:
    """No device knows the run; steps beyond this one, which were under way, are not taken."""
    engine.forget_all()
    if engine.protection is not None:
        engine.step = step
        engine.protection.forget_after(step)


class _Way(NamedTuple):
    """How the run went on: when the plan was chosen, and who had the state of each layer."""

    chosen_s: float
    holders: list[list[str]]


def _go_on(engine: "RunEngine", cause: PotluckError, copies: SurvivingCopies | None) -> _Way:
    """With the first plan that holds, or end the run."""
    failures = engine.failures
    while True:
        holders = copies.of_layers(engine.compiled_plan.plan) if copies is not None else []
        plans = _plans(engine, failures, holders)
        chosen_s = time.monotonic()
        if plans and copies is not None and _begun_from_copies(engine, plans[0], copies):
            return _Way(chosen_s, holders)
        copies = None
        if not plans:
            engine.forget_all()
            if not _is_one_back(engine, failures):
                engine.end(_nobody(engine, cause))
                raise engine.failed or cause
            continue
        again = _begun(engine, plans)
        if again is None:
            return _Way(chosen_s, [])
        failures[again.device] += 1
        if not engine.can_recover(again) or failures.total() > TRIES * len(engine.members):
            engine.end(again)
            raise again


def _begun_from_copies(engine: "RunEngine", plan: Plan, copies: SurvivingCopies) -> bool:
    """Go on from what devices still have; where that fails, none knows the run any more."""
    try:
        go_on_from(engine, copies, plan)
    except PotluckError:
        engine.forget_all()
        return False
    return True


def _is_one_back(engine: "RunEngine", failures: Counter[str]) -> bool:
    """Wait for those that were lost; one that is back begins with a clean slate."""

    def say(text: str) -> None:
        engine.check()  # it may be closed meanwhile
        engine.notify(text)

    back = wait_for_one(engine.members, _known(engine), engine.patience_s, say)
    for name in back:
        del failures[name]
    return bool(back)


def _nobody(engine: "RunEngine", cause: PotluckError) -> PotluckError:
    """What ends the run: what was lost, and who is there and takes nothing new."""
    why = reasons_to_leave(engine.members, _known(engine))
    if not why or why in str(cause):
        return cause
    text = str(cause).removeprefix(f"{cause.device}: ").removesuffix(f" {cause.next_step}")
    return type(cause)(
        f"{text} {why}", device=cause.device, next_step=cause.next_step, **cause.facts
    )


def _known(engine: "RunEngine") -> Sequence[str]:
    """The devices that a plan may use: those of the profile, or all that are there."""
    problem = engine.compiler.problem(engine.compiled_plan)
    if problem is None:
        return tuple(engine.members)
    return tuple(device.name for device in problem.devices)


def _begun(engine: "RunEngine", plans: list[Plan]) -> PotluckError | None:
    """Go on with the first of these plans that holds; what was lost meanwhile."""
    for number, plan in enumerate(plans):
        try:
            engine.begin_again(plan)
            return None
        except PotluckError as error:
            engine.forget_all()
            # it cannot be cut so, or a device cannot train: another one may hold
            if not isinstance(error, UserError) or number + 1 == len(plans):
                return error
    return None


def _plans(
    engine: "RunEngine", failures: Counter[str], holders: Sequence[Collection[str]]
) -> list[Plan]:
    """What the run can go on with, the best first."""
    names = [n for n in engine.members.staying if failures[n] < TRIES]
    return plans_with(engine, names, holders, policy=engine.recovery)


def plans_with(
    engine: "RunEngine",
    names: Collection[str],
    holders: Sequence[Collection[str]] = (),
    base: Plan | None = None,
    policy: str = SOONEST,
) -> list[Plan]:
    """What the run can go on with on these devices, the best first.

    Parameters
    ----------
    engine
        Of the run.
    names
        Of devices that are there.
    holders
        Of each layer, who has its state; default: none of them.
    base
        The plan to keep as much of as can be; default: the one in force.
    policy
        As for `plans_after`.
    """
    plan = base or engine.compiled_plan.plan
    problem = engine.compiler.problem(engine.compiled_plan)
    n_left = engine.last_step and engine.last_step - engine.step
    survivors = [name for name in _known(engine) if name in names]
    return plans_on(
        engine.model, plan, survivors, problem, n_left=n_left, holders=holders, policy=policy
    )


def plans_on(
    model: Any,
    plan: Plan,
    survivors: Sequence[str],
    problem: Problem | None,
    *,
    n_left: int | None,
    holders: Sequence[Collection[str]] = (),
    policy: str = SOONEST,
) -> list[Plan]:
    """What a model can be run by on these devices, in place of a plan; the best first.

    Parameters
    ----------
    model
        That is run.
    plan
        To keep as much of as can be.
    survivors
        The devices that are there.
    problem
        Of all devices that have been profiled; None: nobody has.
    n_left
        Steps that are left; None where nobody knows.
    holders, policy
        As for `plans_after`.
    """
    if not survivors:
        return []
    layers = model.layers(plan.training)
    flop = [layer.forward_flop + layer.backward_flop * plan.training for layer in layers]
    if problem is not None:
        limits = plan.problem.qoe if plan.problem is not None else problem.qoe
        problem = only(replace(problem, qoe=limits), survivors)
    rest_s = float("inf") if n_left is None else n_left * (plan.latency_s or 0.0)
    return plans_after(
        plan,
        survivors,
        flop,
        problem,
        n_left=n_left,
        holders=holders,
        policy=policy,
        layers=layers,
        clock=time.monotonic,
        budget_s=min(MOST_PLANNING_S, max(PLANNING_S, PLANNING_FRAC * rest_s)),
    )
