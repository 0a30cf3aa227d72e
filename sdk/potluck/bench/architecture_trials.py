"""One architecture tried: exported, answered over two agents and trained for three steps, against
one machine.
"""

import copy
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from potluck.errors import ModelError, PotluckError
from potluck.records import Plan, Stage

if TYPE_CHECKING:
    from potluck.bench.small_architectures import Architecture
    from potluck.graph import Model
    from potluck.home import Home

TOLERANCE = 1e-4  # of the largest number
STEPS = 3
LEARNING_RATE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """What became of one architecture; `refused`: why potluck does not take it; empty: it does."""

    name: str
    made: bool = True  # it could be made small
    in_time: bool = True
    exports: bool = False  # torch.export does
    refused: str = ""
    equal: bool = False
    trained: bool = False
    untrained: str = ""  # why not
    seconds: float = 0.0


def tried(architecture: "Architecture", home: "Home") -> TrialOutcome:
    """One architecture: exported, answered and trained."""
    import torch

    begun_s = time.perf_counter()
    net, inputs = architecture.net, tuple(architecture.inputs.values())
    with torch.no_grad():
        target = torch.randn_like(net(*inputs))
    found = _models(net, inputs, target)
    if found[0] is None:  # as a refusal says what to say where rows are compared
        again = _models(net, inputs, target, compares_rows=True)
        found = found if again[0] is None else again
    model, refused, untrained = found
    equal = trained = False
    if model is not None:
        try:
            equal = _answers(model, net.eval(), inputs, home)
            if not untrained:
                trained = _trains(model, net.train(), inputs, target, home)
                untrained = "" if trained else "trains otherwise than one machine"
        except PotluckError as error:
            untrained = f"over two agents: {cause(error)}"
    return TrialOutcome(
        name=architecture.name,
        exports=model is not None or _torch_exports(net.eval(), inputs),
        refused=refused,
        equal=equal,
        trained=trained,
        untrained=untrained,
        seconds=time.perf_counter() - begun_s,
    )


def _models(
    net: Any, inputs: tuple[Any, ...], target: Any, *, compares_rows: bool = False
) -> tuple["Model | None", str, str]:
    """The model, as far as potluck takes it; why it is refused; and why it is not trained."""
    import torch

    from potluck.graph import Model

    loss_of = torch.nn.functional.mse_loss
    of = partial(Model.from_torch, compares_rows=compares_rows)
    try:
        model = of(net.train(), inputs, loss=loss_of, example_targets=target)
    except PotluckError as error:
        untrained = f"in training: {cause(error)}"
    else:
        return model, "", ""
    try:
        return of(net.eval(), inputs), "", untrained
    except PotluckError as error:
        return None, cause(error), untrained


def _torch_exports(net: Any, inputs: tuple[Any, ...]) -> bool:
    """Whether torch.export takes it, for any number of rows."""
    import torch

    rows = torch.export.Dim("batch", min=1, max=1024)
    shapes = (tuple({0: rows} for _ in inputs),)
    try:
        torch.export.export(net, inputs, dynamic_shapes=shapes, strict=False)
    except Exception:  # whatever it raises
        return False
    return True


def _answers(model: "Model", net: Any, inputs: tuple[Any, ...], home: "Home") -> bool:
    """Whether two agents answer as the network does."""
    import torch

    run = home.deploy(halves(model, home, training=False), model).wait()
    try:
        with torch.no_grad():
            return _close(run(*inputs), net(*inputs))
    finally:
        run.close()


def _trains(model: "Model", net: Any, inputs: tuple[Any, ...], target: Any, home: "Home") -> bool:
    """Whether three steps on two agents give the losses of one machine."""
    import torch

    from potluck.run.optimizers import SGD

    alone = copy.deepcopy(net)
    plan = halves(model, home, training=True)
    run = home.deploy(plan, model, optimizer=SGD(LEARNING_RATE)).wait()
    try:
        got = run.fit([(*inputs, target)], epochs=STEPS).wait().losses
    finally:
        run.close()
    optimizer, expected = torch.optim.SGD(alone.parameters(), LEARNING_RATE), []
    for _ in range(STEPS):
        loss = torch.nn.functional.mse_loss(alone(*inputs), target)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.detach())
    return _close(torch.tensor(got), torch.stack(expected))


def _close(a: Any, b: Any) -> bool:
    return bool((a - b).abs().max() <= TOLERANCE * max(1.0, float(b.abs().max())))


def halves(model: "Model", home: "Home", *, training: bool) -> Plan:
    """The first half of the layers on one agent and the rest on the other; all on one where there
    is one layer.
    """
    from potluck.bench.small_architectures import ROWS

    names, n = sorted(home.devices), len(model.layers(training))
    bounds = [(0, n)] if n == 1 else [(0, n // 2), (n // 2, n)]
    stages = tuple(
        Stage(start=start, stop=stop, devices=(name,), shares=(ROWS,), warm_up=1)
        for (start, stop), name in zip(bounds, names, strict=False)
    )
    return Plan(
        planner="by hand",
        model=model.name,
        stages=stages,
        micro_batch=ROWS,
        n_micro_batches=1,
        training=training,
    )


def cause(error: PotluckError) -> str:
    """A refusal without what is particular to a model."""
    operator = error.facts.get("operator")
    text = str(error).removesuffix(error.next_step).split(" (in the module")[0].split(" (")[0]
    kind = "" if isinstance(error, ModelError) else f"{type(error).__name__}: "
    return f"{kind}{text[:110]}" if operator is None else text[:110]
