"""A segment that has the state of another one: it runs forward, and learns nothing.

So many pieces of a model can be loaded while its weights are there once.
"""

from typing import Any

import torch

from potluck_agent.worker.arrays import torch_arrays
from potluck_wire.graph import Graph, SegmentError

from .arrays.torch_device import CPU
from .forward_only import ForwardOnly, borrowed
from .interpreter import Interpreter
from .tasks import LoadedSegment, Tensors


class SharedWeightSegment(ForwardOnly):
    """An ATen segment whose parameters and buffers are the very memory of those of `weight_source`.

    Raises SegmentError where the source has no such state, or another shape or type of it.
    """

    what = "a segment with the weights of another"

    def __init__(
        self, graph: Graph, weight_source: LoadedSegment, device: torch.device = CPU
    ) -> None:
        parameters = [
            borrowed(weight_source, p.name, p.dtype, p.shape, torch_arrays)
            for p in graph.parameters
        ]
        self._state = parameters + [
            borrowed(weight_source, b.name, b.dtype, b.shape, torch_arrays) for b in graph.buffers
        ]
        self._interpreter = Interpreter(graph, device=device)
        self._weight_source = weight_source

    def forward(
        self, inputs: Tensors, *, train: bool = False, **_: Any
    ) -> tuple[torch.Tensor, ...]:
        """The outputs."""
        if train:
            raise self.refusal()
        return self._interpreter.run(inputs, self._state, train=False)

    def read(self, name: str) -> torch.Tensor:
        """A named state of the weight_source."""
        state: torch.Tensor = self._weight_source.read(name)
        return state

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Raises SegmentError: the state is the weight_source's to change."""
        raise SegmentError("bad-input", f"{name} is another segment's"[:200])
