"""Which networks run as they are: architectures of transformers, made small by rule, each exported,
answered over two agents and trained for three steps, against one machine.

`exported_frac` is of those that torch.export itself exports for any number of rows. Equal means
within a tolerance: two agents sum in the order of their shares.
"""

import copy
import logging
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from potluck.bench.frame import Result
from potluck.errors import ModelError, PotluckError
from potluck.records import Plan, Stage

if TYPE_CHECKING:
    from potluck.bench.small_architectures import Architecture
    from potluck.graph import Model
    from potluck.home import Home

# every: of all kinds of models in alphabetical order, each n-th
SETTINGS: Mapping[str, float] = {"every": 12, "first": 0, "most": 1000}
GOALS = {"exported_frac": (">=", 0.95), "equal_frac": (">=", 1.0), "trained_frac": (">=", 0.9)}
TOLERANCE = 1e-4  # of the largest number
STEPS = 3
LEARNING_RATE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one architecture; `refused`: why potluck does not take it; empty: it does."""

    name: str
    exports: bool  # torch.export does
    refused: str = ""
    equal: bool = False
    trained: bool = False
    untrained: str = ""  # why not
    seconds: float = 0.0


def run(settings: Mapping[str, float]) -> Result:
    """Try every n-th architecture."""
    from potluck.bench import small_architectures
    from potluck.home import Home

    chosen = small_architectures.names()[int(settings["first"]) :: int(settings["every"])]
    outcomes: list[Outcome] = []
    n_left_out = 0
    with _quiet(), Home.local(2) as home:
        for name in chosen:
            if len(outcomes) >= settings["most"]:
                break
            architecture = small_architectures.made(name)
            if architecture is None:
                n_left_out += 1
            else:
                outcomes.append(tried(architecture, home))
    return Result(
        name="coverage",
        figures=figures(outcomes) | {"not_made_small": n_left_out},
        settings=settings,
        goals=GOALS,
        notes=notes(outcomes),
    )


def figures(outcomes: list[Outcome]) -> dict[str, float]:
    """Fractions of those that torch.export exports."""
    exports = [o for o in outcomes if o.exports]
    taken = [o for o in exports if not o.refused]
    n, n_taken = max(1, len(exports)), max(1, len(taken))
    return {
        "exported_frac": len(taken) / n,
        "equal_frac": sum(o.equal for o in taken) / n_taken,
        "trained_frac": sum(o.trained for o in exports) / n,
        "models": len(outcomes),
        "torch_exports": len(exports),
        "seconds_per_model": sum(o.seconds for o in outcomes) / max(1, len(outcomes)),
    }


def notes(outcomes: list[Outcome]) -> tuple[str, ...]:
    """The refused ones by cause, the most frequent first."""
    causes: Counter[str] = Counter()
    names: dict[str, list[str]] = {}
    for o in outcomes:
        cause = o.refused or (not o.equal and "differs") or o.untrained
        if o.exports and cause:
            causes[str(cause)] += 1
            names.setdefault(str(cause), []).append(o.name)
    return tuple(f"{n} x {cause} ({', '.join(names[cause])})" for cause, n in causes.most_common())


def tried(architecture: "Architecture", home: "Home") -> Outcome:
    """One architecture: exported, answered and trained."""
    import torch

    from potluck.graph import Model

    begun_s = time.perf_counter()
    net, inputs = architecture.net, tuple(architecture.inputs.values())
    exports = _torch_exports(net, inputs)
    refused, equal, trained, untrained = "", False, False, ""
    try:
        model = Model.from_torch(net, inputs)
        equal = _answers(model, net, inputs, home)
    except PotluckError as error:
        refused = _cause(error)
    if not refused:
        with torch.no_grad():
            target = torch.randn_like(net(*inputs))
        try:
            trained = _trains(net, inputs, target, home)
            untrained = "" if trained else "trains otherwise than one machine"
        except PotluckError as error:
            untrained = f"in training: {_cause(error)}"
    return Outcome(
        name=architecture.name,
        exports=exports,
        refused=refused,
        equal=equal,
        trained=trained,
        untrained=untrained,
        seconds=time.perf_counter() - begun_s,
    )


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

    run = home.deploy(_halves(model, home, training=False), model).wait()
    try:
        with torch.no_grad():
            return _close(run(*inputs), net(*inputs))
    finally:
        run.close()


def _trains(net: Any, inputs: tuple[Any, ...], target: Any, home: "Home") -> bool:
    """Whether three steps on two agents give the losses of one machine."""
    import torch

    from potluck.graph import Model
    from potluck.run.optimizers import SGD

    alone = copy.deepcopy(net).train()
    loss_of = torch.nn.functional.mse_loss
    model = Model.from_torch(net.train(), inputs, loss=loss_of, example_targets=target)
    plan = _halves(model, home, training=True)
    run = home.deploy(plan, model, optimizer=SGD(LEARNING_RATE)).wait()
    try:
        got = run.fit([(*inputs, target)], epochs=STEPS).wait().losses
    finally:
        run.close()
    optimizer, expected = torch.optim.SGD(alone.parameters(), LEARNING_RATE), []
    for _ in range(STEPS):
        loss = loss_of(alone(*inputs), target)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.detach())
    return _close(torch.tensor(got), torch.stack(expected))


def _close(a: Any, b: Any) -> bool:
    return bool((a - b).abs().max() <= TOLERANCE * max(1.0, float(b.abs().max())))


def _halves(model: "Model", home: "Home", *, training: bool) -> Plan:
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


def _cause(error: PotluckError) -> str:
    """A refusal without what is particular to a model."""
    operator = error.facts.get("operator")
    text = str(error).removesuffix(error.next_step).split(" (in the module")[0].split(" (")[0]
    kind = "" if isinstance(error, ModelError) else f"{type(error).__name__}: "
    return f"{kind}{text[:110]}" if operator is None else text[:110]


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers and torch warn of what a small configuration makes odd."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
