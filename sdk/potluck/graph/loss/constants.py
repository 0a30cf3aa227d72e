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


@dataclass(frozen=True, slots=True)
class LossConstants:
    """The constants of one run.

    Parameters
    ----------
    fed
        Copies of those that home computes with, by name.
    digests
        Of all in the user's own objects, at the time at which the run got its weights.
    """

    fed: Mapping[str, torch.Tensor]
    digests: Mapping[str, bytes]


def of_run(traced: Traced, state: Mapping[str, torch.Tensor]) -> LossConstants:
    """The constants of a run that gets the weights `state`, which may be those of a file."""
    own = _tallied(traced)
    return LossConstants(
        fed={name: state.get(name, tensor).detach().clone() for name, tensor in own.items()},
        digests=_digests(traced),
    )


def check_unchanged(traced: Traced, constants: LossConstants) -> None:
    """Raise ModelError where the user's own have other values than when the run got its weights."""
    now = _digests(traced)
    changed = [name for name, digest in constants.digests.items() if now[name] != digest]
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


def _digests(traced: Traced) -> dict[str, bytes]:
    graph = traced.graph
    changing = {p.name for p in graph.parameters if p.trainable} | {
        b.name for b in graph.buffers if b.updated
    }
    own = {
        name: tensor
        for name, tensor in (*traced.tensors.items(), *_tallied(traced).items())
        if name.startswith(OWN) and name not in changing
    }
    return {name: _digest(tensor) for name, tensor in own.items()}


def _digest(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().cpu().contiguous().reshape(-1)
    return hashlib.sha256(plain.view(torch.uint8).numpy().data if len(plain) else b"").digest()
