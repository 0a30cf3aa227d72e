"""The optimizers that a device may use: torch's own SGD, SGD with momentum and AdamW, with their
state by name.

torch's AdamW makes two temporary tensors of the size of a parameter. So a large one is updated in
pieces, each a parameter to torch: the arithmetic is by elements, so that the result is the same,
and a step takes hardly more memory than its state.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from potluck_wire.graph import SegmentError

# what may be set -> the value where it is not, as in torch; "name" chooses the optimizer
DEFAULTS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 1e-3, "weight_decay": 0.0},
    "momentum": {"lr": 1e-3, "momentum": 0.9, "weight_decay": 0.0, "nesterov": False},
    "adamw": {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01},
}
_KINDS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": torch.optim.SGD,
    "adamw": torch.optim.AdamW,
}
_SLOTS: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("momentum_buffer",),
    "adamw": ("step", "exp_avg", "exp_avg_sq"),
}
SLOTS = frozenset(slot for slots in _SLOTS.values() for slot in slots)


PIECE_NUMBERS = 1 << 20  # a few MiB, and a multiple of what processors take at once


class Optimizer:
    """One optimizer over named parameters, chosen at each step.

    Its state outlives a change of rates.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        self.parameters = dict(parameters)
        self._pieces = {name: _pieces(parameter) for name, parameter in self.parameters.items()}
        self._name = ""
        self._made: torch.optim.Optimizer | None = None
        # before it is made
        self._state: dict[str, dict[str, torch.Tensor]] = {name: {} for name in self.parameters}

    def step(self, options: Mapping[str, Any]) -> None:
        """One step with the parameters' gradients, which are gone afterwards."""
        name, settings = check(options)
        if not self.parameters:
            return
        if self._made is None or name != self._name:
            self._make(name, settings)
        assert self._made is not None
        for parameter, pieces in self._pieces.items():
            self._hand_gradient(parameter, pieces)
        self._made.param_groups[0].update(settings)
        self._made.step()
        self._made.zero_grad(set_to_none=True)

    def _hand_gradient(self, name: str, pieces: Sequence[torch.Tensor]) -> None:
        parameter = self.parameters[name]
        if len(pieces) > 1 and parameter.grad is not None:
            for piece, part in zip(pieces, _split(parameter.grad), strict=True):
                piece.grad = part
            parameter.grad = None

    def _make(self, name: str, settings: Mapping[str, Any]) -> None:
        """A new optimizer that takes over what state fits it."""
        written = {
            (parameter, slot): self._slot(parameter, slot)
            for parameter in self.parameters
            for slot in self._present(parameter)
            if slot in _SLOTS[name]
        }
        pieces = [piece for pieces in self._pieces.values() for piece in pieces]
        self._name, self._made = name, _KINDS[name](pieces, **settings)
        self._state.clear()
        for (parameter, slot), tensor in written.items():
            self._set(parameter, slot, tensor)

    def _present(self, parameter: str) -> tuple[str, ...]:
        """The slots that have something in them."""
        if self._made is None:
            return tuple(self._state[parameter])
        held = self._made.state[self._pieces[parameter][0]]
        return tuple(slot for slot, tensor in held.items() if isinstance(tensor, torch.Tensor))

    def _slot(self, parameter: str, slot: str) -> torch.Tensor:
        """What is in a slot; all pieces have made as many steps."""
        if self._made is None:
            return self._state[parameter][slot]
        parts = [self._made.state[piece][slot] for piece in self._pieces[parameter]]
        return (
            parts[0]
            if slot == "step" or len(parts) == 1
            else torch.cat(parts).view_as(self.parameters[parameter])
        )

    def _set(self, parameter: str, slot: str, tensor: torch.Tensor) -> None:
        """Overwrite a slot of the optimizer that is made.

        Slots that are not there yet become blank.
        """
        assert self._made is not None
        parts = (
            [tensor.clone() for _ in self._pieces[parameter]] if slot == "step" else _split(tensor)
        )
        for piece, part in zip(self._pieces[parameter], parts, strict=True):
            state = self._made.state[piece]
            for missing in _SLOTS[self._name]:
                if state.get(missing) is None:
                    state[missing] = _blank(missing, piece)
            state[slot] = part.view_as(state[slot])

    def names(self) -> tuple[str, ...]:
        """`SLOT:PARAMETER` of all state there is."""
        return tuple(
            f"{slot}:{parameter}"
            for parameter in self.parameters
            for slot in self._present(parameter)
        )

    def read(self, name: str) -> torch.Tensor:
        """State by name; zeros where there is none yet."""
        slot, parameter = self._part(name)
        if slot not in self._present(parameter):
            return _blank(slot, self.parameters[parameter])
        return self._slot(parameter, slot).detach()

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Set state by name; the shape and type must be its own."""
        slot, parameter = self._part(name)
        blank = _blank(slot, self.parameters[parameter])
        if blank.shape != tensor.shape or blank.dtype is not tensor.dtype:
            raise SegmentError(
                "bad-input",
                f"{name} is {blank.dtype} {list(blank.shape)}, not {list(tensor.shape)}",
            )
        blank.copy_(tensor)
        if self._made is None:
            self._state[parameter][slot] = blank
        else:
            self._set(parameter, slot, blank)

    def _part(self, name: str) -> tuple[str, str]:
        slot, _, parameter = name.partition(":")
        if slot not in SLOTS or parameter not in self.parameters:
            raise SegmentError("bad-input", f"there is no state {name!r} in this segment"[:200])
        return slot, parameter


def _pieces(parameter: torch.Tensor) -> Sequence[torch.Tensor]:
    """What torch updates: the parameter itself, or where it is large views of its parts."""
    return (parameter,) if parameter.numel() <= PIECE_NUMBERS else _split(parameter.detach())


def _split(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    return (
        torch.split(tensor.reshape(-1), PIECE_NUMBERS)
        if tensor.numel() > PIECE_NUMBERS
        else (tensor,)
    )


def _blank(slot: str, parameter: torch.Tensor) -> torch.Tensor:
    return torch.zeros(()) if slot == "step" else torch.zeros_like(parameter, requires_grad=False)


def check(options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """(name, all settings) of an optimizer.

    Raises SegmentError for an unknown one or a bad setting.
    """
    name = options.get("name")
    if not isinstance(name, str) or name not in DEFAULTS:
        raise SegmentError(
            "bad-input", f"there is no optimizer {name!r}; there are {sorted(DEFAULTS)}"[:200]
        )
    given = {key: value for key, value in options.items() if key != "name"}
    unknown = sorted(set(given) - set(DEFAULTS[name]))
    if unknown:
        raise SegmentError("bad-input", f"{name} has no setting {unknown[0]!r}"[:200])
    for key, value in given.items():
        if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise SegmentError(
                "bad-input", f"{name}: {key} must be a number that is not negative: {value!r}"[:200]
            )
    settings = {**DEFAULTS[name], **given}
    if name == "adamw":
        settings["betas"] = (settings.pop("beta1"), settings.pop("beta2"))
        if max(settings["betas"]) >= 1:
            raise SegmentError(
                "bad-input", f"adamw: beta1 and beta2 must be below 1: {settings['betas']}"
            )
    return name, settings
