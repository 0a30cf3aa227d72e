"""The values a worker holds: tensors by key, over the shared memories where they came in and where
they leave.

An inbound value is a view of shared memory. Its place is free again when the last tensor that looks
at it is gone. Autograd may hold one long after the key is dropped, so the object behind the tensors
is watched, not the key. Once such views hold a quarter of that memory, further values are copied:
there must be room for what lets the others go (a gradient, for the inputs that wait for it)."""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from potluck_agent.allocator import Allocator, ArenaFull
from potluck_agent.worker.arena import Arena
from potluck_agent.worker.arrays.backends import Arrays
from potluck_wire.limits import MAX_WORKER_ITEMS
from potluck_wire.tensors import nbytes

VIEWED_FRAC = 0.25  # of the inbound memory, at most: a value of three quarters of it always fits


class Values:
    """Tensors by key. `freed` collects the inbound places that nobody looks at any more."""

    def __init__(self, inbound: Arena, arrays: Arrays) -> None:
        self.freed: list[int] = []
        self.inbound_bytes = 0
        self._inbound, self._arrays = inbound, arrays
        self._tensors: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, key: str) -> bool:
        return key in self._tensors

    def __getitem__(self, key: str) -> Any:
        try:
            return self._tensors[key]
        except KeyError:
            raise ValueError(f"there is no value {key!r}") from None

    def __setitem__(self, key: str, tensor: Any) -> None:
        self._tensors[key] = tensor

    def put(self, key: str, offset: int, count: int, dtype: str, shape: tuple[int, ...]) -> None:
        """A value has arrived at `offset` of the inbound memory.

        A key that is there already keeps its value.
        """
        if nbytes(dtype, shape) != count:
            raise ValueError(f"{key}: {count} bytes are no {dtype} of shape {list(shape)}")
        if dtype not in self._arrays.DTYPES:
            raise ValueError(f"{key} is {dtype}, which this device does not compute with")
        memory = self._inbound.view(offset, count)
        if count == 0 or key in self._tensors:
            self.freed.append(offset)
            self._tensors.setdefault(key, self._arrays.zeros(shape, dtype))
            return
        tensor, watched = self._arrays.over(memory, dtype, shape)
        self.inbound_bytes += count
        weakref.finalize(watched, self._free, offset, count)
        if self.inbound_bytes > VIEWED_FRAC * self._inbound.nbytes:
            tensor = self._arrays.clone(tensor)
        self._tensors[key] = tensor

    def drop(self, keys: Iterable[str]) -> None:
        """Forget these keys; one that is not there is fine."""
        for key in keys:
            self._tensors.pop(key, None)

    def drop_prefix(self, prefix: str) -> None:
        """Forget every key that begins with `prefix`."""
        self.drop([key for key in self._tensors if key.startswith(prefix)])

    def take_freed(self) -> tuple[int, ...]:
        """The inbound places that nobody looks at any more, as many as one message tells.

        Each once.
        """
        taken, self.freed = tuple(self.freed[:MAX_WORKER_ITEMS]), self.freed[MAX_WORKER_ITEMS:]
        return taken

    def stored_bytes(self) -> int:
        """Bytes of distinct storages behind the keys, inbound ones too."""
        return sum(dict(map(self._arrays.storage, self._tensors.values())).values())

    def _free(self, offset: int, count: int) -> None:
        self.inbound_bytes -= count
        self.freed.append(offset)


class Exports:
    """Copies of values in the outbound memory, each until the agent has sent it.

    `wait` is called while the memory is full; it returns when a place may have been released.
    """

    def __init__(self, outbound: Arena, wait: Callable[[], None], arrays: Arrays) -> None:
        self._outbound = outbound
        self._wait = wait
        self._arrays = arrays
        self._allocator = Allocator(outbound.nbytes)

    @property
    def used_bytes(self) -> int:
        """Bytes that wait to be sent."""
        return self._allocator.used_bytes

    def release(self, offset: int) -> None:
        """That place has been sent. `KeyError` where there was none."""
        self._allocator.free(offset)

    def copy(self, key: str, tensor: Any) -> list[Any]:
        """A row of `Computed`: [key, offset, nbytes, dtype, shape].

        `ArenaFull` where it can never fit.
        """
        dtype = self._arrays.name_of(tensor)
        if dtype is None:
            raise ValueError(f"{key} is a {tensor.dtype}, which cannot be sent")
        shape = tuple(tensor.shape)
        count = nbytes(dtype, shape)
        offset = self._place(count)
        if count:
            self._arrays.copy_to(self._outbound.view(offset, count), tensor)
        return [key, offset, count, dtype, list(shape)]

    def _place(self, count: int) -> int:
        while True:
            try:
                return self._allocator.allocate(count)
            except ArenaFull:
                if not self._allocator.used_bytes:
                    raise
                self._wait()
