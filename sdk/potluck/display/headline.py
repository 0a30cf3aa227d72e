"""The first line: how many times as fast as the best device alone, and with how many joules against
its. Pure.
"""

from contextlib import suppress

from potluck import units
from potluck.errors import PotluckError
from potluck.planning import judge
from potluck.planning.registry import ask
from potluck.provenance import marked, worst
from potluck.records import Plan, Problem
from potluck.sanitized_text import harmless

MOST_DEVICES = 64  # that are judged alone for one line


def alone(problem: Problem | None) -> tuple[Plan, ...]:
    """The plans of one device each, fastest first; none where nobody holds the model alone.

    Parameters
    ----------
    problem
        What they solve.
    """
    if problem is None or len(problem.devices) > MOST_DEVICES:
        return ()
    with suppress(PotluckError):
        return tuple(ask(problem, "single"))
    return ()


def of_plan(plan: Plan, problem: Problem | None = None) -> str:
    """A sentence about a plan against the best device alone; empty where there is nothing to say.

    Parameters
    ----------
    plan
        The plan.
    problem
        What it solves; default: what it says itself.
    """
    problem = problem or plan.problem
    judged = plan
    if judged.latency_s is None and problem is not None:
        with suppress(PotluckError):
            judged = judge(problem, plan)
    if judged.latency_s is None:
        return ""
    what = "step" if plan.training else "request"
    summary = f"{units.duration(judged.latency_s)} a {what} on {_many(plan.devices)}"
    known = [one for one in alone(problem) if one.latency_s]
    best = min(known, key=lambda one: one.latency_s or 0.0, default=None)
    if best is not None and judged.devices == best.devices:
        return harmless(f"{summary} alone, which is the fastest device.")
    if best is None:
        is_sure = problem is not None and len(problem.devices) <= MOST_DEVICES
        nobody = ": no device could do it alone" if is_sure and len(plan.devices) > 1 else ""
        return harmless(f"{summary}{nobody}.")
    return harmless(f"{summary}: {against(judged, best)}.")


def against(plan: Plan, best: Plan) -> str:
    """How one plan stands to that of the best device alone, in words.

    Parameters
    ----------
    plan, best
        Judged plans.

    Examples
    --------
    "2.1 times as fast as laptop alone, the best, with 0.8 times as many joules assumed"
    """
    name = best.devices[0]
    times = (best.latency_s or 0.0) / (plan.latency_s or 1.0)
    comparison = f"{_times(times, 'as fast as')} {name} alone, the best"
    if best.energy_j and plan.energy_j is not None:
        joules = f"{_times(plan.energy_j / best.energy_j, 'as many')} joules"
        mark = worst(known for known in (plan.energy_source, best.energy_source) if known)
        comparison += f", with {marked(joules, mark)}"
    return comparison


def _times(ratio: float, even: str) -> str:
    """A ratio in words: two digits, and three where it is near one.

    >>> _times(2.13, "as fast as"), _times(1.042, "as fast as"), _times(1.001, "as fast as")
    ('2.1 times as fast as', '1.04 times as fast as', 'as fast as')

    Parameters
    ----------
    ratio
        Of ours to the other's.
    even
        What it is of, where both are alike.
    """
    digits = f"{ratio:.3g}" if 0.9 < ratio < 1.1 else f"{ratio:.2g}"
    return even if digits == "1" else f"{digits} times {even}"


def _many(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} devices"
