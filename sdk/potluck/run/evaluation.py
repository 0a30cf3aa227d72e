"""The run that answers for a run in training."""

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from potluck.run.run import Run


class Evaluation:
    """A run for inference, kept while somebody asks it, also when another has taken its place.

    Parameters
    ----------
    run
        Closed when it has been retired and all that entered have left.
    """

    def __init__(self, run: "Run") -> None:
        self.run = run
        self.weights_of = -1, False  # step of the training whose weights it has; their average
        self._n_asking = 0
        self._is_retired = False
        self._lock = threading.Lock()

    def enter(self) -> "Evaluation":
        """Somebody is going to ask it."""
        with self._lock:
            self._n_asking += 1
        return self

    def leave(self) -> None:
        """Who entered has their answer."""
        with self._lock:
            self._n_asking -= 1
            is_over = self._is_retired and not self._n_asking
        if is_over:
            self.run.close()

    def retire(self) -> None:
        """Nobody else will enter."""
        with self._lock:
            self._is_retired = True
            is_over = not self._n_asking
        if is_over:
            self.run.close()
