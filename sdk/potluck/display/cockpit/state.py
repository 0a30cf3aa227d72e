"""What the cockpit shows, as data: sections that change, and logs that only grow. Pure.

A section is what JSON can hold. Several things of a kind are a dictionary by name, so that a change
of one is a change of that one. A log keeps its latest items and knows how many there have been.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")

MOST_EVENTS = 2000
MOST_LABELS = 4000
MOST_TASKS = 6000
MOST_LOSSES = 1500
MOST_WATTS = 6000

Row = tuple[float, ...]
Sections = dict[str, dict[str, Any]]


class RecentItems(Generic[T]):
    """The latest items of a stream, and how many there were before."""

    def __init__(self, max_items: int) -> None:
        self._items: deque[T] = deque(maxlen=max_items)
        self.end = 0  # how many there have been

    def add(self, item: T) -> int:
        """Append it; returns its number."""
        self._items.append(item)
        self.end += 1
        return self.end - 1

    @property
    def start(self) -> int:
        """The number of the oldest that is kept."""
        return self.end - len(self._items)

    def since(self, number: int) -> tuple[int, Sequence[T]]:
        """Those from that number on, as far as they are kept: the number of the first, and they."""
        first = max(number, self.start)
        n_new = self.end - first
        if n_new <= 0:
            return self.end, ()
        if n_new == len(self._items):
            return first, tuple(self._items)
        return first, tuple(self._items[i] for i in range(len(self._items) - n_new, len(self)))

    def drop_before(self, number: int) -> None:
        """Keep only those from that number on."""
        while self.start < number and self._items:
            self._items.popleft()

    @property
    def oldest(self) -> T | None:
        """The oldest that is kept."""
        return self._items[0] if self._items else None

    def __len__(self) -> int:
        return len(self._items)


class Words:
    """Texts by number, so that a row of figures can name one. Those long unused may go."""

    def __init__(self, max_words: int = MOST_LABELS) -> None:
        self.log: RecentItems[str] = RecentItems(max_words)
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Of this text; a new one where it is new."""
        found = self._numbers.get(text, -1)
        if found < self.log.start:
            found = self._numbers[text] = self.log.add(text)
            if len(self._numbers) > 2 * MOST_LABELS:
                kept = self.log.start
                self._numbers = {t: n for t, n in self._numbers.items() if n >= kept}
        return found


@dataclass(slots=True, kw_only=True)
class CockpitState:
    """All of it.

    Rows of `tasks`: step, device, kind, start_s, stop_s, bytes, instruction, peer, label (numbers
    of `words`); times count from the start of their step. `predicted`: the same of a typical step
    as it was predicted, anew for each plan. `losses`: step, loss, seconds of the step. `watts`:
    time, device, watts, 1 where they are estimated.
    """

    sections: Sections = field(default_factory=dict)
    words: Words = field(default_factory=Words)
    events: RecentItems[Mapping[str, Any]] = field(default_factory=lambda: RecentItems(MOST_EVENTS))
    tasks: RecentItems[Row] = field(default_factory=lambda: RecentItems(MOST_TASKS))
    predicted: RecentItems[Row] = field(default_factory=lambda: RecentItems(MOST_TASKS))
    losses: RecentItems[Row] = field(default_factory=lambda: RecentItems(MOST_LOSSES))
    watts: RecentItems[Row] = field(default_factory=lambda: RecentItems(MOST_WATTS))

    @property
    def texts(self) -> dict[str, RecentItems[Any]]:
        """The logs that travel as JSON."""
        return {"words": self.words.log, "events": self.events}

    @property
    def rows(self) -> dict[str, RecentItems[Row]]:
        """The logs that travel as numbers."""
        return {
            "tasks": self.tasks,
            "predicted": self.predicted,
            "losses": self.losses,
            "watts": self.watts,
        }


# how many figures a row of each log has
WIDTHS = {"tasks": 9, "predicted": 9, "losses": 3, "watts": 4}
