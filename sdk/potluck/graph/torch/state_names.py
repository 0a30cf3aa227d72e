"""A model's state by two kinds of names: those that devices know it by, and those of the module's
own `state_dict`.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from potluck.errors import ModelError, UserError

if TYPE_CHECKING:
    import torch

OWN = "own-"  # begins the names of a loss's tensors, not the model's; no attribute has a hyphen
# Names of values have 200 characters at most (`is_value_name`), and beside this one there are those
# of a segment, of what an optimizer keeps, and of a device in them.
MAX_NAME = 100
_ENDS = 40  # of a longer one, its beginning and its end


def device_name(path: str) -> str:
    """The name that devices know a tensor of a module by; no two paths have the same.

    What messages do not carry, such as a letter outside ASCII, stands there by its number; of a
    longer name than `MAX_NAME`, what is between its ends by a sum of it.
    """
    name = re.sub(r"^[.\-]|[^A-Za-z0-9_.\-]", lambda found: f"_:{ord(found[0]):x}:", path)
    if len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{name[:_ENDS]}_:{digest}:{name[-_ENDS:]}"


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
        plain = device_name(key)
        name = plain if plain in state else name_of.get(id(tensor), plain)
        own_value = tensor.detach() if hasattr(tensor, "detach") else tensor
        found[key] = state.get(name, own_value)
    return found


def unshared(net: "torch.nn.Module", found: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    """What `as_module` found, with copies of the tensors that are the module's own: they may
    change.
    """
    own = net.state_dict()
    return {
        key: tensor.clone()
        if hasattr(tensor, "clone") and tensor.data_ptr() == own[key].data_ptr()
        else tensor
        for key, tensor in found.items()
    }


def unused(net: "torch.nn.Module", own: "Mapping[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    """What of a module's state is none of the tensors that devices keep, by the module's names.

    `own`: the module's tensors that they do keep, by the names of devices.
    """
    used = {id(tensor) for tensor in own.values()}
    return {
        name: tensor.detach()
        for name, tensor in net.state_dict(keep_vars=True).items()
        if hasattr(tensor, "detach") and id(tensor) not in used
    }


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
            if own[name].data_ptr() != tensor.data_ptr():  # else they are its own
                own[name].copy_(tensor)
