"""What the optimizer's steps of a plan's stages are told, beside their gradients. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isinf
from typing import Any

RATES = "optimizer.rates"  # what home feeds of settings that change from step to step
RATE_BYTES = 8


def named_in_step(name: str, number: int | None) -> str:
    """What the value of one step is called in a program that has several.

    >>> named_in_step("grad0", 3), named_in_step("grad0", None)
    ('grad0.3', 'grad0')

    Parameters
    ----------
    name
        Of the value.
    number
        Of the step, from 0; None where there is one alone.
    """
    return name if number is None else f"{name}.{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NormLimit:
    """The norm of the gradients of all stages together is `max_norm` at the most; `order` 2 is
    Euclid's.

    `parameters`: per stage, in the order of its gradients; `sequence`: all of them, in the order in
    which their norms are looked at.
    """

    max_norm: float
    order: float
    parameters: tuple[tuple[str, ...], ...]
    sequence: tuple[str, ...]

    @property
    def carried_order(self) -> float | str:
        """As programs carry it."""
        return "inf" if isinf(self.order) else self.order

    def places(self, stages: Sequence[int]) -> list[int]:
        """Where each norm of the sequence is among those of these stages, one stage after the
        other.
        """
        place: dict[str, int] = {}  # of a parameter that several stages hold, one counts
        for i, name in enumerate(name for p in stages for name in self.parameters[p]):
            place.setdefault(name, i)
        first = [place.pop(name) for name in self.sequence if name in place]
        return [*first, *sorted(place.values())]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepUpdate:
    """Per stage the attributes of its `step`; the limit of all gradients; how many settings come
    with each step (`RATES`). `scaled`: gradients are those of a loss that was multiplied.
    """

    attributes: tuple[Mapping[str, Any], ...]
    limit: NormLimit | None = None
    n_rates: int = 0
    scaled: bool = False


def alike(optimizer: Mapping[str, Any], n_stages: int) -> StepUpdate:
    """One optimizer for all stages, and nothing else.

    Parameters
    ----------
    optimizer
        As programs carry it.
    n_stages
        Of the plan.
    """
    return StepUpdate(attributes=({"optimizer": dict(optimizer)},) * n_stages)
