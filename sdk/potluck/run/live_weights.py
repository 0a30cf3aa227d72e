"""The weights of a run as they are on its devices: read and replaced between two steps."""

from typing import TYPE_CHECKING

from potluck.run.recovery import surviving
from potluck.run.update_source import in_use

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from potluck.run.engine import RunEngine


class LiveWeights:
    """Of one run; names are those that devices use.

    Parameters
    ----------
    engine
        Of the run.
    """

    def __init__(self, engine: "RunEngine") -> None:
        self._engine = engine

    @property
    def trained(self) -> frozenset[str]:
        """Names of the weights that training changes; the others are buffers, or frozen."""
        return frozenset(parameter.name for parameter in self._engine.model.trained)

    @property
    def are_averaged(self) -> bool:
        """Whether devices keep a moving average beside them."""
        engine = self._engine
        training = engine.compiled_plan.optimizer is not None
        return training and in_use(engine).update.average is not None

    def pull(self) -> "dict[str, torch.Tensor]":
        """Weights and buffers after the steps handed out."""
        with self._engine.boundary():
            return self._engine.state.pull()

    def moments(self) -> "dict[str, torch.Tensor]":
        """What devices keep for the optimizer after the steps handed out: `SLOT:PARAMETER`.

        Raises
        ------
        PotluckError
            The run has ended.
        """
        engine = self._engine
        engine.check(training=True)
        with engine.boundary():
            return surviving(engine, lambda: engine.state.pull(moments=True))

    def push(self, weights: "Mapping[str, torch.Tensor]") -> None:
        """Put such weights in their place, beside the state of the optimizer; a protected run goes
        back to no older ones.

        Parameters
        ----------
        weights
            As `pull` gives them.
        """
        engine = self._engine
        with engine.boundary():
            engine.finish()
            engine.state.push(weights)
            if engine.protection is not None:
                engine.protect()
