"""A run whose steps somebody else's training loop asks for, one at a time.

The loop keeps its module, its optimizer and its scheduler on this machine. Devices take the steps;
the module here gets their weights when somebody looks at it.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.errors import UserError
from potluck.integrations.watched_module import WatchedModule
from potluck.records import QoE, Training

if TYPE_CHECKING:
    import torch

    from potluck.graph.model import Model
    from potluck.home import Home
    from potluck.planning.plans import Plans
    from potluck.records import Plan
    from potluck.run.history import History
    from potluck.run.run import Run

RUN_FILE = "potluck-run.safetensors"  # moments and step, beside what the loop itself saves
Choose = Callable[["Plans"], "Plan"]


def fastest(plans: "Plans") -> "Plan":
    """The plan that is deployed where nobody says otherwise."""
    return plans.best


class Steps:
    """What a training loop needs of a home.

    Parameters
    ----------
    home
        Its devices take the steps; it stays open.
    qoe
        Limits of the plan; None: none.
    choose
        Takes one of the plans.
    """

    def __init__(self, home: "Home", qoe: QoE | None, choose: Choose) -> None:
        self._home, self._qoe = home, qoe
        self._choose = choose
        self._is_stale = self._has_warned = False
        self.run: Run | None = None
        self._watched: WatchedModule | None = None

    def deploy(
        self,
        model: "Model",
        watched: WatchedModule,
        *,
        batch: int,
        optimizer: "torch.optim.Optimizer",
        resume: Path | None = None,
    ) -> None:
        """Measure, plan and load; the run before this one ends.

        Parameters
        ----------
        model
            Trains.
        watched
            Of whose copy it was made.
        batch
            Rows of a step.
        optimizer
            Of its weights.
        resume
            A file from `save`, to go on there; it need not exist.
        """
        import potluck

        self.close()
        self._watched = watched
        watched.begin()
        plans = potluck.plan(self._home.profile(model), Training(batch=batch), self._qoe)
        self.run = self._home.deploy(
            self._choose(plans),
            model,
            optimizer=optimizer,
            resume=resume if resume is not None and resume.exists() else None,
        ).wait()
        optimizer.state = _StateOnDevices(dict, optimizer.state)

    def take(
        self, batches: Sequence[Any], optimizer: "torch.optim.Optimizer", **limits: float
    ) -> "History":
        """One step over the rows of all batches, with the settings the optimizer has now.

        Parameters
        ----------
        batches, optimizer
            As for `Run.fit`.
        **limits
            Its `clip_norm` or `clip_value`.

        Raises
        ------
        ModelError
            The loop's module is not what it was.
        UserError
            Its optimizer has got another state.
        """
        assert self.run is not None  # deployed by the loop's first batch
        assert self._watched is not None
        self._watched.check()
        if not isinstance(optimizer.state, _StateOnDevices):
            _refuse_state()
        fit: Any = self.run.fit
        history: History = fit(
            batches, optimizer=optimizer, accumulate=len(batches), **limits
        ).wait()
        self._is_stale = True
        return history

    def warn_of_rows(self, rows: Sequence[int], n_batches: int) -> None:
        """Say once that a step of batches with unlike rows is not the loop's own step.

        Parameters
        ----------
        rows
            Of each batch of a step.
        n_batches
            Of a whole step.
        """
        if self._has_warned or (len(set(rows)) == 1 and len(rows) == n_batches):
            return
        self._has_warned = True
        warnings.warn(
            f"a step of batches of {', '.join(map(str, rows))} rows is the mean over all of them; "
            f"the loop alone divides the mean of each batch by {n_batches}. For steps that are "
            "alike: drop_last=True, or no accumulation.",
            stacklevel=3,
        )

    def fetch(self, module: "torch.nn.Module") -> None:
        """The module gets the weights of the latest step, unless it has them.

        Raises
        ------
        ModelError
            Somebody else changed them meanwhile.
        """
        if self.run is not None and self._is_stale:
            assert self._watched is not None
            self._watched.check_weights()
            self.run.load_into(module)
            self._is_stale = False
            self._watched.fetched()

    def save(self, path: Path) -> None:
        """Write what `deploy(resume=path)` goes on from."""
        if self.run is not None:
            self.run.save(path)

    def close(self) -> None:
        """End the run; twice is fine."""
        if self.run is not None:
            self.run.close()
        self.run = self._watched = None
        self._is_stale = self._has_warned = False


def _refuse_state(*args: Any, **kwargs: Any) -> Any:
    raise UserError(
        "the state of the optimizer was looked at or changed here, and it is on the devices.",
        next_step="Begin without it by a new training; checkpoints keep it.",
    )


class _StateOnDevices(defaultdict[Any, Any]):
    """What an optimizer keeps of its parameters while devices do: as it was at their beginning."""

    __getitem__ = get = _refuse_state
    __setitem__ = setdefault = _refuse_state
    __delitem__ = clear = _refuse_state
    pop = popitem = _refuse_state
    update = _refuse_state
