"""Work that leads to more work, one piece after the other. Pure.

A peer decides how long such a chain is: a place that is free lets a value in, whose program ends
and frees the next. Calling one from within the other would be as deep as the chain is long.
"""

from collections import deque
from collections.abc import Callable


class WorkQueue:
    """Pieces of work in the order they came up."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_at_it = False

    def do(self, piece: Callable[[], None]) -> None:
        """Do this, and all that it leads to; from within a piece: when that one is done."""
        self._waiting.append(piece)
        if self._is_at_it:
            return
        self._is_at_it = True
        try:
            while self._waiting:
                self._waiting.popleft()()
        finally:
            self._is_at_it = False
