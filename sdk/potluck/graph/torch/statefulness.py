"""Whether a module remembers something from call to call: what is exported is one call, and forgets
it.
"""

import copy
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from potluck.errors import ModelError
from potluck.graph.torch.attributes import held, left_by_export, same
from potluck.graph.torch.export_program import TRY, first_line, where_called


def check_forgets(module: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> None:
    """Raise ModelError for a module that assigns a buffer, or changes what its attributes hold,
    whenever it is called.

    It is called twice: what it keeps from the first call on, such as a length, is then the same.
    """
    fake = left_by_export(held(module))
    if fake:
        raise _changing("attribute", fake)
    _assigned(module, tensors)
    before = held(module)
    assigned = _assigned(module, tensors)
    changed = [path for path, value in held(module).items() if not same(before.get(path), value)]
    if assigned or changed:
        raise _changing("buffer" if assigned else "attribute", (assigned or changed)[0])


def _changing(kind: str, path: str) -> ModelError:
    return ModelError(
        f"each call changes its {kind} {path.replace('net.', '', 1)}, which devices would keep as "
        "it is.",
        next_step="Compute it outside the model, and pass it as an input or a target; or "
        "leave it out.",
    )


def called(module: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> Any:
    """What a module gives; random numbers are as they were afterwards.

    With gradients on, as where it learns: without them encoders of torch's go another way, which
    fails under autocast. Raises ModelError where it does not run, though it was exported.
    """
    try:
        with torch.random.fork_rng(devices=()), torch.enable_grad():
            return module(*tensors)
    except Exception as error:  # whatever the user's code raises
        where = where_called(traceback.extract_tb(error.__traceback__))
        raise ModelError(
            f"it does not run when it is called{where}: {type(error).__name__}: "
            f"{first_line(str(error))}",
            next_step=TRY,
        ) from error


@contextmanager
def spared(module: torch.nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Copies in place of all buffers for a while, yielded by path.

    Those that several modules share stay shared.
    """
    places = [
        (f"{at}.{name}".lstrip("."), owner, name)
        for at, owner in module.named_modules()
        for name in owner._buffers
    ]
    before = [owner._buffers[name] for _, owner, name in places]
    copies = {id(tensor): copy.deepcopy(tensor.detach()) for tensor in before if tensor is not None}
    for (_, owner, name), tensor in zip(places, before, strict=True):
        owner._buffers[name] = None if tensor is None else copies[id(tensor)]
    try:
        yield {
            path: copies[id(t)]
            for (path, _, _), t in zip(places, before, strict=True)
            if t is not None
        }
    finally:
        for (_, owner, name), tensor in zip(places, before, strict=True):
            owner._buffers[name] = tensor


def _assigned(module: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> list[str]:
    """The buffers that a call assigns; it leaves them, and the random numbers, as they were."""
    owners = dict(module.named_modules())
    with spared(module) as given:
        called(module, tensors)
        places = {path: path.rpartition(".") for path in given}
        return [
            path
            for path, (at, _, name) in places.items()
            if owners[at]._buffers.get(name) is not given[path]
        ]
