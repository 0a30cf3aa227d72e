"""A model's state by two kinds of names: those that devices know it by, and those of the module's
own `state_dict`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from potluck.errors import ModelError, UserError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class TracedTensor:
    """What a tensor of a module was when it was traced; a device keeps it so."""

    dtype: str
    trained: bool


def device_name(path: str) -> str:
    """The name that devices know a tensor of a module by."""
    return re.sub(r"[^A-Za-z0-9_.:\-]", "_", path)


def as_traced(own: "Mapping[str, torch.Tensor]") -> dict[str, TracedTensor]:
    """What these tensors are now, by name."""
    return {
        name: TracedTensor(dtype=_dtype(tensor), trained=getattr(tensor, "requires_grad", False))
        for name, tensor in own.items()
    }


def check_as_traced(
    net: "torch.nn.Module",
    own: "Mapping[str, torch.Tensor]",
    before: Mapping[str, TracedTensor],
    *,
    train: bool,
) -> None:
    """Raise ModelError where a module is not what it was when it was traced, but for its values.

    `own`: the tensors that were traced. `train`: which of them are trained matters, too.
    """
    for path, tensor in net.state_dict(keep_vars=True).items():
        name = device_name(path)
        if name not in own:
            continue
        dtype, was = _dtype(tensor), before[name]
        if tensor is not own[name]:
            what = "is another tensor now"
        elif dtype != was.dtype:
            what = f"is {dtype} now, and was {was.dtype}"
        elif train and tensor.requires_grad != was.trained:
            what = f"is {'trained' if tensor.requires_grad else 'frozen'} now"
        else:
            continue
        raise ModelError(
            f"the module was changed after its model was made: {path} {what}.",
            next_step="Make the model again with Model.from_torch. (Values may change: with "
            "load_state_dict without assign, or in place.)",
        )


def _dtype(tensor: "torch.Tensor") -> str:
    return str(tensor.dtype).removeprefix("torch.")


def as_module(
    net: "torch.nn.Module", own: "Mapping[str, torch.Tensor]", state: "Mapping[str, torch.Tensor]"
) -> "dict[str, torch.Tensor]":
    """The `state` of devices as the module's own `state_dict`.

    What no device keeps as the module has it.

    `own`: the module's own tensors by the names of devices. A tied weight has several names in a
    module; what its loss or its forward keeps beside has none.
    """
    name_of = {id(tensor): name for name, tensor in own.items()}
    found = {}
    for key, tensor in net.state_dict(keep_vars=True).items():
        name = key if key in state else name_of.get(id(tensor), key)
        found[key] = (
            state[name]
            if name in state
            else tensor.detach()
            if hasattr(tensor, "detach")
            else tensor
        )
    return found


def check_shapes(module: "torch.nn.Module", state: "Mapping[str, torch.Tensor]") -> None:
    """Raise UserError where a module has other shapes: torch would load all else before it says
    so.
    """
    for name, tensor in module.state_dict().items():
        shape = list(getattr(tensor, "shape", ()))
        if name in state and shape != list(getattr(state[name], "shape", ())):
            raise UserError(
                f"{name} has the shape {shape} in the module {type(module).__name__}, and "
                f"{list(state[name].shape)} in this model.",
                next_step="Load them into a module of the kind that the model was made from.",
            )


def load(own: "Mapping[str, torch.Tensor]", state: "Mapping[str, torch.Tensor]") -> None:
    """Put the state of devices into the user's own tensors.

    Raises ModelError, and changes nothing, if one is odd.
    """
    import torch

    for name, tensor in state.items():
        if name not in own:
            raise ModelError(f"the model has no state {name!r}.")
        if tuple(tensor.shape) != tuple(own[name].shape):
            raise ModelError(
                f"{name} has the shape {list(tensor.shape)}; {list(own[name].shape)} is expected."
            )
    with torch.no_grad():
        for name, tensor in state.items():
            own[name].copy_(tensor)
