"""Work in many small steps, of which only so many are done at once: whoever sent what it is for
must not keep the others waiting. Pure.

As a rule all is done on the spot. What is too much for that goes on in later rounds of the loop, in
the same order; between them everybody else is heard.
"""

from collections import deque
from collections.abc import Iterator

# Each takes some 10 to 50 us. On the spot for every event: there are up to 100 of them in a round.
N_ON_THE_SPOT = 64
N_IN_A_ROUND = 512  # beside that, for all events of a round together

Piece = Iterator[None]  # it yields after each step


class DeferredWork:
    """Pieces of work in the order they came up; what a step leads to comes before the next one."""

    def __init__(self) -> None:
        self._pieces: deque[Piece] = deque()
        self._led_to: list[Piece] | None = None  # by the step that is being done
        self._n_steps_left = N_IN_A_ROUND

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def do(self, piece: Piece) -> None:
        """Do this: now, if nothing waits, and as much of it as is done at once."""
        if self._led_to is not None:
            self._led_to.append(piece)
            return
        is_first = not self._pieces
        self._pieces.append(piece)
        if is_first:
            self._work(N_ON_THE_SPOT)

    def go_on(self) -> None:
        """A new round: go on with what is left."""
        self._n_steps_left = N_IN_A_ROUND
        self._work(0)

    def clear(self) -> None:
        """Nothing of it is wanted any more."""
        self._pieces.clear()

    def _work(self, n_free: int) -> None:
        while self._pieces and n_free + self._n_steps_left > 0:
            n_free, self._n_steps_left = (
                (n_free - 1, self._n_steps_left) if n_free else (0, self._n_steps_left - 1)
            )
            self._step(self._pieces[0])

    def _step(self, piece: Piece) -> None:
        led_to: list[Piece] = []
        self._led_to = led_to
        try:
            is_over = next(piece, self) is self
        finally:
            self._led_to = None
        if is_over and self._pieces and self._pieces[0] is piece:
            self._pieces.popleft()
        self._pieces.extendleft(reversed(led_to))
