"""Backward passes of a user's own that multiply the gradient by something, written out so that
torch's operators have the same: GELU by hand, straight-through estimators, gradients that are
scaled or reversed.

With y = f(x) and the gradient g * h, `f(x).detach() + (x - x.detach()) * h.detach()` has that value
and that gradient. Whether a backward is such a product shows when it is called with a gradient that
knows nothing but how to be multiplied.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import Function


class _Otherwise(Exception):
    """A gradient is used otherwise than in a product."""


class _Factor:
    """A gradient in a backward pass: what it was multiplied by so far, in the shape of the value.

    What it is not asked to do here is no product, and raises _Otherwise.
    """

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value
        self.shape, self.dtype = value.shape, value.dtype
        self.device = value.device

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> "_Factor":
        """An operator of torch's that is given one."""
        way = _WAYS.get(getattr(func, "__name__", ""))
        if way is None or kwargs:
            raise _Otherwise
        return way(*args)

    def __mul__(self, other: Any) -> "_Factor":
        return _times(self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> "_Factor":
        return _over(self, other)

    def __neg__(self) -> "_Factor":
        return self._kept(-self.value)

    def __setitem__(self, chosen: Any, value: Any) -> None:
        if getattr(chosen, "shape", None) != self.shape:
            raise _Otherwise  # a mask of fewer dimensions chooses rows
        self.value = _filled(self, chosen, value).value

    def clone(self) -> "_Factor":
        return self._kept(self.value)

    detach = contiguous = clone

    def mul(self, other: Any) -> "_Factor":
        return _times(self, other)

    def div(self, other: Any) -> "_Factor":
        return _over(self, other)

    def neg(self) -> "_Factor":
        return -self

    def masked_fill(self, mask: Any, value: Any) -> "_Factor":
        return _filled(self, mask, value)

    masked_fill_ = __setitem__

    def _kept(self, value: torch.Tensor) -> "_Factor":
        """The product so far, if it is still of one number for each of the value."""
        if value.shape != self.shape or value.dtype != self.dtype:
            raise _Otherwise
        return _Factor(value)

    def __getattr__(self, name: str) -> Any:
        raise _Otherwise(name)


def _times(a: Any, b: Any) -> _Factor:
    one, other = (a, b) if isinstance(a, _Factor) else (b, a)
    if not isinstance(other, torch.Tensor | int | float):
        raise _Otherwise
    return one._kept(one.value * other)


def _over(a: Any, b: Any) -> _Factor:
    if not isinstance(a, _Factor) or not isinstance(b, torch.Tensor | int | float):
        raise _Otherwise
    return a._kept(a.value / b)


def _filled(a: _Factor, mask: Any, value: Any) -> _Factor:
    """Nothing goes back where a mask says so."""
    is_mask = isinstance(mask, torch.Tensor) and mask.dtype is torch.bool
    if not is_mask or isinstance(value, torch.Tensor | _Factor) or value != 0:
        raise _Otherwise
    return a._kept(torch.where(mask, 0.0, a.value).to(a.dtype))


def _where(mask: Any, a: Any, b: Any) -> _Factor:
    """The gradient where a mask says so, and nothing elsewhere; or the other way round."""
    if isinstance(a, _Factor):
        return _filled(a, ~mask, b)
    return _filled(b, mask, a)


_WAYS: dict[str, Callable[..., _Factor]] = {
    "mul": _times,
    "multiply": _times,
    "__mul__": _times,
    "__rmul__": _times,
    "div": _over,
    "true_divide": _over,
    "neg": lambda a: -a,
    "clone": lambda a: a.clone(),
    "masked_fill": _filled,
    "where": _where,
}


class _Context:
    """What a backward pass is given of its forward pass."""

    def __init__(self, args: tuple[Any, ...]) -> None:
        self.needs_input_grad = tuple(_learns(arg) for arg in args)
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def set_materialize_grads(self, _: bool) -> None:
        """There is one output, whose gradient is always there."""


def _learns(arg: Any) -> bool:
    return isinstance(arg, torch.Tensor) and arg.requires_grad


@contextmanager
def written_out(found: dict[type, bool]) -> Iterator[None]:
    """While it lasts, a function whose backward pass multiplies is called as torch's operators.

    `found` gets, of every class of them that is called, whether it was so in each call.
    """
    apply = vars(Function)["apply"]

    def apply_written(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(map(_learns, (*args, *kwargs.values()))):
            return apply.__get__(None, cls)(*args, **kwargs)  # nothing goes back
        given = None if kwargs else _product(cls, args)
        found[cls] = found.get(cls, True) and given is not None
        return apply.__get__(None, cls)(*args, **kwargs) if given is None else given

    Function.apply = classmethod(apply_written)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Function.apply = apply  # type: ignore[method-assign]


def _product(cls: Any, args: tuple[Any, ...]) -> torch.Tensor | None:
    """What the function gives, with the gradient that it has; None where that is no product."""
    places = [i for i, arg in enumerate(args) if _learns(arg)]
    if len(places) != 1:
        return None
    x, context = args[places[0]], _Context(args)
    try:
        with torch.no_grad():
            y = _forward(cls, context, [a.detach() if _learns(a) else a for a in args])
            if not isinstance(y, torch.Tensor) or y.shape != x.shape or y.dtype != x.dtype:
                return None
            back = cls.backward(context, _Factor(torch.ones_like(y)))
            back = back if isinstance(back, tuple) else (back,)
            factor = back[places[0]]
            if not isinstance(factor, _Factor):
                return None
            h = factor.value
    except Exception:  # whatever code of the user's raises over what is no tensor
        return None
    same: torch.Tensor = y.detach() + (x - x.detach()) * h.detach()
    return same


def _forward(cls: Any, context: _Context, args: list[Any]) -> Any:
    """The forward pass, in either of the two forms that it may have."""
    if cls.setup_context is Function.setup_context:
        return cls.forward(context, *args)
    y = cls.forward(*args)
    cls.setup_context(context, tuple(args), y)
    return y
