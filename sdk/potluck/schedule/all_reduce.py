"""What keeps the replicas of a stage in step: the flat vector of a step, and the ring all-reduce
that sums it.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from potluck.records import Segment
from potluck.schedule.program_builder import Annotation, ProgramBuilder

FLOAT_BYTES = 4  # the flat gradient vector is float32
# where no gradient comes back: statistics move, no weight does
STILL = {"name": "sgd", "lr": 0.0, "weight_decay": 0.0}

V = TypeVar("V")


def vector_elements(segment: Segment, learns: bool) -> int:
    """Elements of the vector of a step: gradients, then running statistics; 0 where a step changes
    neither.

    Statistics move with every forward in training, whether a gradient comes back to the stage or
    not.
    """
    return segment.parameter_count + segment.buffer_count if learns or segment.buffer_count else 0


class RingSink(Protocol[V]):
    """Takes an all-reduce down: what replica i does with piece k, with priorities (smaller goes
    first).
    """

    def piece(self, i: int, k: int, vector: V, priority: int) -> V:
        """Its own piece of the vector."""

    def send(self, i: int, k: int, value: V, turn: int, priority: int) -> V:
        """What arrives at its right neighbour in that round."""

    def add(self, i: int, k: int, own: V, arrived: V, turn: int, priority: int) -> V:
        """The sum of what it held and what arrived."""

    def join(self, i: int, pieces: list[V], priority: int) -> V:
        """The whole vector, of summed pieces."""


def bounds(n_elements: int, n: int) -> list[int]:
    """Where the n pieces of a vector begin, and its end.

    >>> bounds(10, 4)
    [0, 2, 5, 7, 10]
    """
    return [piece * n_elements // n for piece in range(n + 1)]


def ring_all_reduce(
    sink: RingSink[V], vectors: Sequence[V], n_elements: int, priority: int
) -> list[V]:
    """Sum flat vectors over replicas; every one ends with the same sum, bit for bit.

    Reduce-scatter, then all-gather, in 2 (n - 1) rounds of one n-th of the vector each (Patarasuk
    and Yuan 2009): in round r replica i sends piece i - r to its right neighbour. Empty pieces are
    left out.

    Parameters
    ----------
    sink
        Takes down what each replica does.
    vectors
        Per replica, in ring order: the value to sum.
    n_elements
        Elements of each vector.
    priority
        Of the first round; smaller goes first.

    Returns
    -------
    list[V]
        Per replica, the sum.
    """
    n, starts = len(vectors), bounds(n_elements, len(vectors))
    full = [k for k in range(n) if starts[k] < starts[k + 1]]
    held = [
        {k: sink.piece(i, k, vector, priority) for k in full} for i, vector in enumerate(vectors)
    ]
    for turn in range(2 * (n - 1)):
        gathering = turn >= n - 1
        # Everyone sends before anyone overwrites a piece: the pieces of one turn differ between
        # neighbours.
        arriving: list[tuple[int, int, V]] = []
        for i in range(n):
            k = (i + 1 - (turn - n + 1)) % n if gathering else (i - turn) % n
            if k in full:
                value = sink.send(i, k, held[i][k], turn, priority + turn)
                arriving.append(((i + 1) % n, k, value))
        for i, k, value in arriving:
            if not gathering:
                value = sink.add(i, k, held[i][k], value, turn, priority + turn)
            held[i][k] = value
    return [
        sink.join(i, [pieces[k] for k in full], priority + 2 * n) for i, pieces in enumerate(held)
    ]


class RingInstructions:
    """The instructions of an all-reduce over `devices` of a flat vector; `tag` makes names unique.

    Parameters
    ----------
    programs
        Where the instructions are appended.
    devices
        The replicas, in ring order.
    n_elements
        Length of the vector: float32, the same on every device.
    tag
        Goes into the names of the values on the way.
    """

    def __init__(
        self, programs: ProgramBuilder, devices: Sequence[str], n_elements: int, tag: str
    ) -> None:
        self._programs, self._devices, self._tag = programs, devices, tag
        self._n_elements, self._bounds = n_elements, bounds(n_elements, len(devices))

    def piece(self, i: int, k: int, vector: str, priority: int) -> str:
        """A slice of it."""
        start, stop = self._bounds[k], self._bounds[k + 1]
        name, part = f"{self._tag}.own.{k}", {"dim": 0, "start": start, "stop": stop}
        return self._compute(i, "slice", [vector], name, stop - start, priority, **part)

    def send(self, i: int, k: int, value: str, turn: int, priority: int) -> str:
        """To the next device of the ring."""
        name, right = f"{self._tag}.{turn}.{k}", self._devices[(i + 1) % len(self._devices)]
        label = f"{self._tag} turn {turn}"
        self._programs.send(self._devices[i], value, right, name, label=label, priority=priority)
        return name

    def add(self, i: int, k: int, own: str, arrived: str, turn: int, priority: int) -> str:
        """On the device that it arrived at."""
        n_elements = self._bounds[k + 1] - self._bounds[k]
        name = f"{self._tag}.sum.{turn}.{k}"
        return self._compute(i, "add", [own, arrived], name, n_elements, priority)

    def join(self, i: int, pieces: list[str], priority: int) -> str:
        """One after the other."""
        name = f"{self._tag}.all"
        return self._compute(i, "concat", pieces, name, self._n_elements, priority, dim=0)

    def _compute(
        self,
        i: int,
        op: str,
        inputs: Sequence[str],
        name: str,
        n_elements: int,
        priority: int,
        **attrs: Any,
    ) -> str:
        nbytes = n_elements * FLOAT_BYTES
        note = Annotation(label=f"{self._tag} {op}", nbytes=nbytes)
        self._programs.compute(
            self._devices[i], op, inputs, {name: nbytes}, note=note, priority=priority, **attrs
        )
        return name
