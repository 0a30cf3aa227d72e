"""Which optimizer the devices use, as a value: torch's own and Lion, with torch's defaults.

What torch's constructors refuse is refused here, where it is written; a device would only notice in
its first step. What they take, and no step on a model's weights can be made with, is refused where
it meets the model.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any, ClassVar

from potluck.errors import UserError
from potluck_wire.optimizers import HALVES, KINDS, MAX_HALVED_BETA, Setting

PAIRS = {"betas": ("beta1", "beta2"), "eps": ("eps1", "eps2")}  # as programs carry them


class Optimizer:
    """What all of them have; each is a frozen record of its settings.

    A setting that torch has and a record has not (`foreach`, `fused`) decides speed alone.
    """

    __slots__ = ()
    KIND: ClassVar[str]

    def __post_init__(self) -> None:
        for item in fields(self):  # type: ignore[arg-type]
            _check_field(self, item.name, item.default)

    @property
    def kind(self) -> str:
        """What programs call it."""
        return self.KIND

    @property
    def settings(self) -> dict[str, Setting]:
        """As programs carry them, all that are not torch's defaults or that older agents need."""
        return _as_carried(self)

    def times(self, factor: float) -> "Optimizer":
        """The same at a rate of so many times its own.

        Raises
        ------
        UserError
            No rate comes of it.
        """
        mine: Any = self
        made: Optimizer = replace(mine, lr=mine.lr * factor)
        return made

    def to_json(self) -> dict[str, Any]:
        """As programs carry it."""
        return {"name": self.kind, **self.settings}


# left out where they are as usual: agents before 1.9 do not know them
_UNUSUAL = ("amsgrad", "maximize", "eps1", HALVES)


class _TwoMoments(Optimizer):
    """Of Adam's kind. `bfloat16_moments`: both are rounded to bfloat16 after each step, and take
    half the memory; each step is computed in the type of the weights.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        mine: Any = self
        if mine.bfloat16_moments and max(mine.betas) > MAX_HALVED_BETA:
            raise UserError(
                f"a moment in bfloat16 shows changes of a 256th: with betas={mine.betas} one would "
                "lose less in a step, and never become smaller.",
                next_step="Take betas=(0.9, 0.95), or leave bfloat16_moments out.",
            )


@dataclass(frozen=True, slots=True)
class AdamW(_TwoMoments):
    """Adam with decoupled weight decay, as `torch.optim.AdamW`.

    `bfloat16_moments`: both moments are rounded to bfloat16 after each step, which halves their
    memory and changes the result; the same on every plan.
    """

    KIND = "adamw"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    amsgrad: bool = False
    maximize: bool = False
    bfloat16_moments: bool = False


@dataclass(frozen=True, slots=True)
class Adam(_TwoMoments):
    """As `torch.optim.Adam`; its weight decay is a part of the gradient. `bfloat16_moments`: as of
    AdamW.
    """

    KIND = "adam"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False
    maximize: bool = False
    bfloat16_moments: bool = False


@dataclass(frozen=True, slots=True)
class SGD(Optimizer):
    """Stochastic gradient descent, with momentum if above zero, as `torch.optim.SGD`."""

    KIND = "sgd"
    lr: float = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    maximize: bool = False

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        if self.nesterov and not self.momentum:
            raise UserError(
                "nesterov needs a momentum above zero.",
                next_step="potluck.SGD(lr, momentum=0.9, nesterov=True)",
            )

    @property
    def kind(self) -> str:
        """What programs call it."""
        return "momentum" if self.momentum else "sgd"

    @property
    def settings(self) -> dict[str, Setting]:
        """As programs carry them."""
        given = _as_carried(self)
        if not self.momentum:
            del given["momentum"], given["nesterov"]
        return given


@dataclass(frozen=True, slots=True)
class Adagrad(Optimizer):
    """As `torch.optim.Adagrad`."""

    KIND = "adagrad"
    lr: float = 1e-2
    lr_decay: float = 0.0
    weight_decay: float = 0.0
    eps: float = 1e-10
    maximize: bool = False


@dataclass(frozen=True, slots=True)
class Adadelta(Optimizer):
    """As `torch.optim.Adadelta`."""

    KIND = "adadelta"
    lr: float = 1.0
    rho: float = 0.9
    eps: float = 1e-6
    weight_decay: float = 0.0
    maximize: bool = False


@dataclass(frozen=True, slots=True)
class Adamax(Optimizer):
    """As `torch.optim.Adamax`."""

    KIND = "adamax"
    lr: float = 2e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    maximize: bool = False


@dataclass(frozen=True, slots=True)
class NAdam(Optimizer):
    """As `torch.optim.NAdam`."""

    KIND = "nadam"
    lr: float = 2e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum_decay: float = 4e-3
    decoupled_weight_decay: bool = False
    maximize: bool = False


@dataclass(frozen=True, slots=True)
class RAdam(Optimizer):
    """As `torch.optim.RAdam`."""

    KIND = "radam"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled_weight_decay: bool = False
    maximize: bool = False


@dataclass(frozen=True, slots=True)
class RMSprop(Optimizer):
    """As `torch.optim.RMSprop`."""

    KIND = "rmsprop"
    lr: float = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False
    maximize: bool = False


@dataclass(frozen=True, slots=True)
class Adafactor(Optimizer):
    """As `torch.optim.Adafactor`: of a matrix it keeps one row and one column."""

    KIND = "adafactor"
    lr: float = 1e-2
    beta2_decay: float = -0.8
    eps: tuple[float | None, float] = (None, 1e-3)
    d: float = 1.0
    weight_decay: float = 0.0
    maximize: bool = False


@dataclass(frozen=True, slots=True)
class Lion(Optimizer):
    """The sign of a moving average of gradients, with decoupled weight decay (Chen et al., 2023,
    "Symbolic discovery of optimization algorithms", algorithm 2).
    """

    KIND = "lion"
    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0


CLASSES: tuple[type[Optimizer], ...] = (
    *(AdamW, Adam, SGD, Adagrad, Adadelta, Adamax, NAdam, RAdam, RMSprop, Adafactor, Lion),
)
_BY_KIND = {each.KIND: each for each in CLASSES} | {"momentum": SGD}


def read_optimizer(settings: Any) -> Optimizer:
    """The optimizer of a checkpoint: the inverse of `to_json`.

    Raises
    ------
    UserError
        There is no such optimizer.
    """
    if not isinstance(settings, Mapping):
        raise UserError(f"an optimizer is an object of settings, got {str(settings)[:80]!r}.")
    given = {key: value for key, value in settings.items() if key != "name"}
    kind = _BY_KIND.get(str(settings.get("name")))
    if kind is None:
        raise UserError(f"no optimizer is called {settings.get('name')!r}.")
    names = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    for name, (first, second) in PAIRS.items():
        if name in names and second in given:
            given[name] = (given.pop(first, None), given.pop(second))
    return kind(**given)


def check_steps(optimizers: Iterable[Optimizer], dtypes: Iterable[str]) -> None:
    """See that each takes a step on weights of each type; torch raises where a number leaves their
    range.

    Parameters
    ----------
    optimizers
        Of one run: one for each group of parameters.
    dtypes
        Those of the weights that are trained.

    Raises
    ------
    UserError
        The first step fails.
    """
    kinds = [*dict.fromkeys(dtypes)]
    for optimizer in dict.fromkeys(optimizers):
        for dtype in kinds:
            try:
                _try_step(optimizer, dtype)
            except RuntimeError as error:
                raise UserError(
                    f"{optimizer} takes no step on weights of {dtype}: "
                    f"{str(error).splitlines()[0]}.",
                    next_step="Give it smaller numbers.",
                ) from error


def _try_step(optimizer: Optimizer, dtype: str) -> None:
    """One step of torch's own on a weight of that type, the first, whose numbers are the
    largest.
    """
    import torch

    name = KINDS[optimizer.kind].torch
    weight = torch.zeros(1, dtype=getattr(torch, dtype), requires_grad=True)
    weight.grad = torch.zeros_like(weight)
    if not name:  # Lion: what it multiplies by, and what it adds
        rate: Any = optimizer.settings["lr"]
        weight.detach().mul_(1 - rate * optimizer.settings["weight_decay"]).add_(1, alpha=-rate)
        return
    given = {item.name: getattr(optimizer, item.name) for item in fields(optimizer)}  # type: ignore[arg-type]
    given.pop(HALVES, None)  # of moments, which are rounded behind the step
    getattr(torch.optim, name)([weight], **given).step()


def _as_carried(optimizer: Optimizer) -> dict[str, Setting]:
    """Its settings as programs carry them, without those that are unusual where they are not."""
    given: dict[str, Any] = {}
    for item in fields(optimizer):  # type: ignore[arg-type]
        value = getattr(optimizer, item.name)
        if isinstance(value, tuple):
            given |= dict(zip(PAIRS[item.name], value, strict=True))
        else:
            given[item.name] = value
    known = KINDS[optimizer.KIND].settings
    return {
        name: value
        for name, value in given.items()
        if not (name in _UNUSUAL and value == known.get(name))
    }


def _check_field(optimizer: Optimizer, name: str, default: Any) -> None:
    """A setting as plain numbers of Python's, within what torch takes."""
    given = getattr(optimizer, name)
    if isinstance(default, bool):
        if not isinstance(given, bool):
            raise UserError(f"{name} must be True or False, got {given!r}.")
    elif isinstance(default, tuple):
        object.__setattr__(optimizer, name, _pair(name, given, default))
    else:
        sign = -1 if default < 0 else 1
        number = _number(name, given)
        if not 0 <= number * sign < math.inf:
            way = "below" if default < 0 else "above"
            raise UserError(f"{name} must be zero or {way} and finite, got {given}.")
        low, high = _BOUNDS.get(name, (0.0, math.inf))
        if not low <= number * sign <= high:
            bound = f"from {low:g} to {high:g}" if high < math.inf else f"{low:g} or more"
            raise UserError(f"{name} must be {bound}, got {given}.")
        object.__setattr__(optimizer, name, number)


# of single settings, where torch has more than the sign
_BOUNDS = {"rho": (0.0, 1.0), "d": (1.0, math.inf)}


def _pair(name: str, given: Any, default: tuple[Any, Any]) -> tuple[float | None, float]:
    """Two numbers; betas are below 1, and where torch has None by default it may be that."""
    parts = tuple(given) if isinstance(given, tuple | list) else ()
    limit = 1.0 if name == "betas" else math.inf
    numbers = tuple(
        None if part is None and usual is None else _number(name, part)
        for part, usual in zip(parts, default, strict=False)
    )
    if len(parts) != 2 or not all(n is None or 0 <= n < limit for n in numbers):
        below = "to below 1" if name == "betas" else "on"
        raise UserError(
            f"{name} must be two numbers from 0 {below}, got {given!r}.",
            next_step=f"{name}={default}",
        )
    first, second = numbers
    assert second is not None
    return first, second


def _number(what: str, value: Any) -> float:
    """Any number, such as one of numpy's, as a float of Python's."""
    try:
        if isinstance(value, Real) and not isinstance(value, bool):
            return float(value)
    except OverflowError:
        pass
    raise UserError(f"{what} must be a number, got {value!r:.60}.")
