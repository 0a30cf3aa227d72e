"""Losses that torch computes as one operator of their own, written out in operators that devices
have.

Each takes the arguments of torch's function of that name, and gives the same to the last bits of
rounding.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch.nn import functional
from torch.nn._reduction import legacy_get_string

from potluck.graph.loss.ctc import ctc_loss

_OTHERWISE = ("size_average", "reduce", "input")  # torch's old words, and what nobody names


def written_out(loss: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The loss of these arguments; None where it is not one of these, or called otherwise than
    mostly.
    """
    own = _LOSSES.get(loss)
    if (
        own is None
        or len(args) > _PLACES.get(loss, 3)
        or any(kwargs.get(word) is not None for word in _OTHERWISE)
    ):
        return None
    return own(*args, **{name: value for name, value in kwargs.items() if name not in _OTHERWISE})


@contextmanager
def l1_weight_kept() -> Iterator[None]:
    """While it lasts, `l1_loss` has its weight, which torch (2.13) leaves behind where it hands the
    call to a mode, as in every export.
    """
    torchs = functional.l1_loss

    def l1_loss(*args: Any, **kwargs: Any) -> torch.Tensor:
        call = signature(torchs).bind(*args, **kwargs)
        call.apply_defaults()
        given = call.arguments
        weight, reduction = given["weight"], given["reduction"]
        if weight is None:
            return torchs(*args, **kwargs)
        if given["size_average"] is not None or given["reduce"] is not None:
            reduction = legacy_get_string(
                given["size_average"], given["reduce"], emit_warning=False
            )
        each = torchs(given["input"], given["target"], reduction="none") * weight
        return each.sum() / weight.sum() if reduction == "mean" else _reduced(each, reduction)

    functional.l1_loss = l1_loss
    try:
        yield
    finally:
        functional.l1_loss = torchs


def _reduced(each: torch.Tensor, reduction: str) -> torch.Tensor:
    return {"mean": each.mean, "sum": each.sum}[reduction]() if reduction != "none" else each


def _where(condition: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return torch.where(condition, value, torch.zeros_like(value))


def _cosine_similarity(
    x1: torch.Tensor, x2: torch.Tensor, dim: int = 1, eps: float = 1e-8
) -> torch.Tensor:
    first, second = (
        x / torch.linalg.vector_norm(x, dim=dim, keepdim=True).clamp_min(eps) for x in (x1, x2)
    )
    found: torch.Tensor = (first * second).sum(dim)
    return found


def _pairwise_distance(
    x1: torch.Tensor, x2: torch.Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> torch.Tensor:
    found: torch.Tensor = torch.linalg.vector_norm(x1 - x2 + eps, p, dim=-1, keepdim=keepdim)
    return found


def _cosine_embedding(
    input1: torch.Tensor,
    input2: torch.Tensor,
    target: torch.Tensor,
    margin: float = 0,
    reduction: str = "mean",
) -> torch.Tensor:
    eps = 1e-12  # torch's own
    squares = [(x * x).sum(-1) + eps for x in (input1, input2)]
    cosine = (input1 * input2).sum(-1) / (squares[0] * squares[1]).sqrt()
    apart = _where(target == -1, (cosine - margin).clamp_min(0))
    return _reduced(_where(target == 1, 1 - cosine) + apart, reduction)


def _hinge_embedding(
    x: torch.Tensor, target: torch.Tensor, margin: float = 1.0, reduction: str = "mean"
) -> torch.Tensor:
    near = _where(target != -1, x)
    return _reduced(_where(target != 1, (margin - x).clamp_min(0)) + near, reduction)


def _margin_ranking(
    input1: torch.Tensor,
    input2: torch.Tensor,
    target: torch.Tensor,
    margin: float = 0,
    reduction: str = "mean",
) -> torch.Tensor:
    return _reduced((-target * (input1 - input2) + margin).clamp_min(0), reduction)


def _triplet_margin(
    anchor: torch.Tensor,
    positive: torch.Tensor,
    negative: torch.Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> torch.Tensor:
    far = _pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = torch.minimum(far, _pairwise_distance(positive, negative, p, eps))
    return _reduced(
        (margin + _pairwise_distance(anchor, positive, p, eps) - far).clamp_min(0), reduction
    )


def _soft_margin(x: torch.Tensor, target: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    return _reduced((-target * x).exp().log1p(), reduction)


def _multi_margin(
    x: torch.Tensor,
    target: torch.Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: torch.Tensor | None = None,
    reduction: str = "mean",
) -> torch.Tensor:
    own = x.gather(1, target[:, None])
    over = (margin - own + x).clamp_min(0) ** p
    if weight is not None:
        over = over * weight[target][:, None]
    others = torch.arange(x.shape[1], device=x.device) != target[:, None]
    return _reduced(_where(others, over).mean(1), reduction)


def _poisson(
    x: torch.Tensor,
    target: torch.Tensor,
    log_input: bool = True,
    *,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> torch.Tensor:
    loss = x.exp() - target * x if log_input else x - target * (x + eps).log()
    if full:
        many = target.clamp_min(1)  # Stirling's, of counts above one
        loss = loss + _where(
            target > 1, many * many.log() - many + 0.5 * (2 * math.pi * many).log()
        )
    return _reduced(loss, reduction)


def _gaussian(
    x: torch.Tensor,
    target: torch.Tensor,
    var: torch.Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor:
    """Without torch's check that no variance is below zero, which reads values."""
    wide = var if isinstance(var, torch.Tensor) else torch.full_like(x, var)
    if wide.dim() == x.dim() - 1:
        wide = wide.unsqueeze(-1)
    # those below eps are raised to it and keep their gradient, as in torch
    bounded = torch.where(wide < eps, wide - wide.detach() + eps, wide)
    loss = 0.5 * (bounded.log() + (x - target) ** 2 / bounded)
    return _reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


def _gradient(
    x: torch.Tensor, *, spacing: Any = None, dim: Any = None, edge_order: int = 1
) -> tuple[torch.Tensor, ...] | None:
    """Differences of second order along dimensions of known sizes, by steps that are numbers; else
    torch's own.
    """
    dims = tuple(range(x.dim())) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    given = 1 if spacing is None else spacing
    steps = tuple(given) if isinstance(given, tuple | list) else (given,) * len(dims)
    known = all(isinstance(x.shape[d], int) and x.shape[d] > edge_order for d in dims)
    plain = all(isinstance(step, int | float) for step in steps)
    if not (known and plain and x.is_floating_point()) or len(steps) != len(dims):
        return None
    pairs = zip(dims, steps, strict=True)
    return tuple(_differences(x.movedim(d, 0), step, edge_order).movedim(0, d) for d, step in pairs)


def _differences(x: torch.Tensor, step: float, edge_order: int) -> torch.Tensor:
    """Along the first dimension: central ones, and of this order at both ends."""
    if edge_order == 2:
        ends = (
            -1.5 * x[:1] + 2 * x[1:2] - 0.5 * x[2:3],
            1.5 * x[-1:] - 2 * x[-2:-1] + 0.5 * x[-3:-2],
        )
    else:
        ends = (x[1:2] - x[:1], x[-1:] - x[-2:-1])
    return torch.cat([ends[0], (x[2:] - x[:-2]) / 2, ends[1]]) / step


# how many arguments may be given by place, of those that have no old words among them
_PLACES = {functional.cosine_similarity: 5, functional.pairwise_distance: 5, functional.ctc_loss: 7}
_LOSSES: dict[Any, Callable[..., torch.Tensor | tuple[torch.Tensor, ...] | None]] = {
    functional.cosine_similarity: _cosine_similarity,
    functional.pairwise_distance: _pairwise_distance,
    functional.cosine_embedding_loss: _cosine_embedding,
    functional.hinge_embedding_loss: _hinge_embedding,
    functional.margin_ranking_loss: _margin_ranking,
    functional.triplet_margin_loss: _triplet_margin,
    functional.soft_margin_loss: _soft_margin,
    functional.multi_margin_loss: _multi_margin,
    functional.poisson_nll_loss: _poisson,
    functional.gaussian_nll_loss: _gaussian,
    functional.ctc_loss: ctc_loss,
    torch.gradient: _gradient,
}
