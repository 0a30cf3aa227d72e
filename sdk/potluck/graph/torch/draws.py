"""Operators that draw random numbers, written out in two: as many uniform numbers, or normal ones,
as a value has.

Devices draw these by seed, step, micro-batch and place in the graph. So training by one of them or
by many draws the same; the numbers are others than those that torch's global generator would give.
While a graph is looked at, nothing is drawn: numbers are made of the rows they belong to.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from potluck.graph.partition.cuts import row_dim
from potluck.graph.torch import symbolic_sizes

_ATEN = torch.ops.aten
UNIFORM = _ATEN.rand_like.default
NORMAL = _ATEN.randn_like.default
DRAWS = (UNIFORM, NORMAL)
_ROWS = "potluck_rows"  # of a node's meta: which dimension of what it draws counts rows
_LEAST = 2.0**-24  # a uniform number that float32 tells from 0


def _plain(size: Any, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    return torch.zeros(size, dtype=dtype or torch.float32)


def _like(x: Any, dtype: torch.dtype | None = None, **_: Any) -> Any:
    """A value of that size and type, of which nothing but these is read."""
    kind = dtype or x.dtype
    return _ATEN.zeros_like.default(x, dtype=kind if kind.is_floating_point else torch.float32)


def _uniform(x: Any, low: float = 0.0, high: float = 1.0, **_: Any) -> Any:
    return UNIFORM(_like(x)) * (high - low) + low


def _normal(x: Any, mean: float = 0.0, std: float = 1.0, **_: Any) -> Any:
    return NORMAL(_like(x)) * std + mean


def _about(mean: Any, std: Any, like: Any) -> Any:
    """Normal numbers, of which no gradient leads to their mean or deviation."""
    mean, std = (x.detach() if isinstance(x, torch.Tensor) else x for x in (mean, std))
    return NORMAL(_like(like)) * std + mean


def _chosen(x: Any, p: Any, **_: Any) -> Any:
    """Ones with a probability, and zeros."""
    return (UNIFORM(_like(x)) < p).to(x.dtype)


def _exponential(x: Any, rate: float = 1.0, **_: Any) -> Any:
    return -torch.log1p(-UNIFORM(_like(x)).clamp(min=_LEAST)) / rate


def _alpha_dropout(x: Any, p: float, train: bool) -> Any:
    return x if not train or p == 0 else _self_normal(x, _chosen(x, 1 - p), p)


def _feature_alpha_dropout(x: Any, p: float, train: bool) -> Any:
    if not train or p == 0:
        return x
    channels = x.new_zeros([*x.shape[:2], *(1 for _ in x.shape[2:])])
    return _self_normal(x, _chosen(channels, 1 - p), p)


def _self_normal(x: Any, kept: Any, p: float) -> Any:
    """What is dropped becomes a value that leaves mean and deviation of SELU's results as they are
    (Klambauer et al. 2017).
    """
    least = 1.7580993408473766
    scale = 1 / math.sqrt((least * least * p + 1) * (1 - p))
    return x * (kept * scale) + ((kept - 1) * (least * scale) + least * scale * p)


def _whole(like: Any, low: int, high: int, dtype: torch.dtype | None) -> Any:
    """Whole numbers from `low` on, below `high`."""
    drawn = UNIFORM(_ATEN.zeros_like.default(like, dtype=torch.float64))
    return (drawn * (high - low)).floor().to(dtype or torch.int64) + low


def _several(odds: Any, n: int, replacement: bool = False, **_: Any) -> Any:
    """Places drawn by their odds, none twice: the first of exponential clocks."""
    if replacement and n > 1:
        raise NotImplementedError("several draws that are put back")
    return (odds / _exponential(odds)).topk(n).indices


def _order(n: Any, dtype: torch.dtype | None = None, **_: Any) -> Any:
    return UNIFORM(_plain([n])).argsort().to(dtype or torch.int64)


WAYS: dict[str, Callable[..., Any]] = {
    "rand.default": lambda size, **how: UNIFORM(_plain(size, **how)),
    "randn.default": lambda size, **how: NORMAL(_plain(size, **how)),
    "rand_like.default": lambda x, **how: UNIFORM(_like(x, **how)),
    "randn_like.default": lambda x, **how: NORMAL(_like(x, **how)),
    "uniform.default": _uniform,
    "normal_functional.default": _normal,
    "normal.Tensor_Tensor": lambda mean, std, **_: _about(mean, std, mean + std),
    "normal.Tensor_float": lambda mean, std=1.0, **_: _about(mean, std, mean),
    "normal.float_Tensor": lambda mean, std, **_: _about(mean, std, std),
    "normal.float_float": lambda mean, std, size, **how: NORMAL(_plain(size, **how)) * std + mean,
    "bernoulli.default": lambda odds, **_: _chosen(odds, odds),
    "bernoulli.p": _chosen,
    "bernoulli.Tensor": _chosen,
    "alpha_dropout.default": _alpha_dropout,
    "feature_alpha_dropout.default": _feature_alpha_dropout,
    "exponential.default": _exponential,
    "randint.default": lambda high, size, dtype=None, **_: _whole(_plain(size), 0, high, dtype),
    "randint.low": lambda low, high, size, dtype=None, **_: _whole(_plain(size), low, high, dtype),
    "randint_like.default": lambda x, high, dtype=None, **_: _whole(x, 0, high, dtype or x.dtype),
    "randint_like.low_dtype": lambda x, low, high, dtype=None, **_: _whole(
        x, low, high, dtype or x.dtype
    ),
    "multinomial.default": _several,
    "randperm.default": _order,
}
WAYS = {f"aten.{name}": way for name, way in WAYS.items()}
# what such an operator in place gives, as one that gives a new value
IN_PLACE: dict[str, Any] = {
    "aten.uniform_.default": _ATEN.uniform.default,
    "aten.normal_.default": _ATEN.normal_functional.default,
    "aten.bernoulli_.float": _ATEN.bernoulli.p,
    "aten.bernoulli_.Tensor": _ATEN.bernoulli.Tensor,
    "aten.exponential_.default": _ATEN.exponential.default,
}


def says_more(node: Any) -> bool:
    """Whether a draw that devices know says more than the value: the type of its numbers."""
    return node.target in DRAWS and "dtype" in node.kwargs


def note_rows(program: Any, symbols: Any) -> bool:
    """Note of every draw which dimension counts rows; whether there is any."""
    found = [
        node
        for module in program.graph_module.modules()
        if hasattr(module, "graph")
        for node in module.graph.nodes
        if node.target in DRAWS
    ]
    for node in found:
        node.meta[_ROWS] = row_dim(symbolic_sizes.shape(node.meta["val"], symbols))
    return bool(found)


def stand_in(node: Any, like: torch.Tensor, first: int, rows: int) -> torch.Tensor:
    """What a draw gives while a graph is looked at: the same for a row, whichever rows are beside
    it.

    Parameters
    ----------
    node
        The draw; `note_rows` has seen it.
    like
        The value that it is given.
    first, rows
        The number of the first row, and how many there are.
    """
    axis = node.meta.get(_ROWS)
    if axis is None or not rows or like.shape[axis] % rows:
        return _numbers(node.target, torch.arange(like.numel()).reshape(like.shape), like)
    shape = [n for i, n in enumerate(like.shape) if i != axis]
    per_row = math.prod(shape) * (like.shape[axis] // rows)
    place = torch.arange(per_row) + torch.arange(first, first + rows)[:, None] * 7919
    places = place.reshape(like.shape[axis], *shape).movedim(0, axis)
    return _numbers(node.target, places, like)


def _numbers(target: Any, places: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Numbers of no simple pattern, one for each place."""
    mixed = torch.sin(places.double() * 12.9898 + 0.7) * 43758.5453
    uniform = (mixed - mixed.floor()).clamp(1e-3, 1 - 1e-3)
    made = uniform if target is UNIFORM else torch.erfinv(2 * uniform - 1) * math.sqrt(2)
    return made.to(like.dtype).to(like.device)


class Determined(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it lasts, a module draws what its written-out graph would: numbers made of places."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """An operator's result; of one that draws, what does not change from call to call."""
        kwargs = kwargs or {}
        if func in DRAWS and "dtype" not in kwargs:
            return _numbers(func, torch.arange(args[0].numel()).reshape(args[0].shape), args[0])
        name = str(func)
        with self:
            if name in IN_PLACE:
                return args[0].copy_(WAYS[str(IN_PLACE[name])](*args, **kwargs))
            if name in WAYS:
                return WAYS[name](*args, **kwargs)
        return func(*args, **kwargs)
