"""How many bytes of tensors this process holds: exact where the C library counts, else what is
stored by name.

glibc's `mallinfo2` counts every byte that `malloc` has handed out (torch's tensors come from it;
the worker runs with one malloc arena, so nothing escapes). It takes 1 us, and sees what names do
not: activations that autograd keeps, gradients, optimizer state. It is read between tasks, so what
a task takes and gives back in between does not show.
"""

import ctypes
from collections.abc import Callable


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def _counter() -> Callable[[], _Mallinfo2] | None:
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    # another C library; TypeError: Windows has no global handle
    except (AttributeError, OSError, TypeError):
        return None
    mallinfo2.restype = _Mallinfo2
    return mallinfo2


_mallinfo2 = _counter()
COUNTED = "every allocation" if _mallinfo2 is not None else "stored values only"


def allocated_bytes() -> int | None:
    """Bytes handed out by `malloc` and not given back; None where the C library does not say."""
    if _mallinfo2 is None:
        return None
    info = _mallinfo2()
    return int(info.uordblks + info.hblkhd)
