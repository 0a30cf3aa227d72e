"""Plans that a lab plays, and what each measured beside what was predicted of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from potluck.planning import make_plans
from potluck.records import Inference, Plan, Stage, Training

if TYPE_CHECKING:
    from potluck.home import Home
    from potluck.profile.home_network import HomeNetwork
    from potluck.profile.profiles import Profile
    from potluck.run.comparison import Comparison

WIDTHS = {"wide": 512, "narrow": 128}  # of models of linear layers


@dataclass(frozen=True, slots=True, kw_only=True)
class LabCase:
    """Stages of devices with their cut after these parts of the layers; rows are shared evenly.

    No `stages`: the best plan of the planner. `cuts`: the first layers of later stages; none:
    stages of as many layers each as can be. `at_once` 0: training; else so many requests under way.
    `recompute`: every stage does.
    """

    name: str
    home: str
    model: str
    stages: tuple[tuple[str, ...], ...] = ()
    schedule: str = "1f1b"
    at_once: int = 0
    recompute: bool = False
    cuts: tuple[int, ...] = ()

    def best_plan(self, profile: "Profile", batch: int) -> Plan:
        """The planner's."""
        answers = Inference(batch=batch, streaming=self.at_once > 1)
        workload = answers if self.at_once else Training(batch=batch)
        return make_plans(profile.problem(workload)).best

    def plan(self, model_name: str, n_layers: int, batch: int, micro_batch: int) -> Plan:
        """The plan of its stages."""
        n = len(self.stages)
        rows = micro_batch if n > 1 and not self.at_once else batch
        even = [round(i * n_layers / n) for i in range(1, n)]
        cuts = [0, *(self.cuts or even), n_layers]
        n_micro_batches = batch // rows
        depths = [min(2 * (n - p) - 1, n_micro_batches) for p in range(n)]
        stages = (
            Stage(
                start=a,
                stop=b,
                devices=names,
                shares=_even(rows, len(names)),
                warm_up=depth,
                recompute=self.recompute,
            )
            for a, b, names, depth in zip(cuts, cuts[1:], self.stages, depths, strict=False)
        )
        return Plan(
            planner="bench",
            model=model_name,
            stages=tuple(stages),
            micro_batch=rows,
            n_micro_batches=n_micro_batches,
            training=not self.at_once,
        )


def _even(rows: int, n: int) -> tuple[int, ...]:
    return tuple((i + 1) * rows // n - i * rows // n for i in range(n))


def of_home(
    home: "Home",
    some: Sequence[LabCase],
    settings: Mapping[str, float],
    network: "HomeNetwork | None" = None,
) -> "dict[str, list[Comparison]]":
    """Each of these cases on this home, as often as the settings say; with a network that was
    measured, where one is given.
    """
    batch, micro_batch = int(settings["batch"]), int(settings["micro_batch"])
    found: dict[str, list[Comparison]] = {case.name: [] for case in some}
    models = {case.model: _model(case.model, batch) for case in some}
    rows = (micro_batch // 4, micro_batch, batch)
    profiles = {
        name: home.profile(model, rows=rows, network=network).wait()
        for name, (model, _, _) in models.items()
    }
    for _ in range(int(settings["repeats"])):
        for case in some:
            model, images, labels = models[case.model]
            n_layers = len(model.layers(not case.at_once))
            plan = (
                case.plan(model.name, n_layers, batch, micro_batch)
                if case.stages
                else case.best_plan(profiles[case.model], batch)
            )
            found[case.name].append(_tried(home, case, plan, model, images, labels, settings))
    return found


def _tried(
    home: "Home",
    case: LabCase,
    plan: Plan,
    model: Any,
    images: Any,
    labels: Any,
    settings: Mapping[str, float],
) -> "Comparison":
    from potluck.run.optimizers import AdamW

    optimizer = None if case.at_once else AdamW(1e-3)
    schedule = case.schedule if case.stages and not case.at_once else None
    run = home.deploy(plan, model, optimizer=optimizer, schedule=schedule).wait()
    try:
        if case.at_once == 0:
            run.fit([(images, labels)] * int(settings["steps"]), adapt=False).wait()
        elif case.at_once == 1:
            for _ in range(int(settings["requests"])):
                run(images)
        else:
            # the middle of a stream counts, without what fills it and drains it
            run(images.repeat(2 * int(settings["requests"]) + case.at_once, 1, 1, 1))
        return run.compare()
    finally:
        run.close()


def _model(kind: str, batch: int) -> tuple[Any, Any, Any]:
    """The model, and a batch of it."""
    import torch

    from potluck.graph import Model
    from potluck.samples import Digits, digits_network

    images, labels = next(iter(Digits.load().batches(batch, 1)))
    torch.manual_seed(0)
    makers = {"cnn": digits_network, "branched": _towers}
    network = makers[kind]() if kind in makers else _linear(WIDTHS[kind])
    made = Model.from_torch(
        network, images, loss=torch.nn.functional.cross_entropy, example_targets=labels
    )
    return made, images, labels


def _linear(n: int) -> Any:
    """A network of linear layers, `n` wide."""
    from torch import nn

    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, n), nn.ReLU(), nn.Linear(n, n), nn.ReLU(), nn.Linear(n, 10)
    )


def _towers(n: int = 512) -> Any:
    """Two towers of linear layers, `n` wide, that look at the same image, and what judges both."""
    import torch
    from torch import nn

    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left = nn.Sequential(nn.Linear(64, n), nn.ReLU(), nn.Linear(n, n), nn.ReLU())
            self.right = nn.Sequential(nn.Linear(64, n), nn.ReLU(), nn.Linear(n, n), nn.ReLU())
            self.head = nn.Linear(2 * n, 10)

        def forward(self, images: torch.Tensor) -> Any:
            x = images.flatten(1)
            return self.head(torch.cat([self.left(x), self.right(x)], 1))

    return Towers()
