"""The optimizers that a device may use: torch's own SGD, SGD with momentum and AdamW, with their state by name."""

import math
from collections.abc import Callable, Mapping
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


class Optimizer:
    """One optimizer over named parameters, chosen at each step; its state outlives a change of rates."""

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        self.parameters = dict(parameters)
        self._name = ""
        self._made: torch.optim.Optimizer | None = None
        self._state: dict[str, dict[str, torch.Tensor]] = {name: {} for name in self.parameters}  # before it is made

    def step(self, options: Mapping[str, Any]) -> None:
        """One step with the parameters' gradients, which are gone afterwards."""
        name, settings = check(options)
        if not self.parameters:
            return
        if self._made is None or name != self._name:
            self._make(name, settings)
        assert self._made is not None
        self._made.param_groups[0].update(settings)
        self._made.step()
        self._made.zero_grad(set_to_none=True)

    def _make(self, name: str, settings: Mapping[str, Any]) -> None:
        """A new optimizer that takes over what state fits it."""
        written = {parameter: self._slots(parameter) for parameter in self.parameters}
        self._name, self._made = name, _KINDS[name](list(self.parameters.values()), **settings)
        for parameter, slots in written.items():
            fitting = {slot: tensor for slot, tensor in slots.items() if slot in _SLOTS[name]}
            if fitting:
                blank = {slot: _blank(slot, self.parameters[parameter]) for slot in _SLOTS[name]}
                self._made.state[self.parameters[parameter]] = blank | fitting

    def _slots(self, parameter: str) -> dict[str, torch.Tensor]:
        if self._made is None:
            return self._state[parameter]
        slots = self._made.state[self.parameters[parameter]]
        return {slot: tensor for slot, tensor in slots.items() if isinstance(tensor, torch.Tensor)}

    def names(self) -> tuple[str, ...]:
        """`SLOT:PARAMETER` of all state there is."""
        return tuple(f"{slot}:{parameter}" for parameter in self.parameters for slot in self._slots(parameter))

    def read(self, name: str) -> torch.Tensor:
        """State by name; zeros where there is none yet."""
        slot, parameter = self._split(name)
        state = self._slots(parameter).get(slot)
        return _blank(slot, self.parameters[parameter]) if state is None else state.detach()

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Set state by name; the shape and type must be its own."""
        slot, parameter = self._split(name)
        blank = _blank(slot, self.parameters[parameter])
        if blank.shape != tensor.shape or blank.dtype is not tensor.dtype:
            raise SegmentError("bad-input", f"{name} is {blank.dtype} {list(blank.shape)}, not {list(tensor.shape)}")
        blank.copy_(tensor)
        if self._made is None:
            self._state[parameter][slot] = blank
            return
        slots = self._made.state[self.parameters[parameter]]
        for missing in _SLOTS[self._name]:
            if slots.get(missing) is None:
                slots[missing] = _blank(missing, self.parameters[parameter])
        slots[slot] = blank

    def _split(self, name: str) -> tuple[str, str]:
        slot, _, parameter = name.partition(":")
        if slot not in SLOTS or parameter not in self.parameters:
            raise SegmentError("bad-input", f"there is no state {name!r} in this segment"[:200])
        return slot, parameter


def _blank(slot: str, parameter: torch.Tensor) -> torch.Tensor:
    return torch.zeros(()) if slot == "step" else torch.zeros_like(parameter, requires_grad=False)


def check(options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """(name, all settings) of an optimizer. Raises SegmentError for an unknown one or a bad setting."""
    name = options.get("name")
    if not isinstance(name, str) or name not in DEFAULTS:
        raise SegmentError("bad-input", f"there is no optimizer {name!r}; there are {sorted(DEFAULTS)}"[:200])
    given = {key: value for key, value in options.items() if key != "name"}
    unknown = sorted(set(given) - set(DEFAULTS[name]))
    if unknown:
        raise SegmentError("bad-input", f"{name} has no setting {unknown[0]!r}"[:200])
    for key, value in given.items():
        if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise SegmentError("bad-input", f"{name}: {key} must be a number that is not negative: {value!r}"[:200])
    settings = {**DEFAULTS[name], **given}
    if name == "adamw":
        settings["betas"] = (settings.pop("beta1"), settings.pop("beta2"))
        if max(settings["betas"]) >= 1:
            raise SegmentError("bad-input", f"adamw: beta1 and beta2 must be below 1: {settings['betas']}")
    return name, settings
