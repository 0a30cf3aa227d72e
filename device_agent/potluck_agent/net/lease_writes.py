"""What is promised to coordinators in one round is written once: a disk takes as long for one
promise as for many, and everybody else waits for it.
"""

from collections.abc import Callable
from pathlib import Path

from potluck_agent import fault_log, lease_file
from potluck_agent.core.events import KeepLeases, ToPeer, Undone


class LeaseWrites:
    """`send` is called for each answer once its promise is on the disk, `undone` where it cannot
    be.
    """

    def __init__(
        self, state: Path, send: Callable[[ToPeer], None], undone: Callable[[Undone], None]
    ) -> None:
        self._state = state
        self._send, self._undone = send, undone
        self._promised: list[KeepLeases] = []

    def add(self, action: KeepLeases) -> None:
        """One more; nothing of it is said yet."""
        self._promised.append(action)

    def write(self) -> None:
        """Have all of them on the disk, then say so."""
        promised, self._promised = self._promised, []
        if not promised:
            return
        try:
            lease_file.keep(self._state, promised[-1].rows)
        except Exception as error:
            text = fault_log.what_failed(promised[-1], error)
            for action in promised:
                self._undone(Undone(action, text))
            return
        for action in promised:
            self._send(action.answer)
