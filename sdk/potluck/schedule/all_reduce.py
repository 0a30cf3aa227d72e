"""What keeps the replicas of a stage in step: the flat vector of a step, and the ring all-reduce
that sums it.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from potluck.records import Segment

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


def vector_bytes(segment: Segment, learns: bool) -> int:
    """Bytes of the vector of a step."""
    return vector_elements(segment, learns) * segment.vector_item_bytes


class RingSink(Protocol[V]):
    """Takes an all-reduce down: what each replica does with pieces of its vector."""

    def piece(self, i: int, k: int, vector: V, priority: int) -> V:
        """A replica's own piece of its vector.

        Parameters
        ----------
        i
            The replica, by its place in the ring.
        k
            The piece, by its place in the vector.
        vector
            All of it.
        priority
            Smaller goes first.
        """

    def send(self, i: int, k: int, value: V, ring_step: int, priority: int) -> V:
        """What arrives at the right neighbour.

        Parameters
        ----------
        i
            The replica that sends.
        k
            The piece.
        value
            What is sent.
        ring_step
            The step of the ring.
        priority
            Smaller goes first.
        """

    def add(self, i: int, k: int, own: V, arrived: V, ring_step: int, priority: int) -> V:
        """The sum of two pieces.

        Parameters
        ----------
        i
            The replica that adds.
        k
            The piece.
        own, arrived
            What it held, and what came from its left neighbour.
        ring_step
            The step of the ring.
        priority
            Smaller goes first.
        """

    def join(self, i: int, pieces: list[V], priority: int) -> V:
        """The whole vector.

        Parameters
        ----------
        i
            The replica.
        pieces
            All sums, in order.
        priority
            Smaller goes first.
        """


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
        Of the first step of the ring; smaller goes first.

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
    for ring_step in range(2 * (n - 1)):
        gathering = ring_step >= n - 1
        # Everyone sends before anyone overwrites a piece: the pieces of one step differ between
        # neighbours.
        arriving: list[tuple[int, int, V]] = []
        for i in range(n):
            k = (i + 1 - (ring_step - n + 1)) % n if gathering else (i - ring_step) % n
            if k in full:
                value = sink.send(i, k, held[i][k], ring_step, priority + ring_step)
                arriving.append(((i + 1) % n, k, value))
        for i, k, value in arriving:
            if not gathering:
                value = sink.add(i, k, held[i][k], value, ring_step, priority + ring_step)
            held[i][k] = value
    return [
        sink.join(i, [pieces[k] for k in full], priority + 2 * n) for i, pieces in enumerate(held)
    ]
