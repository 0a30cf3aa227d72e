"""Who looks on while a training goes on: the user's callbacks, loggers, and what saves it."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import isnan
from pathlib import Path
from typing import Any

from potluck.documents import file_path
from potluck.errors import StopTraining, UserError
from potluck.run.history import History
from potluck.run.optimizers import Optimizer

OnStep = Callable[[int, float], Any]
OnEpoch = Callable[[int, History], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitCallbacks:
    """What is called while a `fit` goes on; see `Run.fit`.

    Raises
    ------
    UserError
        Something cannot be called, or is no time to save at.
    """

    on_step: OnStep | None = None
    on_epoch: OnEpoch | None = None
    log: Any = None
    save_to: str | Path | None = None
    save_every: int | timedelta | None = None

    def __post_init__(self) -> None:
        for name in ("on_step", "on_epoch"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise UserError(f"{name} is called, and {getattr(self, name)!r:.60} cannot be.")
        for logger in self.loggers:
            if not (hasattr(logger, "log") or hasattr(logger, "add_scalar")):
                raise UserError(
                    f"a logger has log(metrics, step=) or add_scalar(name, value, step); "
                    f"{type(logger).__name__} has neither.",
                    next_step="log=torch.utils.tensorboard.SummaryWriter(), or a run of wandb",
                )
        _check_save(self.save_to, self.save_every)
        if self.save_to is not None:
            file_path(self.save_to)

    @property
    def loggers(self) -> Sequence[Any]:
        """All that want metrics."""
        if self.log is None:
            return ()
        return tuple(self.log) if isinstance(self.log, tuple | list) else (self.log,)


def _check_save(to: Any, every: Any) -> None:
    if (to is None) != (every is None):
        raise UserError(
            "save_to says where a run is saved and save_every how often; one of them is missing.",
            next_step='run.fit(data, save_to="run.safetensors", save_every=100)',
        )
    is_steps = isinstance(every, int) and not isinstance(every, bool) and every >= 1
    is_time = isinstance(every, timedelta) and every > timedelta()
    if every is not None and not (is_steps or is_time):
        raise UserError(
            f"save_every is a number of steps or a timedelta, got {every!r}.",
            next_step="save_every=100, or save_every=datetime.timedelta(minutes=5)",
        )


class Watchers:
    """Of one `fit` that goes on.

    Parameters
    ----------
    watching
        What is called.
    save
        Writes the run to a file.
    """

    def __init__(self, watching: FitCallbacks, save: Callable[[Path], Any]) -> None:
        self._watching, self._save = watching, save
        self._saved_step, self._saved_s = 0, 0.0
        self.stopped = False  # somebody has had enough

    def begin(self, step: int) -> None:
        """The training begins.

        Parameters
        ----------
        step
            Steps taken before.
        """
        self._saved_step, self._saved_s = step, time.monotonic()

    def step_over(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step was collected.

        Parameters
        ----------
        step
            Steps taken so far.
        metrics
            Of it; `loss` among them.
        """
        log_to(self._watching.loggers, metrics, step)
        if self._watching.on_step is not None:
            self._call(self._watching.on_step, step, metrics["loss"])

    def epoch_over(self, epoch: int, history: History) -> None:
        """All steps of an epoch were collected.

        Parameters
        ----------
        epoch
            Its number, from 0.
        history
            Of its steps.
        """
        if self._watching.on_epoch is not None:
            self._call(self._watching.on_epoch, epoch, history)

    def _call(self, function: Callable[..., Any], *given: Any) -> None:
        try:
            answer = function(*given)
            self.stopped = answer is StopTraining or isinstance(answer, StopTraining)
        except StopTraining:
            self.stopped = True

    def between_steps(self, step: int) -> None:
        """Save the run where that is due.

        Parameters
        ----------
        step
            Steps handed out so far.
        """
        to, every = self._watching.save_to, self._watching.save_every
        if to is None or every is None:
            return
        if isinstance(every, timedelta):
            is_due = time.monotonic() - self._saved_s >= every.total_seconds()
        else:
            is_due = step - self._saved_step >= every
        if is_due and step > self._saved_step:
            self._save(Path(to))
            self._saved_step, self._saved_s = step, time.monotonic()


def metrics_of(history: History, number: int, settings: Sequence[Optimizer]) -> dict[str, float]:
    """What loggers are told of a step.

    Parameters
    ----------
    history
        Of the run.
    number
        Of the step in it.
    settings
        Of each group of parameters, the optimizer of that step.
    """
    found = {
        "loss": history.losses[number],
        "rows": float(history.rows[number]),
        "step_s": history.step_s[number],
    }
    if not isnan(norm := history.gradient_norms[number]):
        found["gradient_norm"] = norm
    rates = [float(each.settings["lr"] or 0.0) for each in settings]
    if len(rates) == 1:
        return found | {"lr": rates[0]}
    return found | {f"lr/{i}": rate for i, rate in enumerate(rates)}


def log_to(loggers: Sequence[Any], metrics: Mapping[str, float], step: int) -> None:
    """Tell all loggers: those with `log(metrics, step=)`, as a run of Weights & Biases has it, or
    with `add_scalar(name, value, step)`, as TensorBoard's writers do.

    Parameters
    ----------
    loggers
        Each has one of the two.
    metrics
        By name.
    step
        Steps taken so far.
    """
    for logger in loggers:
        if hasattr(logger, "add_scalar"):
            for name, value in metrics.items():
                logger.add_scalar(name, value, step)
        else:
            logger.log(dict(metrics), step=step)
