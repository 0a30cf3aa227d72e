"""What can take the place of a plan at work and changes nothing of what is learned, but for the
order of sums: other plans, and its own with other micro-batches of its stages. Pure.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress

from potluck.adapt.adapter import same_sums
from potluck.errors import PlanError
from potluck.planning import judge
from potluck.planning.stage_sizes import better_sizes, with_sizes_of
from potluck.records import Plan, Problem

# of a search for sizes, while a run goes on beside it: some tenths of a second
LITTLE_WORK = 2000


def trained_alike(
    problem: Problem, plan: Plan, found: Iterable[Plan], max_plans: int
) -> list[Plan]:
    """At most so many of these plans, and what other micro-batches make of the first and of the
    plan at work; judged.

    To send smaller pieces over a link that has become slow moves no weights: a switch to them is
    the cheapest there is.

    Parameters
    ----------
    problem
        As it is now.
    plan
        At work.
    found
        By a planner, the best first.
    max_plans
        Of them.

    Raises
    ------
    PlanError
        The plan at work cannot be carried out for this problem.
    """
    alike = list[Plan]()
    for other in _with_its_sizes(problem, plan, found):
        if other.stages != plan.stages and same_sums(plan, other, problem.layers):
            alike.append(other)
        if len(alike) == max_plans:
            break
    bases = [plan, *alike[:1]]
    sized = (better_sizes(problem, base, most_work=LITTLE_WORK) for base in bases)
    return alike + [new for new in sized if new is not None]


def _with_its_sizes(problem: Problem, plan: Plan, found: Iterable[Plan]) -> Iterator[Plan]:
    for other in found:
        with suppress(PlanError):  # a device would get no row
            alike = with_sizes_of(plan, other, problem.layers)
            yield other if alike is other else judge(problem, alike)


def still_wanted(wanted: Plan, before: Plan, after: Plan) -> Plan:
    """What a run goes back to once all devices of it are there, after it went over to another plan
    by the adapter: the new one; but what was wanted before, where it misses a device of that and
    only changed what the others do.

    Parameters
    ----------
    wanted
        So far.
    before, after
        The plans that it left and took.
    """
    misses = not set(wanted.devices) <= set(before.devices)
    return wanted if misses and set(after.devices) == set(before.devices) else after
