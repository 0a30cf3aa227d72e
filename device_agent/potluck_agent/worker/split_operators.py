"""One operator of a backward in two parts: the gradients of its data, and later those of its
weights.

Linear layers and convolutions of images, which most models are made of, are computed by autograd's
own formulas, bit for bit. Of any other operator a piece keeps autograd's graph of it alone, and
asks it twice, for the operands that are wanted.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

Gradients = list[tuple[torch.Tensor, torch.Tensor]]  # weights, each with its own
Named = Mapping[str, Any]
_CONVOLVED = 4  # dimensions of a batch of images


class SplitOperator:
    """What all pieces have.

    Parameters
    ----------
    function
        The operator.
    args, named
        What it is called with.
    flowing
        Which of `args` are data that requires a gradient.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        named: Named,
        flowing: Sequence[int],
    ) -> None:
        self.function = function
        self.args = args
        self.named = named
        self.flowing = flowing
        self.weights = [
            x
            for place, x in enumerate(args)
            if place not in flowing and isinstance(x, torch.Tensor) and x.requires_grad
        ]

    def output(self) -> torch.Tensor:
        """What the operator gives."""
        found: torch.Tensor = self.function(*self.args, **self.named)
        return found

    def data_gradients(self, gradient: torch.Tensor) -> Sequence[torch.Tensor]:
        """Of the data that requires one, from that of the output."""
        raise NotImplementedError

    def weight_gradients(self, gradient: torch.Tensor) -> Gradients:
        """Of the weights that learn."""
        raise NotImplementedError


class GraphPiece(SplitOperator):
    """Any operator: autograd's graph of it alone."""

    def output(self) -> torch.Tensor:
        """What the operator gives."""
        own = list(self.args)
        self._leaves = [own[place].detach().requires_grad_() for place in self.flowing]
        for place, leaf in zip(self.flowing, self._leaves, strict=True):
            own[place] = leaf
        with torch.enable_grad():
            self._output: torch.Tensor = self.function(*own, **self.named)
        found: torch.Tensor = self._output.detach()
        return found

    def data_gradients(self, gradient: torch.Tensor) -> Sequence[torch.Tensor]:
        """Of the data that requires one, from that of the output."""
        if not self._leaves:
            return ()
        found: Sequence[torch.Tensor] = torch.autograd.grad(
            self._output, self._leaves, gradient, retain_graph=True
        )
        return found

    def weight_gradients(self, gradient: torch.Tensor) -> Gradients:
        """Of the weights that learn."""
        found = torch.autograd.grad(self._output, self.weights, gradient)
        return [*zip(self.weights, found, strict=True)]


class LinearPiece(SplitOperator):
    """A linear layer on rows, or on sequences that lie as rows: `addmm` and `mm` of torch's
    derivatives.yaml.
    """

    @staticmethod
    def fits(args: Sequence[Any], flowing: Sequence[int]) -> bool:
        """Whether torch multiplies these in that way."""
        x, weight = args[:2]
        return (
            set(flowing) <= {0}
            and x.dim() in (2, 3)
            and x.is_contiguous()
            and weight.is_contiguous()
            and x.numel() > 0
            and min(x.numel() // x.shape[-1], x.shape[-1]) > 1  # else a row may lie as a column
        )

    def data_gradients(self, gradient: torch.Tensor) -> Sequence[torch.Tensor]:
        """Of the data that requires one, from that of the output."""
        x, weight = self.args[:2]
        return [_rows(gradient).mm(weight).view(x.shape)] if self.flowing else ()

    def weight_gradients(self, gradient: torch.Tensor) -> Gradients:
        """Of the weights that learn."""
        rows, found = _rows(gradient), Gradients()
        for weight in self.weights:
            if weight is self.args[1]:
                found.append((weight, rows.t().mm(_rows(self.args[0]))))
            else:
                found.append((weight, rows.sum(0, keepdim=True).view(weight.shape)))
        return found


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.dim() == 2 else x.reshape(-1, x.shape[-1])


class ConvolutionPiece(SplitOperator):
    """A convolution of images: `convolution_backward`, which tells the operands apart."""

    _DEFAULTS: ClassVar[tuple[Any, ...]] = (None, [1, 1], [0, 0], [1, 1], 1)

    @staticmethod
    def fits(args: Sequence[Any], flowing: Sequence[int]) -> bool:
        """Whether they are a batch of images."""
        return set(flowing) <= {0} and args[0].dim() == _CONVOLVED

    def data_gradients(self, gradient: torch.Tensor) -> Sequence[torch.Tensor]:
        """Of the data that requires one, from that of the output."""
        return [self._wanted(gradient, (True, False, False))[0]] if self.flowing else ()

    def weight_gradients(self, gradient: torch.Tensor) -> Gradients:
        """Of the weights that learn."""
        learn = [any(x is weight for weight in self.weights) for x in self._operands()[1:3]]
        _, *found = self._wanted(gradient, (False, *learn))
        pairs = zip(self._operands()[1:3], found, learn, strict=True)
        return [(weight, own) for weight, own, learns in pairs if learns]

    def _operands(self) -> tuple[Any, ...]:
        return (*self.args, *self._DEFAULTS[len(self.args) - 2 :])

    def _wanted(self, gradient: torch.Tensor, mask: tuple[bool, ...]) -> Sequence[torch.Tensor]:
        x, weight, bias, stride, padding, dilation, groups = self._operands()
        sizes = None if bias is None else [bias.shape[0]]
        geometry = [_pair(stride), _pair(padding), _pair(dilation), False, [0, 0], groups]
        found: Sequence[torch.Tensor] = torch.ops.aten.convolution_backward(
            gradient, x, weight, sizes, *geometry, mask
        )
        return found


def _pair(sizes: Sequence[int]) -> list[int]:
    return list(sizes) * (2 // len(sizes))


_KINDS: dict[str, type[LinearPiece] | type[ConvolutionPiece]] = {
    "aten.linear.default": LinearPiece,
    "aten.conv2d.default": ConvolutionPiece,
}


def kind_of(
    op: str, args: Sequence[Any], named: Named, flowing: Sequence[int]
) -> Callable[..., SplitOperator]:
    """The piece that suits an operator, called like this."""
    kind = _KINDS.get(op)
    return kind if kind is not None and not named and kind.fits(args, flowing) else GraphPiece
