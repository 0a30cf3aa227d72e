"""Scores that are weighted means: over several batches they are the sum of all divided by all
weights, which the means of the batches do not tell.
"""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from potluck.graph.loss.batch_reductions import sum_and_weights


class WeightedMeans(TorchFunctionMode):
    """While it is on, notes of each weighted mean of torch's what it is the quotient of."""

    def __init__(self) -> None:
        super().__init__()
        self._found: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """What the function gives."""
        parts = sum_and_weights(func, args, kwargs or {})
        if parts is None:
            return func(*args, **(kwargs or {}))
        mean = parts[0] / parts[1]
        self._found.append((mean, *parts))
        return mean

    def parts_of(self, score: float) -> tuple[float, float] | None:
        """Sum and weights where the score is one of the means; else None."""
        for mean, total, weights in self._found:
            value = mean.item()
            if score == value or (score != score and value != value):
                return total.item(), weights.item()
        return None
