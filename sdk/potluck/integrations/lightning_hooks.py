"""Hooks of Lightning, and questions of a step to its loop, that devices cannot answer."""

from typing import Any, NoReturn

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import LambdaCallback, StochasticWeightAveraging, WeightAveraging
from lightning.pytorch.utilities.model_helpers import is_overridden

from potluck.errors import ModelError, UserError

# what a module reads of its loop, which changes while a step that was traced does not
UNKNOWN = frozenset(
    {"current_epoch", "global_step", "trainer", "fabric", "logger", "loggers", "manual_backward"}
    | {"optimizers", "lr_schedulers", "global_rank", "local_rank", "all_gather"}
)
_ON_GRADIENTS = ("backward", "on_after_backward", "on_before_optimizer_step")
_ON_BATCHES = (
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_zero_grad",
    "on_before_backward",
    "optimizer_step",
    "lr_scheduler_step",
)
_LOOKING = LambdaCallback, StochasticWeightAveraging, WeightAveraging  # Lightning's own


def check_hooks(module: LightningModule, trainer: Trainer) -> None:
    """Refuse hooks on gradients.

    Parameters
    ----------
    module, trainer
        That train.

    Raises
    ------
    UserError
        There is one.
    """
    names = [*_ON_GRADIENTS, "configure_gradient_clipping"]
    for owner, kind in _owners(module, trainer):
        for name in names:
            if hasattr(kind, name) and is_overridden(name, owner, kind):
                raise UserError(
                    f"{type(owner).__name__}.{name} looks at gradients, which are on the devices.",
                    next_step="Limit them by gradient_clip_val=, or scale the loss; their norm is "
                    "in strategy.home_run.history.gradient_norms.",
                )


def looked_at(module: LightningModule, trainer: Trainer, asked: bool | None) -> bool:
    """Whether the module here needs the weights after every step.

    Parameters
    ----------
    module, trainer
        That train.
    asked
        What the user says; None: nothing.
    """
    if asked is not None:
        return asked
    return any(
        hasattr(kind, name) and is_overridden(name, owner, kind)
        for owner, kind in _owners(module, trainer)
        if not _is_lightnings(owner) or isinstance(owner, _LOOKING)
        for name in _ON_BATCHES
    )


def _owners(module: LightningModule, trainer: Trainer) -> list[tuple[Any, type]]:
    callbacks: list[Callback] = vars(trainer)["callbacks"]
    return [(module, LightningModule), *((each, Callback) for each in callbacks)]


def _is_lightnings(owner: Any) -> bool:
    return type(owner).__module__.startswith("lightning.")


class BatchIndex:
    """Stands for the number of a batch while a step is traced: whoever uses it is refused."""


def _used(*_: Any) -> NoReturn:
    raise ModelError(
        "training_step uses batch_idx, which devices do not know: they compute the step as it was "
        "traced, on other batches.",
        next_step="Have the step depend on its batch alone; what is done every so many batches "
        "belongs into on_train_batch_end.",
    )


for _name in ("index", "int", "float", "bool", "hash", "str", "repr", "format", "neg", "abs"):
    setattr(BatchIndex, f"__{_name}__", _used)
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"):
    setattr(BatchIndex, f"__{_name}__", _used)
    setattr(BatchIndex, f"__r{_name}__", _used)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(BatchIndex, f"__{_name}__", _used)
