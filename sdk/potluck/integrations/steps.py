"""A run whose steps somebody else's training loop asks for, one at a time.

The loop keeps its module, its optimizer and its scheduler on this machine. Devices take the steps;
the module here gets their weights when somebody looks at it.
"""

import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.errors import UserError
from potluck.integrations.watched_module import WatchedModule
from potluck.records import QoE, Training

if TYPE_CHECKING:
    import torch
    from torch.utils.hooks import RemovableHandle

    from potluck.graph.model import Model
    from potluck.home import Home
    from potluck.planning.plans import Plans
    from potluck.records import Plan
    from potluck.run.history import History
    from potluck.run.run import Run

_WHERE = "kept by devices of potluck"
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
        self._hook: RemovableHandle | None = None

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
            A file from `save`, to go on there with the weights that the module has now; it need not
            exist where the loop's own checkpoint is not of a home.

        Raises
        ------
        UserError
            The optimizer has a state that devices kept, and it is in no such file.
        """
        import potluck

        self.close()
        resume = resume if resume is not None and resume.exists() else None
        _check_state(optimizer, is_resumed=resume is not None)
        self._watched = watched
        watched.begin()
        plans = potluck.plan(self._home.profile(model), Training(batch=batch), self._qoe)
        with tempfile.TemporaryDirectory() as folder:
            if resume is not None:
                resume = _with_weights(resume, model, Path(folder))
            self.run = self._home.deploy(
                self._choose(plans), model, optimizer=optimizer, resume=resume
            ).wait()
        optimizer.state = _StateOnDevices(dict, optimizer.state)
        self._hook = optimizer.register_state_dict_post_hook(_say_where)

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
        if self._hook is not None:
            self._hook.remove()
        self.run = self._watched = None
        self._hook = None
        self._is_stale = self._has_warned = False


def _check_state(optimizer: "torch.optim.Optimizer", *, is_resumed: bool) -> None:
    """Refuse to begin without the state that devices have, or had, of this optimizer."""
    state: Any = optimizer.state
    is_there = isinstance(state, _StateOnDevices)
    is_elsewhere = not is_there and state.pop(_WHERE, None) is not None
    keeps = any(group.get("momentum", 1) for group in optimizer.param_groups)  # SGD may not
    if is_resumed or not keeps:
        return
    if is_elsewhere:
        raise UserError(
            "devices kept the state of the optimizer of this checkpoint, and the file in which "
            "they saved it is not there.",
            next_step=f"Put it beside the checkpoint ({RUN_FILE} in its folder, or the "
            "checkpoint's name and .potluck), or begin with the weights alone and a new optimizer.",
        )
    if is_there:
        raise UserError(
            "devices have the state of this optimizer from another training, and this one would "
            "begin without.",
            next_step="Go on from a checkpoint, or give a new optimizer (to a Trainer of "
            "transformers: trainer.optimizer = None).",
        )


def _with_weights(path: Path, model: "Model", folder: Path) -> Path:
    """That file, or one in this folder with the weights that the module has now, and without what
    no device keeps: that is the module's own.
    """
    from potluck.run import checkpoint

    saved, state = checkpoint.load(path), model.state()
    if _alike(saved.weights, state) and not saved.unused:
        return path
    weights = {name: state.get(name, tensor) for name, tensor in saved.weights.items()}
    checkpoint.save(folder / RUN_FILE, replace(saved, weights=weights, unused={}))
    return folder / RUN_FILE


def _alike(ours: "Mapping[str, torch.Tensor]", theirs: "Mapping[str, torch.Tensor]") -> bool:
    return all(tensor.equal(theirs.get(name, tensor)) for name, tensor in ours.items())


def _say_where(optimizer: "torch.optim.Optimizer", state_dict: dict[str, Any]) -> dict[str, Any]:
    """Of what a checkpoint has, for `_check_state` of the training that goes on."""
    return {**state_dict, "state": {**state_dict["state"], _WHERE: "beside this checkpoint"}}


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
