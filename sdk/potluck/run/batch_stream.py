"""The batches of a training, epoch after epoch, and how far it has come in them: so that a saved
run goes on with the batch behind the last one that it was trained on.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from potluck.errors import UserError
from potluck.graph.arguments import Arguments
from potluck.graph.traced import MAX_SIZE
from potluck.records import Segment
from potluck.run.array_files import ArrayFiles
from potluck.run.batches import batches, is_whole

if TYPE_CHECKING:
    import torch

    Batch = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a training stands in its data: behind `n_batches` batches of epoch `epoch`, which have
    `n_rows` rows together; `size`: what the loader says that a batch has, 0 where it says nothing.

    `loader`: what the loader says of itself there (`state_dict`); `generator`: the state of its
    random numbers, where it has a generator of its own, there, or of a loader that says nothing as
    the epoch began.
    """

    epoch: int = 0
    n_batches: int = 0
    n_rows: int = 0
    size: int = 0
    loader: Any = None
    generator: "torch.Tensor | None" = None


class BatchStream:
    """All batches of a training; what was not trained on is left for others.

    Parameters
    ----------
    data, batch, arguments
        As for `batches`.
    epochs
        How often to go through the data.
    accumulate
        So many batches are one: the rows of all of them. At the end of an epoch, those that are
        left.
    position
        Where to go on.
    even
        Each batch that is taken together with others has so many rows, but for the last of an
        epoch, which may have fewer; None: any number.

    Raises
    ------
    UserError
        The loader gives its batches in an order that nobody knows again.
    """

    def __init__(
        self,
        data: Any,
        batch: int,
        arguments: Arguments,
        epochs: int,
        *,
        accumulate: int = 1,
        position: Position | None = None,
        even: int | None = None,
    ) -> None:
        self._data = data
        self._even = even
        self._batch = batch
        self._arguments = arguments
        self._epochs, self._accumulate = epochs, accumulate
        self.position = position or Position()
        self._its: Iterator[Batch] | None = None  # of the epoch that is under way
        self._open: tuple[Batch, Position] | None = None  # given, and not done yet
        self._is_told = False  # an epoch is over, and nobody knows yet
        self._resumed = position
        if position is not None:
            check_order(data, position)

    @property
    def is_over(self) -> bool:
        """Whether all epochs are."""
        is_all = self.position.epoch >= self._epochs
        return is_all and self._open is None and not self._is_told

    @property
    def epoch(self) -> int:
        """The epoch that is under way."""
        return self.position.epoch

    def next(self) -> "Batch | None":
        """The next one; None where the epoch is over, or all of it."""
        if self.is_over:
            return None
        if self._is_told or not (group := self._group()):
            self._end()
            return None
        is_last = len(group) < self._accumulate
        self._is_told = is_last  # what says so has no more of the epoch
        behind = self._behind() if is_last else self._inside(group)
        made = group[0] if len(group) == 1 else _joined(group)
        self._open = made, behind
        return made

    def _group(self) -> "list[Batch]":
        if self._its is None:
            self._its = self._begun()
        its = islice(self._its, self._accumulate)
        if self._accumulate == 1:
            return [*its]
        # whoever makes the next one may do so in the same memory
        group = [tuple(part.clone() for part in batch) for batch in its]
        if self._even is not None:
            _check_even([_n_rows([batch]) for batch in group], self._even)
        return group

    def _end(self) -> None:
        """The epoch is over."""
        if not self._is_told:
            self.position = self._behind()
        self._its, self._is_told = None, False

    def _behind(self) -> Position:
        """Where the next epoch begins."""
        return Position(
            epoch=self.position.epoch + 1, loader=self._loader_state(), generator=self._random()
        )

    def _inside(self, group: "Sequence[Batch]") -> Position:
        """Behind these batches."""
        at = self.position
        return Position(
            epoch=at.epoch,
            n_batches=at.n_batches + len(group),
            n_rows=at.n_rows + _n_rows(group),
            size=_size_of(self._data),
            loader=self._loader_state(),
            generator=self._random() if is_stateful(self._data) else at.generator,
        )

    def done(self) -> None:
        """The latest one is trained on, or will be."""
        if self._open is not None:
            self.position, self._open = self._open[1], None

    def rest(self) -> "Iterator[Batch]":
        """Those that nobody was given, or that were given and not done."""
        if self._open is not None:
            yield self._open[0]
            self.done()
        while not self.is_over:
            if (batch := self.next()) is not None:
                yield batch
                self.done()

    def remaining(self) -> "Iterable[Batch]":
        """The same; of files of arrays it is said which ones these are, and none is made."""
        data, at = self._data, self.position
        if not isinstance(data, ArrayFiles) or self._accumulate > 1:
            return self.rest()
        if at.loader is not None:
            first = at.loader["n_batches"]
        else:  # nothing is done yet
            first = data.given - 1 if self._open is not None else data.begins
        n_batches = (self._epochs - at.epoch) * len(data) - at.n_batches
        return data.remaining_from(first, n_batches, self._arguments)

    def _begun(self) -> "Iterator[Batch]":
        """The batches of an epoch; of one that was under way, those that are left."""
        at, resumed = self.position, self._resumed
        self._resumed = None
        begins = at.n_batches == 0 and at.generator is not None  # its order is all there is to know
        if resumed is not None and resumed.loader is not None and not begins:
            return self._restored(resumed)
        if resumed is not None and resumed.generator is not None:
            generator_of(self._data).set_state(resumed.generator)
        self.position = replace(at, generator=self._random())
        found = iter(batches(self._data, self._batch, self._arguments))
        n_rows = _n_rows(islice(found, at.n_batches))
        if n_rows != at.n_rows:
            raise UserError(
                f"the run was saved behind {at.n_batches} batches of an epoch, of {at.n_rows} rows "
                f"together; the first {at.n_batches} of this data have {n_rows}.",
                next_step="Give the same data in batches of the same size (tensors are taken "
                "plan.batch rows at a time), or leave out resume=True.",
            )
        return found

    def _restored(self, at: Position) -> "Iterator[Batch]":
        """Those of an epoch that a loader goes on with.

        Its next epochs are shuffled as they would have been: torchdata's loader draws one number
        less of its generator in an epoch that it goes on with.
        """
        self._data.load_state_dict(at.loader)
        found = iter(batches(self._data, self._batch, self._arguments))
        first = next(found, None)
        if at.generator is not None and (generator := generator_of(self._data)) is not None:
            generator.set_state(at.generator)
        if first is not None:
            yield first
            yield from found

    def _loader_state(self) -> Any:
        return self._data.state_dict() if is_stateful(self._data) else None

    def _random(self) -> "torch.Tensor | None":
        generator = generator_of(self._data)
        return None if generator is None else generator.get_state()


def is_stateful(data: Any) -> bool:
    """Whether a loader tells where it is, and goes on from there: the protocol of torchdata's
    StatefulDataLoader.
    """
    return callable(getattr(data, "state_dict", None)) and callable(
        getattr(data, "load_state_dict", None)
    )


def generator_of(data: Any) -> Any:
    """The generator that a DataLoader's random order comes from, and nothing else does; None where
    there is none, or the order may come from elsewhere.

    Workers that persist draw of it in their first epoch alone: whoever goes on later does not know
    what comes.
    """
    from torch.utils import data as loading

    sampler, batch_sampler = getattr(data, "sampler", None), getattr(data, "batch_sampler", None)
    kinds = loading.RandomSampler, loading.SubsetRandomSampler, loading.WeightedRandomSampler
    if is_stateful(data):  # it knows what else its order comes from
        return getattr(data, "generator", None) or getattr(sampler, "generator", None)
    if getattr(data, "persistent_workers", False):
        return None
    is_known = type(sampler) in kinds and type(batch_sampler) in (loading.BatchSampler, type(None))
    return getattr(sampler, "generator", None) if is_known else None


def _keeps_order(sampler: Any) -> bool:
    """Whether torchdata restores a loader that has it: it is its own, has a state, or none."""
    from torch.utils import data as loading

    plain = loading.SequentialSampler, loading.BatchSampler, type(None)
    its_own = type(sampler).__module__.partition(".")[0] == "torchdata"
    endless = type(sampler).__name__ == "_InfiniteConstantSampler"  # of an IterableDataset
    return its_own or endless or type(sampler) in plain or is_stateful(sampler)


def check_order(data: Any, position: Position) -> None:
    """See that the batches behind a position can be found again.

    Parameters
    ----------
    data
        The loader, or the tensors.
    position
        Where the saved training stood.

    Raises
    ------
    UserError
        They cannot.
    """
    size = _size_of(data)
    if position.n_batches and size and position.size and size != position.size:
        raise UserError(
            f"the run was saved in the middle of an epoch in batches of {position.size} rows; this "
            f"loader gives {size}.",
            next_step="Give it the same batch_size, or leave out resume=True.",
        )
    samplers = [getattr(data, name, None) for name in ("sampler", "batch_sampler")]
    if is_stateful(data) and not all(map(_keeps_order, samplers)):
        raise UserError(
            f"the order of batches of this {type(data).__name__} is not known again: its sampler "
            "keeps no state.",
            next_step="Give the loader shuffle=True and generator=torch.Generator() instead.",
        )
    if is_stateful(data) or generator_of(data) is not None:
        known = (position.loader if is_stateful(data) else position.generator) is not None
        if not known and (position.epoch or position.n_batches):
            raise UserError(
                "the run was saved with another kind of loader, which does not say where this one "
                "would be.",
                next_step="Give a loader of the same kind.",
            )
        return
    if not (is_whole(data) or isinstance(data, Sequence) or _is_in_order(data)):
        raise UserError(
            f"the order of batches of this {type(data).__name__} is not known again.",
            next_step="Give it shuffle=True and a generator of its own "
            "(generator=torch.Generator()), without persistent_workers; or use torchdata's "
            "StatefulDataLoader so.",
        )


def _is_in_order(data: Any) -> bool:
    """Whether a DataLoader goes through its data from the first row to the last."""
    import torch

    sampler = getattr(data, "sampler", None)
    batch_sampler = getattr(data, "batch_sampler", None)
    return isinstance(sampler, torch.utils.data.SequentialSampler) and (
        batch_sampler is None or type(batch_sampler) is torch.utils.data.BatchSampler
    )


def _size_of(data: Any) -> int:
    """The size of batches that a loader says it has; 0 where it says none."""
    size = getattr(data, "batch_size", None)
    return size if type(size) is int else 0


def _n_rows(group: "Iterable[Batch]") -> int:
    return sum(int(batch[0].shape[0]) for batch in group)


def _check_even(rows: Sequence[int], even: int) -> None:
    for place, n in enumerate(rows, start=1):
        if n > even or (n < even and place < len(rows)):
            raise UserError(
                f"the data has a batch of {n} rows; steps whose updates come late are of "
                f"{even} rows each, those of the plan, but for the last of an epoch.",
                next_step=f"Give batches of {even} rows, or leave out one_step_late=.",
            )


def _joined(group: "Sequence[Batch]") -> "Batch":
    """The rows of several batches as one.

    Raises
    ------
    UserError
        They differ in more than rows.
    """
    import torch

    try:
        return tuple(torch.cat(parts) for parts in zip(*group, strict=True))
    except (RuntimeError, ValueError) as error:
        shapes = " and ".join(str([list(t.shape) for t in batch]) for batch in group[:2])
        raise UserError(
            f"batches that are taken together differ in more than their rows: {shapes}.",
            next_step="Pad them alike, or leave out accumulate= or one_step_late=.",
        ) from error


# --- as plain data ------------------------------------------------------------------------------


def to_plain(value: Any, tensors: "dict[str, torch.Tensor]") -> Any:
    """What a loader says of itself as JSON data; tensors, arrays and bytes go to `tensors`.

    Parameters
    ----------
    value
        Mappings, lists, numbers, texts, tensors, arrays and bytes, in one another.
    tensors
        Where tensors are put, under names made here.

    Raises
    ------
    UserError
        Something in it is neither of these.
    """
    import torch

    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {"map": [[to_plain(k, tensors), to_plain(v, tensors)] for k, v in value.items()]}
    if isinstance(value, tuple | list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [to_plain(part, tensors) for part in value]}
    kind = "tensor"
    if isinstance(value, bytes | bytearray):
        kind, value = "bytes", torch.tensor([*value], dtype=torch.uint8)
    elif type(value).__module__ == "numpy":
        kind, value = "array", torch.as_tensor(value)
    if not isinstance(value, torch.Tensor):
        raise UserError(
            f"the state of the loader holds a {type(value).__name__}, which no file of a run has."
        )
    name = str(len(tensors))
    tensors[name] = value.detach().clone()
    return {kind: name}


def from_plain(value: Any, tensors: "Mapping[str, torch.Tensor]") -> Any:
    """The inverse of `to_plain`.

    Parameters
    ----------
    value
        As it gave it.
    tensors
        By the names that it made.

    Raises
    ------
    ValueError, KeyError
        It did not give this.
    """
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    match kind:
        case "map":
            return {from_plain(k, tensors): from_plain(v, tensors) for k, v in inner}
        case "list":
            return [from_plain(part, tensors) for part in inner]
        case "tuple":
            return tuple(from_plain(part, tensors) for part in inner)
        case "tensor":
            return tensors[inner]
        case "array":
            return tensors[inner].numpy()
        case "bytes":
            return _bytes(tensors[inner])
    raise ValueError(f"{kind!r:.40} is no kind of state")


def _bytes(tensor: "torch.Tensor") -> bytes:
    import torch

    if tensor.dtype != torch.uint8 or tensor.ndim != 1:
        raise ValueError("bytes are a row of uint8")
    return tensor.numpy().tobytes()


def position_to_plain(position: Position, tensors: "dict[str, torch.Tensor]") -> dict[str, Any]:
    """A position as JSON data, and tensors beside it.

    Parameters
    ----------
    position
        In the data.
    tensors
        Where tensors are put.
    """
    return {
        "epoch": position.epoch,
        "n_batches": position.n_batches,
        "n_rows": position.n_rows,
        "size": position.size,
        "loader": to_plain(position.loader, tensors),
        "generator": to_plain(position.generator, tensors),
    }


def position_from_plain(document: Any, tensors: "Mapping[str, torch.Tensor]") -> Position:
    """The inverse of `position_to_plain`.

    Parameters
    ----------
    document
        As it gave it.
    tensors
        By the names that it made.

    Raises
    ------
    ValueError, KeyError, TypeError
        It did not give this.
    """
    import torch

    found = Position(
        epoch=document["epoch"],
        n_batches=document["n_batches"],
        n_rows=document["n_rows"],
        size=document["size"],
        loader=from_plain(document["loader"], tensors),
        generator=from_plain(document["generator"], tensors),
    )
    counts = found.epoch, found.n_batches, found.n_rows, found.size
    if not all(type(n) is int and n >= 0 for n in counts):
        raise ValueError("a position in the data is counted in whole numbers")
    if not isinstance(found.generator, torch.Tensor | None):
        raise ValueError("the state of a generator is a tensor")
    return found


def check_iterable(data: Any, epochs: int) -> None:
    """Refuse what cannot be trained on so often.

    Parameters
    ----------
    data
        A loader, or tensors.
    epochs
        How often.

    Raises
    ------
    UserError
        It cannot be gone through, or not so often.
    """
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise UserError(f"epochs is a whole number of 1 or more, got {epochs!r:.60}.")
    if not isinstance(data, Iterable):
        raise UserError(
            f"data are batches, got {type(data).__name__}.", next_step="Give it a DataLoader."
        )
    if isinstance(data, Iterator) and epochs > 1:
        raise UserError(
            f"a {type(data).__name__} can be gone through once, and {epochs} epochs are asked for.",
            next_step="Give it a DataLoader or a list of batches.",
        )


def check_accumulate(
    accumulate: Any, segments: Sequence[Segment], one_step_late: int | None = None
) -> None:
    """Refuse to take several batches together where that cannot be.

    Parameters
    ----------
    accumulate
        How many.
    segments
        Of the plan.
    one_step_late
        So many steps in a row are; None: of no steps.

    Raises
    ------
    UserError
        It is no number of batches, the loss compares the rows of one, or steps are to be late.
    """
    is_whole_number = isinstance(accumulate, int) and not isinstance(accumulate, bool)
    if not is_whole_number or not 1 <= accumulate <= MAX_SIZE:
        raise UserError(
            f"accumulate is a number of batches from 1 to {MAX_SIZE:,}, got {accumulate!r:.60}."
        )
    if accumulate > 1 and any(segment.whole_batch for segment in segments):
        raise UserError(
            "the loss compares the rows of a batch; accumulate= would put several together.",
            next_step="Give larger batches.",
        )
    if accumulate > 1 and one_step_late is not None:
        raise UserError(
            "steps that are one_step_late have a batch of the plan each, and accumulate= would put "
            "several together.",
            next_step="Plan with larger batches: potluck.Training(batch=...).",
        )
