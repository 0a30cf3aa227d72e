"""Marks of the values of tensors: another one after any change in place that torch counts, and of a
small tensor after any.

torch counts no change through `.data`, nor those that a batch norm makes to its statistics, which
are small.
"""

from collections.abc import Mapping

import torch

from potluck.errors import ModelError

Marks = Mapping[str, tuple[int, int, int]]  # changes, where its memory is, and what is in it

_SMALL_BYTES = 1 << 14


def marks(tensors: Mapping[str, torch.Tensor]) -> Marks:
    """The marks of these tensors now."""
    return {name: _mark(tensor.detach()) for name, tensor in tensors.items()}


def _mark(tensor: torch.Tensor) -> tuple[int, int, int]:
    changes = 0 if tensor.is_inference() else tensor._version
    content = 0
    if tensor.device.type == "cpu" and 0 < tensor.nbytes <= _SMALL_BYTES:
        flat = tensor.contiguous().reshape(-1)
        content = hash(flat.view(torch.uint8).numpy().tobytes())
    return changes, tensor.data_ptr(), content


def check_values(before: Marks, now: Marks, again: str) -> None:
    """Raise ModelError where values are not what they were when devices got them.

    Parameters
    ----------
    before, now
        Their marks then and now.
    again
        How to go on with the values of now.
    """
    for name, mark in before.items():
        if now.get(name) != mark:
            raise ModelError(
                f"{name} has been changed in the module since its values were sent to devices, "
                "which answer with those of then.",
                next_step=again,
            )
