"""A strategy of Lightning's `Trainer` by which devices of a home take the steps."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.utils import _pytree as pytree

from potluck.errors import UserError
from potluck.graph.model import Model
from potluck.integrations.steps import Choose, Steps, apart, fastest
from potluck.records import QoE

if TYPE_CHECKING:
    from potluck.home import Home
    from potluck.run.run import Run

SUFFIX = ".potluck"  # moments and step of the devices, beside a checkpoint


class HomeStrategy(SingleDeviceStrategy):
    """`Trainer(strategy=HomeStrategy(home), accelerator="cpu")`; the rest stays as it was.

    With the first batch, `training_step` is exported as a model and its loss, measured, planned and
    deployed. So it is a function of its batch, whose tensors have rows first and the same shapes
    every time, but for the number of rows. What it logs but its loss is not seen, and `batch_idx`
    is 0. Optimization is automatic, with one optimizer. Schedulers, clipping, accumulation,
    validation, callbacks and checkpoints are the Trainer's. The module here gets the weights when
    it validates, tests, predicts or is saved, when training ends, or by `fetch_weights()`. Of
    batches that are accumulated, the last one has the loss of their step; those before it have the
    one of the step before.

    Parameters
    ----------
    home
        Its devices take the steps.
    qoe
        Limits of the plan.
    choose
        Takes one of the plans; default: the best.
    **kwargs
        Of `SingleDeviceStrategy`.
    """

    strategy_name = "potluck"

    def __init__(
        self, home: "Home", *, qoe: QoE | None = None, choose: Choose = fastest, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._steps = Steps(home, qoe, choose)
        self._batches: list[dict[str, torch.Tensor]] = []
        self._latest = torch.zeros(())
        self._resume: Path | None = None

    @property
    def home_run(self) -> "Run | None":
        """The run under way, or of the last training: its cockpit, report and history."""
        return self._steps.run

    def fetch_weights(self) -> None:
        """The module here gets the weights of the latest step."""
        assert self.lightning_module is not None
        self._steps.fetch(_TrainingStep(self.lightning_module))

    def on_train_start(self) -> None:
        """A training begins: with a run of its own.

        Raises
        ------
        UserError
            What a home cannot do: manual optimization, several optimizers, another precision.
        """
        super().on_train_start()
        assert self.lightning_module is not None
        if not self.lightning_module.automatic_optimization:
            raise UserError("devices take the steps: optimization is automatic.")
        if len(self.optimizers) != 1:
            raise UserError(f"one optimizer takes the steps, got {len(self.optimizers)}.")
        if self.precision_plugin.precision != "32-true":
            raise UserError(
                f"devices compute in single precision, got {self.precision_plugin.precision}."
            )
        self.precision_plugin = _Clipped()
        self._steps.close()
        self._batches = []

    def on_train_end(self) -> None:
        """The module has the weights; the next training goes on from there."""
        self.fetch_weights()
        self._resume = None
        super().on_train_end()

    def training_step(self, batch: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Take a step, where this batch is the last one of it.

        Parameters
        ----------
        batch
            Tensors, rows first, in tuples, lists and mappings.
        *args, **kwargs
            Not used.

        Returns
        -------
        torch.Tensor
            The loss of the latest step, [].
        """
        module = self.lightning_module
        assert module is not None
        trainer = module.trainer
        self._batches.append(_named(batch))
        if len(self._batches) < trainer.accumulate_grad_batches and not trainer.is_last_batch:
            return self._latest.clone()
        batches, self._batches = self._batches, []
        if self._steps.run is None:
            self._deploy(batch, batches)
        rows = [len(each[ROWS]) for each in batches]
        self._steps.warn_of_rows(rows, trainer.accumulate_grad_batches)
        limit = trainer.gradient_clip_val
        by_value = trainer.gradient_clip_algorithm == "value"
        history = self._steps.take(
            batches,
            self.optimizers[0],
            clip_norm=float(limit) if limit and not by_value else float("inf"),
            clip_value=float(limit) if limit and by_value else float("inf"),
        )
        self._latest = torch.tensor(history.losses[-1])
        return self._latest.clone()

    def _deploy(self, batch: Any, batches: list[dict[str, torch.Tensor]]) -> None:
        module = self.lightning_module
        assert module is not None
        step = _TrainingStep(apart(module, module.trainer), pytree.tree_structure(batch))
        name = type(module).__name__.lower()
        self._steps.deploy(
            Model.from_torch(step, batches[0], loss="loss", name=name),
            batch=sum(len(each[ROWS]) for each in batches),
            optimizer=self.optimizers[0],
            resume=self._resume,
        )

    def backward(self, closure_loss: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Devices went backward already.

        Parameters
        ----------
        closure_loss
            Is given back.
        *args, **kwargs
            Not used.
        """
        return closure_loss

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """As of every strategy, on this machine."""
        self.fetch_weights()
        return super().validation_step(*args, **kwargs)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """As of every strategy, on this machine."""
        self.fetch_weights()
        return super().test_step(*args, **kwargs)

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """As of every strategy, on this machine."""
        self.fetch_weights()
        return super().predict_step(*args, **kwargs)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The weights of the latest step."""
        self.fetch_weights()
        return super().lightning_module_state_dict()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """As of every strategy; what devices keep for the optimizer is written beside it.

        Parameters
        ----------
        checkpoint, filepath, storage_options
            As Lightning has them.
        """
        super().save_checkpoint(checkpoint, filepath, storage_options)
        self._steps.save(Path(f"{filepath}{SUFFIX}"))

    def remove_checkpoint(self, filepath: Any) -> None:
        """Both files."""
        super().remove_checkpoint(filepath)
        Path(f"{filepath}{SUFFIX}").unlink(missing_ok=True)

    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As of every strategy; devices go on with what is beside it.

        Parameters
        ----------
        checkpoint_path, *args, **kwargs
            As Lightning has them.
        """
        self._resume = Path(f"{checkpoint_path}{SUFFIX}")
        loaded: dict[str, Any] = super().load_checkpoint(checkpoint_path, *args, **kwargs)
        return loaded


ROWS = "labels"  # a model has a target: the step computes its loss of its inputs, and ignores it


def _named(batch: Any) -> dict[str, torch.Tensor]:
    """The tensors of a batch, in order.

    Raises
    ------
    UserError
        There is none, or something else.
    """
    leaves = pytree.tree_leaves(batch)
    if not leaves or not all(isinstance(leaf, torch.Tensor) and leaf.dim() for leaf in leaves):
        kinds = ", ".join(type(leaf).__name__ for leaf in leaves)
        raise UserError(
            f"a batch is made of tensors, rows first, got {kinds or 'nothing'}.",
            next_step="What is no tensor belongs into the module.",
        )
    named = {f"input_{i}": leaf.cpu() for i, leaf in enumerate(leaves)}
    return named | {ROWS: torch.zeros(len(leaves[0]))}


class _Clipped(Precision):
    """There are no gradients here: devices clipped theirs."""

    def clip_gradients(self, *args: Any, **kwargs: Any) -> None:
        pass


class _TrainingStep(torch.nn.Module):
    """The training step of a Lightning module, as a module that gives a loss."""

    def __init__(self, module: Any, structure: pytree.TreeSpec | None = None) -> None:
        super().__init__()
        self.module = module
        self._structure = structure

    def forward(self, **leaves: torch.Tensor) -> dict[str, torch.Tensor]:
        if leaves.pop(ROWS, None) is None:  # nobody asks for an answer
            return {"loss": leaves["input_0"] + 0}
        assert self._structure is not None
        batch = pytree.tree_unflatten(list(leaves.values()), self._structure)
        answer = self.module.training_step(batch, 0)
        return {"loss": answer["loss"] if isinstance(answer, dict) else answer}
