"""A run in one file: weights, optimizer state, step, seed and plan as safetensors, written all or
nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from potluck.documents import read_json
from potluck.errors import FileError, PotluckError
from potluck.planning.text import dumps, loads
from potluck.records import Plan
from potluck.run.batch_stream import Position, position_from_plain, position_to_plain
from potluck.run.update import Update, read_update
from potluck.run.update_source import SchedulePlace
from potluck.tensor_file import CHECKSUM, read_tensors, write_tensors

if TYPE_CHECKING:
    import torch

FORMAT, OLDER = "potluck-run-2", "potluck-run-1"  # the older one has no checksum
MAX_STEP = 2**53  # what every reader of JSON counts to
_WEIGHT, _OPTIMIZER, _LOADER = "weight/", "optimizer/", "loader/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Everything that a run needs to go on as if nothing had happened."""

    signature: str
    plan: Plan
    optimizer: Update
    step: int
    seed: int
    weights: "dict[str, torch.Tensor]"
    moments: "dict[str, torch.Tensor]"
    position: Position | None = None  # in the data
    schedule: SchedulePlace | None = None


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
        "optimizer": json.dumps(checkpoint.optimizer.optimizer.to_json()),
        "update": json.dumps(checkpoint.optimizer.to_json()),
        "step": str(checkpoint.step),
        "seed": str(checkpoint.seed),
    }
    if checkpoint.position is not None:
        beside: dict[str, torch.Tensor] = {}
        metadata["position"] = json.dumps(position_to_plain(checkpoint.position, beside))
        tensors |= {_LOADER + name: tensor for name, tensor in beside.items()}
    if checkpoint.schedule is not None:
        metadata["schedule"] = json.dumps(asdict(checkpoint.schedule))
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
            optimizer=read_update(
                read_json(metadata["optimizer"], str(path)),
                read_json(metadata.get("update", "{}"), str(path)),
            ),
            step=_step(metadata["step"]),
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
            position=_position(metadata, tensors, path),
            schedule=_schedule(metadata, path),
        )
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, PotluckError) as error:
        raise FileError(f"{path} does not hold: {error}.", path=str(path)) from error


def _step(text: str) -> int:
    step = int(text)
    if not 0 <= step < MAX_STEP:
        raise ValueError(f"{text[:20]} is no step")
    return step


def _position(
    metadata: Mapping[str, str], tensors: "Mapping[str, torch.Tensor]", path: Path
) -> Position | None:
    if "position" not in metadata:
        return None
    beside = {n.removeprefix(_LOADER): t for n, t in tensors.items() if n.startswith(_LOADER)}
    return position_from_plain(read_json(metadata["position"], str(path)), beside)


def _schedule(metadata: Mapping[str, str], path: Path) -> SchedulePlace | None:
    if "schedule" not in metadata:
        return None
    found = read_json(metadata["schedule"], str(path))
    return SchedulePlace(
        name=str(found["name"]), every=str(found["every"]), began=int(found["began"])
    )


def step_of(path: Path) -> int:
    """The step that a file is the state after, without its tensors.

    Parameters
    ----------
    path
        Which `save` wrote.

    Raises
    ------
    FileError
        It is none.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        return int(metadata["step"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise FileError(f"{path} is no state of a run.", path=str(path)) from error
