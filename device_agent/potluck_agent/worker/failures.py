"""Which cause an exception in a task is reported as, in words that fit into one message."""

from potluck_wire.limits import clip
from potluck_wire.messages import FailureCause

# What torch, oneDNN and onnxruntime say when memory runs out, in exceptions that are no
# MemoryError.
_MEMORY_WORDS = (
    "not enough memory",
    "can't allocate memory",
    "bad_alloc",
    "out of memory",
    "failed to allocate",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this says that memory ran out, of the machine or of an accelerator."""
    return isinstance(error, MemoryError) or any(
        mark in str(error).lower() for mark in _MEMORY_WORDS
    )


def cause_of(error: Exception) -> tuple[str, str]:
    """(`FailureCause`, text) of what a task raised."""
    words = str(error).strip()
    known = getattr(error, "cause", None)  # a SegmentError knows it
    if isinstance(known, str):
        return known, clip(words)
    if is_out_of_memory(error):
        cause = FailureCause.MEMORY
    elif isinstance(error, ValueError | TypeError | KeyError | IndexError):
        cause = FailureCause.INPUT
    elif isinstance(error, RuntimeError | ArithmeticError):
        cause = FailureCause.ARITHMETIC
    else:
        cause = FailureCause.INTERNAL
    return cause, clip(f"{type(error).__name__}: {words}" if words else type(error).__name__)
