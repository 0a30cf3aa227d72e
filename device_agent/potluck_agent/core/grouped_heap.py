"""A heap whose entries belong to groups, each of which is taken away whole: at once, however many
entries it has. Pure.
"""

import heapq
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

Entry = TypeVar("Entry", bound=tuple[Any, ...])


class GroupedHeap(Generic[Entry]):
    """The smallest entry first. The groups are few: a look at each tells where that is."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, list[Entry]] = {}
        self._first: Hashable = None  # the group with the smallest entry

    def __bool__(self) -> bool:
        return bool(self._groups)

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def push(self, group: Hashable, entry: Entry) -> None:
        """One more."""
        head = self.head()
        if head is None or entry < head:
            self._first = group
        heap = self._groups.setdefault(group, [])
        heapq.heappush(heap, entry)

    def head(self) -> Entry | None:
        """The smallest; it stays."""
        return self._groups[self._first][0] if self._groups else None

    def pop(self) -> Entry:
        """Take the smallest. KeyError where there is none."""
        heap = self._groups[self._first]
        entry = heapq.heappop(heap)
        if not heap:
            del self._groups[self._first]
        self._find_first()
        return entry

    def drop(self, group: Hashable) -> None:
        """Forget all of this group."""
        if self._groups.pop(group, None) is not None and group == self._first:
            self._find_first()

    def take_all(self) -> dict[Hashable, list[Entry]]:
        """Everything, by group, the smallest of each first."""
        taken, self._groups = self._groups, {}
        return taken

    def _find_first(self) -> None:
        groups = self._groups
        self._first = min(groups, key=lambda group: groups[group][0], default=None)
