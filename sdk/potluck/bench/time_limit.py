"""A bound in time on what a bench tries, so that one that never ends does not end the bench."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class OutOfTime(BaseException):
    """What was tried took too long; no `except Exception` on the way takes it for its own."""


@contextmanager
def within(limit_s: float) -> Iterator[None]:
    """Raise OutOfTime in the main thread where the body takes longer; on Windows, never."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def late(*_: object) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
