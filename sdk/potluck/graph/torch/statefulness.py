"""Whether a module remembers something from call to call: what is exported is one call, and forgets it."""

import copy
from collections.abc import Sequence
from typing import Any

import torch

from potluck.errors import ModelError


def check_forgets(module: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> None:
    """Raise ModelError for a module that assigns a buffer, or counts in an attribute, whenever it is called.

    It is called twice: what it keeps from the first call on, such as a length, is then the same.
    """
    _called(module, tensors)
    before = _numbers(module)
    assigned = _called(module, tensors)
    changed = [name for name, number in _numbers(module).items() if name in before and before[name] != number]
    if assigned or changed:
        name = (assigned or changed)[0].removeprefix("net.")
        kind = "buffer" if assigned else "attribute"
        raise ModelError(
            f"each call changes its {kind} {name}, which devices would keep as it is.",
            next_step="Compute it outside the model, and pass it as an input or a target; or leave it out.",
        )


def _called(module: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> list[str]:
    """The buffers that a call assigns; it leaves them, and the random numbers, as they were."""
    owners = dict(module.named_modules())
    buffers = {f"{at}.{name}".lstrip("."): (owner, name) for at, owner in owners.items() for name in owner._buffers}
    before = {path: owner._buffers[name] for path, (owner, name) in buffers.items()}
    given = {path: copy.deepcopy(b.detach()) for path, b in before.items() if b is not None}
    for path, tensor in given.items():
        owner, name = buffers[path]
        owner._buffers[name] = tensor
    try:
        with torch.random.fork_rng(devices=()), torch.no_grad(), torch.compiler.set_stance("force_eager"):
            module(*tensors)
        return [path for path, (owner, name) in buffers.items() if owner._buffers.get(name) is not given.get(path)]
    finally:
        for path, (owner, name) in buffers.items():
            owner._buffers[name] = before[path]


def _numbers(module: torch.nn.Module) -> dict[str, Any]:
    """The numbers and words among the attributes of a module and of those in it."""
    return {
        f"{path}.{name}".lstrip("."): value
        for path, owner in module.named_modules()
        for name, value in vars(owner).items()
        if isinstance(value, bool | int | float | str)
    }
