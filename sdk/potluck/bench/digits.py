"""Training a CNN on digits: a step on 1 to 4 local agents against plain torch, and against its
prediction.

Agents here share this computer's cores, so more of them need not be faster: what is measured is
what the splitting costs. The lab's emulated devices leave each other room; there, several plans are
tried against their predictions.

Agents on shared cores are predicted worse than those of the lab, for a reason that `LIMITS` names:
so each number of agents is profiled and run several times.
"""

import time
from collections.abc import Mapping, Sequence
from operator import truediv
from statistics import median
from typing import TYPE_CHECKING, Any

from potluck.bench.harness import Result

if TYPE_CHECKING:
    from potluck.home import Home
    from potluck.records import Plan

SETTINGS: Mapping[str, float] = {
    "batch": 64,
    "steps": 12,
    "most_agents": 4,
    "tries": 3,
    "lab_plans": 3,
}
GOALS = {"prediction_error_frac": ("<=", 0.10), "prediction_error_local_frac": ("<=", 0.10)}
LEARNING_RATE = 1e-3
LIMITS = (
    "prediction_error_local_frac: a profile and a run are some seconds apart, and the speed of a "
    "machine that is shared or rented drifts meanwhile: compare plain_step_slowest_ratio, the "
    "slowest by the quickest median of plain steps.",
)


def run(settings: Mapping[str, float]) -> Result:
    """Measure every number of agents, then the lab."""
    from potluck.home import Home

    batches = _batches(int(settings["batch"]), int(settings["steps"]))
    figures, errors = dict[str, float](), list[float]()
    plain_s = list[float]()
    for n in range(1, int(settings["most_agents"]) + 1):
        tries: list[tuple[float, float]] = []
        for _ in range(int(settings["tries"])):
            plain_s.append(_plain_step_s(batches))
            with Home.local(n) as home:
                tries += _try_plans(home, batches, 1)
        errors.append(median(error for _, error in tries))
        steps_s = [step_s for step_s, _ in tries]
        figures |= {
            f"agents_{n}_step_ms": 1e3 * median(steps_s),
            f"agents_{n}_ratio_to_plain": median(map(truediv, steps_s, plain_s[-len(tries) :])),
        }
    figures |= {
        "plain_step_ms": 1e3 * median(plain_s),
        "plain_step_slowest_ratio": max(plain_s) / min(plain_s),
    }
    with Home.lab() as home:
        tried = _try_plans(home, batches, int(settings["lab_plans"]))
    figures["lab_best_step_ms"] = 1e3 * tried[0][0]
    figures["prediction_error_local_frac"] = median(errors)
    figures["prediction_error_lab_frac"] = median(error for _, error in tried)
    figures["prediction_error_frac"] = median([*errors, *(error for _, error in tried)])
    return Result(name="digits", figures=figures, settings=settings, goals=GOALS, notes=LIMITS)


def _batches(batch: int, n_steps: int) -> list[tuple[Any, Any]]:
    from potluck.samples import Digits

    return list(Digits.load().batches(batch, n_steps))


def _plain_step_s(batches: Sequence[tuple[Any, Any]]) -> float:
    """The median step of plain torch with one thread, as each agent has; the first is a warm-up."""
    import torch

    from potluck.samples import digits_network

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        network = digits_network().train()
        optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE)
        seconds = []
        for images, labels in batches:
            start_s = time.perf_counter()
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(images), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            seconds.append(time.perf_counter() - start_s)
    finally:
        torch.set_num_threads(before)
    return median(seconds[1:])


def _try_plans(
    home: "Home", batches: Sequence[tuple[Any, Any]], n_plans: int
) -> list[tuple[float, float]]:
    """(measured step, error of its prediction) of the best plan and of the best ones on other sets
    of devices.
    """
    import torch

    from potluck.graph import Model
    from potluck.planning import make_plans
    from potluck.records import Training
    from potluck.run.optimizers import AdamW
    from potluck.samples import digits_network

    images, labels = batches[0]
    loss = torch.nn.functional.cross_entropy
    model = Model.from_torch(digits_network(), images, loss=loss, example_targets=labels)
    problem = home.profile(model).wait().problem(Training(batch=len(labels)))
    tried = []
    for chosen in _different(make_plans(problem), n_plans):
        run = home.deploy(chosen, model, optimizer=AdamW(LEARNING_RATE)).wait()
        try:
            run.fit(list(batches), adapt=False).wait()
            compared = run.compare()
        finally:
            run.close()
        tried.append((compared.measured_step_s, compared.error_frac))
    return tried


def _different(plans: Sequence["Plan"], max_plans: int) -> list["Plan"]:
    """The best plan of each way to split the model over devices, at most so many."""
    firsts: dict[tuple[tuple[str, ...], ...], Plan] = {}
    for candidate in plans:
        firsts.setdefault(tuple(stage.devices for stage in candidate.stages), candidate)
    return list(firsts.values())[:max_plans]
