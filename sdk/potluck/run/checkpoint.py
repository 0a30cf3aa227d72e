"""A run in one file: weights, optimizer state, step, seed and plan as safetensors, written all or
nothing.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from potluck.documents import read_json
from potluck.errors import FileError, PotluckError
from potluck.planning.text import dumps, loads
from potluck.records import Plan
from potluck.run.optimizers import Optimizer, read_optimizer
from potluck.tensor_file import CHECKSUM, read_tensors, write_tensors

if TYPE_CHECKING:
    import torch

FORMAT, OLDER = "potluck-run-2", "potluck-run-1"  # the older one has no checksum
_WEIGHT, _OPTIMIZER = "weight/", "optimizer/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Everything that a run needs to go on as if nothing had happened."""

    signature: str
    plan: Plan
    optimizer: Optimizer
    step: int
    seed: int
    weights: "dict[str, torch.Tensor]"
    moments: "dict[str, torch.Tensor]"


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write the file; an older one of that name stays whole until the new one is.

    Raises
    ------
    FileError
        Where it cannot be written; nothing is left behind.
    """
    tensors = {_WEIGHT + name: tensor for name, tensor in checkpoint.weights.items()}
    tensors |= {_OPTIMIZER + name: tensor for name, tensor in checkpoint.moments.items()}
    metadata = {
        "format": FORMAT,
        "signature": checkpoint.signature,
        "plan": dumps(checkpoint.plan),
        "optimizer": json.dumps(checkpoint.optimizer.to_json()),
        "step": str(checkpoint.step),
        "seed": str(checkpoint.seed),
    }
    write_tensors(path, tensors, metadata)


def load(path: Path) -> Checkpoint:
    """Read a file that `save` wrote.

    Raises
    ------
    FileError
        Where it is missing, cut short, of another kind, or not as it was written.
    """
    tensors, metadata = read_tensors(path, "Give the path of a file that run.save wrote.")
    if metadata.get("format") not in (FORMAT, OLDER):
        raise FileError(
            f"{path} is not a saved run of this version (its format is "
            f"{metadata.get('format')!r}).",
            path=str(path),
        )
    if metadata["format"] == FORMAT and CHECKSUM not in metadata:
        raise FileError(f"{path} does not hold: it has no checksum.", path=str(path))
    try:
        return Checkpoint(
            signature=metadata["signature"],
            plan=loads(metadata["plan"]),
            optimizer=read_optimizer(read_json(metadata["optimizer"], str(path))),
            step=int(metadata["step"]),
            seed=int(metadata["seed"]),
            weights={
                name.removeprefix(_WEIGHT): t
                for name, t in tensors.items()
                if name.startswith(_WEIGHT)
            },
            moments={
                name.removeprefix(_OPTIMIZER): t
                for name, t in tensors.items()
                if name.startswith(_OPTIMIZER)
            },
        )
    except (KeyError, ValueError, TypeError, PotluckError) as error:
        raise FileError(f"{path} does not hold: {error}.", path=str(path)) from error
