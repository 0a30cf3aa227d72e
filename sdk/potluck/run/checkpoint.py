"""A run in one file: weights, optimizer state, step, seed and plan as safetensors, written all or
nothing.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from potluck.documents import read_json
from potluck.errors import FileError, PotluckError
from potluck.planning.text import dumps, loads
from potluck.records import Plan
from potluck.run.optimizers import Optimizer, read_optimizer

if TYPE_CHECKING:
    import torch

FORMAT, OLDER = "potluck-run-2", "potluck-run-1"  # the older one has no checksum
CHECKSUM = "sha256"
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
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors = {_WEIGHT + name: tensor.contiguous() for name, tensor in checkpoint.weights.items()}
    tensors |= {
        _OPTIMIZER + name: tensor.contiguous() for name, tensor in checkpoint.moments.items()
    }
    metadata = {
        "format": FORMAT,
        "signature": checkpoint.signature,
        "plan": dumps(checkpoint.plan),
        "optimizer": json.dumps(checkpoint.optimizer.to_json()),
        "step": str(checkpoint.step),
        "seed": str(checkpoint.seed),
    }
    metadata[CHECKSUM] = _checksum(metadata, tensors)
    if path.is_dir() or not path.parent.is_dir():
        why = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise FileError(f"cannot write {path}: {why}.", path=str(path))
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        save_file(tensors, part, metadata=metadata)
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(path)
    except (OSError, SafetensorError) as error:  # a full disk is the latter
        part.unlink(missing_ok=True)
        raise FileError(f"cannot write {path}: {error}.", path=str(path)) from error


def load(path: Path) -> Checkpoint:
    """Read a file that `save` wrote.

    Raises
    ------
    FileError
        Where it is missing, cut short, of another kind, or not as it was written.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError) as error:
        raise FileError(
            f"cannot read {path}: {str(error).removesuffix(f': {path}')}.",
            next_step="Give the path of a file that run.save wrote.",
            path=str(path),
        ) from error
    if metadata.get("format") not in (FORMAT, OLDER):
        raise FileError(
            f"{path} is not a saved run of this version (its format is "
            f"{metadata.get('format')!r}).",
            path=str(path),
        )
    if metadata["format"] == FORMAT and metadata.pop(CHECKSUM, "") != _checksum(metadata, tensors):
        raise FileError(
            f"{path} is not as it was written: its checksum is another.",
            next_step="Go on from an earlier file, or copy this one again from where it is whole.",
            path=str(path),
        )
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


def _checksum(metadata: Mapping[str, str], tensors: "Mapping[str, torch.Tensor]") -> str:
    """SHA-256 over all that a file says and holds, in the order of the names."""
    import torch

    digest = hashlib.sha256(json.dumps(sorted(metadata.items())).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
