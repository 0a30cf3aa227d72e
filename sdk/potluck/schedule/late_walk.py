"""Several steps laid out as one: the next step's forwards go on while the backwards of this one are
under way, and gradients change the weights one step late. Pure.

With w_j the weights that step j takes, forward and backward, in every stage, and g_j its gradients:
w_{j+1} = w_j - update(g_{j-1}). So a stage takes g_{j-2} over before its first forward of step j,
and has a whole step's time to sum it over replicas. Of the first step of a row nothing is late, and
after the last one all that is pending is taken over. The rule of PipeDream-2BW (Narayanan et al.
2021, section 3.1), which is DeepCEE's asynchronous variant with its lag bounded by one step.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol, TypeVar

from potluck.schedule.all_reduce import ring_all_reduce
from potluck.schedule.ir import BACKWARD, FORWARD
from potluck.schedule.step import StepSink, StepSpec, StepWalk

T = TypeVar("T")
V = TypeVar("V")
LAG = 2  # so many steps later a gradient is in the weights; one would be synchronous


class LateSink(StepSink[T, V], Protocol[T, V]):
    """Takes several steps down."""

    def of_step(self, number: int) -> StepSink[T, V]:
        """Takes the losses and the update of that step down.

        Parameters
        ----------
        number
            Of the step, from 0.
        """


def walk_late(
    spec: StepSpec[T], sink: LateSink[T, V], steps: Sequence[Sequence[int]], n_steps: int
) -> None:
    """Tell several steps to `sink`.

    Parameters
    ----------
    spec
        Of all of them, as if they were one.
    sink
        Takes them down.
    steps
        Per stage, the step of each micro-batch.
    n_steps
        How many they are.
    """
    _LateWalk(spec, sink, steps, n_steps).all()


class _LateWalk(StepWalk[T, V]):
    """Knows which gradients are pending."""

    def __init__(
        self, spec: StepSpec[T], sink: LateSink[T, V], steps: Sequence[Sequence[int]], n_steps: int
    ) -> None:
        super().__init__(spec, sink)
        self._late = sink
        self._steps, self._n_steps = steps, n_steps
        self._learning = [p for p, n in enumerate(spec.n_elements) if n and spec.learns[p]]
        pairs = [(p, j) for p, numbers in enumerate(steps) for j in numbers]
        self._forwards, self._backwards = Counter(pairs), Counter(pairs)  # that are left
        self._pending: dict[tuple[int, int], list[V]] = {}  # by stage and step
        self._begins = {  # by stage and step, its first timestep there
            (action.stage, steps[action.stage][action.micro_batch]): timestep
            for timestep, action in reversed(spec.order)
            if action.kind == FORWARD
        }

    def all(self) -> None:
        """All actions, and each update where it belongs."""
        for timestep, action in self.spec.order:
            p, j = action.stage, self._steps[action.stage][action.micro_batch]
            if action.kind == FORWARD:
                self._take_over(p, j - LAG, timestep)
            self.take(action, timestep)
            if action.kind == FORWARD:
                self._forwards[p, j] -= 1
                if p == self.last and not self._forwards[p, j]:
                    self._send_losses_of(j, timestep)
            elif action.kind == BACKWARD:
                self._backwards[p, j] -= 1
                if p in self._learning and not self._backwards[p, j]:
                    self._pending[p, j] = self._summed_late(p, j, timestep)
        for j in range(self._n_steps):
            for p in self._learning:
                self._take_over(p, j, self.n_timesteps + j)

    def _take_over(self, p: int, j: int, priority: int) -> None:
        """The optimizer's step with the gradients of step j, if stage p has not taken it yet."""
        for index, vector in enumerate(self._pending.pop((p, j), ())):
            self._late.of_step(j).update(p, index, [vector], [], priority)

    def _send_losses_of(self, j: int, priority: int) -> None:
        for index, losses in enumerate(self.losses):
            if losses:
                self._late.of_step(j).send_losses(index, losses, priority)
        self.losses = [[] for _ in self.losses]

    def _summed_late(self, p: int, j: int, priority: int) -> list[V]:
        """The gradients of step j on each device of stage p, summed by when they are taken over."""
        spec, sink = self.spec, self._late.of_step(j)
        n = len(spec.devices[p])
        vectors = [sink.vector(p, index, priority) for index in range(n)]
        if n == 1:
            return vectors
        due = self._begins.get((p, j + LAG), self.n_timesteps)
        return ring_all_reduce(sink.ring(p), vectors, spec.n_elements[p], due)
