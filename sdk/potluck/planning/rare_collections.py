"""Python's collector of cycles looks through all objects of the process again and again while many
are made. A search makes hardly any cycles, and would spend a sixth of its time on it; more, in a
notebook that has loaded PyTorch.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

MADE = 100_000  # objects more than were freed, until the young ones are looked through

_lock = Lock()
_usual: list[tuple[int, int, int]] = []  # the thresholds as they were, once for all who are inside


@contextmanager
def rare_collections() -> Iterator[None]:
    """Within it, in all threads, cycles are looked for after `MADE` new objects. May be nested."""
    with _lock:
        _usual.append(_usual[0] if _usual else gc.get_threshold())
        if 0 < _usual[0][0] < MADE:  # 0: someone wants none at all
            gc.set_threshold(MADE)
    try:
        yield
    finally:
        with _lock:
            usual = _usual.pop()
            if not _usual:
                gc.set_threshold(*usual)
