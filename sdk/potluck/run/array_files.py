"""Batches of arrays that are files: in an order that a seed tells, so that who has the files and a
few numbers has the batches.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from potluck.documents import file_path
from potluck.errors import FileError, UserError
from potluck.run.array_file import ArrayFile, open_array

if TYPE_CHECKING:
    import torch

MAX_SEED = 2**53
MAX_ARRAYS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Which rows each batch has, over all epochs.

    Parameters
    ----------
    n_rows
        Of the arrays.
    batch
        Rows of one.
    shuffle
        Whether every epoch has an order of its own.
    seed
        Of these orders.
    drop_last
        Leave out the batch that is smaller than the others.
    """

    n_rows: int
    batch: int
    shuffle: bool = False
    seed: int = 0
    drop_last: bool = False

    def __post_init__(self) -> None:
        numbers = (self.n_rows, self.batch, self.seed)
        if not all(type(n) is int for n in numbers) or not 0 <= self.seed <= MAX_SEED:
            raise ValueError(f"batch and seed are whole numbers, got {numbers}")
        if self.n_rows < 1 or self.batch < 1 or not self.n_batches:
            raise ValueError(f"{self.n_rows} rows make no batch of {self.batch}")

    @property
    def n_batches(self) -> int:
        """Of an epoch."""
        n_full = self.n_rows // self.batch
        return n_full if self.drop_last else -(-self.n_rows // self.batch)

    def epoch(self, number: int) -> Sequence[int]:
        """All rows in the order of this epoch: those of equal random numbers never swap, and these
        are PCG64's, the same on every machine and of every version.

        Parameters
        ----------
        number
            From 0 on.
        """
        if not self.shuffle:
            return range(self.n_rows)
        import numpy

        draw = numpy.random.PCG64(numpy.random.SeedSequence([self.seed, number]))
        order = draw.random_raw(self.n_rows).argsort(kind="stable")
        return cast("Sequence[int]", order)

    def rows(self, epoch: Sequence[int], number: int) -> Sequence[int]:
        """Those of a batch.

        Parameters
        ----------
        epoch
            As `epoch` gives it.
        number
            Of the batch, in its epoch.
        """
        return epoch[number * self.batch : (number + 1) * self.batch]


class ArrayBatches:
    """Batches, numbered over all epochs, each made when it is asked for.

    Parameters
    ----------
    arrays
        Inputs, then targets; as many rows in each.
    order
        Of those rows.
    """

    def __init__(self, arrays: Sequence[ArrayFile], order: Order) -> None:
        self.arrays, self.order = tuple(arrays), order
        self._epoch: tuple[int, Sequence[int]] | None = None  # the latest, and its order

    def batch(self, number: int, reads: Sequence[bool] | None = None) -> "tuple[torch.Tensor, ...]":
        """One of them: its tensors, [rows, ...] each.

        Parameters
        ----------
        number
            From 0 on, over all epochs.
        reads
            Of each array whether it is read; else its values are zeros. Default: all are.
        """
        epoch, place = divmod(number, self.order.n_batches)
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = epoch, self.order.epoch(epoch)
        rows = self.order.rows(self._epoch[1], place)
        reads = reads or (True,) * len(self.arrays)
        return tuple(
            array.take(rows) if is_read else array.blank(len(rows))
            for array, is_read in zip(self.arrays, reads, strict=True)
        )


class ArrayFiles:
    """Data for `run.fit` and `run.detach` that is arrays in files: `.npy` files, of which each
    batch's rows are read when they are needed; `.npz` files, which are read whole; safetensors.

    A detached training reads them where its coordinator is, in the folder that its owner has given
    it (`potluck coordinate --data FOLDER`); on this computer it is this folder. Nothing in them is
    ever run: objects that were pickled are refused.

    Parameters
    ----------
    folder
        Nothing outside of it is read.
    arrays
        Paths in it, inputs, then targets; or by the names of the model's arguments. Each array
        [rows, ...]. Where a file has several: "train.npz:images".
    batch
        Rows of a batch; the last one of an epoch may have fewer.
    shuffle
        Take the rows in another order in every epoch.
    seed
        Of those orders: the same seed, the same batches.
    drop_last
        Leave out a last batch of fewer rows.

    Raises
    ------
    FileError
        A file is missing, is outside of the folder, or does not hold.
    UserError
        The arrays have different numbers of rows, or make no batch.
    """

    def __init__(
        self,
        folder: str | Path,
        arrays: Sequence[str] | Mapping[str, str],
        *,
        batch: int,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        self.folder = file_path(folder)
        self._keys = tuple(arrays) if isinstance(arrays, Mapping) else None
        names = [*(arrays.values() if isinstance(arrays, Mapping) else arrays)]
        if isinstance(arrays, str) or not 1 <= len(names) <= MAX_ARRAYS:
            raise UserError(f"arrays are 1 to {MAX_ARRAYS} names of files, got {arrays!r:.200}.")
        found = [open_array(self.folder, name) for name in names]
        check_rows(found)
        try:
            order = Order(
                n_rows=found[0].shape[0],
                batch=batch,
                shuffle=shuffle,
                seed=seed,
                drop_last=drop_last,
            )
        except ValueError as error:
            raise UserError(f"{error}.") from error
        self.batches = ArrayBatches(found, order)
        self._at, self._goes_on = 0, False

    def __len__(self) -> int:
        return self.batches.order.n_batches

    def __repr__(self) -> str:
        order = self.batches.order
        names = ", ".join(array.name for array in self.batches.arrays)
        how = f"shuffled by seed {order.seed}" if order.shuffle else "in order"
        return f"<ArrayFiles {names} in {self.folder}: {order.n_rows} rows, {how}>"

    def __iter__(self) -> Iterator[Any]:
        """An epoch: the next one, or what is left of the one that `load_state_dict` named."""
        n = len(self)
        first = self.begins
        self._goes_on = False
        for number in range(first, (first // n + 1) * n):
            batch = self.batches.batch(number)
            self._at = number + 1
            yield batch if self._keys is None else dict(zip(self._keys, batch, strict=True))

    @property
    def given(self) -> int:
        """How many batches it gave so far, over all epochs."""
        return self._at

    @property
    def begins(self) -> int:
        """The number of the batch that who goes through it now is given first."""
        n = len(self)
        return self._at if self._goes_on else math.ceil(self._at / n) * n

    def state_dict(self) -> dict[str, int]:
        """How many batches were given, over all epochs, and of which order: what a saved run keeps
        of it.
        """
        return {"n_batches": self._at, **asdict(self.batches.order)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on behind so many.

        Parameters
        ----------
        state
            Of `state_dict`.

        Raises
        ------
        UserError
            It is none, or of other rows, or of these in another order.
        """
        n_batches = state.get("n_batches")
        if type(n_batches) is not int or n_batches < 0:
            raise UserError("the run was saved with data of another kind than files of arrays.")
        for name, value in asdict(self.batches.order).items():
            if state.get(name) != value:
                raise UserError(
                    f"the run was saved with {name}={state.get(name)!r:.40} of its files of "
                    f"arrays; here it is {value}.",
                    next_step="Give it so, or leave out resume=True.",
                )
        self._at, self._goes_on = n_batches, True

    def remaining(self, epochs: int, arguments: Any) -> "RemainingBatches":
        """What a fit of so many epochs would train on now.

        Parameters
        ----------
        epochs
            How many.
        arguments
            Of the model: tells which array is which.
        """
        return self.remaining_from(self.begins, epochs * len(self), arguments)

    def remaining_from(self, first: int, n_batches: int, arguments: Any) -> "RemainingBatches":
        """So many batches.

        Parameters
        ----------
        first
            Number of the first one, over all epochs.
        n_batches
            How many.
        arguments
            Of the model: tells which array is which.
        """
        arrays = self.batches.arrays
        if self._keys is not None:
            arrays = arguments.in_order([*zip(self._keys, arrays, strict=True)])
        batches = ArrayBatches(arrays, self.batches.order)
        return RemainingBatches(batches, self.folder, first, n_batches)


class RemainingBatches:
    """Batches of files of arrays that are to be trained on.

    Parameters
    ----------
    batches
        All there are: inputs, then targets.
    folder
        In which the files are here.
    first, n_batches
        From which one on, and how many.
    """

    def __init__(self, batches: ArrayBatches, folder: Path, first: int, n_batches: int) -> None:
        self.batches, self.folder = batches, folder
        self.first, self.n_batches = first, n_batches

    def __iter__(self) -> "Iterator[tuple[torch.Tensor, ...]]":
        return self.reading(None)

    def reading(self, reads: Sequence[bool] | None) -> "Iterator[tuple[torch.Tensor, ...]]":
        """The same, of which not all has to be read.

        Parameters
        ----------
        reads
            As for `ArrayBatches.batch`.
        """
        for number in range(self.first, self.first + self.n_batches):
            yield self.batches.batch(number, reads)


def check_rows(arrays: Sequence[ArrayFile]) -> None:
    """See that all have the same number of rows.

    Parameters
    ----------
    arrays
        Of one data set.

    Raises
    ------
    FileError
        They have not.
    """
    if len({array.shape[0] for array in arrays}) > 1:
        counts = ", ".join(f"{array.name} {array.shape[0]}" for array in arrays)
        raise FileError(f"the arrays have different numbers of rows: {counts}.")
