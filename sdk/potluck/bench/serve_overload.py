"""A service on agents that is asked for more than its devices can do: what is still answered in
time, by the most that ever was, and what is once less is asked again.

Emulated devices, so that this machine's processor is not what runs short. An open loop: requests of
one row come at their time whether or not others were answered. Their rate is doubled until not all
are in time; loads are multiples of what was in time then.
"""

import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from potluck.bench.harness import Result

if TYPE_CHECKING:
    import torch

    from potluck.serve.runtime.service import Service

SETTINGS: dict[str, float] = {
    "devices": 2,
    "slowdown": 40,
    "mbit_per_s": 400,
    "limit_s": 1.0,
    "seconds": 20,
    "rounds": 1,
    "first_per_s": 40,
}
GOALS = {
    "goodput_above_capacity_frac_of_peak": (">=", 0.981),
    "served_below_capacity_frac": (">=", 0.994),
    "wrong": ("<=", 0),
}
BELOW, ABOVE = 0.7, (1.5, 2.0, 3.0)  # times what the devices can do
IN_TIME_FRAC = 0.95  # of what is asked for: less is beyond what they can do
FILLING_FRAC = 0.2  # of each load's time, until queues are full
PAUSE_S = 0.004


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """What became of one load: per second once queues are full, and as parts of all."""

    asked_per_s: float
    in_time_per_s: float
    in_time_frac: float
    late_frac: float
    wrong: int


def run(settings: Mapping[str, float]) -> Result:
    """Ask for less, then for more and more, then for less again."""
    import torch

    import potluck
    from potluck.sessions.agent_specs import Spec

    torch.manual_seed(0)
    network = _network().eval()
    row = torch.randn(1, 8, 24, 24)
    with torch.no_grad():
        expected = network(row)
    specs = [
        Spec(
            name=f"device-{number}",
            slowdown=settings["slowdown"],
            link_rate=f"{settings['mbit_per_s']:g} Mbit/s",
        )
        for number in range(int(settings["devices"]))
    ]
    model = potluck.Model.from_torch(network, torch.randn(2, 8, 24, 24), name="net")
    with potluck.Home.lab(specs) as home:
        slo = potluck.Latency(settings["limit_s"])
        service = home.serve(model, "net", slo=slo).wait()

        def ask(per_s: float) -> OfferedLoad:
            return _asked(service, row, expected, per_s, settings["seconds"])

        per_s = settings["first_per_s"]
        while (found := ask(per_s)).in_time_frac >= IN_TIME_FRAC:
            per_s *= 2
        per_s = found.in_time_per_s
        below, above = [ask(BELOW * per_s)], [found]
        for _ in range(int(settings["rounds"])):
            above += [ask(load * per_s) for load in ABOVE]
            below.append(ask(BELOW * per_s))
        mean_batch = service.stats.mean_batch
    peak_per_s = max(each.in_time_per_s for each in above)
    figures = {
        "peak_per_s": peak_per_s,
        "most_asked_frac_of_peak": max(each.asked_per_s for each in above) / peak_per_s,
        "goodput_above_capacity_frac_of_peak": min(each.in_time_per_s for each in above)
        / peak_per_s,
        "served_below_capacity_frac": min(each.in_time_frac for each in below),
        "late_frac": max(each.late_frac for each in (*below, *above)),
        "wrong": float(sum(each.wrong for each in (*below, *above))),
        "mean_batch": mean_batch,
    }
    return Result(name="serve_overload", figures=figures, settings=settings, goals=GOALS)


def _network() -> "torch.nn.Module":
    import torch

    layers = [torch.nn.Conv2d(8, 8, 3, padding=1) for _ in range(4)]
    ends = (torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    return torch.nn.Sequential(
        *(part for each in layers for part in (each, torch.nn.Tanh())), *ends
    )


def _asked(
    service: "Service", row: "torch.Tensor", expected: "torch.Tensor", per_s: float, seconds: float
) -> OfferedLoad:
    before, begun_s = service.stats, time.perf_counter()
    answers: deque[Future[torch.Tensor]] = deque()
    n_asked, wrong = 0, 0

    def check_first() -> None:
        nonlocal wrong
        answer = answers.popleft()
        if answer.exception() is None:  # it was not refused
            wrong += not expected.allclose(answer.result(), atol=1e-5)

    def n_in_time_after(lasts_s: float) -> int:
        nonlocal n_asked
        while (elapsed_s := time.perf_counter() - begun_s) < lasts_s:
            while n_asked < per_s * elapsed_s:
                answers.append(service.ask(row))
                n_asked += 1
            # kept for longer, Python's collector would look at them all again and again
            while answers and answers[0].done():
                check_first()
            time.sleep(PAUSE_S)
        return service.stats.n_in_time

    filled_s = FILLING_FRAC * seconds
    n_before = n_in_time_after(filled_s)
    in_time_per_s = (n_in_time_after(seconds) - n_before) / (seconds - filled_s)
    while answers:
        check_first()
    after = service.stats
    return OfferedLoad(
        asked_per_s=n_asked / seconds,
        in_time_per_s=in_time_per_s,
        in_time_frac=(after.n_in_time - before.n_in_time) / n_asked,
        late_frac=(after.n_late - before.n_late) / n_asked,
        wrong=wrong,
    )
