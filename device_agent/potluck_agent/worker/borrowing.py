"""A segment that has the state of another one: it runs forward, and learns nothing.

So many pieces of a model can be loaded while its weights are there once.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from potluck_wire.graph import Graph, SegmentError

from .interpreter import Interpreter
from .operators import DTYPES
from .tasks import Segment, Tensors


class ForwardOnly:
    """What a segment refuses that does not train; `what` it is."""

    what = "a segment that does not train"

    def forget(self, prefix: str = "") -> None:
        """Nothing is kept for backward."""

    def backward(self, key: str, gradients: Tensors = (), scale: float = 1.0) -> tuple[torch.Tensor, ...]:
        """Raises SegmentError: there is no backward."""
        raise self.refusal()

    def gradients(self, share_frac: float = 1.0) -> torch.Tensor:
        """Raises SegmentError: there are none."""
        raise self.refusal()

    def step(self, vector: torch.Tensor | None, optimizer: Mapping[str, Any]) -> None:
        """Raises SegmentError: nothing can be learned."""
        raise self.refusal()

    def refusal(self) -> SegmentError:
        """Why."""
        return SegmentError("bad-input", f"{self.what} does not train")


class BorrowingSegment(ForwardOnly):
    """An ATen segment whose parameters and buffers are those of `lender`, the very same memory.

    Raises SegmentError where the lender has no such state, or another shape or type of it.
    """

    what = "a segment with the weights of another"

    def __init__(self, graph: Graph, lender: Segment) -> None:
        self._interpreter = Interpreter(graph)
        parameters = [borrowed(lender, p.name, p.dtype, p.shape) for p in graph.parameters]
        self._state = parameters + [borrowed(lender, b.name, b.dtype, b.shape) for b in graph.buffers]
        self._lender = lender

    def forward(self, inputs: Tensors, *, train: bool = False, **_: Any) -> tuple[torch.Tensor, ...]:
        """The outputs."""
        if train:
            raise self.refusal()
        return self._interpreter.run(inputs, self._state, train=False)

    def read(self, name: str) -> torch.Tensor:
        """A named state of the lender."""
        return self._lender.read(name)

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Raises SegmentError: the state is the lender's to change."""
        raise SegmentError("bad-input", f"{name} is another segment's"[:200])


def borrowed(lender: Segment, name: str, dtype: str, shape: Sequence[int]) -> torch.Tensor:
    """A named state of the lender, not copied, after checking that it is what is expected."""
    state = lender.read(name)
    if state.dtype is not DTYPES[dtype] or tuple(state.shape) != tuple(shape):
        got = f"{state.dtype} {list(state.shape)}"
        raise SegmentError("document", f"{name} is {got} in the other segment, not {dtype} {list(shape)}"[:300])
    return state
