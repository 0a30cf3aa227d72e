"""A run whose steps somebody else's training loop asks for, one at a time.

The loop keeps its module, its optimizer and its scheduler on this machine. Devices take the steps;
the module here gets their weights when somebody looks at it.
"""

import copy
import warnings
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


def apart(module: "torch.nn.Module", *without: object) -> Any:
    """The module with the same parameters and buffers, in which nothing else changes any more:
    loops keep notes in the attributes of theirs.

    Parameters
    ----------
    module
        As it is now.
    *without
        What attributes of it refer to and the copy has None for.
    """
    shared = {id(each): each for each in chain(module.parameters(), module.buffers())}
    return copy.deepcopy(module, shared | {id(each): None for each in without})


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

    def deploy(
        self,
        model: "Model",
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
        batch
            Rows of a step.
        optimizer
            Of its weights.
        resume
            A file from `save`, to go on there; it need not exist.
        """
        import potluck

        self.close()
        plans = potluck.plan(self._home.profile(model), Training(batch=batch), self._qoe)
        self.run = self._home.deploy(
            self._choose(plans),
            model,
            optimizer=optimizer,
            resume=resume if resume is not None and resume.exists() else None,
        ).wait()

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
        """
        assert self.run is not None  # deployed by the loop's first batch
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
        """The module gets the weights of the latest step, unless it has them."""
        if self.run is not None and self._is_stale:
            self.run.load_into(module)
            self._is_stale = False

    def save(self, path: Path) -> None:
        """Write what `deploy(resume=path)` goes on from."""
        if self.run is not None:
            self.run.save(path)

    def close(self) -> None:
        """End the run; twice is fine."""
        if self.run is not None:
            self.run.close()
        self.run = None
        self._is_stale = self._has_warned = False
