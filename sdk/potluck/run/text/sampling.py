"""How the next token is chosen among the likeliest."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from potluck.errors import UserError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to choose.

    Attributes
    ----------
    temperature
        Of the softmax; 0: the likeliest token.
    top_k
        Among so many of the likeliest; None: among all that the model tells.
    top_p
        Among the fewest whose probabilities add up to this.
    seed
        The same seed chooses the same tokens of the same logits.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in (("temperature", self.temperature), ("top_p", self.top_p)):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise UserError(f"{name} is a number; got {value!r}.", argument=name)
        if not 0.0 <= self.temperature <= sys.float_info.max:  # whole numbers may be larger
            raise UserError(
                f"temperature is a number from 0 on; got {self.temperature!r:.40}.",
                argument="temperature",
            )
        if type(self.seed) is not int or not 0 <= self.seed < 2**63:
            raise UserError(
                f"seed is a whole number from 0 to 2**63 - 1; got {self.seed!r:.40}.",
                argument="seed",
            )
        if self.top_k is not None and (type(self.top_k) is not int or self.top_k < 1):
            raise UserError(
                f"top_k is a whole number from 1 on; got {self.top_k!r}.", argument="top_k"
            )
        if not 0.0 < self.top_p <= 1.0:
            raise UserError(
                f"top_p is above 0 and at most 1; got {self.top_p!r}.", argument="top_p"
            )


def is_ranked(logits: "torch.Tensor") -> bool:
    """Whether these can be the logits of the likeliest tokens, the likeliest first.

    Parameters
    ----------
    logits
        As devices told them, [candidates].
    """
    return bool(logits[0].isfinite()) and bool((logits <= logits[0]).all())


def choose(
    logits: "torch.Tensor",
    numbers: "torch.Tensor",
    sampling: Sampling,
    generator: "torch.Generator",
) -> int:
    """The next token.

    Parameters
    ----------
    logits
        Of the likeliest tokens, the likeliest first, [candidates].
    numbers
        Which tokens these are, [candidates].
    sampling
        How to choose.
    generator
        Of the random numbers; one is drawn for each token.
    """
    import torch

    if sampling.temperature == 0.0:
        return int(numbers[logits == logits[0]].min())  # as argmax has it, of equals the first
    top = logits[: sampling.top_k].double()
    probabilities = torch.softmax((top - top[0]) / float(sampling.temperature), 0)
    before = probabilities.cumsum(0) - probabilities
    probabilities = probabilities * (before < sampling.top_p)
    return int(numbers[torch.multinomial(probabilities, 1, generator=generator)])
