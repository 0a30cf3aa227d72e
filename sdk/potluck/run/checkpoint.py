"""A run in one file: weights, optimizer state, step, seed and plan as safetensors, written all or
nothing.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.documents import file_path, holds, read_json
from potluck.errors import FileError, PotluckError
from potluck.planning.text import dumps, loads
from potluck.records import Plan
from potluck.run.batch_stream import Position, position_from_plain, position_to_plain
from potluck.run.update_source import EPOCH, STEP, SchedulePlace
from potluck.run.weight_update import Update, read_update
from potluck.tensor_file import (
    CHECKSUM,
    MAX_HEADER_BYTES,
    check_header,
    read_tensors,
    write_tensors,
)

if TYPE_CHECKING:
    import torch

FORMAT, OLDER = "potluck-run-2", "potluck-run-1"  # the older one has no checksum
MAX_SEED = 2**53  # as messages carry whole numbers
MAX_STEP = 2**52  # so that steps to come are whole numbers for whoever reads them as floats
_NUMBER = re.compile(r"[0-9]{1,16}", re.ASCII)
_WEIGHT = "weight/"
_OPTIMIZER = "optimizer/"
_LOADER = "loader/"
_MODULE = "module/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Everything that a run needs to go on as if nothing had happened.

    `unused`: what of the module's state no device keeps, by the module's own names. `wanted`: the
    plan that it would go back to, once the devices are there; None: it is on that.
    """

    signature: str
    plan: Plan
    optimizer: Update
    step: int
    seed: int
    weights: "dict[str, torch.Tensor]"
    moments: "dict[str, torch.Tensor]"
    unused: "Mapping[str, torch.Tensor]" = field(default_factory=dict)
    position: Position | None = None  # in the data
    schedule: SchedulePlace | None = None
    wanted: Plan | None = None


def save(path: str | Path, checkpoint: Checkpoint) -> None:
    """Write the file; an older one of that name stays whole until the new one is.

    Raises
    ------
    FileError
        Where it cannot be written; nothing is left behind.
    """
    tensors = {_WEIGHT + name: tensor for name, tensor in checkpoint.weights.items()}
    tensors |= {_OPTIMIZER + name: tensor for name, tensor in checkpoint.moments.items()}
    # several names may stand for one tensor, which a file has not
    tensors |= {_MODULE + name: tensor.clone() for name, tensor in checkpoint.unused.items()}
    metadata = {
        "format": FORMAT,
        "signature": checkpoint.signature,
        "plan": dumps(checkpoint.plan),
        "optimizer": json.dumps(checkpoint.optimizer.optimizer.to_json()),
        "update": json.dumps(checkpoint.optimizer.to_json()),
        "step": str(checkpoint.step),
        "seed": str(checkpoint.seed),
    }
    if checkpoint.wanted is not None:
        metadata["wanted"] = dumps(checkpoint.wanted)
    if checkpoint.position is not None:
        loader_tensors: dict[str, torch.Tensor] = {}
        metadata["position"] = json.dumps(position_to_plain(checkpoint.position, loader_tensors))
        tensors |= {_LOADER + name: tensor for name, tensor in loader_tensors.items()}
    if checkpoint.schedule is not None:
        metadata["schedule"] = json.dumps(asdict(checkpoint.schedule))
    write_tensors(file_path(path), tensors, metadata)


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
                _table(metadata, "optimizer", path), _table(metadata, "update", path)
            ),
            step=_number(metadata, "step", MAX_STEP),
            seed=_number(metadata, "seed", MAX_SEED),
            weights=_below(tensors, _WEIGHT),
            moments=_below(tensors, _OPTIMIZER),
            unused=_below(tensors, _MODULE),
            position=_position(metadata, tensors, path),
            schedule=_schedule(metadata, path),
            wanted=loads(metadata["wanted"]) if "wanted" in metadata else None,
        )
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, PotluckError) as error:
        raise FileError(f"{path} does not hold: {error}.", path=str(path)) from error


def _below(tensors: "Mapping[str, torch.Tensor]", prefix: str) -> "dict[str, torch.Tensor]":
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _number(metadata: Mapping[str, str], name: str, highest: int) -> int:
    text = metadata[name]
    if not _NUMBER.fullmatch(text) or int(text) > highest:
        raise ValueError(f"its {name} is a whole number from 0 to {highest}, got {text!r:.80}")
    return int(text)


def _table(metadata: Mapping[str, str], name: str, path: Path) -> dict[str, Any]:
    """What is said as JSON; empty where nothing is."""
    found = read_json(metadata.get(name, "{}"), str(path))
    if not isinstance(found, dict):
        raise ValueError(f"its {name} is a table, got {found!r:.80}")
    return found


def _position(
    metadata: Mapping[str, str], tensors: "Mapping[str, torch.Tensor]", path: Path
) -> Position | None:
    if "position" not in metadata:
        return None
    return position_from_plain(_table(metadata, "position", path), _below(tensors, _LOADER))


def _schedule(metadata: Mapping[str, str], path: Path) -> SchedulePlace | None:
    if "schedule" not in metadata:
        return None
    found = SchedulePlace(**_table(metadata, "schedule", path))
    is_sound = holds(found, SchedulePlace) and found.every in (STEP, EPOCH)
    if not is_sound or not -MAX_STEP <= found.began <= MAX_STEP:
        raise ValueError(f"its schedule cannot be {found!r:.200}")
    return found


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
        check_header(path, MAX_HEADER_BYTES)
        with safe_open(path, framework="np") as file:  # its tensors are not looked at
            metadata = file.metadata() or {}
        return _number(metadata, "step", MAX_STEP)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise FileError(f"{path} is no state of a run.", path=str(path)) from error
