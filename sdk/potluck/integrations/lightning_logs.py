"""What a Lightning module's training step logs and gives to hooks, while devices take the step: its
loss.
"""

import warnings
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from lightning.pytorch import LightningModule

from potluck.errors import UserError


class StepLogs:
    """Takes the place of `log` and `log_dict` where a step is traced, and logs the losses of the
    steps that devices take in the same way. Of other values only the names are known: devices
    compute them for nobody.
    """

    def __init__(self) -> None:
        self._logged: list[tuple[str, Any, tuple[Any, ...], dict[str, Any]]] = []
        self._of_loss: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self._others: list[str] = []
        self._given: dict[Any, bool] = {}

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

    def traced(self, answer: Any) -> Any:
        """A step was traced.

        Parameters
        ----------
        answer
            What it gave: a loss, [], or a mapping with one.

        Returns
        -------
        Any
            The loss.
        """
        parts = answer if isinstance(answer, Mapping) else {"loss": answer}
        loss = parts["loss"]
        self._given = {name: value is loss for name, value in parts.items()}
        of_loss = [call for call in self._logged if call[1] is loss]
        self._of_loss = [(name, args, settings) for name, _, args, settings in of_loss]
        self._others = [name for name, value, *_ in self._logged if value is not loss]
        self._logged = []
        return loss

    def given(self, loss: torch.Tensor) -> dict[Any, Any]:
        """What a step that devices took gives to hooks: what it gave when it was traced.

        Parameters
        ----------
        loss
            Of the step, [].
        """
        return {
            name: loss.clone() if is_loss else OnDevices(name)
            for name, is_loss in self._given.items()
        }

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


class OnDevices:
    """Stands for what a step gives beside its loss: whoever uses it is refused.

    Parameters
    ----------
    name
        Of the part of the step's answer.
    """

    def __init__(self, name: Any) -> None:
        vars(self)["name"] = name

    def __repr__(self) -> str:
        return f"<{vars(self)['name']!r} of a step on devices: not known here>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    def _refuse(self, *_: Any) -> NoReturn:
        _refuse_part(vars(self)["name"])

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        parts = torch.utils._pytree.tree_leaves((args, kwargs))
        _refuse_part(next(vars(part)["name"] for part in parts if isinstance(part, cls)))


def _refuse_part(name: Any) -> NoReturn:
    raise UserError(
        f"a hook looks at {name!r} of what training_step gives, and devices compute that for "
        "nobody: of their steps the loss alone is known here.",
        next_step="Compute it in the hook, from its batch: the module has the weights of the step "
        "there.",
    )


for _name in ("index", "int", "float", "bool", "complex", "len", "iter", "getitem", "array", "neg"):
    setattr(OnDevices, f"__{_name}__", OnDevices._refuse)
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or"):
    setattr(OnDevices, f"__{_name}__", OnDevices._refuse)
    setattr(OnDevices, f"__r{_name}__", OnDevices._refuse)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(OnDevices, f"__{_name}__", OnDevices._refuse)
