"""Tensors in one file, as safetensors: written all or nothing, and read as they were written."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from potluck.documents import put_in_place
from potluck.errors import FileError
from potluck_wire.file_reading import open_file

if TYPE_CHECKING:
    import torch

CHECKSUM = "sha256"
MAX_HEADER_BYTES = 32 << 20  # what is said of the tensors; some 100 bytes each, and their document


def write_tensors(
    path: Path, tensors: "Mapping[str, torch.Tensor]", metadata: Mapping[str, str]
) -> None:
    """Write the file; an older one of that name stays whole until the new one is.

    Parameters
    ----------
    path
        Where to.
    tensors
        By name.
    metadata
        What is said of them; a checksum over all comes to it.

    Raises
    ------
    FileError
        Where it cannot be written; nothing is left behind.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    plain = {name: tensor.contiguous() for name, tensor in tensors.items()}
    if path.is_dir() or not path.parent.is_dir():
        why = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise FileError(f"cannot write {path}: {why}.", path=str(path))
    try:
        with put_in_place(path) as part:
            save_file(plain, part, metadata={**metadata, CHECKSUM: _checksum(metadata, plain)})
    except SafetensorError as error:  # a full disk is one, too
        raise FileError(f"cannot write {path}: {error}.", path=str(path)) from error


def read_tensors(path: Path, next_step: str) -> "tuple[dict[str, torch.Tensor], dict[str, str]]":
    """The tensors of a file, and what is said of them.

    Parameters
    ----------
    path
        The file.
    next_step
        What to do where it cannot be read.

    Raises
    ------
    FileError
        It is missing, cut short, of another kind, or its checksum is another; or it says more of
        its tensors than any file of ours does.
    """
    from safetensors import SafetensorError, safe_open

    try:
        check_header(path, MAX_HEADER_BYTES)
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    # RuntimeError: torch maps no file that is larger than memory
    except (OSError, SafetensorError, RuntimeError, MemoryError) as error:
        raise FileError(
            f"cannot read {path}: {str(error).removesuffix(f': {path}')}.",
            next_step=next_step,
            path=str(path),
        ) from error
    stated = {name: text for name, text in metadata.items() if name != CHECKSUM}
    if CHECKSUM in metadata and metadata[CHECKSUM] != _checksum(stated, tensors):
        raise FileError(
            f"{path} is not as it was written: its checksum is another.",
            next_step="Take an earlier file, or copy this one again from where it is whole.",
            path=str(path),
        )
    return tensors, metadata


def check_header(path: Path, most_bytes: int) -> int:
    """See that a file says no more of its tensors than it may; how many bytes it says.

    Parameters
    ----------
    path
        The file.
    most_bytes
        It may say; each takes some ten of memory once it is read.

    Raises
    ------
    OSError
        It cannot be read.
    FileError
        It says more.
    """
    with open_file(path) as file:
        nbytes = int.from_bytes(file.read(8), "little")
    if nbytes > most_bytes:
        raise FileError(
            f"{path} says more of its tensors than it may: {nbytes} bytes, at most {most_bytes}.",
            path=str(path),
        )
    return nbytes


def _checksum(metadata: Mapping[str, str], tensors: "Mapping[str, torch.Tensor]") -> str:
    """SHA-256 over all that a file says and holds, in the order of the names."""
    import torch

    digest = hashlib.sha256(json.dumps(sorted(metadata.items())).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
