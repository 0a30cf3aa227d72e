"""What a byte takes from one device of a problem to another, looked up once for every pair."""

from collections.abc import Mapping
from typing import NamedTuple

from potluck.records import HOME, Problem
from potluck.simulate import cost


class LinkCost(NamedTuple):
    """From one device to another: seconds per byte and latency; seconds per byte for which the
    busiest medium of the home is taken.
    """

    byte_s: float
    latency_s: float
    air_s: float


@cost.kept_by_table
def links_of(table: cost.CostTable) -> Mapping[tuple[int, int], LinkCost]:
    """The links between the devices, by their numbers."""
    problem = table.problem
    air = busiest_medium(table.problem)
    numbers = numbers_of(table)
    capacity = {medium.name: medium.capacity_bytes_per_s for medium in problem.network.media}
    found = {}
    for (source, target), path in problem.network.paths.items():
        if source == target or not {source, target} <= numbers.keys():
            continue
        byte_s = max((times / capacity[name] for name, times in path.media), default=0.0)
        air_s = sum(times / capacity[name] for name, times in path.media if name == air)
        found[numbers[source], numbers[target]] = LinkCost(byte_s, path.latency_s, air_s)
    return found


@cost.kept_by_table
def numbers_of(table: cost.CostTable) -> Mapping[str, int]:
    """Per device by name, its number."""
    return {device.name: number for number, device in enumerate(table.problem.devices)}


@cost.kept_by_table
def media_of(table: cost.CostTable) -> Mapping[tuple[int, int], tuple[tuple[str, float], ...]]:
    """Per pair of devices, for how many seconds a byte takes each medium between them; inside a
    host none, as there its processor is what is shared.
    """
    numbers, network = numbers_of(table), table.problem.network
    capacity = {medium.name: medium.capacity_bytes_per_s for medium in network.media}
    return {
        (numbers[a], numbers[b]): tuple((name, n / capacity[name]) for name, n in path.media)
        for (a, b), path in network.paths.items()
        if a != b and {a, b} <= numbers.keys() and not path.host
    }


def busiest_medium(problem: Problem) -> str | None:
    """Of the media that several devices send over to several others, the one that most paths cross:
    the air of a home on WiFi, a line between sites. None where each device has only cables of its
    own.
    """
    pairs: dict[str, list[tuple[str, str]]] = {}
    for pair, path in problem.network.paths.items():
        if HOME not in pair:
            for name, _ in path.media:
                pairs.setdefault(name, []).append(pair)
    shared = {
        name: len(ends)
        for name, ends in pairs.items()
        if all(len(set(side)) > 1 for side in zip(*ends, strict=True))
    }
    return max(shared, key=lambda name: (shared[name], name)) if shared else None
