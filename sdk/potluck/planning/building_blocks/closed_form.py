"""How long one round of a pipeline takes, estimated in closed form: Asteroid's eqs. (4)-(6).

Glossary. Steps s = 0 .. 2P-2 alternate execution (even) and communication (odd). T_f, T_b: forward
and backward of one micro-batch in a step; T_a: its all-reduce. T_w, T_e: how long it waits and
executes; M: micro-batches; dm: the dominant step, the one with the fewest bubbles.
"""

from collections.abc import Sequence
from typing import NamedTuple


class PipelineStep(NamedTuple):
    """One execution or communication step: seconds of one micro-batch, and of the all-reduce at the
    end.
    """

    forward_s: float
    backward_s: float = 0.0
    all_reduce_s: float = 0.0


def round_s(steps: Sequence[PipelineStep], n_micro_batches: int) -> float:
    """Seconds of one training round, eq. (4): the step whose waiting, execution and all-reduce end
    last.

    >>> steps = [PipelineStep(1, 2), PipelineStep(0.5, 0.5), PipelineStep(2, 4, 1)]
    >>> round_s(steps, 4)  # the first: 24 + 3 + 1
    28.0
    """
    shifts = [0.0]  # sum over i < s of T_f[i] + T_b[i]
    waits = [0.0]  # eq. (5): T_w[s] = sum over i < s of T_f[i]
    for step in steps[:-1]:
        shifts.append(shifts[-1] + step.forward_s + step.backward_s)
        waits.append(waits[-1] + step.forward_s)
    # The dominant step has the longest execution after alignment; eq. (6): T_e[s] = T_e[dm] +
    # shift[dm] - shift[s].
    aligned = max(
        n_micro_batches * (step.forward_s + step.backward_s) + shifts[s]
        for s, step in enumerate(steps)
    )
    return max(waits[s] + (aligned - shifts[s]) + step.all_reduce_s for s, step in enumerate(steps))


def request_s(steps: Sequence[PipelineStep], n_micro_batches: int) -> float:
    """Seconds of one request alone: through every step once, then the slowest step for each further
    micro-batch.
    """
    return sum(s.forward_s for s in steps) + (n_micro_batches - 1) * max(s.forward_s for s in steps)


def period_s(steps: Sequence[PipelineStep], n_micro_batches: int) -> float:
    """Seconds from one streamed request to the next: the slowest step decides."""
    return n_micro_batches * max(s.forward_s for s in steps)
