"""One order of the devices of a problem, whichever they are given in: a search breaks ties by it,
and the plan must not depend on who was found first.
"""

from dataclasses import replace

from potluck.planning.search.link_costs import LinkCost, links_of
from potluck.records import Device, Problem
from potluck.simulate import cost

_Rank = tuple[float, float, int, float, list[LinkCost], list[LinkCost]]


def in_one_order(table: cost.CostTable) -> Problem:
    """The table's problem with its fastest device first; of equally fast ones that of most memory,
    then by their links. Those that nothing tells apart stay as given.
    """
    problem, links = table.problem, links_of(table)
    n_layers, rows = len(problem.layers), problem.workload.batch

    def rank(item: tuple[int, Device]) -> _Rank:
        i, device = item
        return (
            table.forward_s(device.name, 0, n_layers, rows),
            table.backward_s(device.name, 0, n_layers, rows),
            -table.budgets[device.name],
            device.overhead_s,
            sorted(link for (source, _), link in links.items() if source == i),
            sorted(link for (_, target), link in links.items() if target == i),
        )

    devices = tuple(device for _, device in sorted(enumerate(problem.devices), key=rank))
    return problem if devices == problem.devices else replace(problem, devices=devices)
