"""Arrays of numpy, on devices without torch; see `arrays`."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from potluck_agent.worker import memory as memory_of_process
from potluck_wire import tensors

Array: TypeAlias = "np.ndarray[Any, Any]"

# which numpy lacks
DTYPES: dict[str, Any] = {name: np.dtype(name) for name in tensors.DTYPES if name != "bfloat16"}

device = None  # of torch
ones_like, add = np.ones_like, np.add
allocated_bytes = memory_of_process.allocated_bytes
COUNTED = memory_of_process.COUNTED


def synchronize() -> None:
    """The CPU is done when it answers."""


def name_of(array: Array) -> str | None:
    """The name of its element type."""
    return array.dtype.name if array.dtype.name in DTYPES else None


def over(memory: memoryview, dtype: str, shape: Sequence[int]) -> tuple[Array, Array]:
    """An array that looks at this memory.

    Numpy lets go of the view itself, but every array holds the first one.
    """
    flat = np.frombuffer(memory, dtype=np.uint8)
    return flat.view(DTYPES[dtype]).reshape(tuple(shape)), flat


def zeros(shape: Sequence[int], dtype: str) -> Array:
    """A new array of zeros."""
    return np.zeros(tuple(shape), dtype=DTYPES[dtype])


def concat(arrays: Sequence[Array], dim: int) -> Array:
    """A new array of these along a dimension."""
    return np.concatenate(tuple(arrays), axis=dim)


def clone(array: Array) -> Array:
    """A copy."""
    return array.copy()


def copy_to(memory: memoryview, array: Array) -> None:
    """Write its elements to this memory."""
    np.frombuffer(memory, dtype=array.dtype).reshape(array.shape)[...] = array


def storage(array: Array) -> tuple[int, int]:
    """Where its memory is, and how many bytes that are."""
    base = np.asarray(array)  # a sum without dimensions is none
    while isinstance(base.base, np.ndarray):
        base = base.base
    return base.__array_interface__["data"][0], base.nbytes


def live_bytes() -> int:
    """Bytes of all arrays alive: 0, as Python does not list numpy's arrays.

    Nothing here keeps any in a cycle.
    """
    return 0


def to_numpy(array: Array) -> Array:
    """Itself."""
    return array


from_numpy = to_numpy
