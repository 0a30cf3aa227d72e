"""What a Lightning module's training step logs, while devices take the step: its loss."""

import warnings
from typing import Any

import torch
from lightning.pytorch import LightningModule


class StepLogs:
    """Takes the place of `log` and `log_dict` where a step is traced, and logs the losses of the
    steps that devices take in the same way. Of other values only the names are known: devices
    compute them for nobody.
    """

    def __init__(self) -> None:
        self._logged: list[tuple[str, Any, tuple[Any, ...], dict[str, Any]]] = []
        self._of_loss: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self._others: list[str] = []

    def log(self, name: str, value: Any, *args: Any, **settings: Any) -> None:
        """A value of the step that is traced.

        Parameters
        ----------
        name, value, *args, **settings
            As for `LightningModule.log`.
        """
        self._logged.append((name, value, args, settings))

    def log_dict(self, values: Any, *args: Any, **settings: Any) -> None:
        """Several of them.

        Parameters
        ----------
        values, *args, **settings
            As for `LightningModule.log_dict`.
        """
        for name, value in values.items():
            self.log(name, value, *args, **settings)

    def traced(self, loss: Any) -> None:
        """A step was traced.

        Parameters
        ----------
        loss
            What it gave.
        """
        of_loss = [call for call in self._logged if call[1] is loss]
        self._of_loss = [(name, args, settings) for name, _, args, settings in of_loss]
        self._others = [name for name, value, *_ in self._logged if value is not loss]
        self._logged = []

    def warn_of_others(self) -> None:
        """Say once which values are not logged."""
        if self._others:
            warnings.warn(
                "devices compute the training step, and of what it logs only its loss is known "
                f"here: {', '.join(map(repr, self._others))} is left out. Log it where the module "
                "validates, or in a hook.",
                stacklevel=4,
            )

    def repeat(self, module: LightningModule, loss: torch.Tensor, rows: int) -> None:
        """Log the loss of a step.

        Parameters
        ----------
        module
            Whose training step this is.
        loss
            Of the step, [].
        rows
            Of the step: by which losses of an epoch are averaged.
        """
        for name, args, settings in self._of_loss:
            module.log(name, loss, *args, **(settings | {"batch_size": rows}))
