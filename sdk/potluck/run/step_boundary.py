"""The boundary between two steps of a run, where its plan, weights and optimizer may change."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Boundary:
    """Held by one thread at a time. First come, first served: a switch gets its turn during a fit.

    Who holds it may take it again.
    """

    def __init__(self) -> None:
        self._turnstile, self._lock = threading.Lock(), threading.RLock()
        self._holder = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Hold it."""
        # whoever is next waits for us, and we must not wait behind
        if self._holder == threading.get_ident():
            yield
            return
        with self._turnstile:
            self._lock.acquire()
        self._holder = threading.get_ident()
        try:
            yield
        finally:
            self._holder = 0
            self._lock.release()
