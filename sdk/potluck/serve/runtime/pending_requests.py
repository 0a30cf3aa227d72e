"""Requests that callers wait for, and their rows, which are computed in batches with those of
others and put together again.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from potluck.errors import NotServed, PotluckError, RequestFailed
from potluck.serve.stats import CLOSED, TOO_MANY_ROWS, Counts
from potluck_wire.limits import clip
from potluck_wire.messages import FailureCause

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
Part: TypeAlias = "list[torch.Tensor]"  # of one row, of every output; each [k, ...]
LOSSES = frozenset(
    {FailureCause.CRASHED, FailureCause.HUNG, FailureCause.MEMORY, FailureCause.INTERNAL}
)  # of a worker, which the row may be to blame for
TRIES = 2  # of a row, before whoever computes it is not risked for it any more


@dataclass(frozen=True, slots=True)
class ComputedBatch:
    """Rows that `devices` computed together, from when to when by the clock of who asked."""

    begun_s: float
    ended_s: float
    devices: tuple[str, ...]
    rows: int


@dataclass(slots=True, eq=False)
class Pending:
    """One caller's request: `inputs` each [rows, ...]. `answer` makes what the caller gets of the
    outputs. `counts`: of the service that was asked, whose name another one may have since.
    `batches`: those that rows of it were computed in.
    """

    service: str
    inputs: "Sequence[torch.Tensor]"
    rows: int
    arrived_s: float
    limit_s: float
    answer: Callable[["list[torch.Tensor]"], Any]
    counts: Counts = field(default_factory=Counts)
    future: "Future[Any]" = field(default_factory=Future)
    numbers: list[int] = field(default_factory=list)  # by which the node knows its rows
    parts: "list[Sequence[torch.Tensor] | None]" = field(default_factory=list)
    n_left: int = 0
    is_over: bool = False
    batches: list[ComputedBatch] = field(default_factory=list)
    answered_s: float = 0.0

    def __post_init__(self) -> None:
        self.parts, self.n_left = [None] * self.rows, self.rows
        self.future.set_running_or_notify_cancel()  # who cancels one would take others' answers

    @property
    def devices(self) -> tuple[str, ...]:
        """Who computed rows of it."""
        return tuple(name for batch in self.batches for name in batch.devices)

    @property
    def n_together(self) -> int:
        """Rows of its largest batch."""
        return max((batch.rows for batch in self.batches), default=0)

    @property
    def is_late(self) -> bool:
        """Whether its answer came after its limit."""
        return self.taken_s > self.limit_s

    @property
    def deadline_s(self) -> float:
        """By when its answer must be there."""
        return self.arrived_s + self.limit_s

    @property
    def taken_s(self) -> float:
        """Seconds until it was answered."""
        return self.answered_s - self.arrived_s

    @property
    def queue_s(self) -> float:
        """Seconds of it before its first batch."""
        return self.batches[0].begun_s - self.arrived_s if self.batches else self.taken_s

    def put(self, index: int, outputs: "Sequence[torch.Tensor]", computed: ComputedBatch) -> bool:
        """One row is answered; whether all are now.

        Parameters
        ----------
        index
            Of the row.
        outputs
            Of the row, each [1, ...].
        computed
            With which batch.
        """
        if computed not in self.batches[-1:]:
            self.batches.append(computed)
        self.parts[index] = outputs
        self.n_left -= 1
        return not self.n_left

    def give(self) -> None:
        """Its caller gets the answer, or hears why there is none, whatever it is."""
        try:
            self.future.set_result(self.result())
        except Exception as error:
            self.future.set_exception(error)

    def result(self) -> Any:
        """What its caller gets."""
        import torch

        parts = [part for part in self.parts if part is not None]
        if len(parts) == 1:
            return self.answer([*parts[0]])
        columns = zip(*parts, strict=True)
        return self.answer([c[0] if not c[0].ndim else torch.cat(c) for c in columns])


@dataclass(slots=True, eq=False)
class RequestRow:
    """One row of a request. `n_lost`: how often whoever computed it was lost with it.
    `refused_by`: the device that would not compute it.
    """

    pending: Pending
    index: int
    n_lost: int = 0
    refused_by: str = ""

    @property
    def inputs(self) -> "list[torch.Tensor]":
        """Its part of each input, [1, ...]."""
        return [tensor[self.index : self.index + 1] for tensor in self.pending.inputs]

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """What rows that are computed together have in common."""
        return tuple(tuple(tensor.shape[1:]) for tensor in self.pending.inputs)


def refusal(pending: Pending, reason: str, soonest_s: float | None, text: str = "") -> NotServed:
    """The refusal of a request, with what would have been possible.

    Parameters
    ----------
    pending
        The request.
    reason
        In words that are the same for all of its kind.
    soonest_s
        Within how many seconds it could have been answered; None: not at all.
    text
        The reason with the numbers of this one; default: as it is.
    """
    text, step = f"{pending.service}: {text or reason}", ""
    soonest_s = None if reason in (CLOSED, TOO_MANY_ROWS) else soonest_s
    if soonest_s is not None:
        text += f"; its limit is {pending.limit_s:.3g} s, and an answer would take {soonest_s:.3g}"
        wait_s = max(0.0, soonest_s - pending.limit_s)
        step = f"Ask again in {wait_s:.3g} s, or less often." if wait_s else "Ask again."
    return NotServed(
        f"{text}.", next_step=step, reason=reason, limit_s=pending.limit_s, soonest_s=soonest_s
    )


def closed(service: str, limit_s: float) -> NotServed:
    """The refusal of whatever is asked of a service that has ended.

    Parameters
    ----------
    service
        Its name.
    limit_s
        Of what was asked.
    """
    return NotServed(f"{service}: {CLOSED}.", reason=CLOSED, limit_s=limit_s, soonest_s=None)


def calls_of(rows: Sequence[RequestRow], largest: int) -> list[list[RequestRow]]:
    """What is computed together: rows of the same shapes; alone, whatever was lost before.

    Parameters
    ----------
    rows
        Of one batch.
    largest
        Rows together, at most.
    """
    together: dict[object, list[RequestRow]] = {}
    for row in rows:
        together.setdefault(row if row.n_lost else row.shapes, []).append(row)
    return [
        each[at : at + largest] for each in together.values() for at in range(0, len(each), largest)
    ]


def joined(rows: Sequence[RequestRow]) -> "list[torch.Tensor]":
    """The inputs of these rows together; each [rows, ...].

    Parameters
    ----------
    rows
        Of the same shapes.
    """
    import torch

    if len(rows) == 1:
        return rows[0].inputs
    return [torch.cat(parts) for parts in zip(*(row.inputs for row in rows), strict=True)]


@contextmanager
def failures_of_requests() -> Iterator[None]:
    """What nobody foresaw while rows are put together or taken apart, such as a lack of memory
    here, is a failure of these rows: others are computed.

    Raises
    ------
    RequestFailed
        In place of it.
    """
    try:
        yield
    except (PotluckError, CancelledError):
        raise
    except Exception as error:
        text = f"these rows cannot be computed: {type(error).__name__}: {error}"
        raise RequestFailed(clip(text)) from error


def in_turn(asked: Iterable[T], most: int) -> Iterator[T]:
    """What is asked, in its order; the next one is asked for when less than so many are out.

    Parameters
    ----------
    asked
        Asks for the next one when it is taken.
    most
        At once.

    Examples
    --------
    >>> asked = (print("ask", number) or number for number in range(3))
    >>> [print("answer", number) for number in in_turn(asked, 2)]
    ask 0
    ask 1
    answer 0
    ask 2
    answer 1
    answer 2
    [None, None, None]
    """
    out = deque[T]()
    for each in asked:
        out.append(each)
        if len(out) >= most:
            yield out.popleft()
    yield from out


def apart(outputs: "Sequence[torch.Tensor]", n_rows: int) -> list[Part]:
    """Of each row its part of every output; what has no rows is everybody's.

    Parameters
    ----------
    outputs
        Each [rows x k, ...].
    n_rows
        How many rows there are.
    """
    if n_rows == 1:
        return [[*outputs]]
    found: list[Part] = [[] for _ in range(n_rows)]
    for tensor in outputs:
        k = tensor.shape[0] // n_rows if tensor.ndim else 0
        for index, row in enumerate(found):
            row.append(tensor[index * k : (index + 1) * k].clone() if k else tensor)
    return found
