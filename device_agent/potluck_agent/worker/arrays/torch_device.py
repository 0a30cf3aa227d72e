"""The accelerator that torch computes on in this worker: what arrives is copied to it, what leaves
is copied back, and its memory is counted as torch counts it.

Whatever differs between the CPU, CUDA, XPU and MPS is here; segments only know the device of their
tensors.
"""

from collections.abc import Sequence
from typing import Any

import torch

from potluck_agent.worker.arrays import torch_arrays
from potluck_wire.processors import TORCH_KINDS

CPU = torch.device("cpu")
_SIDE = 8  # of the matrices that show which element types it computes with


def offered(kind: str) -> tuple[str, ...]:
    """Names of the devices of this kind that torch sees, as `cuda:0`; none where there are none.

    Parameters
    ----------
    kind
        One of `TORCH_KINDS`.
    """
    if kind not in TORCH_KINDS:
        return ()
    module = torch.get_device_module(kind)
    if not module.is_available():
        return ()
    return tuple(f"{kind}:{index}" for index in range(module.device_count()))


def name_of(device: torch.device) -> str:
    """What people call it."""
    module = torch.get_device_module(device)
    if not hasattr(module, "get_device_name"):
        return f"the accelerator of this machine ({device.type})"
    return str(module.get_device_name(device))


def dtypes_of(device: torch.device) -> tuple[str, ...]:
    """Element types that it computes with: tried, since no library lists them."""
    return tuple(name for name, dtype in torch_arrays.DTYPES.items() if _computes(device, dtype))


def _computes(device: torch.device, dtype: torch.dtype) -> bool:
    try:
        ones = torch.ones(_SIDE, _SIDE, dtype=dtype).to(device)
        result = ones @ ones if dtype.is_floating_point else ones + ones
        expected = float(_SIDE) if dtype.is_floating_point else 1.0 + (dtype is not torch.bool)
        return bool((result.cpu() == expected).all())
    except (RuntimeError, TypeError):
        return False


def accelerator(name: str, memory_bytes: int) -> "DeviceArrays":
    """Tensors on this device, as `cuda:0`, of which they may take so many bytes."""
    # exact products: one device computes as another one, to the digits of its type
    torch.backends.cudnn.allow_tf32 = False
    return DeviceArrays(torch.device(name), memory_bytes)


class DeviceArrays:
    """Tensors of torch on an accelerator; see `arrays`.

    Parameters
    ----------
    device
        The accelerator.
    memory_bytes
        That tensors may take on it.
    """

    COUNTED = "every allocation on the accelerator"
    name_of = staticmethod(torch_arrays.name_of)
    ones_like = staticmethod(torch.ones_like)
    add = staticmethod(torch_arrays.add)
    clone = staticmethod(torch.clone)
    concat = staticmethod(torch_arrays.concat)
    copy_to = staticmethod(torch_arrays.copy_to)  # waits until all is there
    storage = staticmethod(torch_arrays.storage)

    def __init__(self, device: torch.device, memory_bytes: int) -> None:
        self.device = device
        self.DTYPES = {name: torch_arrays.DTYPES[name] for name in dtypes_of(device)}
        self._module: Any = torch.get_device_module(device)
        self._memory_bytes = memory_bytes

    def over(
        self, memory: memoryview, dtype: str, shape: Sequence[int]
    ) -> tuple[torch.Tensor, memoryview]:
        """A copy of this memory, which is free again at once."""
        on_cpu, _ = torch_arrays.over(memory, dtype, shape)
        return on_cpu.to(self.device, copy=True), memory

    def zeros(self, shape: Sequence[int], dtype: str) -> torch.Tensor:
        """A new tensor of zeros."""
        return torch.zeros(tuple(shape), dtype=torch_arrays.DTYPES[dtype], device=self.device)

    def to_numpy(self, array: torch.Tensor) -> Any:
        """The same elements for numpy, copied."""
        return array.detach().cpu().numpy()

    def from_numpy(self, array: Any) -> torch.Tensor:
        """The same elements from numpy, copied."""
        return torch.from_numpy(array).to(self.device)

    def live_bytes(self) -> int:
        """Bytes of all tensors that Python knows of on this device."""
        return torch_arrays.live_bytes(self.device.type)

    def synchronize(self) -> None:
        """Wait until all that was begun is done. RuntimeError where the device is lost."""
        self._module.synchronize()

    def allocated_bytes(self) -> int:
        """Bytes of tensors that it holds."""
        if self.device.type == "mps":
            return int(self._module.current_allocated_memory())
        return int(self._module.memory_allocated(self.device))

    def available_bytes(self) -> int:
        """Bytes that tensors may still take."""
        return max(0, min(self._memory_bytes - self.allocated_bytes(), self.free_bytes()))

    def limit(self, memory_bytes: int) -> None:
        """So many tensors may take in all from now on."""
        self._memory_bytes = memory_bytes

    def free_bytes(self) -> int:
        """What is free on the device, and what torch has there for new tensors."""
        taken_bytes = self.allocated_bytes()
        if self.device.type == "mps":
            return int(self._module.recommended_max_memory()) - taken_bytes
        free_bytes, _ = self._module.mem_get_info(self.device)
        return int(free_bytes + self._module.memory_reserved(self.device) - taken_bytes)
