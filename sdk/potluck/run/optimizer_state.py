"""What an optimizer keeps of its parameters, by two kinds of names: torch's own `state`, and what
devices call it (`SLOT:PARAMETER`).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from potluck.errors import UserError
from potluck.graph.traced import Type
from potluck.run.compiled_plan import kept_types
from potluck.run.weight_update import Update
from potluck_wire.optimizers import AVERAGE, STEP

if TYPE_CHECKING:
    import torch

State = Mapping["torch.Tensor", Mapping[str, Any]]  # of each parameter what is in each slot


def has_steps(state: Mapping[str, Any]) -> bool:
    """Whether a parameter's state comes from a step (Adagrad has some before).

    Parameters
    ----------
    state
        What is in each slot.
    """
    return bool(state) and ("step" not in state or float(state["step"]) > 0)


def torch_state(
    model: Any, optimizer: Any, moments: "Mapping[str, torch.Tensor]"
) -> "dict[torch.Tensor, dict[str, torch.Tensor]]":
    """The state of an optimizer of torch's that has made the steps of devices.

    Parameters
    ----------
    model
        Whose weights it is for.
    optimizer
        The user's own.
    moments
        What devices keep, by name.
    """
    names = model.names_by_identity()
    parameters = {
        names[id(parameter)]: parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if names.get(id(parameter))
    }
    found: dict[torch.Tensor, dict[str, torch.Tensor]] = {}
    for name, tensor in moments.items():
        slot, _, of = name.partition(":")
        if slot != AVERAGE and of in parameters:
            found.setdefault(parameters[of], {})[slot] = tensor
    return found


def device_state(model: Any, state: State, update: Update) -> "dict[str, torch.Tensor]":
    """What devices need to go on where an optimizer of torch's is; nothing where it has made no
    step.

    Parameters
    ----------
    model
        Whose weights it is for.
    state
        Of the optimizer.
    update
        Its settings.

    Raises
    ------
    UserError
        It is the state of another optimizer.
    """
    names = model.names_by_identity()
    states = {names.get(id(tensor), ""): of for tensor, of in state.items()}
    if not any(of and has_steps(of) for name, of in states.items() if name):
        return {}
    found = dict[str, "torch.Tensor"]()
    for parameter in model.trained:
        kind = Type(dtype=parameter.dtype, shape=parameter.shape)
        kept = states.get(parameter.name) or {}
        for name, its in kept_types(update, parameter.name, kind).items():
            found[name] = _in_slot(kept, name, its)
    return found


def _in_slot(kept: Mapping[str, Any], name: str, kind: Type) -> "torch.Tensor":
    """What is in a slot of a parameter, as devices have it; where it has no steps, as before."""
    import torch

    slot, _, parameter = name.partition(":")
    shape = tuple(int(size) for size in kind.shape)  # type: ignore[arg-type]
    dtype: torch.dtype = getattr(torch, kind.dtype)
    if not has_steps(kept):
        return torch.full(shape, 1.0 if slot == "mu_product" else 0.0, dtype=dtype)
    given = kept.get(slot)
    tensor = None if given is None else torch.as_tensor(given).detach().to("cpu", dtype)
    if tensor is None or tuple(tensor.shape) != shape:
        got = "nothing" if tensor is None else str(list(tensor.shape))
        raise UserError(
            f"the optimizer's state is one of another optimizer: its {slot} of {parameter} has the "
            f"shape {list(shape)}, got {got}.",
            next_step="Begin with a new optimizer, or with the one that the state was saved of.",
        )
    return tensor.clone()


def steps_of(moments: "Mapping[str, torch.Tensor]") -> int:
    """How many steps were made to this state, as far as it says so; one at least, as before the
    first nothing is kept.

    Parameters
    ----------
    moments
        What devices keep, by name.
    """
    counts = [int(t) for name, t in moments.items() if name.partition(":")[0] == STEP]
    return max(counts, default=1)
