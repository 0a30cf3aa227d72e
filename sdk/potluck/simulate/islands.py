"""The rates of many classes of flows, where most share no medium with most others.

An island is a set of classes that share media, directly or through others: its rates do not depend
on the rest. When the flows of a class come or go, only its island is looked at again; what was
found for one is kept.
"""

from collections.abc import Callable, Hashable, Mapping, MutableMapping, Sequence

Rates = Mapping[int, float]


class Islands:
    """The classes that have flows, and who shares media with whom.

    `crossed`: the media of each class; `rates_of(counts)`: the rates of classes with so many flows;
    `known`: what it has answered.

    Parameters
    ----------
    crossed
        The media of each class.
    rates_of
        Called with {class: flows}; gives bytes per second of one flow of each.
    known
        What it has answered; shared with other simulations of the same media.
    """

    def __init__(
        self,
        crossed: Sequence[tuple[int, ...]],
        rates_of: Callable[[Mapping[int, int]], dict[int, float]],
        known: MutableMapping[Hashable, dict[int, float]],
    ) -> None:
        self._crossed = crossed
        self._rates_of = rates_of
        self._known = known
        self._users: dict[int, set[int]] = {}  # medium -> classes with flows over it
        self._rates: dict[int, float] = {}
        self._touched: set[int] = set()  # classes whose flows have come or gone

    def touch(self, number: int, n_flows: int) -> None:
        """A class has another number of flows now; no more than one of them came or went."""
        self._touched.add(number)
        if n_flows == 0:
            self._rates.pop(number, None)
            for medium in self._crossed[number]:
                self._users[medium].discard(number)
        elif n_flows == 1:
            for medium in self._crossed[number]:
                self._users.setdefault(medium, set()).add(number)

    def rates(self, counts: Mapping[int, int]) -> dict[int, float]:
        """The rate of every class; `counts`: how many flows each has that has some."""
        seen: set[int] = set()
        for number in self._touched:
            for start in (number,) if number in counts else self._adjacent(number):
                if start not in seen:
                    island = self._around(start)
                    seen |= island
                    key = tuple([(member, counts[member]) for member in sorted(island)])
                    found = self._known.get(key)
                    if found is None:
                        found = self._known[key] = self._rates_of(dict(key))
                    self._rates.update(found)
        self._touched.clear()
        return self._rates

    def _adjacent(self, number: int) -> set[int]:
        """The classes with flows that share a medium with this one."""
        return {other for medium in self._crossed[number] for other in self._users.get(medium, ())}

    def _around(self, start: int) -> set[int]:
        """The island of a class."""
        island, edge = {start}, [start]
        while edge:
            new = self._adjacent(edge.pop()) - island
            island |= new
            edge += new
        return island
