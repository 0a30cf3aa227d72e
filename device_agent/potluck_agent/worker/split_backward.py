"""A backward in two parts: first the gradients of what flows, later those of the weights.

After Qi et al., "Zero Bubble Pipeline Parallelism" (2023). An operator whose weight gradient can
wait (`potluck_wire.weight_gradients`) is a piece of its own, cut off at its data. The first part
goes through all pieces and leaves each the gradient of its output; the second begins there and ends
at the weights. Nothing is computed twice, and both parts give the bits of the whole.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from potluck_wire.graph import Graph, node_refs
from potluck_wire.weight_gradients import Apart

from .split_operators import SplitOperator, kind_of

# of the first part, in its order: a piece, and the gradient of its output
Waiting = list[tuple[SplitOperator, torch.Tensor]]


class PieceRecorder:
    """Runs operators whose weight gradients can wait: as pieces while `waiting` is a list, which
    the first part of the backward then fills, and as they are while it is None.
    """

    def __init__(self, graph: Graph, apart: Apart, device: torch.device) -> None:
        self.waiting: Waiting | None = None
        self._graph, self._data = graph, apart.data
        # no input need require a gradient, while the weights of a piece, which do, are not told
        self._token = torch.zeros((), device=device, requires_grad=True)

    def wrap(self, position: int, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of the node at `position`, which runs as a piece where it can."""
        if position not in self._data:
            return function
        places, op = self._data[position], self._graph.nodes[position].op

        def run(*args: Any, **named: Any) -> Any:
            if self.waiting is None:
                return function(*args, **named)
            flowing = [place for place in places if args[place].requires_grad]
            piece = kind_of(op, args, named, flowing)(function, args, named, flowing)
            data = [args[place] for place in flowing]
            return _Cut.apply(self.waiting, piece, self._token, *data)  # type: ignore[no-untyped-call]

        return run


class _Cut(torch.autograd.Function):
    """What autograd sees of a piece: its data and its output."""

    @staticmethod
    def forward(
        ctx: Any, waiting: Waiting, piece: SplitOperator, token: torch.Tensor, *data: torch.Tensor
    ) -> torch.Tensor:
        """The operator's output."""
        ctx.waiting, ctx.piece = waiting, piece
        return piece.output()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """The gradients of the data; the weights' wait."""
        (gradient,) = gradients
        ctx.waiting.append((ctx.piece, gradient))
        return None, None, None, *ctx.piece.data_gradients(gradient)


def read_once(graph: Graph) -> frozenset[int]:
    """The parameters, by their values, that one operator reads alone."""
    counts = Counter(ref.value for node in graph.nodes for ref in node_refs(node))
    return frozenset(value for value, count in counts.items() if count == 1)


@torch.no_grad()  # a gradient with a graph of its own would hold weights that hold it: for ever
def weight_part(
    waiting: Waiting, once: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor]
) -> None:
    """Add the gradients that waited to those of the parameters.

    Those that one operator reads, `once`, get theirs as soon as it is there. Of all other
    `parameters` it goes through autograd, which sums it in the order of a whole backward.
    """
    own = {id(parameter) for parameter in once}
    through: list[tuple[torch.Tensor, torch.Tensor]] = []
    waiting.reverse()
    while waiting:
        piece, gradient = waiting.pop()
        for weight, found in piece.weight_gradients(gradient):
            if id(weight) in own:
                _accumulate(weight, found)
            else:
                through.append((weight, found))
    if through:
        weights, gradients = zip(*through, strict=True)
        torch.autograd.backward(weights, gradients, inputs=list(parameters))


def _accumulate(parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    if parameter.grad is None:
        parameter.grad = gradient
    else:
        parameter.grad += gradient
