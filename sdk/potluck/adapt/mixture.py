"""Several plans over one horizon, so that a deadline is held with the least energy: Dora's small
program (section 4.3, eqs. 7 and 8). Pure.

For part x_p of the horizon D_rem plan p is at work: sum over p of x_p <= 1, and the progress sum of
r_p x_p (D_rem - d_p) >= the steps to go. That is the uniform progress of one horizon, which ends at
the deadline. As printed, d_p is taken off a plan by the part that it is used. A switch is paid for
whole, so whole switches judge the whole steps here; the fractions are those of the program. As it
has two constraints, two plans at most are mixed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from potluck.errors import Infeasible, UserError
from potluck.provenance import UNKNOWN, worst
from potluck.records import Plan
from potluck.units import duration, number

_HAIR = 1e-9  # of a step or a second: rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """So many steps of each plan, in this order, end by the deadline.

    `fractions`: of the horizon, by the program, per plan that was given. `seconds` and `energy_j`
    of all steps and switches.
    """

    plans: tuple[Plan, ...]
    steps: tuple[int, ...]
    fractions: tuple[float, ...]
    seconds: float
    energy_j: float

    @property
    def energy_source(self) -> str:
        """Where the worst known of the watts behind `energy_j` come from, see `provenance`."""
        return worst(plan.energy_source or UNKNOWN for plan in self.plans)


def mix(
    plans: Sequence[Plan], n_steps: int, deadline_s: float, *, switch_s: float = 0.0
) -> Mixture:
    """The cheapest way to take so many steps by the deadline.

    Where it is all the same, the thriftier plan goes first, as in the paper's example. A run that
    falls behind mixes anew what is left, with more of the faster plan.

    Parameters
    ----------
    plans
        Judged ones, such as `plans.pareto`, each with time and energy of a step; the first is at
        work.
    n_steps
        To go.
    deadline_s
        From now on.
    switch_s
        Seconds without progress of every switch; it takes the power of the plan that it leaves.

    Raises
    ------
    UserError
        The energy of a plan is not known, or there is nothing to do.
    Infeasible
        Even the fastest plan alone is late.

    Examples
    --------
    Ten steps of 1 s and 4 J, or of 2 s and 2 J, in 15 s: five of each.
    """
    _check(plans, n_steps, deadline_s, switch_s)
    fractions = _fractions(plans, n_steps, deadline_s, switch_s)
    found = min(
        (
            way
            for first in range(len(plans))
            for second in range(len(plans))
            if (way := _pair(plans, first, second, n_steps, deadline_s, switch_s)) is not None
        ),
        key=lambda way: (way[0], -_of(plans[way[2][0][0]])[0]),
        default=None,
    )
    if found is None:
        best_s = min(
            n_steps * _of(plan)[0] + (index > 0) * switch_s for index, plan in enumerate(plans)
        )
        raise Infeasible(
            f"{number(n_steps, 'step')} take {duration(best_s)} or more; the deadline is in "
            f"{duration(deadline_s)}.",
            next_step="Give it more time, or fewer steps.",
        )
    energy_j, seconds, parts = found
    return Mixture(
        plans=tuple(plans[index] for index, _ in parts),
        steps=tuple(count for _, count in parts),
        fractions=fractions,
        seconds=seconds,
        energy_j=energy_j,
    )


def _check(plans: Sequence[Plan], n_steps: int, deadline_s: float, switch_s: float) -> None:
    if not plans or n_steps < 1 or deadline_s <= 0 or switch_s < 0:
        raise UserError(
            f"plans are mixed over one step or more, by a time to come; got {len(plans)} plans, "
            f"{n_steps} steps, {deadline_s:g} s, switches of {switch_s:g} s."
        )
    for plan in plans:
        if not plan.latency_s or plan.energy_j is None:
            raise UserError(
                f"the plan of {plan.planner} on {', '.join(plan.devices)} has no time or energy "
                "of a step.",
                next_step="State the power of its devices: potluck agent start --power "
                "IDLE,BUSY,RADIO.",
            )


def _of(plan: Plan) -> tuple[float, float]:
    """Seconds and joules of a step."""
    assert plan.latency_s is not None
    assert plan.energy_j is not None
    return plan.latency_s, plan.energy_j


def _fractions(
    plans: Sequence[Plan], n_steps: int, deadline_s: float, switch_s: float
) -> tuple[float, ...]:
    """The program's x_p; all 0 where it has no solution."""
    from scipy.optimize import linprog

    useful_s = [max(0.0, deadline_s - switch_s * (index > 0)) for index in range(len(plans))]
    rates = [1 / _of(plan)[0] for plan in plans]
    solved = linprog(
        # eq. (7): joules of the horizon, where every plan is on time by eq. (8)
        c=[_of(p)[1] * rate * deadline_s for p, rate in zip(plans, rates, strict=True)],
        A_ub=[
            [-rate * useful for rate, useful in zip(rates, useful_s, strict=True)],  # eq. (8)
            [1.0] * len(plans),
        ],
        b_ub=[-float(n_steps), 1.0],
        bounds=(0.0, 1.0),
        method="highs",
    )
    return tuple(map(float, solved.x)) if solved.status == 0 else (0.0,) * len(plans)


def _pair(
    plans: Sequence[Plan], first: int, second: int, n_steps: int, deadline_s: float, switch_s: float
) -> tuple[float, float, list[tuple[int, int]]] | None:
    """(joules, seconds, [(plan, steps)]) of these two in this order, with as many steps of the
    slower one as the deadline leaves. None where that is late, or leaves only one of them.
    """
    n_switches = (first > 0) + (first != second)
    if first == second:
        counts = [(first, n_steps)]
    else:
        fast, slow = sorted((first, second), key=lambda index: _of(plans[index])[0])
        (fast_s, _), (slow_s, _) = _of(plans[fast]), _of(plans[slow])
        late_s = n_steps * slow_s + n_switches * switch_s - deadline_s
        if fast_s == slow_s:
            return None
        n_fast = max(1, ceil(late_s / (slow_s - fast_s) - _HAIR))
        if n_fast >= n_steps:
            return None
        taken = {fast: n_fast, slow: n_steps - n_fast}
        counts = [(index, taken[index]) for index in (first, second)]
    seconds = n_switches * switch_s + sum(n * _of(plans[index])[0] for index, n in counts)
    if seconds > deadline_s + _HAIR * n_steps:
        return None
    joules = sum(n * _of(plans[index])[1] for index, n in sorted(counts))
    left = ([0] if first > 0 else []) + ([first] if first != second else [])
    joules += switch_s * sum(_of(plans[index])[1] / _of(plans[index])[0] for index in left)
    return joules, seconds, counts
