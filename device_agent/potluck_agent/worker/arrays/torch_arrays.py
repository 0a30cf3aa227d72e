"""Tensors of torch; see `arrays`."""

import gc
from collections.abc import Sequence
from typing import Any

import torch

from potluck_agent.worker import memory as memory_of_process
from potluck_wire import tensors

DTYPES: dict[str, Any] = {name: getattr(torch, name) for name in tensors.DTYPES}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

ones_like = torch.ones_like
add: Any = torch.add
device = torch.device("cpu")
from_numpy = torch.from_numpy
clone = torch.clone
allocated_bytes = memory_of_process.allocated_bytes
COUNTED = memory_of_process.COUNTED


def synchronize() -> None:
    """The CPU is done when it answers."""


def name_of(array: torch.Tensor) -> str | None:
    """The name of its element type."""
    return _NAMES.get(array.dtype)


def over(memory: memoryview, dtype: str, shape: Sequence[int]) -> tuple[torch.Tensor, memoryview]:
    """A tensor that looks at this memory; torch holds the view as long as any tensor does."""
    return torch.frombuffer(memory, dtype=DTYPES[dtype]).view(tuple(shape)), memory


def zeros(shape: Sequence[int], dtype: str) -> torch.Tensor:
    """A new tensor of zeros."""
    return torch.zeros(tuple(shape), dtype=DTYPES[dtype])


def concat(arrays: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    """A new tensor of these along a dimension."""
    return torch.cat(tuple(arrays), dim=dim)


def copy_to(memory: memoryview, array: torch.Tensor) -> None:
    """Write its elements to this memory."""
    torch.frombuffer(memory, dtype=array.dtype).view(array.shape).copy_(array.detach())


def storage(array: torch.Tensor) -> tuple[int, int]:
    """Where its memory is, and how many bytes that are."""
    memory = array.untyped_storage()
    return memory.data_ptr(), memory.nbytes()


def live_bytes(kind: str = "cpu") -> int:
    """Bytes of all tensors that Python knows of on devices of this kind, whoever holds them: each
    storage once.
    """
    tensors = (
        made for made in gc.get_objects() if type(made) is torch.Tensor and made.device.type == kind
    )
    return sum(
        dict(map(storage, (made for made in tensors if made.layout is torch.strided))).values()
    )


def to_numpy(array: torch.Tensor) -> Any:
    """The same elements for numpy."""
    return array.detach().numpy()
