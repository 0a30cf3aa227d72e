"""Lion: the sign of a moving average of gradients (Chen et al., "Symbolic discovery of optimization
algorithms", 2023, algorithm 2).
"""

from collections.abc import Iterable
from typing import Any

import torch


class LionOptimizer(torch.optim.Optimizer):
    """As torch's own optimizers; `exp_avg` is the paper's m."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step with the gradients of now."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        (beta1, beta2), state = group["betas"], self.state[parameter]
        if state.get("exp_avg") is None:
            state["exp_avg"] = torch.zeros_like(parameter)
        average, gradient = state["exp_avg"], parameter.grad
        assert gradient is not None
        direction = (average * beta1).add_(gradient, alpha=1 - beta1).sign_()
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(direction, alpha=-group["lr"])
        average.mul_(beta2).add_(gradient, alpha=1 - beta2)
