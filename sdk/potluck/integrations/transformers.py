"""`transformers.Trainer`, whose steps devices of a home take."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from potluck.argument_checks import check_flags
from potluck.errors import UserError
from potluck.graph.model import Model
from potluck.graph.torch.own_loss import OwnLoss
from potluck.graph.torch.statefulness import spared
from potluck.graph.torch.training_modes import modes_of
from potluck.integrations.steps import RUN_FILE, Choose, Steps, fastest
from potluck.integrations.watched_module import WatchedModule
from potluck.records import QoE

if TYPE_CHECKING:
    from potluck.home import Home
    from potluck.run.run import Run


class HomeTrainer(Trainer):  # type: ignore[misc] # transformers' is not typed
    """A `Trainer`: with a home, and otherwise as it was.

    The first batch says what the model's inputs are like: it is exported, measured, planned and
    deployed then. Every batch has the same shapes, but for its rows. The model computes its loss
    itself (`labels` among its inputs), as a mean over what it counts in all rows of a step. The
    Trainer may count otherwise: of a causal model whose `loss_type` it does not know, every first
    token, too. Rates, clipping, accumulation, evaluation, callbacks and checkpoints are the
    Trainer's. The model here gets the weights when it is evaluated or saved, when training ends, or
    by `fetch_weights()`; after every step where a callback that is not transformers' own has a hook
    in the training, unless `weights_each_step=False`. Norms of gradients are logged where
    `max_grad_norm` limits them. A callback that looks at gradients is
    refused, as is a model that is changed while it trains. Checkpoints hold the optimizer's state,
    as a Trainer's own do: with or without a home one goes on from there.

    Parameters
    ----------
    home
        Its devices take the steps.
    qoe
        Limits of the plan.
    choose
        Takes one of the plans; default: the best.
    weights_each_step
        Whether the model here gets the weights after every step; default: where a hook may look.
    *args, **kwargs
        Of `transformers.Trainer`.

    Raises
    ------
    UserError
        What the Trainer is to compute itself in a step (a loss of its own, autocast).
        With the first step: the Trainer alone would add up the losses of its batches.
    """

    def __init__(
        self,
        *args: Any,
        home: "Home",
        qoe: QoE | None = None,
        choose: Choose = fastest,
        weights_each_step: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._check()
        check_flags(weights_each_step=weights_each_step, or_none=True)
        self._each_step = weights_each_step
        self._steps = Steps(home, qoe, choose)
        self._batches: list[Any] = []
        self._resume: Path | None = None
        self._norm: float | None = None  # of the gradients, where they are limited

    def _check(self) -> None:
        refused = {
            "compute_loss": type(self).compute_loss is not Trainer.compute_loss,
            "compute_loss_func": self.compute_loss_func is not None,
            "label_smoothing_factor": bool(self.args.label_smoothing_factor),
            "fp16": self.args.fp16,
            "bf16": self.args.bf16,
        }
        for name, is_set in refused.items():
            if is_set:
                raise UserError(
                    f"devices take the whole step: the Trainer's {name} is not used.",
                    next_step="Have the model's forward compute its loss from labels.",
                )

    def _check_callbacks(self) -> None:
        for callback in self._own_callbacks():
            if _has(callback, "on_pre_optimizer_step"):
                raise UserError(
                    f"{type(callback).__name__}.on_pre_optimizer_step looks at gradients, which "
                    "are on the devices.",
                    next_step="Limit them by max_grad_norm; their norm is in "
                    "trainer.home_run.history.gradient_norms.",
                )

    def _own_callbacks(self) -> list[TrainerCallback]:
        """Those of the user."""
        return [
            each
            for each in self.callback_handler.callbacks
            if not type(each).__module__.startswith("transformers.")
        ]

    def _is_looked_at(self) -> bool:
        """Whether the model here needs the weights after every step."""
        if self._each_step is not None:
            return self._each_step
        return any(_has(each, name) for each in self._own_callbacks() for name in _IN_TRAINING)

    @property
    def home_run(self) -> "Run | None":
        """The run under way, or of the last training: its cockpit, report and history."""
        return self._steps.run

    def fetch_weights(self) -> None:
        """The model here gets the weights of the latest step."""
        self._steps.fetch(self.model)

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """As `Trainer.train`; afterwards the model has the weights, and the optimizer its state.

        Parameters
        ----------
        resume_from_checkpoint
            A checkpoint's folder, or True for the latest one.
        **kwargs
            Of `Trainer.train`.
        """
        found = resume_from_checkpoint
        if found is True:
            found = get_last_checkpoint(self.args.output_dir)
        self._resume = Path(found) / RUN_FILE if found else None
        self._check_callbacks()
        self._steps.close()
        self._batches = []
        result = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        self._steps.end(self.model)
        return result

    def training_step(
        self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """The last batch of a step takes it, and has the loss of all its batches.

        Parameters
        ----------
        model
            Not used.
        inputs
            Tensors by name, batch first.
        num_items_in_batch
            What the Trainer would divide by; the loss divides by what the model's own counts.
        """
        self.model.train()  # as the Trainer does with every batch
        inputs = self._prepare_inputs(inputs)
        self._batches.append({name: torch.as_tensor(of).cpu() for name, of in inputs.items()})
        if not self.accelerator.sync_gradients:
            return torch.zeros((), device=self.args.device)
        batches, self._batches = self._batches, []
        optimizer: Any = getattr(
            self.optimizer, "optimizer", self.optimizer
        )  # accelerate's, around torch's
        if self._steps.run is None:
            self._deploy(batches, optimizer, num_items_in_batch)
        if num_items_in_batch is None:
            self._steps.check_accumulated(batches, [*map(_rows, batches)], len(batches))
        limit = self.args.max_grad_norm or 0.0
        history = self._steps.take(
            batches, optimizer, clip_norm=limit if limit > 0 else float("inf")
        )
        if self._is_looked_at():
            self.fetch_weights()
        self._norm = history.gradient_norms[-1] if limit > 0 and history.gradient_norms else None
        return torch.tensor(history.losses[-1], device=self.args.device)

    def _deploy(self, batches: list[Any], optimizer: torch.optim.Optimizer, n_items: Any) -> None:
        watched = WatchedModule(self.model, aside=_OF_SAVING)
        model = Model.from_torch(watched.copy, batches[0], loss="loss")
        is_sum = model.laid_out(train=True).line.traced.sums_rows
        if n_items is not None and len(batches) > 1 and not is_sum:
            _check_counts(watched.copy, batches, n_items)
        watched.begin()
        rows = sum(map(_rows, batches))
        self._steps.deploy(model, watched, batch=rows, optimizer=optimizer, resume=self._resume)

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> float | None:
        return self._norm

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """As `Trainer.evaluate`, on this machine."""
        self.fetch_weights()
        return super().evaluate(*args, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """As `Trainer.predict`, on this machine."""
        self.fetch_weights()
        return super().predict(*args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As `Trainer.save_model`; by what a checkpoint has beside, devices go on with their draws.

        Parameters
        ----------
        output_dir
            Default: the Trainer's.
        """
        self.fetch_weights()
        super().save_model(output_dir, _internal_call)
        if _internal_call and output_dir is not None and not self.args.save_only_model:
            self._steps.save(Path(output_dir) / RUN_FILE)


_OF_SAVING = frozenset({"dtype", "architectures", "transformers_version", "_name_or_path"})
_IN_TRAINING = (
    *("on_step_begin", "on_substep_end", "on_optimizer_step", "on_step_end", "on_log"),
    *("on_epoch_begin", "on_epoch_end", "on_train_end"),
)


def _has(callback: TrainerCallback, hook: str) -> bool:
    return getattr(type(callback), hook) is not getattr(TrainerCallback, hook)


def _check_counts(model: torch.nn.Module, batches: list[Any], n_items: Any) -> None:
    """Raise UserError where the Trainer alone would add up the means of a step's batches: it leaves
    it to the model to divide by a number of items, and the model does not.
    """
    loss = OwnLoss("loss")
    with (
        torch.no_grad(),
        torch.random.fork_rng(devices=()),
        spared(model),
        modes_of(model, training=False),
    ):
        once, twice = (
            loss.of(model(**batches[0], num_items_in_batch=n_items * times)) for times in (1, 2)
        )
    if once.any() and torch.equal(once, twice):
        raise UserError(
            f"a step of {len(batches)} batches is the mean over all of them; the Trainer alone "
            f"adds their losses up, as {type(model).__name__}.forward takes any keyword, and does "
            "not divide by num_items_in_batch.",
            next_step="Say model.accepts_loss_kwargs = False before the Trainer is made: then it "
            "divides them. Or accumulate nothing.",
        )


def _rows(batch: dict[str, torch.Tensor]) -> int:
    return len(next(iter(batch.values())))
