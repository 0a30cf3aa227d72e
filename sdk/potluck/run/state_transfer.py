"""All state of a run: weights and what the optimizer keeps, from the notebook onto the devices, and
back.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from potluck import units
from potluck.run.compiled_plan import MOMENTS, PULL, PUSH
from potluck.run.device_group import state_types, states_of
from potluck.run.snapshots import Snapshot
from potluck.run.weight_update import carried, is_average, is_retyped

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from potluck.run.compiled_plan import CompiledPlan
    from potluck.run.engine import RunEngine
    from potluck.schedule import Compiled
    from potluck.sessions.events import ExecutionResult


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedWeights:
    """Weights that a run began with on its devices: `nbytes` in all, of which devices had kept
    `kept_bytes` from an earlier run, so that these were not sent.
    """

    nbytes: int = 0
    kept_bytes: int = 0

    @property
    def words(self) -> str:
        """For people."""
        there = f"; {units.size(self.kept_bytes)} were there already" if self.kept_bytes else ""
        return f"{units.size(self.nbytes)} of weights are on the devices{there}"


class RunState:
    """Of one run; for who holds its boundary.

    Parameters
    ----------
    engine
        Of the run.
    """

    def __init__(self, engine: "RunEngine") -> None:
        self._engine = engine
        self._n_moves = 0
        self.moved_s = 0.0  # that pulling and pushing have taken so far
        self.deployed = DeployedWeights()
        # device and name of weights that it may have kept, and that are the same still
        self.offered: set[tuple[str, str]] = set()

    def weights(self) -> "dict[str, torch.Tensor]":
        """All that the run computes with, on devices and here; the rest as the user has it."""
        return self.with_weights(self.pull())

    def with_weights(self, on_devices: "Mapping[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
        """These and all others that the run computes with; the rest as the user has it.

        Parameters
        ----------
        on_devices
            As they came from there, by name.
        """
        engine = self._engine
        fed = engine.loss_constants.fed if engine.loss_constants is not None else {}
        return {**engine.model.state(), **fed, **engine.weights_of_file, **on_devices}

    def pull(self, *, moments: bool = False) -> "dict[str, torch.Tensor]":
        """The weights on the devices, or the optimizer's state there, by name."""
        engine = self._engine
        engine.finish()
        compiled = engine.active.compiled.get(PULL + MOMENTS * moments)
        if compiled is None:
            return {}
        types = state_types(engine.model, engine.active.optimizer if moments else None)
        return states_of(self._move(compiled), compiled, types)

    def push(
        self, states: "Mapping[str, torch.Tensor]", *, moments: bool = False, offered: bool = False
    ) -> None:
        """Put these weights, or this state of the optimizer, onto the devices.

        Parameters
        ----------
        states
            By name.
        moments
            They are the optimizer's.
        offered
            Devices may have kept them, and may keep them: weights that a run begins with.
        """
        compiled = self._engine.active.compiled.get(PUSH + MOMENTS * moments)
        if compiled is not None:
            if moments:
                states = self._as_kept(states)
            execution = self._move(compiled, states, offered=offered)
            if offered:
                self.deployed = DeployedWeights(
                    nbytes=sum(feed.nbytes for feed in compiled.feeds),
                    kept_bytes=execution.kept_bytes,
                )
            keeps = self._engine.group.keeps
            self.offered = {
                (feed.device, feed.tensor)
                for feed in compiled.feeds
                if offered and keeps(feed.device)
            }

    def _as_kept(self, moments: "Mapping[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
        """In the types that the optimizer in force keeps them in: those of another may be wider."""
        import torch

        types = state_types(self._engine.model, self._engine.active.optimizer)
        return {n: each.to(getattr(torch, types[n].dtype)) for n, each in moments.items()}

    def going_over(
        self, new: "CompiledPlan", *, afresh: bool
    ) -> "tuple[frozenset[str], Mapping[str, torch.Tensor]]":
        """The slots of the optimizer that devices pass on to a compiled plan as they are; or where
        it keeps them in another type, all that is kept, which comes home for that (`hand_back`).

        Parameters
        ----------
        new
            Not in force yet.
        afresh
            Its optimizer begins without state.
        """
        engine, before = self._engine, self._engine.active.optimizer
        if afresh or not new.plan.training or engine.step == 0:
            return frozenset(), {}
        kept = carried(before, new.optimizer)
        if not kept or not is_retyped(before, new.optimizer):
            return kept, {}
        return frozenset(), completed(self.pull(moments=True), self.weights(), new)

    def hand_back(self, moments: "Mapping[str, torch.Tensor]") -> None:
        """What came home to go over, in its new type.

        Parameters
        ----------
        moments
            By name; none: devices passed on what there is.
        """
        if moments:
            self.push(moments, moments=True)

    def _move(
        self,
        compiled: "Compiled",
        states: "Mapping[str, torch.Tensor] | None" = None,
        *,
        offered: bool = False,
    ) -> "ExecutionResult":
        engine = self._engine
        self._n_moves += 1
        epoch, step = engine.active.epoch, self._n_moves
        execution = engine.result(
            engine.group.execute(epoch, compiled, step, states=states, offered=offered)
        )
        self.moved_s += execution.stop_s - execution.start_s
        return execution

    def snapshot(self) -> Snapshot:
        """All of it as it is on the devices after the steps handed out."""
        engine = self._engine
        engine.finish()
        assert engine.compiled_plan.optimizer is not None
        return Snapshot(
            step=engine.step,
            optimizer=engine.compiled_plan.optimizer,
            weights=self.weights(),
            moments=self.pull(moments=True) if engine.step else {},
        )


def completed(
    moments: "Mapping[str, torch.Tensor]",
    weights: "Mapping[str, torch.Tensor]",
    compiled_plan: "CompiledPlan",
) -> "Mapping[str, torch.Tensor]":
    """What a run kept of its optimizer, as far as the compiled plan wants it; a moving average that
    the run had not begins at its weights.

    Parameters
    ----------
    moments, weights
        Of the run as it was, by name.
    compiled_plan
        Of the run that goes on with them.
    """
    states = compiled_plan.states(optimizer=True, weights=False).values()
    names = [state.name for rows in states for state in rows]
    begun = {name: weights[name.partition(":")[2]] for name in names if is_average(name)}
    return {name: moments[name] if name in moments else begun[name] for name in names}
