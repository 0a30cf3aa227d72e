"""The values a worker holds: tensors by key, over the shared memories where they came in and where they leave.

An inbound value is a view of shared memory, never a copy. Its place is free again when the last tensor that looks at
it is gone; autograd may hold one long after the key is dropped, so the object behind the tensors is watched, not the
key.
"""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from potluck_agent.worker.arena import Allocator, Arena, ArenaFull
from potluck_wire.tensors import DTYPES, nbytes

TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}
DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


class Values:
    """Tensors by key. `freed` collects the inbound places that nobody looks at any more."""

    def __init__(self, inbound: Arena) -> None:
        self.freed: list[int] = []
        self.inbound_bytes = 0
        self._inbound = inbound
        self._tensors: dict[str, torch.Tensor] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._tensors

    def __getitem__(self, key: str) -> torch.Tensor:
        try:
            return self._tensors[key]
        except KeyError:
            raise ValueError(f"there is no value {key!r}") from None

    def __setitem__(self, key: str, tensor: torch.Tensor) -> None:
        self._tensors[key] = tensor

    def put(self, key: str, offset: int, count: int, dtype: str, shape: tuple[int, ...]) -> None:
        """A value has arrived at `offset` of the inbound memory. A key that is there already keeps its value."""
        if nbytes(dtype, shape) != count:
            raise ValueError(f"{key}: {count} bytes are no {dtype} of shape {list(shape)}")
        memory = self._inbound.view(offset, count)
        if count == 0 or key in self._tensors:
            self.freed.append(offset)
            self._tensors.setdefault(key, torch.empty(shape, dtype=TORCH_DTYPES[dtype]))
            return
        self.inbound_bytes += count
        weakref.finalize(memory, self._free, offset, count)
        self._tensors[key] = torch.frombuffer(memory, dtype=TORCH_DTYPES[dtype]).view(shape)

    def drop(self, keys: Iterable[str]) -> None:
        """Forget these keys; one that is not there is fine."""
        for key in keys:
            self._tensors.pop(key, None)

    def drop_prefix(self, prefix: str) -> None:
        """Forget every key that begins with `prefix`."""
        self.drop([key for key in self._tensors if key.startswith(prefix)])

    def stored_bytes(self) -> int:
        """Bytes of distinct storages behind the keys, inbound ones too."""
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in self._tensors.values()}
        return sum(storage.nbytes() for storage in storages.values())

    def _free(self, offset: int, count: int) -> None:
        self.inbound_bytes -= count
        self.freed.append(offset)


class Exports:
    """Copies of values in the outbound memory, each until the agent has sent it.

    `wait` is called while the memory is full; it returns when a place may have been released.
    """

    def __init__(self, outbound: Arena, wait: Callable[[], None]) -> None:
        self._outbound, self._wait = outbound, wait
        self._allocator = Allocator(outbound.nbytes)

    @property
    def used_bytes(self) -> int:
        """Bytes that wait to be sent."""
        return self._allocator.used_bytes

    def release(self, offset: int) -> None:
        """That place has been sent. `KeyError` where there was none."""
        self._allocator.free(offset)

    def copy(self, key: str, tensor: torch.Tensor) -> list[Any]:
        """A row of `Computed`: [key, offset, nbytes, dtype, shape]. `ArenaFull` where it can never fit."""
        dtype = DTYPE_NAMES.get(tensor.dtype)
        if dtype is None:
            raise ValueError(f"{key} is a {tensor.dtype}, which cannot be sent")
        count = tensor.numel() * tensor.element_size()
        offset = self._place(count)
        if count:
            target = torch.frombuffer(self._outbound.view(offset, count), dtype=tensor.dtype).view(tensor.shape)
            target.copy_(tensor.detach())
        return [key, offset, count, dtype, list(tensor.shape)]

    def _place(self, count: int) -> int:
        while True:
            try:
                return self._allocator.allocate(count)
            except ArenaFull:
                if not self._allocator.used_bytes:
                    raise
                self._wait()
