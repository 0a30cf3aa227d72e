"""Constants of a loss: what it reads beside outputs and targets, and nothing trains, such as class
weights.

A run takes them with its weights. Devices keep them, and so does home, for what it computes of a
whole batch: a weighted mean is then divided by the weights that it was summed with.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from potluck.errors import ModelError
from potluck.graph.torch.state_names import OWN
from potluck.graph.traced import Traced

LOSS = "loss."  # then, of what is a module of the loss
_SMALL_BYTES = 1 << 16  # whose digest takes some 0.1 ms


@dataclass(frozen=True, slots=True)
class LossConstants:
    """The constants of one run.

    Parameters
    ----------
    fed
        Copies of those that home computes with, by name.
    digests
        Of all in the user's own objects, at the time at which the run got its weights.
    versions
        How often torch had changed each of these then.
    """

    fed: Mapping[str, torch.Tensor]
    digests: Mapping[str, bytes]
    versions: Mapping[str, int]


def of_run(traced: Traced, state: Mapping[str, torch.Tensor]) -> LossConstants:
    """The constants of a run that gets the weights `state`, which may be those of a file."""
    tallied, own = _tallied(traced), _own(traced)
    return LossConstants(
        fed={name: state.get(name, tensor).detach().clone() for name, tensor in tallied.items()},
        digests={name: _digest(tensor) for name, tensor in own.items()},
        versions={name: _version(tensor) for name, tensor in own.items()},
    )


def check_unchanged(traced: Traced, constants: LossConstants, *, quick: bool) -> None:
    """Raise ModelError where the user's own have other values than when the run got its weights.

    `quick`: large ones are looked at where torch has changed them since.
    """
    changed = [
        name
        for name, tensor in _own(traced).items()
        if not (quick and tensor.nbytes > _SMALL_BYTES)
        or constants.versions.get(name) != _version(tensor)
        if _digest(tensor) != constants.digests.get(name)
    ]
    if changed:
        name = changed[0].removeprefix(OWN)
        what = "the loss" if name.startswith(LOSS) else "a tensor of no module"
        raise ModelError(
            f"{what} was changed after the run was deployed: {name.removeprefix(LOSS)} has other "
            "values than when the run got it.",
            next_step="Deploy again, with resume= to go on from what run.save wrote.",
        )


def _tallied(traced: Traced) -> Mapping[str, torch.Tensor]:
    return traced.reductions.constants if traced.reductions else {}


def _own(traced: Traced) -> dict[str, torch.Tensor]:
    """In the user's own objects, by name."""
    graph = traced.graph
    changing = {p.name for p in graph.parameters if p.trainable} | {
        b.name for b in graph.buffers if b.updated
    }
    return {
        name: tensor
        for name, tensor in (*traced.tensors.items(), *_tallied(traced).items())
        if name.startswith(OWN) and name not in changing
    }


def _version(tensor: torch.Tensor) -> int:
    """How often torch has changed it in place; of one made in inference mode nobody counts."""
    return -1 if tensor.is_inference() else tensor._version


def _digest(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().cpu().contiguous().reshape(-1)
    return hashlib.sha256(plain.view(torch.uint8).numpy().data if len(plain) else b"").digest()
