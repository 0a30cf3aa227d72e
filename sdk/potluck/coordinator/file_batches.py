"""Batches of a job that are made of files of arrays: the job says which files, in which order, and
how they are told from others. The coordinator reads them in a folder that its owner has given it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from potluck import units
from potluck.coordinator.batch_store import Batches, BatchStore
from potluck.coordinator.job import (
    BATCHES,
    FILES,
    MAX_BATCHES,
    MAX_FILES_BYTES,
    MAX_FILES_VALUES,
    READS,
    WHOLE,
)
from potluck.documents import read_json_file, write_whole
from potluck.errors import FileError, UserError
from potluck.graph.model_file import with_reductions
from potluck.run.array_file import ArrayFile, fingerprint, open_array
from potluck.run.array_files import MAX_ARRAYS, ArrayBatches, Order, RemainingBatches, check_rows
from potluck.tensor_file import read_tensors, write_tensors

if TYPE_CHECKING:
    import torch

    from potluck.graph.model import Model

_FORMAT = "potluck-file-batches-1"


def write_file_batches(
    folder: Path, remaining: RemainingBatches, model: "Model", constants: Any, *, n_whole: int
) -> int:
    """Write down which files, and in which order; how many batches that is.

    Parameters
    ----------
    folder
        Of the job.
    remaining
        The batches.
    model
        That is trained on them.
    constants
        Those of its loss.
    n_whole
        So many tensors the loss makes of each batch, with the same in all rows: what it makes them
        of, such as targets, is read once for each epoch.

    Raises
    ------
    UserError
        The model takes no such batches.
    FileError
        A file cannot be read, or one cannot be written.
    """
    batches, order = remaining.batches, remaining.batches.order
    if remaining.n_batches < 1:
        return 0
    model.check_inputs(*batches.batch(remaining.first), train=True)
    written = {
        "format": _FORMAT,
        "arrays": [
            [each.name, list(each.shape), each.dtype, fingerprint(each.path)]
            for each in batches.arrays
        ],
        "order": [order.n_rows, order.batch, order.shuffle, order.seed, order.drop_last],
        "first": remaining.first,
        "n_batches": remaining.n_batches,
    }
    write_whole(folder / FILES, json.dumps(written))
    if n_whole:
        reads = model.laid_out(True).line.traced.reductions.reads
        made = [
            with_reductions(model, each, constants)[-n_whole:] for each in remaining.reading(reads)
        ]
        tensors = {str(place): _stacked([each[place] for each in made]) for place in range(n_whole)}
        write_tensors(folder / WHOLE, tensors, {"format": _FORMAT})
    return remaining.n_batches


def _stacked(values: "Sequence[torch.Tensor]") -> "torch.Tensor":
    import torch

    return torch.stack([value[0].detach().clone() for value in values])


class FileBatches:
    """The batches of a job of files of arrays.

    Parameters
    ----------
    folder
        Of the job.
    reads
        Where the files are; None: this coordinator may read none.

    Raises
    ------
    FileError
        What is written down does not hold; or a file is missing, or is another one than the
        notebook had: says which file and folder, and what to do.
    """

    def __init__(self, folder: Path, reads: Path | None) -> None:
        self._path = folder / FILES
        rows, order, self._first, self._n = _read(self._path)
        arrays = [_opened(row, reads) for row in rows]
        check_rows(arrays)
        if arrays[0].shape[0] != order.n_rows:
            raise _odd(self._path, "its order is of another number of rows")
        self._rows, self._batches = rows, ArrayBatches(arrays, order)
        self._whole = _whole(folder / WHOLE, self._n)

    def __len__(self) -> int:
        return self._n

    def check(self) -> None:
        """Whether a batch fits in memory, and the files are those of the notebook.

        Raises
        ------
        FileError
            They are not, or it does not.
        """
        order, free = self._batches.order, psutil.virtual_memory().available
        row_bytes = sum(array.row_bytes for array in self._batches.arrays)
        nbytes = min(order.batch, order.n_rows) * row_bytes
        if nbytes > free:
            raise FileError(
                f"a batch of these files has {units.size(nbytes)}, and {units.size(free)} of "
                "memory are free.",
                next_step="Hand it to a coordinator with more memory, or in smaller batches.",
            )
        self.check_same()

    def check_same(self) -> None:
        """Whether the files are those of the notebook still.

        Raises
        ------
        FileError
            One is another.
        """
        for array, (name, _, _, sha256) in zip(self._batches.arrays, self._rows, strict=True):
            if fingerprint(array.path) != sha256:
                raise FileError(
                    f"{name!r}, {array.path} where the coordinator is, is another file than that "
                    "of the notebook.",
                    next_step="Copy the notebook's file there, or detach with that one.",
                    path=str(array.path),
                )

    def since(self, first: int) -> Batches:
        """Those from number `first` on, as `fit` takes them."""
        return Batches(self, first)

    def batch(self, number: int) -> "tuple[torch.Tensor, ...]":
        """One of them: its tensors, [rows, ...] each."""
        own = self._batches.batch(self._first + number)
        each = [values[number] for values in self._whole]
        return (*own, *(value.expand(len(own[0]), *value.shape) for value in each))


def batches_of(folder: Path, reads: Path | None) -> BatchStore | FileBatches:
    """The batches of a job.

    Parameters
    ----------
    folder
        Of the job.
    reads
        The folder whose files its coordinator may read for anybody; a job of the coordinator's
        owner may say one of its own.

    Raises
    ------
    FileError
        They are not there, or do not hold.
    """
    if not (folder / FILES).exists():
        return BatchStore(folder / BATCHES)
    return FileBatches(folder, read_by_owner(folder) or reads)


def let_read(folder: Path, reads: str) -> None:
    """A job's files of arrays are in this folder: its coordinator's owner says so.

    Parameters
    ----------
    folder
        Of the job.
    reads
        The other one.

    Raises
    ------
    UserError
        It is no whole path.
    FileError
        That cannot be written down.
    """
    if not Path(reads).is_absolute():
        raise UserError(f"{reads[:200]!r} is no path of a folder from the root on.")
    write_whole(folder / READS, json.dumps(reads))


def read_by_owner(folder: Path) -> Path | None:
    """What `let_read` wrote down; None: nothing.

    Parameters
    ----------
    folder
        Of the job.

    Raises
    ------
    FileError
        It does not hold.
    """
    path = folder / READS
    if not path.exists():
        return None
    reads = read_json_file(path, most_bytes=MAX_FILES_BYTES, most_values=1)
    if not isinstance(reads, str):
        raise _odd(path, "it is no text")
    return Path(reads)


def _read(path: Path) -> tuple[list[Any], Order, int, int]:
    document = read_json_file(path, most_bytes=MAX_FILES_BYTES, most_values=MAX_FILES_VALUES)
    match document:
        case {
            "format": "potluck-file-batches-1",
            "arrays": list(rows),
            "order": [int(n_rows), int(batch), bool(shuffle), int(seed), bool(drop_last)],
            "first": int(first),
            "n_batches": int(n_batches),
        } if (
            1 <= len(rows) <= MAX_ARRAYS
            and all(map(_is_array, rows))
            and type(first) is type(n_batches) is int
            and 0 <= first <= MAX_BATCHES
            and 1 <= n_batches <= MAX_BATCHES
        ):
            try:
                order = Order(
                    n_rows=n_rows, batch=batch, shuffle=shuffle, seed=seed, drop_last=drop_last
                )
            except ValueError as error:
                raise _odd(path, str(error)) from error
            return rows, order, first, n_batches
    raise _odd(path, "it is of another version, or not as it was written")


def _is_array(row: object) -> bool:
    match row:
        case [str(), list(shape), str(), str()]:
            return all(type(n) is int and n > 0 for n in shape)
    return False


def _opened(row: Sequence[Any], reads: Path | None) -> ArrayFile:
    """The array, which has the shape and type that the notebook's has."""
    name, shape, dtype, _ = row
    if reads is None:
        raise FileError(
            f"the coordinator cannot reach {name!r}: its owner has given it no folder to read.",
            next_step="Start it with `potluck coordinate --data FOLDER`, where FOLDER has that "
            "file; or hand the rows themselves over: run.detach(iter(files)).",
        )
    array = open_array(reads, name)
    if [*array.shape] != shape or array.dtype != dtype:
        raise FileError(
            f"{name!r} in {reads} is {[*array.shape]} of {array.dtype} where the coordinator is, "
            f"and {shape} of {dtype} in the notebook.",
            next_step="Copy the notebook's file there, or detach with that one.",
            path=str(array.path),
        )
    return array


def _whole(path: Path, n_batches: int) -> "list[torch.Tensor]":
    """What the loss has made of each batch."""
    if not path.exists():
        return []
    tensors, metadata = read_tensors(path, "Hand the run over again.")
    names = [str(place) for place in range(len(tensors))]
    is_sound = metadata.get("format") == _FORMAT and set(names) == set(tensors)
    if not is_sound or any(not t.ndim or len(t) != n_batches for t in tensors.values()):
        raise _odd(path, "it is not of these batches")
    return [tensors[name] for name in names]


def _odd(path: Path, why: str) -> FileError:
    return FileError(f"{path} does not hold: {why}.", path=str(path))
