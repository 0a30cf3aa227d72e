"""A strategy of Lightning's `Trainer` by which devices of a home take the steps."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch.utils import _pytree as pytree

from potluck.argument_checks import check_flags
from potluck.errors import PotluckError, UserError
from potluck.graph.model import Model
from potluck.integrations.lightning_hooks import UNKNOWN, BatchIndex, check_hooks, looked_at
from potluck.integrations.lightning_logs import StepLogs
from potluck.integrations.steps import Choose, Steps, fastest
from potluck.integrations.watched_module import WatchedModule
from potluck.records import QoE

if TYPE_CHECKING:
    from potluck.home import Home
    from potluck.run.run import Run

SUFFIX = ".potluck"  # step and draws of the devices, beside a checkpoint


class HomeStrategy(SingleDeviceStrategy):
    """`Trainer(strategy=HomeStrategy(home), accelerator="cpu")`; the rest stays as it was.

    With the first batch, `training_step` is exported as a model and its loss, measured, planned and
    deployed. So it is a function of its batch, whose tensors have rows first and the same shapes
    every time, but for the number of rows. Of what it logs, or gives to hooks, only its loss is
    known, and logged once for each step; a hook that uses another part of what a step gives is
    refused, as are a step that reads `batch_idx`, `current_epoch` or the trainer, a module that is
    changed while it trains, and a hook on gradients. Optimization is automatic, with one optimizer.
    Schedulers, clipping, accumulation, validation, callbacks and checkpoints are the Trainer's. The
    module here gets the weights with the last batch of an epoch, when it validates, tests, predicts
    or is saved, when training ends, or by `fetch_weights()`; after every step, too, where the
    module or a callback that is not Lightning's has a hook on batches, unless
    `weights_each_step=False`. Of batches that are accumulated, the last one has the loss of their
    step; those before it have the one of the step before; a loss that sums rows is refused there.
    Checkpoints hold the optimizer's state, as Lightning's own do: with or without a home one goes
    on from there. When training ends, so does the run.

    Parameters
    ----------
    home
        Its devices take the steps.
    qoe
        Limits of the plan.
    choose
        Takes one of the plans; default: the best.
    weights_each_step
        Whether the module here gets the weights after every step; default: where a hook may look.
    **kwargs
        Of `SingleDeviceStrategy`.
    """

    strategy_name = "potluck"

    def __init__(
        self,
        home: "Home",
        *,
        qoe: QoE | None = None,
        choose: Choose = fastest,
        weights_each_step: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._steps = Steps(home, qoe, choose)
        check_flags(weights_each_step=weights_each_step, or_none=True)
        self._each_step = weights_each_step
        self._is_looked_at = False
        self._paths: tuple[Any, ...] = ()  # of the tensors of a batch, in order
        self._n_ahead = 0  # steps that devices took and the loop has not
        self._settings: Any = None  # of the optimizer, with which they took the latest
        self._is_last = False  # of its epoch, or of all
        self._batches: list[dict[str, torch.Tensor]] = []
        self._latest = torch.zeros(())
        self._logs = StepLogs()
        self._traced: tuple[Model, WatchedModule] | None = None
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
            What a home cannot do: manual optimization, several optimizers, another precision, hooks
            on gradients.
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
        module = self.lightning_module
        check_hooks(module, module.trainer)
        self._is_looked_at = looked_at(module, module.trainer, self._each_step)
        self.precision_plugin = _Clipped()
        self._steps.close()
        self._batches, self._paths = [], ()
        self._traced = None
        self._n_ahead = 0

    def on_train_end(self) -> None:
        """The module has the weights, and the optimizer its state; the run ends."""
        self._check_steps()
        self._end()
        super().on_train_end()

    def teardown(self) -> None:
        """As of every strategy; the run of a training that was broken off ends, too."""
        with suppress(PotluckError):  # what has broken it off is told
            self._end()
        super().teardown()

    def _end(self) -> None:
        self._resume = None
        if self._lightning_module is not None:
            self._steps.end(_TrainingStep(self._lightning_module))

    def optimizer_step(self, *args: Any, **kwargs: Any) -> Any:
        """As of every strategy: the optimizer here has no gradients, and its step counts alone.

        Parameters
        ----------
        *args, **kwargs
            As Lightning has them.

        Raises
        ------
        UserError
            It is one step more, or has other settings than the one that devices took.
        """
        early = self._settings  # where the module called the closure by itself
        result = super().optimizer_step(*args, **kwargs)
        if not self._n_ahead:
            raise UserError(
                "optimizer_step of the module takes more steps than one with its batch, and "
                "devices took one.",
                next_step="Have it call optimizer.step(closure=closure) once.",
            )
        self._n_ahead -= 1
        if (early or self._settings) != _settings(self.optimizers[0]):
            raise UserError(
                "a setting of the optimizer was changed between the closure and its step, and "
                "devices took the step with what it was.",
                next_step="Change it before the closure is called, or after the step.",
            )
        self._settings = None
        if self._is_looked_at or self._is_last:
            self.fetch_weights()
        return result

    def _check_steps(self) -> None:
        """Raise UserError where the loop has left out a step that devices took."""
        if self._n_ahead:
            raise UserError(
                "optimizer_step of the module has left out a step, which devices took with its "
                "batch.",
                next_step="Have it call optimizer.step(closure=closure) each time; leave batches "
                "out in the loader, or by on_train_batch_start.",
            )

    def training_step(self, batch: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Take a step, where this batch is the last one of it.

        Parameters
        ----------
        batch
            Tensors, rows first, in tuples, lists and mappings.
        *args, **kwargs
            Not used.

        Returns
        -------
        dict[str, Any]
            The loss of the latest step, [], and for each other part of what the module's own step
            gives what refuses to be used.
        """
        module = self.lightning_module
        assert module is not None
        trainer = module.trainer
        self._check_steps()
        self._batches.append(self._named(batch))
        self._traced = self._traced or self._trace(batch, self._batches[0], len(args))
        n_begun = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        if n_begun % trainer.accumulate_grad_batches == 1 % trainer.accumulate_grad_batches:
            self._marked().grad = torch.ones_like(self._marked())
        if n_begun % trainer.accumulate_grad_batches and not trainer.is_last_batch:
            return self._logs.given(self._latest)
        batches, self._batches = self._batches, []
        if self._steps.run is None:
            self._deploy(*self._traced, batches)
        rows = [len(each[ROWS]) for each in batches]
        self._steps.check_accumulated(batches, rows, trainer.accumulate_grad_batches)
        limit = trainer.gradient_clip_val
        by_value = trainer.gradient_clip_algorithm == "value"
        history = self._steps.take(
            batches,
            self.optimizers[0],
            clip_norm=float(limit) if limit and not by_value else float("inf"),
            clip_value=float(limit) if limit and by_value else float("inf"),
        )
        self._n_ahead += 1
        self._settings = _settings(self.optimizers[0])
        self._is_last = trainer.is_last_batch or 0 < trainer.max_steps <= trainer.global_step + 1
        self._latest = torch.tensor(history.losses[-1])
        self._logs.repeat(module, self._latest.clone(), sum(rows))
        return self._logs.given(self._latest)

    def _trace(
        self, batch: Any, named: dict[str, torch.Tensor], n_more: int
    ) -> tuple[Model, WatchedModule]:
        """The training step as a model, and the module whose step it is."""
        module = self.lightning_module
        assert module is not None
        watched = WatchedModule(module, module.trainer, step="training_step", unknown=UNKNOWN)
        self._logs = StepLogs()
        for name in _COMPILED if module._compiler_ctx is not None else ():
            del vars(watched.copy)[name]  # the class has it as it was written
        for part in watched.copy.modules():
            if isinstance(part, LightningModule):
                vars(part).update(log=self._logs.log, log_dict=self._logs.log_dict)
        structure, kind = pytree.tree_structure(_plain(batch)), _kind_of(batch)
        model = Model.from_torch(
            _TrainingStep(watched.copy, structure, n_more, kind, self._logs),
            named,
            loss="loss",
            name=type(module).__name__.lower(),
        )
        watched.begin()
        return model, watched

    def _deploy(
        self, model: Model, watched: WatchedModule, batches: list[dict[str, torch.Tensor]]
    ) -> None:
        self._steps.deploy(
            model,
            watched,
            batch=sum(len(each[ROWS]) for each in batches),
            optimizer=self.optimizers[0],
            resume=self._resume,
        )
        self._logs.warn_of_others()

    def _named(self, batch: Any) -> dict[str, torch.Tensor]:
        """The tensors of a batch, by their places in the first one.

        Raises
        ------
        UserError
            There is none, or something else; or they have other places.
        """
        found = dict(pytree.tree_flatten_with_path(_plain(batch))[0])
        if not found or not all(isinstance(x, torch.Tensor) and x.dim() for x in found.values()):
            kinds = ", ".join(type(leaf).__name__ for leaf in found.values())
            raise UserError(
                f"a batch is made of tensors, rows first, got {kinds or 'nothing'}.",
                next_step="What is no tensor belongs into the module.",
            )
        self._paths = self._paths or tuple(found)
        if odd := sorted(pytree.keystr(path) for path in {*found} ^ {*self._paths}):
            raise UserError(
                f"a batch has other parts than the first one: batch{odd[0]} is in one of them.",
                next_step="Have every batch made alike.",
            )
        named = {f"input_{i}": found[path].cpu() for i, path in enumerate(self._paths)}
        return named | {ROWS: torch.zeros(len(named["input_0"]))}

    def backward(self, closure_loss: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Devices went backward already.

        Parameters
        ----------
        closure_loss
            Is given back.
        *args, **kwargs
            Not used.

        Raises
        ------
        UserError
            The module keeps the gradients of the step before.
        """
        assert self.lightning_module is not None
        gradient, self._marked().grad = self._marked().grad, None
        if gradient is not None and gradient.any():
            raise UserError(
                "optimizer_zero_grad of the module keeps gradients, and devices begin each step "
                "without.",
                next_step="Have it call optimizer.zero_grad() each time; to add up gradients of "
                "several batches there is accumulate_grad_batches=.",
            )
        self.precision_plugin.pre_backward(closure_loss, self.lightning_module)
        return closure_loss

    def _marked(self) -> torch.nn.Parameter:
        """One whose gradient says whether the loop begins its step without any."""
        parameter: torch.nn.Parameter = self.optimizers[0].param_groups[0]["params"][0]
        return parameter

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
        """As of every strategy; by what is written beside it, devices go on with their draws.

        Parameters
        ----------
        checkpoint, filepath, storage_options
            As Lightning has them.
        """
        super().save_checkpoint(checkpoint, filepath, storage_options)
        if "optimizer_states" in checkpoint:  # not of weights alone
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
        assert self.lightning_module is not None
        if self.lightning_module.trainer.state.fn == TrainerFn.FITTING:  # to test goes not on
            self._resume = Path(f"{Path(checkpoint_path).resolve()}{SUFFIX}")
        loaded: dict[str, Any] = super().load_checkpoint(checkpoint_path, *args, **kwargs)
        return loaded


_COMPILED = ("forward", "training_step", "validation_step", "test_step", "predict_step")
ROWS = "labels"  # a model has a target: the step computes its loss of its inputs, and ignores it


def _settings(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Of each group, but for its weights."""
    return [
        {
            name: value.tolist() if isinstance(value, torch.Tensor) else value
            for name, value in group.items()
            if name != "params"
        }
        for group in optimizer.param_groups
    ]


def _kind_of(batch: Any) -> Any:
    """What a mapping is that torch does not look into, such as a tokenizer's; else None."""
    is_unknown = isinstance(batch, Mapping) and pytree.tree_structure(batch).is_leaf()
    return type(batch) if is_unknown else None


def _plain(batch: Any) -> Any:
    """A batch as torch looks into it."""
    return dict(batch) if _kind_of(batch) is not None else batch


class _Clipped(Precision):
    """There are no gradients here: devices clipped theirs."""

    def clip_gradients(self, *args: Any, **kwargs: Any) -> None:
        pass


class _TrainingStep(torch.nn.Module):
    """The training step of a Lightning module, as a module that gives a loss."""

    def __init__(
        self,
        module: Any,
        structure: pytree.TreeSpec | None = None,
        n_more: int = 0,
        kind: Any = None,
        logs: StepLogs | None = None,
    ) -> None:
        super().__init__()
        self.module, self._logs = module, logs
        self._structure, self._n_more = structure, n_more
        self._kind = kind

    def forward(self, **leaves: torch.Tensor) -> dict[str, torch.Tensor]:
        if leaves.pop(ROWS, None) is None:  # nobody asks for an answer
            return {"loss": leaves["input_0"] + 0}
        assert self._structure is not None
        batch = pytree.tree_unflatten(list(leaves.values()), self._structure)
        batch = batch if self._kind is None else self._kind(batch)
        answer = self.module.training_step(batch, *(BatchIndex() for _ in range(self._n_more)))
        assert self._logs is not None
        return {"loss": self._logs.traced(answer)}
