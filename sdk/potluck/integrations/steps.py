"""A run whose steps somebody else's training loop asks for, one at a time.

The loop keeps its module, its optimizer and its scheduler on this machine. Devices take the steps;
the module here gets their weights when somebody looks at it, and the optimizer its state when it is
saved. So a checkpoint is one of the loop itself, which goes on from it with or without a home.
"""

import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.errors import FileError, UserError
from potluck.integrations.watched_module import WatchedModule
from potluck.records import QoE, Training
from potluck.run import checkpoint
from potluck.run.batches import as_tuple
from potluck.run.optimizer_state import device_state, steps_of, torch_state
from potluck.run.update_source import source_of

if TYPE_CHECKING:
    import torch
    from torch.utils.hooks import RemovableHandle

    from potluck.graph.model import Model
    from potluck.home import Home
    from potluck.planning.plans import Plans
    from potluck.records import Plan
    from potluck.run.history import History
    from potluck.run.run import Run

RUN_FILE = "potluck-run.safetensors"  # step and draws, beside what the loop itself saves
Choose = Callable[["Plans"], "Plan"]


def fastest(plans: "Plans") -> "Plan":
    """The plan that is deployed where nobody says otherwise."""
    return plans.best


def _check_given(home: Any, qoe: Any, choose: Any) -> None:
    from potluck.home import Home

    if not isinstance(home, Home):
        raise UserError(
            f"home is a potluck.Home, got {type(home).__name__}.", next_step="home=potluck.Home()"
        )
    if not isinstance(qoe, QoE | None):
        raise UserError(f"qoe is a potluck.QoE, got {type(qoe).__name__}.")
    if not callable(choose):
        raise UserError(
            f"choose is called with the plans, got {type(choose).__name__}.",
            next_step="choose=lambda plans: plans.best",
        )


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

    Raises
    ------
    UserError
        One of them is something else.
    """

    def __init__(self, home: "Home", qoe: QoE | None, choose: Choose) -> None:
        _check_given(home, qoe, choose)
        self._home, self._qoe = home, qoe
        self._choose = choose
        self._is_stale = False
        self._has_warned = self._has_told_norms = False
        self._model: Model | None = None
        self.run: Run | None = None
        self._watched: WatchedModule | None = None
        self._optimizer: Any = None
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
        """Measure, plan and load; the run before this one ends. Devices go on with the weights and
        the state of the optimizer that are here.

        Parameters
        ----------
        model
            Trains.
        watched
            Of whose copy it was made; it has begun.
        batch
            Rows of a step.
        optimizer
            Of its weights.
        resume
            A file from `save`, whose steps and draws they go on with; it need not exist.

        Raises
        ------
        ModelError
            The loop's module is not what it was.
        UserError
            Devices of another run have the state of the optimizer, or it is another optimizer's.
        FileError
            The file cannot be read, or is of another model or optimizer.
        """
        import potluck

        self.close()
        before = optimizer.state
        _check_state(optimizer)
        watched.check()
        self._watched = watched
        self._model = model
        plans = potluck.plan(self._home.profile(model), Training(batch=batch), self._qoe)
        plan = self._choose(plans)
        optimizer.state = _StateOnDevices(dict)  # devices refuse one that has made steps
        try:
            with tempfile.TemporaryDirectory() as folder:
                saved = _going_on(resume, model, plan, optimizer, before)
                if saved is not None:
                    checkpoint.save(Path(folder) / RUN_FILE, saved)
                    resume = Path(folder) / RUN_FILE
                self.run = self._home.deploy(
                    plan, model, optimizer=optimizer, resume=None if saved is None else resume
                ).wait()
        except BaseException:
            optimizer.state = before
            raise
        run, trained = self.run, model.names_by_identity()
        aside = {of: state for of, state in before.items() if not trained.get(id(of))}

        def state() -> dict[Any, Any]:
            return aside | torch_state(model, optimizer, run.live_weights.moments())

        optimizer.state.of_devices = state
        self._optimizer = optimizer
        self._hook = optimizer.register_state_dict_post_hook(_with_state)

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
        self._tell_norms(len(batches))
        fit: Any = self.run.fit
        history: History = fit(
            batches, optimizer=optimizer, accumulate=len(batches), **limits
        ).wait()
        self._is_stale = True
        return history

    def check_accumulated(
        self, batches: Sequence[Any], rows: Sequence[int], n_batches: int
    ) -> None:
        """Say once, or refuse, where a step of several batches is not the loop's own: that one
        divides the loss of each batch by how many a step has.

        Parameters
        ----------
        batches
            Of a step, as for `take`.
        rows
            Of each of them.
        n_batches
            Of a whole step.

        Raises
        ------
        UserError
            The loss is a sum over rows.
        """
        assert self._model is not None
        if self._model.laid_out(train=True).line.traced.sums_rows and n_batches > 1:
            raise UserError(
                f"the loss is a sum over rows; of {n_batches} batches devices add it up, where the "
                f"loop alone divides each by {n_batches}.",
                next_step="Have the loss be a mean over rows, or accumulate nothing.",
            )
        if self._has_warned or n_batches == 1:
            return
        if len(set(rows)) == 1 and len(rows) == n_batches:
            if self._weigh_alike(batches):
                return
            what, step = "batches whose rows count differently", "A plain mean over rows, or"
        else:
            what = f"batches of {', '.join(map(str, rows))} rows"
            step = "For steps that are alike: drop_last=True, or"
        self._has_warned = True
        warnings.warn(
            f"a step of {what} is the mean over all of them; the loop alone divides the mean of "
            f"each batch by {n_batches}. {step} no accumulation.",
            stacklevel=3,
        )

    def _tell_norms(self, n_batches: int) -> None:
        """Say once where batch norms see other rows at once than in the loop."""
        assert self._model is not None
        norms = any(layer.norm_values for layer in self._model.layers(train=True))
        if not norms or n_batches == 1 or self._has_told_norms:
            return
        self._has_told_norms = True
        warnings.warn(
            f"batch norm normalises the rows of a step of {n_batches} batches in the plan's "
            "micro-batches, whatever batches they are from; the loop alone normalises each batch "
            "by itself. For steps that are alike: no accumulation, or eval() of the norms.",
            stacklevel=4,
        )

    def _weigh_alike(self, batches: Sequence[Any]) -> bool:
        """Whether what a loss divides by, such as the targets that count, is the same in each."""
        import torch

        assert self._model is not None
        tallies = []
        for batch in batches:
            given = as_tuple(batch, self._model.arguments)
            fed = [*self._model.fed(*given).values()]
            tallies.append([tensor[0] for tensor in fed[len(given) :]])
        return all(
            torch.allclose(mine, first, equal_nan=True)
            for each in tallies[1:]
            for mine, first in zip(each, tallies[0], strict=True)
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
        """Write what `deploy(resume=path)` goes on from, beside a checkpoint of the loop's own. Of
        a run that has ended there is nothing else to go on from.
        """
        if self.run is not None and self.run.is_open:
            self.run.save(path)
        else:
            path.unlink(missing_ok=True)  # of a checkpoint that was there before

    def end(self, module: "torch.nn.Module") -> None:
        """Module and optimizer get what devices have, and the run ends; twice is fine.

        Parameters
        ----------
        module
            As for `fetch`.
        """
        if self.run is None or not self.run.is_open:
            return
        try:
            self.fetch(module)
            state: Any = self._optimizer.state
            if isinstance(state, _StateOnDevices):
                self._optimizer.state = defaultdict(dict, state.of_devices())
        finally:
            self.run.close()  # devices keep sixteen

    def close(self) -> None:
        """End the run, with nothing fetched; twice is fine."""
        if self.run is not None:
            self.run.close()
        if self._hook is not None:
            self._hook.remove()
        self.run = self._watched = None
        self._optimizer = self._hook = None
        self._is_stale = False
        self._has_warned = self._has_told_norms = False


def _check_state(optimizer: "torch.optim.Optimizer") -> None:
    """Refuse to begin without the state that devices had of this optimizer."""
    keeps = any(group.get("momentum", 1) for group in optimizer.param_groups)  # SGD may not
    if keeps and isinstance(optimizer.state, _StateOnDevices):
        raise UserError(
            "devices have the state of this optimizer from another training, and this one would "
            "begin without.",
            next_step="Go on from a checkpoint, or give a new optimizer (to a Trainer of "
            "transformers: trainer.optimizer = None).",
        )


def _going_on(
    path: Path | None, model: "Model", plan: "Plan", optimizer: Any, state: Any
) -> checkpoint.Checkpoint | None:
    """What devices go on from: the weights and the state of the optimizer that are here, with the
    steps and draws of a file, where it exists. None: from the beginning.
    """
    update = source_of(model, optimizer).update
    moments = device_state(model, state, update)
    weights = model.state()
    if path is not None and path.exists():
        saved = checkpoint.load(path)
        if saved.signature != model.signature:
            raise FileError(f"{path} was saved from another model.", path=str(path))
        ours = {name: weights.get(name, tensor) for name, tensor in saved.weights.items()}
        if moments:
            saved = replace(saved, moments=moments, optimizer=update)
        return replace(saved, weights=ours, unused={})  # what no device keeps is the module's own
    if not moments:
        return None
    return checkpoint.Checkpoint(
        signature=model.signature,
        plan=plan,
        optimizer=update,
        step=steps_of(moments),
        seed=0,
        weights=dict(weights),
        moments=moments,
    )


def _with_state(optimizer: "torch.optim.Optimizer", state_dict: dict[str, Any]) -> dict[str, Any]:
    """As a checkpoint has it, with what devices keep."""
    state: Any = optimizer.state
    if not isinstance(state, _StateOnDevices):
        return state_dict
    members = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = {id(parameter): number for number, parameter in enumerate(members)}
    found = state.of_devices()
    return {**state_dict, "state": {numbers.get(id(of), of): kept for of, kept in found.items()}}


def _refuse_state(*args: Any, **kwargs: Any) -> Any:
    raise UserError(
        "the state of the optimizer was looked at or changed here, and it is on the devices.",
        next_step="Begin without it by a new training; checkpoints keep it.",
    )


class _StateOnDevices(defaultdict[Any, Any]):
    """What an optimizer keeps of its parameters while devices do: nothing here; `of_devices` asks
    them.
    """

    of_devices: Callable[[], dict[Any, Any]] = dict

    __getitem__ = get = _refuse_state
    __setitem__ = setdefault = _refuse_state
    __delitem__ = clear = _refuse_state
    pop = popitem = _refuse_state
    update = _refuse_state
