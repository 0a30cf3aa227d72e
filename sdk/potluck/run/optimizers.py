"""Which optimizer the devices use, as a value: torch's own SGD, momentum and AdamW, with torch's
defaults.

What torch's constructors refuse is refused here, where it is written; a device would only notice in
its first step. What they take, and no step on a model's weights can be made with, is refused where
it meets the model.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Any

from potluck.errors import UserError


@dataclass(frozen=True, slots=True)
class AdamW:
    """Adam with decoupled weight decay, as `torch.optim.AdamW`."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        _take_numbers(self, "lr", "eps", "weight_decay")
        betas: Any = self.betas
        given = tuple(betas) if isinstance(betas, tuple | list) else ()
        numbers = tuple(_number("betas", beta) for beta in given)
        if len(numbers) != 2 or not all(0 <= beta < 1 for beta in numbers):
            raise UserError(
                f"betas must be two numbers from 0 to below 1, got {betas!r}.",
                next_step="betas=(0.9, 0.999)",
            )
        object.__setattr__(self, "betas", numbers)

    def to_json(self) -> dict[str, Any]:
        """As programs carry it."""
        return {
            "name": "adamw",
            "lr": self.lr,
            "beta1": self.betas[0],
            "beta2": self.betas[1],
            "eps": self.eps,
            "weight_decay": self.weight_decay,
        }

    def state_names(self, parameter: str) -> tuple[str, ...]:
        """Names of its state for one parameter."""
        return (f"exp_avg:{parameter}", f"exp_avg_sq:{parameter}", f"step:{parameter}")


@dataclass(frozen=True, slots=True)
class SGD:
    """Stochastic gradient descent, with momentum if above zero, as `torch.optim.SGD`."""

    lr: float = 1e-3
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        _take_numbers(self, "lr", "momentum", "weight_decay")
        if not isinstance(self.nesterov, bool):
            raise UserError(f"nesterov must be True or False, got {self.nesterov!r}.")
        if self.nesterov and not self.momentum:
            raise UserError(
                "nesterov needs a momentum above zero.",
                next_step="potluck.SGD(lr, momentum=0.9, nesterov=True)",
            )

    def to_json(self) -> dict[str, Any]:
        """As programs carry it."""
        settings = {"lr": self.lr, "weight_decay": self.weight_decay}
        if not self.momentum:
            return {"name": "sgd"} | settings
        return {"name": "momentum", "momentum": self.momentum, "nesterov": self.nesterov} | settings

    def state_names(self, parameter: str) -> tuple[str, ...]:
        """Names of its state for one parameter."""
        return (f"momentum_buffer:{parameter}",) if self.momentum else ()


Optimizer = AdamW | SGD


def check_optimizer(optimizer: object, dtypes: Iterable[str] = ()) -> None:
    """Raise `UserError` for what is no optimizer of ours, such as one of torch's, or takes no step
    on such weights.

    `dtypes`: those of the weights that it trains. A step is tried: torch raises where a number
    leaves their range.

    Raises
    ------
    UserError
        It is none, or its first step on such weights fails.
    """
    if not isinstance(optimizer, Optimizer):
        raise UserError(
            f"the optimizer is one of potluck's, got {type(optimizer).__name__}.",
            next_step="potluck.AdamW(lr) or potluck.SGD(lr, momentum)",
        )
    for dtype in dtypes:
        try:
            _try_step(optimizer, dtype)
        except RuntimeError as error:
            raise UserError(
                f"{optimizer} takes no step on weights of {dtype}: {str(error).splitlines()[0]}.",
                next_step="Give it smaller numbers.",
            ) from error


def _try_step(optimizer: Optimizer, dtype: str) -> None:
    """One step of torch's own on a weight of that type, the first, whose numbers are the
    largest.
    """
    import torch

    weight = torch.zeros(1, dtype=getattr(torch, dtype), requires_grad=True)
    weight.grad = torch.zeros_like(weight)
    made: torch.optim.Optimizer
    if isinstance(optimizer, AdamW):
        made = torch.optim.AdamW(
            [weight],
            optimizer.lr,
            betas=optimizer.betas,
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
        )
    else:
        made = torch.optim.SGD(
            [weight],
            optimizer.lr,
            momentum=optimizer.momentum,
            weight_decay=optimizer.weight_decay,
            nesterov=optimizer.nesterov,
        )
    made.step()


def read_optimizer(settings: Any) -> Optimizer:
    """The optimizer of a checkpoint: the inverse of `to_json`.

    Raises
    ------
    UserError
        There is no such optimizer.
    """
    if not isinstance(settings, dict):
        raise UserError(f"an optimizer is an object of settings, got {str(settings)[:80]!r}.")
    fields = {key: value for key, value in settings.items() if key != "name"}
    if settings.get("name") == "adamw":
        return AdamW(betas=(fields.pop("beta1"), fields.pop("beta2")), **fields)
    if settings.get("name") in ("sgd", "momentum"):
        return SGD(**fields)
    raise UserError(f"no optimizer is called {settings.get('name')!r}.")


def _take_numbers(optimizer: Optimizer, *settings: str) -> None:
    """Each of these settings as a float of Python's, zero or above."""
    for name in settings:
        given = getattr(optimizer, name)
        number = _number(name, given)
        if not 0 <= number < math.inf:
            raise UserError(f"{name} must be zero or above and finite, got {given}.")
        object.__setattr__(optimizer, name, number)


def _number(what: str, value: Any) -> float:
    """Any number, such as one of numpy's, as a float of Python's."""
    try:
        if isinstance(value, Real) and not isinstance(value, bool):
            return float(value)
    except OverflowError:
        pass
    raise UserError(f"{what} must be a number, got {value!r:.60}.")


def same_state(one: Optimizer | None, other: Optimizer | None) -> bool:
    """Whether two optimizers keep the same kind of state."""
    return one is not None and other is not None and one.state_names("") == other.state_names("")
