"""The optimizers that a device may use: torch's own, and Lion, with their state by name.

torch's AdamW makes two temporary tensors of the size of a parameter. So a large one is updated in
pieces, each a parameter to torch: the arithmetic is by elements, so that the result is the same,
and a step takes hardly more memory than its state. (Adafactor looks at whole matrices.)

Moments in bfloat16 are widened for the step of a few pieces at a time, and rounded after it.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from potluck_wire import optimizers as known
from potluck_wire.errors import WireError
from potluck_wire.graph import SegmentError
from potluck_wire.optimizers import AVERAGE, HALVED, HALVES, KINDS, SCALARS, SLOTS

from . import available_memory
from .lion import LionOptimizer

Group = tuple[Sequence[str], Mapping[str, Any]]  # names of parameters, and their own settings

PIECE_NUMBERS = 1 << 20  # a few MiB, and a multiple of what processors take at once


class ParameterOptimizer:
    """One optimizer over named parameters, chosen at each step.

    Its state outlives a change of rates and groups.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        self.parameters = dict(parameters)
        self._pieces: dict[str, Sequence[torch.Tensor]] = {}
        self._name = ""
        self._made: torch.optim.Optimizer | None = None
        self._groups: list[list[str]] = []
        self._halves = False  # whether moments are in bfloat16
        self._slots: dict[str, tuple[str, ...]] = {}  # of each parameter
        # before it is made
        self._state: dict[str, dict[str, torch.Tensor]] = {name: {} for name in self.parameters}
        self._averages: dict[str, torch.Tensor] = {}  # of the weights, where they are wanted

    def step(
        self, options: Mapping[str, Any], groups: Sequence[Group] = (), average: float | None = None
    ) -> None:
        """One step with the parameters' gradients, which are gone afterwards.

        `groups` have their own settings; each parameter is in one of them, where there are any.
        `average`: the decay of a moving average of the weights.
        """
        name, all_groups = _settings(options, groups, self.parameters)
        if not self.parameters:
            return
        if average is not None:
            self._begin_average()
        names = [[*members] for members, _ in all_groups]
        halves = any(settings.get(HALVES) for _, settings in all_groups)
        if self._made is None or (name, names, halves) != (self._name, self._groups, self._halves):
            self._halves = halves
            self._make(name, all_groups)
        assert self._made is not None
        for parameter, pieces in self._pieces.items():
            self._hand_gradient(parameter, pieces)
        filled = [settings for members, settings in all_groups if members]
        for group, settings in zip(self._made.param_groups, filled, strict=True):
            group.update(_arguments(name, settings))
        if halves:
            self._step_in_turns(self._made)
        else:
            self._made.step()
        self._made.zero_grad(set_to_none=True)
        if average is not None:
            self._average(average)

    def _step_in_turns(self, optimizer: torch.optim.Optimizer) -> None:
        """A step of some pieces at a time, whose moments are as wide as the weights meanwhile."""
        members = [group["params"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["params"] = []
        try:
            for group, pieces in zip(optimizer.param_groups, members, strict=True):
                for some in _together(pieces):
                    group["params"] = some
                    self._retype(some, lambda piece: piece.dtype)
                    optimizer.step()
                    self._retype(some, lambda piece: torch.bfloat16)
                group["params"] = []
        finally:
            for group, pieces in zip(optimizer.param_groups, members, strict=True):
                group["params"] = pieces

    def _retype(
        self, pieces: Sequence[torch.Tensor], dtype: Callable[[torch.Tensor], torch.dtype]
    ) -> None:
        assert self._made is not None
        for piece in pieces:
            state = self._made.state[piece]
            for slot in HALVED.intersection(state):
                state[slot] = state[slot].to(dtype(piece))

    def go_over(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """From now on the parameters are these tensors, with the values of those before.

        State and averages stay.
        """
        if self._made is not None:
            before = [piece for pieces in self._pieces.values() for piece in pieces]
            self._pieces = {
                name: (parameters[name],) if len(pieces) == 1 else _pieces(parameters[name])
                for name, pieces in self._pieces.items()
            }
            after = [piece for pieces in self._pieces.values() for piece in pieces]
            pairs = [*zip(before, after, strict=True)]
            place = {id(old): new for old, new in pairs}
            for group in self._made.param_groups:
                group["params"] = [place[id(old)] for old in group["params"]]
            for old, new in pairs:
                if old in self._made.state:
                    self._made.state[new] = self._made.state.pop(old)
        self.parameters = dict(parameters)

    def leave_out(self, average: float | None = None) -> None:
        """No step: gradients are gone, and weights stay; `average` as of `step`."""
        for parameter in self.parameters.values():
            parameter.grad = None
        if average is not None:
            self._begin_average()
            self._average(average)

    def _hand_gradient(self, name: str, pieces: Sequence[torch.Tensor]) -> None:
        parameter = self.parameters[name]
        if len(pieces) > 1 and parameter.grad is not None:
            for piece, part in zip(pieces, _split(parameter.grad), strict=True):
                piece.grad = part
            parameter.grad = None

    def _make(self, name: str, all_groups: Sequence[Group]) -> None:
        """A new optimizer that takes over what state fits it."""
        self._slots = {
            parameter: tuple(known.slots(name, settings, tuple(self.parameters[parameter].shape)))
            for members, settings in all_groups
            for parameter in members
        }
        written = {
            (parameter, slot): self._slot(parameter, slot)
            for parameter in self.parameters
            for slot in self._present(parameter)
            if slot in self._slots[parameter]
        }
        is_factored = KINDS[name].factored
        self._pieces = {n: (p,) if is_factored else _pieces(p) for n, p in self.parameters.items()}
        groups = [
            {"params": [piece for n in members for piece in self._pieces[n]]}
            | _arguments(name, settings)
            for members, settings in all_groups
            if members
        ]
        self._groups = [[*members] for members, _ in all_groups]
        self._name, self._made = name, _class(name)(groups)
        for state in self._state.values():
            state.clear()
        for (parameter, slot), tensor in written.items():
            self._set(parameter, slot, tensor)

    def _present(self, parameter: str) -> tuple[str, ...]:
        """The slots that have something in them, but for the average."""
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
            if slot in SCALARS or len(parts) == 1
            else torch.cat(parts).view_as(self.parameters[parameter])
        )

    def _set(self, parameter: str, slot: str, tensor: torch.Tensor) -> None:
        """Overwrite a slot of the optimizer that is made.

        Slots that are not there yet become blank.
        """
        assert self._made is not None
        pieces = self._pieces[parameter]
        parts = [tensor] if len(pieces) == 1 else _split(tensor)
        if slot in SCALARS:
            parts = [tensor.clone() for _ in pieces]
        for piece, part in zip(pieces, parts, strict=True):
            state = self._made.state[piece]
            for missing in self._slots[parameter]:
                if state.get(missing) is None:
                    state[missing] = self._blank(missing, piece)
            blank = self._blank(slot, piece)
            state[slot] = part.view_as(blank).to(blank.dtype)

    # --- a moving average of the weights ----------------------------------------------------------

    def _begin_average(self) -> None:
        """It begins at the weights of now."""
        for name, parameter in self.parameters.items():
            if name not in self._averages:
                self._averages[name] = parameter.detach().clone()

    def _average(self, decay: float) -> None:
        for name, parameter in self.parameters.items():
            self._averages[name].lerp_(parameter.detach(), 1 - decay)

    # --- state by name ----------------------------------------------------------------------------

    def names(self) -> tuple[str, ...]:
        """`SLOT:PARAMETER` of all state there is."""
        return tuple(
            f"{slot}:{parameter}"
            for parameter in self.parameters
            for slot in (*self._present(parameter), *[AVERAGE] * (parameter in self._averages))
        )

    def read(self, name: str) -> torch.Tensor:
        """State by name; where there is none yet, that of an optimizer without a step."""
        slot, parameter = self._part(name)
        if slot == AVERAGE:
            return self._averages.get(parameter, self.parameters[parameter]).detach()
        if slot not in self._present(parameter):
            return self._blank(slot, self.parameters[parameter])
        return self._slot(parameter, slot).detach()

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Set state by name; the shape and type must be its own. Before the first step nobody knows
        whether moments are in bfloat16.
        """
        slot, parameter = self._part(name)
        blank = self._blank(slot, self.parameters[parameter])
        if self._made is None and slot in HALVED and tensor.dtype is torch.bfloat16:
            blank = blank.to(torch.bfloat16)
        if blank.shape != tensor.shape or blank.dtype is not tensor.dtype:
            raise SegmentError(
                "bad-input",
                f"{name} is {blank.dtype} {list(blank.shape)}, not {list(tensor.shape)}",
            )
        blank.copy_(tensor)
        if slot == AVERAGE:
            self._averages[parameter] = blank
        elif self._made is None:
            self._state[parameter][slot] = blank
        else:
            self._set(parameter, slot, blank)

    def _blank(self, slot: str, parameter: torch.Tensor) -> torch.Tensor:
        """A slot before the first step."""
        blank = _blank(slot, parameter)
        return blank.to(torch.bfloat16) if self._halves and slot in HALVED else blank

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


def _together(pieces: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """In their order, as many as have no more numbers than a large piece; one at least."""
    some, n = list[torch.Tensor](), 0
    for piece in pieces:
        if some and n + piece.numel() > PIECE_NUMBERS:
            yield some
            some, n = [], 0
        some.append(piece)
        n += piece.numel()
    if some:
        yield some


def _blank(slot: str, parameter: torch.Tensor) -> torch.Tensor:
    """A slot before the first step, as wide as the parameter."""
    if slot in SCALARS:
        return torch.ones(()) if slot == "mu_product" else torch.zeros(())
    shape = known.slot_shape(slot, tuple(parameter.shape))
    # a program may name one slot thousands of times
    available_memory.require(math.prod(shape) * parameter.element_size(), slot)
    if shape == tuple(parameter.shape):
        return torch.zeros_like(parameter, requires_grad=False)
    return torch.zeros(shape, dtype=parameter.dtype, device=parameter.device)


def _settings(
    options: Mapping[str, Any], groups: Sequence[Group], parameters: Mapping[str, torch.Tensor]
) -> tuple[str, list[Group]]:
    """The optimizer's name, and all settings of each group."""
    try:
        name, _ = known.check(options)
        if not groups:
            return name, [([*parameters], known.check(options)[1])]
        all_groups: list[Group] = [
            (names, known.check({**options, **settings})[1]) for names, settings in groups
        ]
    except WireError as error:
        raise SegmentError("bad-input", error.text[:200]) from error
    members = [name for names, _ in all_groups for name in names]
    if sorted(members) != sorted(parameters):
        odd = sorted(set(members) ^ set(parameters)) or members
        raise SegmentError(
            "bad-input", f"{odd[0]!r} is not in one group of parameters, and in one only"[:200]
        )
    return name, all_groups


def _class(name: str) -> Callable[..., torch.optim.Optimizer]:
    theirs = KINDS[name].torch
    made: Callable[..., torch.optim.Optimizer] = (
        getattr(torch.optim, theirs) if theirs else LionOptimizer
    )
    return made


def _arguments(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as torch takes them."""
    given = {
        key: bool(value) if isinstance(KINDS[name].settings[key], bool) else value
        for key, value in settings.items()
        if key != HALVES
    }
    for pair, first, second in (("betas", "beta1", "beta2"), ("eps", "eps1", "eps2")):
        if first in given:
            given[pair] = (given.pop(first), given.pop(second))
    return given
