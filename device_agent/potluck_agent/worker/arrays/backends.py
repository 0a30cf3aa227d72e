"""What the worker does with tensors beside computing segments, in the library that this device has:
torch, else numpy.

A device that only has onnxruntime never loads torch: that saves it 190 MB and a second.
"""

from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, Protocol

from potluck_wire.install_hints import install

NOTHING = (
    "this device computes nothing: install torch or onnxruntime on it. To train and to answer "
    f"requests, run {install('torch')}; to answer requests, {install('onnx')}."
)
# what each backend needs
PACKAGES = {"torch": ("torch",), "onnxruntime": ("onnxruntime", "onnx", "numpy")}


class Arrays(Protocol):
    """One library's tensors. They know `shape`, `+`, `+=` and slicing by themselves."""

    DTYPES: dict[str, Any]
    device: Any  # of torch; None for another library
    COUNTED: str  # which memory `allocated_bytes` sees

    def name_of(self, array: Any) -> str | None:
        """The name of its element type; None where it has none on the wire."""

    def over(self, memory: memoryview, dtype: str, shape: Sequence[int]) -> tuple[Any, Any]:
        """An array that looks at this memory, and the object that is gone once nobody looks there
        any more.
        """

    def zeros(self, shape: Sequence[int], dtype: str) -> Any:
        """A new array of zeros."""

    def ones_like(self, array: Any) -> Any:
        """A new array of ones."""

    def concat(self, arrays: Sequence[Any], dim: int) -> Any:
        """A new array of these along a dimension."""

    def clone(self, array: Any) -> Any:
        """A copy."""

    def copy_to(self, memory: memoryview, array: Any) -> None:
        """Write its elements to this memory."""

    def add(self, first: Any, second: Any, out: Any) -> Any:
        """Write the sum to `out`."""

    def storage(self, array: Any) -> tuple[int, int]:
        """Where its memory is, and how many bytes that are."""

    def live_bytes(self) -> int:
        """Bytes of all arrays that are alive, whoever holds them, as far as Python can list
        them.
        """

    def allocated_bytes(self) -> int | None:
        """Bytes of all arrays that are alive, as their allocator counts them; None where it does
        not.
        """

    def synchronize(self) -> None:
        """Wait until all that was begun is done."""

    def to_numpy(self, array: Any) -> Any:
        """The same elements for numpy, not copied where that is possible."""

    def from_numpy(self, array: Any) -> Any:
        """The same elements from numpy, not copied."""


def backends(wanted: Sequence[str] = ()) -> dict[str, str]:
    """What can compute here, with versions; of those `wanted`, where any are named."""
    found = {}
    for name, packages in PACKAGES.items():
        if (not wanted or name in wanted) and all(
            find_spec(package) is not None for package in packages
        ):
            found[name] = _version(name)
    return found


@cache
def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # a build of it under another name
        return "unknown"


def arrays_of(present: Sequence[str], device: str = "", memory_bytes: int = 0) -> Arrays:
    """The library for tensors on a device with these backends. ImportError where there are none.

    `device`: the accelerator that torch computes on, as `cuda:0`, with `memory_bytes` for tensors;
    empty: the CPU.
    """
    if "torch" in present and device:
        from potluck_agent.worker import available_memory
        from potluck_agent.worker.arrays.torch_device import accelerator

        arrays = accelerator(device, memory_bytes)
        available_memory.look_at(arrays)
        return arrays
    if "torch" in present:
        from potluck_agent.worker.arrays import torch_arrays

        return torch_arrays
    from potluck_agent.worker.arrays import numpy_arrays

    return numpy_arrays
