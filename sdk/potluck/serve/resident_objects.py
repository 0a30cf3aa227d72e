"""What is left out of the collections of Python's garbage while others are answered.

Python looks for cycles among all objects of the process again and again, the more often the more is
asked for. In a process that has loaded PyTorch nobody is answered meanwhile for 0.2 s, as long as
many a batch takes.
"""

import gc
from threading import Lock

_lock = Lock()
_holders: set[int] = set()


def leave_out(holder: object) -> None:
    """What is there now is not looked through until all who asked for that take it back: what is
    not used any more is freed meanwhile all the same, but for cycles.

    Parameters
    ----------
    holder
        Who asks, once or again.
    """
    with _lock:
        _holders.add(id(holder))
        gc.collect()
        gc.freeze()


def take_back(holder: object) -> None:
    """It is no longer needed.

    Parameters
    ----------
    holder
        As it was told to `leave_out`; one that never was is none.
    """
    with _lock:
        _holders.discard(id(holder))
        if not _holders:
            gc.unfreeze()
