"""A backward in two parts: first the gradients of what flows, later those of the weights.

After Qi et al., "Zero Bubble Pipeline Parallelism" (2023). An operator whose weight gradient can
wait (`potluck_wire.weight_gradients`) has a piece of autograd's graph of its own, cut off at its
data. The first part goes through all pieces and leaves each the gradient of its output; the second
begins there and ends at the weights. Each runs torch's own formula of that operator for the
operands it wants, so nothing is computed twice, and both parts give the bits of the whole.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from potluck_wire.weight_gradients import Apart

# an output, and its gradient
Waiting = list[tuple[torch.Tensor, torch.Tensor]]


class PieceRecorder:
    """Runs operators whose weight gradients can wait: as pieces while `waiting` is a list, which
    the first part of the backward then fills, and as they are while it is None.
    """

    def __init__(self, apart: Apart, device: torch.device) -> None:
        self.waiting: Waiting | None = None
        self._data = apart.data
        # no input need require a gradient, while the weights of a piece, which do, are not told
        self._token = torch.zeros((), device=device, requires_grad=True)

    def wrap(self, position: int, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of the node at `position`, which runs as a piece where it can."""
        if position not in self._data:
            return function
        places = self._data[position]

        def run(*args: Any, **named: Any) -> Any:
            if self.waiting is None:
                return function(*args, **named)
            flowing = [place for place in places if args[place].requires_grad]
            data = [args[place] for place in flowing]
            call = function, args, named, flowing
            return _Piece.apply(self.waiting, call, self._token, *data)  # type: ignore[no-untyped-call]

        return run


class _Piece(torch.autograd.Function):
    """One operator on data that is cut off from what made it."""

    @staticmethod
    def forward(
        ctx: Any, waiting: Waiting, call: tuple[Any, ...], token: torch.Tensor, *data: torch.Tensor
    ) -> torch.Tensor:
        """The operator's output. Its weights are in `call`, unseen by autograd out there."""
        function, args, named, places = call
        own = list(args)
        leaves = [x.detach().requires_grad_() for x in data]
        for place, leaf in zip(places, leaves, strict=True):
            own[place] = leaf
        with torch.enable_grad():
            output: torch.Tensor = function(*own, **named)
        ctx.waiting, ctx.leaves, ctx.output = waiting, leaves, output
        return output.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """The gradients of the data; the weights' wait."""
        (gradient,) = gradients
        ctx.waiting.append((ctx.output, gradient))
        if not ctx.leaves:
            return None, None, None
        found = torch.autograd.grad(ctx.output, ctx.leaves, gradient, retain_graph=True)
        return None, None, None, *found


def weight_part(waiting: Waiting, parameters: Sequence[torch.Tensor]) -> None:
    """Add the gradients that waited to those of the parameters."""
    if waiting and parameters:
        outputs, gradients = zip(*waiting, strict=True)
        torch.autograd.backward(outputs, gradients, inputs=list(parameters))
