"""DeepCEE's first setting in a lab, scaled down: two devices of each site train for real over the
paper's links, by our plan and by those of the baselines.

Jetsons stand for the cards, with about the same ratios between sites, and networks of half a
megabyte and of six for its models: so computing counts as much beside the links as the paper's
figures say that it did. Everything is played `time_scale` times slower. Each baseline has the plan
for all devices that it likes best, as on paper.
"""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from potluck.bench.judging import Judging
from potluck.bench.networks import NETWORKS
from potluck.planning import make_plans
from potluck.planning.registry import Planner
from potluck.planning.search.schedules import ANY, names_of
from potluck.records import Plan, Training

if TYPE_CHECKING:
    from potluck.home import Home
    from potluck.run.comparison import Comparison

NAME = "regions"  # of the home
# by site: two of which device
SITES = {"cloud": "jetson-orin-nano-super", "edge": "jetson-xavier-nx", "end": "jetson-tx2"}
KINDS = ("cnn", "transformer")
OURS = "ours"
N_CANDIDATES = 1000  # of one planner


def figures(
    planners: Mapping[str, Planner], batch: int, steps: int, time_scale: float
) -> dict[str, float]:
    """Seconds of a step by each baseline's plan over those by ours, and how far off predictions
    were.

    Parameters
    ----------
    planners
        The baselines.
    batch
        Rows of a step.
    steps
        Each plan is trained on.
    time_scale
        How many times longer everything takes than in the cloud.
    """
    from potluck.home import Home

    found, errors = dict[str, float](), list[float]()
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{NAME}.toml"
        file.write_text(home_toml())
        with Home.lab(file, time_scale=time_scale) as home:
            for kind in KINDS:
                compared = dict(_compared(home, kind, planners, batch, steps))
                errors += [each.error_frac for each in compared.values()]
                ours_s = compared.pop(OURS).measured_step_s
                ratios = {name: each.measured_step_s / ours_s for name, each in compared.items()}
                found |= {f"lab_speedup_{name}_{kind}": ratio for name, ratio in ratios.items()}
                worst = max(worst, 1 / min(ratios.values()))
    return found | {
        "lab_worst_ratio_to_best_baseline": worst,
        "lab_prediction_error_median_frac": median(errors),
        "lab_prediction_error_max_frac": max(errors),
    }


def home_toml() -> str:
    """The home of these sites, on the paper's network."""
    head = (
        f'name = "{NAME}"\ntitle = "Regions"\nsource = "DeepCEE, section 4.1"\n'
        'network = "cloud-edge-end-1"\nhome_at = "cloud-1"\n'
    )
    devices = [
        f'[[devices]]\nname = "{site}-{n}"\nprofile = "{device}"\nsite = "{site}"'
        for site, device in SITES.items()
        for n in (1, 2)
    ]
    return head + "\n".join(devices)


def _compared(
    home: "Home", kind: str, planners: Mapping[str, Planner], batch: int, steps: int
) -> "Iterator[tuple[str, Comparison]]":
    """What our plan and each baseline's measured on this model."""
    import torch

    from potluck.graph import Model

    network, x, y = NETWORKS[kind](batch)
    loss = torch.nn.functional.cross_entropy
    model = Model.from_torch(network, x, loss=loss, example_targets=y, name=kind)
    problem = home.profile(model).wait().problem(Training(batch=batch))
    judging = Judging(problem, N_CANDIDATES)
    ours = make_plans(problem, order_transfers=True, schedules=names_of(ANY)).best
    plans: dict[str, Plan | None] = {OURS: ours}
    plans |= {name: judging.first(judging.liked(planner)) for name, planner in planners.items()}
    for name, plan in plans.items():
        if plan is not None:
            yield name, _trained(home, model, plan, x, y, steps)


def _trained(home: "Home", model: Any, plan: Plan, x: Any, y: Any, steps: int) -> "Comparison":
    from potluck.run.optimizers import AdamW

    run = home.deploy(plan, model, optimizer=AdamW(1e-3), protect=False).wait()
    try:
        run.fit([(x, y)] * steps, adapt=False).wait()
        return run.compare()
    finally:
        run.close()
