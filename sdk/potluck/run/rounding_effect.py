"""What handing on smaller values does to a model's results: measured on one device, where any plan
gives the same.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from potluck.errors import EmptyHome
from potluck.handle import Handle, quietly
from potluck.records import Plan, Stage
from potluck.run.optimizers import SGD

if TYPE_CHECKING:
    import torch

    from potluck.graph import Model

GREAT = float(2**20)  # a learning rate by which what a step changes is the gradient alone


class Deploys(Protocol):
    """A home."""

    @property
    def devices(self) -> Mapping[str, Any]:
        """Its devices by name."""

    def deploy(self, plan: Plan, model: "Model", **how: Any) -> Any:
        """A run of this plan.

        Parameters
        ----------
        plan, model
            What is deployed.
        **how
            As for `Home.deploy`.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundingEffect:
    """What rounding changed, as parts of the unrounded.

    `answers_frac`: the root of the mean square of the differences, by that of the answers;
    `largest_frac`: the largest difference by the largest answer. `loss`: with and without;
    `gradient_frac`: as `answers_frac`, over all weights. None of what does not train.
    `handed_bytes`: from layer to layer for one row, with and without.
    """

    code: str
    answers_frac: float
    largest_frac: float
    handed_bytes: tuple[int, int]
    loss: tuple[float, float] | None = None
    gradient_frac: float | None = None

    def __repr__(self) -> str:
        summary = (
            f"<{self.code}: {self.handed_bytes[0]} of {self.handed_bytes[1]} bytes a row; answers "
            f"differ by {self.answers_frac:.2%}, at most {self.largest_frac:.2%} of the largest"
        )
        if self.loss is not None:
            summary += f"; a loss of {self.loss[0]:.5g} in place of {self.loss[1]:.5g}"
        if self.gradient_frac is not None:
            summary += f"; gradients differ by {self.gradient_frac:.2%}"
        return f"{summary}>"


@dataclass(frozen=True, slots=True)
class _Results:
    answers: "list[torch.Tensor]"
    loss: float
    change: "list[torch.Tensor]"


def rounding_effect(
    home: Deploys, model: "Model", code: str, inputs: Any, targets: Any = ()
) -> RoundingEffect:
    """Measure what `model.rounded(code)` does to the answers to one batch, and in training to its
    loss and gradients, on the first device that is ready.

    Parameters
    ----------
    home
        With a device that has torch.
    model
        With its present weights.
    code
        As for `Model.rounded`.
    inputs, targets
        A batch, as for `Run.fit`: tensors, or several of them.

    Raises
    ------
    ModelError
        The model cannot be rounded so.
    EmptyHome
        No device is ready.
    """
    ready = [name for name, member in home.devices.items() if member.session is not None]
    if not ready:
        raise EmptyHome("no device is ready.", next_step="home.devices says why.")
    made = model.rounded(code)
    fed, wanted = _several(inputs), _several(targets)
    exact, got = (_results(home, each, ready[0], fed, wanted) for each in (model, made))
    trains = model.trains
    return RoundingEffect(
        code=code,
        answers_frac=_apart(got.answers, exact.answers),
        largest_frac=_largest(got.answers, exact.answers),
        handed_bytes=(_handed(made), _handed(model)),
        loss=(got.loss, exact.loss) if trains else None,
        gradient_frac=_apart(got.change, exact.change) if trains else None,
    )


def _several(given: Any) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, Sequence) else (given,)


def _handed(model: "Model") -> int:
    return sum(layer.output_bytes for layer in model.layers(model.trains)[:-1])


def _results(
    home: Deploys, model: "Model", device: str, fed: Sequence[Any], wanted: Sequence[Any]
) -> _Results:
    """Of a model as a whole on this device."""
    from torch.utils import _pytree as pytree

    rows, trains = len(fed[0]), model.trains
    stage = Stage(
        start=0, stop=len(model.layers(trains)), devices=(device,), shares=(rows,), warm_up=1
    )
    plan = Plan(
        planner="single",
        model=model.name,
        stages=(stage,),
        micro_batch=rows,
        n_micro_batches=1,
        training=trains,
    )
    optimizer = SGD(lr=GREAT) if trains else None
    with quietly():
        made: Handle[Any] = home.deploy(plan, model, optimizer=optimizer, protect=False)
        run = made.wait()
        try:
            answers = [part.detach() for part in pytree.tree_leaves(run(*fed))]
            if not trains:
                return _Results(answers, 0.0, [])
            before = run.state_dict()
            (loss,) = run.fit([(*fed, *wanted)], adapt=False).wait().losses
            after = run.state_dict()
            names = {parameter.name for parameter in model.trained}
            change = [after[n] - before[n] for n in before if n in names]
            return _Results(answers, loss, change)
        finally:
            run.close()


def _apart(these: "Iterable[torch.Tensor]", those: "Iterable[torch.Tensor]") -> float:
    """The root of the mean square of the differences, by that of those."""
    pairs = [(a.double(), b.double()) for a, b in zip(these, those, strict=True)]
    apart = sum(float((a - b).square().sum()) for a, b in pairs)
    norm = sum(float(b.square().sum()) for _, b in pairs)
    return (apart / norm) ** 0.5 if norm else 0.0


def _largest(these: "Sequence[torch.Tensor]", those: "Sequence[torch.Tensor]") -> float:
    pairs = [(a.double(), b.double()) for a, b in zip(these, those, strict=True)]
    apart = max(float((a - b).abs().max()) for a, b in pairs)
    largest = max(float(b.abs().max()) for _, b in pairs)
    return apart / largest if largest else 0.0
