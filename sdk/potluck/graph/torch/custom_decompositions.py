"""Operators that potluck writes out in its own way, where torch's would mix rows, or treat infinite
values otherwise than its kernel does; and those that draw random numbers.
"""

from collections.abc import Callable
from typing import Any

import torch

from potluck.graph.torch import draws

_ATEN = torch.ops.aten
_SUM = 0
_MEAN = 1
_MAX = 2


def own_way(node: Any) -> Callable[..., Any] | None:
    """How a node is written out; None: as torch does it."""
    name = str(node.target)
    if node.kwargs.get("generator") is not None:
        return None  # its numbers are those of that generator
    way = WAYS.get(name)
    return way(node) if way is not None else draws.WAYS.get(name)


def _sign(node: Any) -> Callable[..., Any] | None:
    """Of real numbers; torch's gradient of `sgn` is a tensor without memory."""
    return None if node.meta["val"].is_complex() else _ATEN.sign.default


def _rrelu(node: Any) -> Callable[..., Any] | None:
    """Outside training its slope is the middle one."""
    if node.args[3:4] and node.args[3]:
        return None

    def leaky(x: Any, lower: float = 1 / 8, upper: float = 1 / 3, *_: Any, **__: Any) -> Any:
        return _ATEN.leaky_relu.default(x, (lower + upper) / 2)

    return leaky


def _bags(node: Any) -> Callable[..., Any] | None:
    """Bags that are the rows of a table of indices, as in embedding_bag(indices [rows, n], table):
    torch lays all rows end to end and numbers where each begins.
    """
    _, flat, offsets, *_ = node.args
    shaped = flat.args[0] if getattr(flat, "target", None) is _ATEN.reshape.default else None
    regular = getattr(offsets, "target", None) is _ATEN.arange.start_step
    if shaped is None or not regular or node.args[7:8] == (True,):
        return None
    n_rows = shaped.meta["val"].shape[0]

    def reduced(
        weight: Any,
        indices: Any,
        offsets: Any,
        scale_grad_by_freq: bool = False,
        mode: int = _SUM,
        sparse: bool = False,
        per_sample_weights: Any = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> tuple[Any, ...]:
        table = indices.reshape(n_rows, -1)
        each = _ATEN.embedding.default(weight, table)
        if per_sample_weights is not None:
            each = each * per_sample_weights.reshape(n_rows, -1, 1)
        result = (
            _bag_of(each, mode)
            if padding_idx is None
            else _counted(each, (table != padding_idx % weight.shape[0]).unsqueeze(2), mode)
        )
        return (result, indices, indices, indices)

    return reduced


def _bag_of(each: Any, mode: int) -> Any:
    return {_SUM: each.sum, _MEAN: each.mean, _MAX: each.amax}[mode](1)


def _counted(each: Any, counts: Any, mode: int) -> Any:
    """Bags of which only some entries count, and which are 0 where none does."""
    if mode == _MAX:
        largest = torch.where(counts, each, -torch.inf).amax(1)
        return torch.where(counts.any(1), largest, 0.0)
    total = torch.where(counts, each, 0.0).sum(1)
    return total if mode == _SUM else total / counts.sum(1).clamp(min=1)


def _negated(_: Any) -> Callable[..., Any]:
    """A value of its own in the place of a view that is negated when it is read."""
    return _ATEN.neg.default


def _copy(node: Any) -> Callable[..., Any]:
    """One value in the shape and type of another."""

    def copied(to: Any, source: Any, *_: Any, **__: Any) -> Any:
        return _ATEN.expand_as.default(source.to(to.dtype), to)

    return copied


def _resized(node: Any) -> Callable[..., Any] | None:
    """By the same kernel, told the size: torch's way multiplies by weights of 0, so that an
    infinite value spoils its neighbours.
    """
    if not all(isinstance(size, int) for size in node.args[0].meta["val"].shape[2:]):
        return None
    kernel = getattr(_ATEN, node.target._schema.name.removeprefix("aten::")).default

    def resized(x: Any, sizes: Any, align_corners: bool, scales: Any) -> Any:
        if sizes is None:
            sizes = [int(n * by) for n, by in zip(x.shape[2:], scales, strict=True)]
        return kernel(x, sizes, align_corners, *(scales or [None] * len(sizes)))

    return resized


def _multilabel_margin(_: Any) -> Callable[..., Any]:
    """What follows a row's first negative label is none: torch's way counts it as one."""

    def loss(x: Any, target: Any, reduction: int = 1) -> Any:
        n_classes = x.shape[-1]
        is_label = target.ge(0).cumprod(-1).bool()
        label = torch.where(is_label, target, 0)
        matches = label.unsqueeze(-1) == torch.arange(n_classes)
        is_right = (matches & is_label.unsqueeze(-1)).any(-2, keepdim=True)
        margin = (1 - x.gather(-1, label).unsqueeze(-1) + x.unsqueeze(-2)).relu()
        counts = is_label.unsqueeze(-1) & ~is_right
        each = torch.where(counts, margin, 0.0).sum((-2, -1)) / n_classes
        return (each, each.mean(), each.sum())[reduction]

    return loss


WAYS: dict[str, Callable[[Any], Callable[..., Any] | None]] = {
    "aten.copy.default": _copy,
    "aten.multilabel_margin_loss.default": _multilabel_margin,
    "aten.sgn.default": _sign,
    "aten.rrelu.default": _rrelu,
    "aten.embedding_bag.padding_idx": _bags,
    "aten._neg_view.default": _negated,
    "aten.upsample_linear1d.vec": _resized,
    "aten.upsample_trilinear3d.vec": _resized,
    "aten.upsample_bicubic2d.vec": _resized,
}
