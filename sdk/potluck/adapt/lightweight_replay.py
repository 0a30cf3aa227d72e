"""The plan after a device was lost: Asteroid's lightweight pipeline replay (section 3.4) and a new
planning, compared by the simulator. Pure.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate

from potluck.adapt.recovery_cost import migration_s
from potluck.errors import Infeasible, PlanError
from potluck.planning import judge, make_plans
from potluck.planning.building_blocks.row_allocation import proportion
from potluck.planning.feasibility import breaches
from potluck.planning.stage_sizes import unjudged, with_sizes_of
from potluck.records import Layer, Plan, Problem, Stage, Training
from potluck.schedule.policies import warm_up_depth

LIGHTWEIGHT, HEAVY = "lightweight replay", "planned anew"
# How a training goes on after a loss: by which of the two it ends soonest; by Asteroid's
# lightweight replay; or by gathering all state, planning anew and sending it, as it calls heavy.
SOONEST = "soonest"
POLICIES = {SOONEST: "", "lightweight": LIGHTWEIGHT, "heavy": HEAVY}


def replayed(plan: Plan, survivors: Collection[str], layer_flop: Sequence[float]) -> Plan | None:
    """The same pipeline without those that are gone: only its cut points and shares move.

    A stage that has lost all its devices is given to its neighbours. Layers are shared out by flop
    over capacity. The capacity of a device is what the plan itself held it for: the part of the
    flop that it was given.

    Parameters
    ----------
    plan
        Before the loss.
    survivors
        The devices that are still there.
    layer_flop
        Of each layer, forward and backward.

    Returns
    -------
    Plan or None
        Without predictions; None where nobody is left, or fewer layers than stages.
    """
    groups = [
        (
            members,
            sum(layer_flop[stage.start : stage.stop])
            * sum(share for _, share in members)
            * (plan.micro_batch / stage.rows),
            stage.recompute,
        )
        for stage in plan.stages
        if (
            members := [
                (device, share)
                for device, share in zip(stage.devices, stage.shares, strict=True)
                if device in survivors
            ]
        )
    ]
    bounds = _bounds(layer_flop, [capacity for _, capacity, _ in groups]) if groups else None
    if bounds is None:
        return None
    stages = []
    for index, (members, _, recompute) in enumerate(groups):
        shares = proportion(plan.micro_batch, [share for _, share in members])
        stages.append(
            Stage(
                start=bounds[index],
                stop=bounds[index + 1],
                devices=tuple(device for device, _ in members),
                shares=shares,
                warm_up=warm_up_depth(index, len(groups), plan.n_micro_batches),
                recompute=recompute,
            )
        )
    return _lightweight(plan, tuple(stages))


def alone(plan: Plan, device: str) -> Plan:
    """All layers on one device, which may not have had any before.

    Parameters
    ----------
    plan
        Before the loss.
    device
        That is there.
    """
    stage = Stage(start=0, stop=plan.stages[-1].stop, devices=(device,), shares=(plan.micro_batch,))
    return _lightweight(plan, (stage,))


def _lightweight(plan: Plan, stages: tuple[Stage, ...]) -> Plan:
    return replace(unjudged(plan, stages), planner=LIGHTWEIGHT, unused={})


def _bounds(layer_flop: Sequence[float], capacities: Sequence[float]) -> list[int] | None:
    """Where stages begin and end so that each has flop in proportion to its capacity, and a layer
    at least.
    """
    n_layers, n_stages = len(layer_flop), len(capacities)
    if n_layers < n_stages:
        return None
    done = [0.0, *accumulate(layer_flop)]
    # layers without flop may be all that a stage had: then it gets one of them
    goals = accumulate(capacity / (sum(capacities) or 1.0) * done[-1] for capacity in capacities)
    bounds = [0]
    for index, goal in enumerate(list(goals)[:-1]):
        first, last = bounds[-1] + 1, n_layers - (n_stages - 1 - index)
        bounds.append(min(range(first, last + 1), key=lambda i: abs(done[i] - goal)))
    return [*bounds, n_layers]


def plans_after(
    plan: Plan,
    survivors: Collection[str],
    layer_flop: Sequence[float],
    problem: Problem | None,
    *,
    n_left: int | None = None,
    holders: Sequence[Collection[str]] = (),
    policy: str = SOONEST,
    layers: Sequence[Layer] = (),
    clock: Callable[[], float] | None = None,
    budget_s: float | None = None,
) -> list[Plan]:
    """What a run can go on with, the best first.

    The plan itself where all its devices are left. Else the lightweight replay and a new planning,
    by when what is left of the training would end, with what has to be sent before. Without a
    problem (nobody has profiled), the former alone, or one device alone where none of the plan is
    left. Both keep the rows of a micro-batch where that is possible, so that sums stay in their
    order; and stages' own ones for layers that see them.

    Parameters
    ----------
    plan
        Before the loss.
    survivors
        The devices that are still there, also idle ones.
    layer_flop
        Of each layer, forward and backward.
    problem
        Of the devices that are left; None where it is not known.
    n_left
        Steps of the training that are left; None: so many that only their time counts.
    holders
        As for `migration_s`.
    policy
        One of `POLICIES`; the other way comes after it, for where it does not hold.
    layers
        Of the model; default: those of the problem.
    clock, budget_s
        As for `make_plans`.
    """
    if set(plan.devices) <= set(survivors):
        return [plan]
    light = replayed(plan, survivors, layer_flop)
    layers = layers or (problem.layers if problem is not None else ())
    if problem is None:
        found = [light] if light is not None else [alone(plan, device) for device in survivors]
        return [_with_sizes_of(plan, other, layers) for other in found]
    for wanted in _ever_wider(problem):
        found = []
        if light is not None:
            with suppress(PlanError):  # it needs what the profile does not know
                judged = judge(wanted, _with_sizes_of(plan, light, layers))
                found += [] if breaches(wanted, judged) else [judged]
        with suppress(Infeasible):
            anew = make_plans(wanted, clock=clock, budget_s=budget_s).best
            alike = _with_sizes_of(plan, anew, layers)
            if alike is not anew and not breaches(wanted, judged := judge(wanted, alike)):
                anew = judged
            found.append(replace(anew, planner=f"{anew.planner}, {HEAVY}"))
        if found:
            wished = POLICIES[policy]
            return sorted(
                found,
                key=lambda plan: (
                    not plan.planner.endswith(wished),
                    _left_s(plan, wanted, n_left, holders),
                ),
            )
    return []


def _with_sizes_of(before: Plan, plan: Plan, layers: Sequence[Layer]) -> Plan:
    """As `with_sizes_of`; where a device would get no row of a micro-batch, the plan as it is."""
    if not layers:
        return plan
    try:
        return with_sizes_of(before, plan, layers)
    except PlanError:
        return plan


def _left_s(
    plan: Plan, problem: Problem, n_left: int | None, holders: Sequence[Collection[str]]
) -> float:
    """Until the training has ended; or of a step, where nobody knows how many there are."""
    step_s = plan.latency_s or 0.0
    return step_s if n_left is None else migration_s(plan, problem, holders) + n_left * step_s


def _ever_wider(problem: Problem) -> Iterator[Problem]:
    """The problem; without limits on time and energy, as a run that goes on more slowly is better
    than none; and with micro-batches of any size.
    """
    yield problem
    qoe, workload = problem.qoe, problem.workload
    if qoe.latency_s is not None or qoe.energy_j is not None or qoe.device_energy_j:
        qoe = replace(qoe, latency_s=None, energy_j=None, device_energy_j={})
        problem = replace(problem, qoe=qoe)
        yield problem
    if isinstance(workload, Training) and workload.micro_batch is not None:
        yield replace(problem, workload=replace(workload, micro_batch=None))
