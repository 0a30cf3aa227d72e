"""Devices of which one takes for layers what another does."""

from collections.abc import Hashable, Mapping

from potluck.records import Problem


def twins_of(problem: Problem, budgets: Mapping[str, int]) -> dict[str, str]:
    """Of every device the first that is as fast and has as much memory.

    Parameters
    ----------
    problem
        Devices and costs.
    budgets
        Bytes that a plan may use on each.
    """
    costs, firsts = problem.costs, dict[Hashable, list[str]]()
    found = dict[str, str]()
    for device in problem.devices:
        name = device.name
        facts = budgets[name], device.overhead_s, device.copy_bytes_per_s
        same = firsts.setdefault(facts, [])
        twin = next((first for first in same if costs.get(first) == costs.get(name)), name)
        found[name] = twin
        if twin == name:
            same.append(name)
    return found
