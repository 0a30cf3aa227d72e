"""The batches of a training in a folder: rows that occur several times, as in every epoch, once.

Rows are in shards of safetensors, grouped by the types and shapes of their tensors; `order` says of
which rows each batch is made, and holds what counts for a batch as a whole.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import psutil

from potluck import units
from potluck.errors import FileError
from potluck.tensor_file import MAX_HEADER_BYTES, check_header, read_tensors, write_tensors

if TYPE_CHECKING:
    import torch

SHARD_BYTES = 64 << 20
_ORDER, _FORMAT = "order.safetensors", "potluck-batches-1"


def write_batches(
    folder: Path, batches: "Iterable[Sequence[torch.Tensor]]", *, n_whole: int = 0
) -> int:
    """Write batches, and say how many there are.

    Parameters
    ----------
    folder
        Of their own; there is one.
    batches
        Each of tensors [rows, ...]; as many in every batch.
    n_whole
        So many of them, the last ones, have the same in all rows.

    Raises
    ------
    FileError
        One cannot be written, such as on a full disk.
    """
    return _Writer(folder, n_whole).write(batches)


class _Group:
    """Rows of the same types and shapes that are not in a shard yet."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.numbers: list[int] = []
        self.nbytes = 0


class _Writer:
    def __init__(self, folder: Path, n_whole: int) -> None:
        self._folder, self._n_whole = folder, n_whole
        self._known: dict[bytes, int] = {}  # digest of a row -> its number
        self._groups: dict[Any, _Group] = {}
        self._places: dict[int, tuple[int, int]] = {}  # number of a row -> shard, place in it
        self._n_shards = 0

    def write(self, batches: "Iterable[Sequence[torch.Tensor]]") -> int:
        import torch

        rows: list[int] = []
        ends: list[int] = []
        undivided: list[tuple[torch.Tensor, ...]] = []
        for batch in batches:
            n_own = len(batch) - self._n_whole
            rows += self._rows([tensor.detach().cpu() for tensor in batch[:n_own]])
            ends.append(len(rows))
            undivided.append(tuple(tensor[0].detach().clone() for tensor in batch[n_own:]))
        for group in self._groups.values():
            self._flush(group)
        places = torch.tensor([self._places[number] for number in range(len(self._places))])
        tensors = {
            "rows": torch.tensor(rows, dtype=torch.int64),
            "ends": torch.tensor(ends, dtype=torch.int64),
            "places": places.reshape(-1, 2).to(torch.int64),
        }
        for place in range(self._n_whole if undivided else 0):
            tensors[f"whole-{place}"] = torch.stack([each[place] for each in undivided])
        write_tensors(self._folder / _ORDER, tensors, {"format": _FORMAT})
        return len(ends)

    def _rows(self, batch: "list[torch.Tensor]") -> list[int]:
        """The number of each of its rows, old or new."""
        import torch

        kind = tuple((tensor.dtype, tensor.shape[1:]) for tensor in batch)
        parts = [tensor.contiguous() for tensor in batch]
        n_rows = len(parts[0])
        seen = [part.reshape(n_rows, -1).view(torch.uint8).numpy() for part in parts]
        numbers = []
        for i in range(n_rows):
            digest = hashlib.blake2b(repr(kind).encode(), digest_size=20)
            for part in seen:
                digest.update(part[i].data)
            number = self._known.setdefault(digest.digest(), len(self._known))
            if number == len(self._known) - 1 and number not in self._places:
                self._add(kind, number, tuple(part[i] for part in parts))
            numbers.append(number)
        return numbers

    def _add(self, kind: Any, number: int, row: "tuple[torch.Tensor, ...]") -> None:
        group = self._groups.setdefault(kind, _Group())
        self._places[number] = (-1, -1)  # not in a shard yet
        group.rows.append(tuple(tensor.clone() for tensor in row))
        group.numbers.append(number)
        group.nbytes += sum(tensor.nbytes for tensor in row)
        if group.nbytes >= SHARD_BYTES:
            self._flush(group)

    def _flush(self, group: _Group) -> None:
        import torch

        if not group.rows:
            return
        parts = zip(*group.rows, strict=True)
        tensors = {str(place): torch.stack(part) for place, part in enumerate(parts)}
        write_tensors(self._folder / _shard(self._n_shards), tensors, {"format": _FORMAT})
        for place, number in enumerate(group.numbers):
            self._places[number] = (self._n_shards, place)
        self._n_shards += 1
        group.rows = []
        group.numbers = []
        group.nbytes = 0


class BatchStore:
    """The batches in a folder that `write_batches` wrote; rows are read when their batch is.

    Parameters
    ----------
    folder
        Where they are.

    Raises
    ------
    FileError
        It holds no batches, or they do not hold.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        tensors, metadata = read_tensors(folder / _ORDER, "Hand the run over again.")
        if metadata.get("format") != _FORMAT or not {"rows", "ends", "places"} <= set(tensors):
            raise FileError(f"{folder} holds no batches of this version.", path=str(folder))
        undivided = [f"whole-{place}" for place in range(len(tensors) - 3)]
        if not _fit(tensors, undivided):
            raise FileError(f"{folder / _ORDER} does not hold.", path=str(folder / _ORDER))
        self._whole = [tensors[name] for name in undivided]
        # tensors, as there may be millions of rows: lists would take five times as much
        self._rows, self._ends = tensors["rows"], tensors["ends"]
        self._places = tensors["places"]
        self._shards: dict[int, list[Any]] = {}  # as far as they were read

    def __len__(self) -> int:
        return len(self._ends)

    def check(self) -> None:
        """Whether every row of every batch is there, and each batch fits in memory.

        Raises
        ------
        FileError
            One is not, or does not.
        """
        import torch

        shards, shard_of_place = torch.unique(self._places[:, 0], return_inverse=True)
        known = self._shards_of(shards.tolist())
        n_rows, kinds, nbytes = (torch.tensor(column) for column in zip(*known, strict=True))
        is_there = self._places[:, 1] < n_rows[shard_of_place]
        kind = kinds.int()[shard_of_place][self._rows]
        is_odd = ~is_there[self._rows]
        is_odd[1:] |= kind[1:] != kind[:-1]
        starts = torch.cat((self._ends.new_zeros(1), self._ends[:-1]))
        is_odd[starts] = ~is_there[self._rows[starts]]  # a batch may be of another kind
        if is_odd.any():
            first = int(is_odd.int().argmax())
            raise self._odd(int(torch.searchsorted(self._ends, first, right=True)))
        n_each = (self._ends - starts).double()  # no integer holds what is said of some
        self._check_room(n_each * nbytes[shard_of_place[self._rows[starts]]])

    def check_same(self) -> None:
        """They are the job's own files, which nobody else writes to: `check` has seen them."""

    def _check_room(self, nbytes: "torch.Tensor") -> None:
        """Of each batch, in memory."""
        largest, free = int(nbytes.argmax()), psutil.virtual_memory().available
        if nbytes[largest] > free:
            raise FileError(
                f"{self._folder}: batch {largest} has {units.size(float(nbytes[largest]))}, and "
                f"{units.size(free)} of memory are free.",
                next_step="Hand it to a coordinator with more memory, or in smaller batches.",
                path=str(self._folder),
            )

    def _shards_of(self, numbers: Sequence[int]) -> list[tuple[int, int, float]]:
        """Of each: its rows, of which kind they are, and the bytes of one in a batch."""
        kinds: dict[Any, int] = {}
        whole_bytes = sum(values.nbytes for values in self._whole) / len(self)
        known, header_bytes = [], 0
        for number in numbers:
            header_bytes += self._stated_bytes(number, MAX_HEADER_BYTES - header_bytes)
            parts = [(part.get_dtype(), part.get_shape()) for part in self._opened(number)]
            n_rows = min((shape[0] if shape else 0 for _, shape in parts), default=0)
            kind = tuple((dtype, *shape[1:]) for dtype, shape in parts)
            nbytes = sum(_item_bytes(dtype) * math.prod(shape[1:]) for dtype, shape in parts)
            known.append((n_rows, kinds.setdefault(kind, len(kinds)), float(nbytes + whole_bytes)))
        return known

    def _stated_bytes(self, shard: int, max_bytes: int) -> int:
        """What a shard says of its tensors, where no more than this is left for all."""
        path = self._folder / _shard(shard)
        try:
            return check_header(path, max_bytes)
        except OSError as error:
            raise _unread(path, error) from error

    def _odd(self, batch: int) -> FileError:
        return FileError(
            f"{self._folder}: batch {batch} has rows that are not there.",
            next_step="Hand the run over again.",
            path=str(self._folder),
        )

    def since(self, first: int) -> "Batches":
        """Those from number `first` on, as `fit` takes them."""
        return Batches(self, first)

    def batch(self, number: int) -> "tuple[torch.Tensor, ...]":
        """One of them: its tensors, [rows, ...] each.

        Raises
        ------
        FileError
            A shard is missing, or cannot be read.
        """
        import torch

        start = int(self._ends[number - 1]) if number else 0
        numbers = self._rows[start : int(self._ends[number])]
        rows = [self._row(shard, place) for shard, place in self._places[numbers].tolist()]
        own = tuple(torch.stack(part) for part in zip(*rows, strict=True))
        each = [values[number] for values in self._whole]
        return (*own, *(value.expand(len(rows), *value.shape) for value in each))

    def _row(self, shard: int, place: int) -> "tuple[torch.Tensor, ...]":
        slices = self._shards.get(shard)
        if slices is None:
            slices = self._shards[shard] = self._as_written(shard)
        return tuple(part[place : place + 1][0] for part in slices)

    def _as_written(self, shard: int) -> list[Any]:
        """Its tensors, of which all are as they were written: a row that was changed on the disk
        would be trained on without a word.
        """
        read_tensors(self._folder / _shard(shard), "Hand the run over again.")
        return self._opened(shard)

    def _opened(self, shard: int) -> list[Any]:
        """Its tensors, of which single rows are read."""
        from safetensors import SafetensorError, safe_open

        path = self._folder / _shard(shard)
        try:
            file: Any = safe_open(path, framework="pt")
            return [file.get_slice(str(place)) for place in range(len(file.keys()))]
        except (OSError, SafetensorError, RuntimeError, MemoryError) as error:
            raise _unread(path, error) from error


class IndexedBatches(Protocol):
    """Batches of which each can be had by its number."""

    def __len__(self) -> int:
        """How many there are."""

    def batch(self, number: int) -> "tuple[torch.Tensor, ...]":
        """One of them."""


class Batches:
    """Batches of a store from one of them on; may be gone through again.

    Parameters
    ----------
    store
        Has them.
    first
        The number of the first.
    """

    def __init__(self, store: IndexedBatches, first: int) -> None:
        self._store, self._first = store, first

    def __len__(self) -> int:
        return max(0, len(self._store) - self._first)

    def __iter__(self) -> "Iterator[tuple[torch.Tensor, ...]]":
        for number in range(self._first, len(self._store)):
            yield self._store.batch(number)


def _fit(tensors: "Mapping[str, torch.Tensor]", undivided: Sequence[str]) -> bool:
    """Whether these tell of which rows batches are made."""
    import torch

    if set(tensors) != {"rows", "ends", "places", *undivided}:
        return False
    rows = tensors["rows"]
    ends = tensors["ends"]
    places = tensors["places"]
    n_dims = {"rows": (rows, 1), "ends": (ends, 1), "places": (places, 2)}
    if any(each.dtype != torch.int64 or each.ndim != n for each, n in n_dims.values()):
        return False
    n_each = torch.diff(ends, prepend=ends.new_zeros(1))
    return bool(
        (n_each > 0).all()
        and n_each.sum() == len(rows)
        and places.shape[1] == 2
        and (places >= 0).all()
        and ((rows >= 0) & (rows < len(places))).all()
        and all(tensors[name].ndim and len(tensors[name]) == len(ends) for name in undivided)
    )


def _unread(path: Path, error: Exception) -> FileError:
    return FileError(
        f"cannot read {path}: {error}.", next_step="Hand the run over again.", path=str(path)
    )


def _item_bytes(dtype: str) -> float:
    """Of one number, as safetensors names its type: "F32", "BOOL", "F8_E4M3".

    >>> _item_bytes("F32"), _item_bytes("BOOL"), _item_bytes("F8_E4M3")
    (4.0, 1.0, 1.0)
    """
    bits = re.search(r"\d+", dtype)
    return int(bits.group()) / 8 if bits else 1.0


def _shard(number: int) -> str:
    return f"rows-{number:05}.safetensors"
