"""Which estimate of the bandwidth chooses the best entries of a split table, on made-up links that
fade.

The links: WiFi of 93 Mbit/s indoors and 73 outdoors (Intra-DP's means), a first-order
autoregression in the logarithm, and a Gilbert-Elliott chain that takes it to near zero for seconds.
A transfer shows the bandwidth with noise, rarely a burst out of a buffer or a stall. As in
`offload/maintenance.py`, nothing is seen while the device answers alone but by asking, and a late
request is begun again on the device. A rule's regret: seconds of all requests over those of whoever
knows the bandwidth, minus one.
"""

import math
import random
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from statistics import fmean, harmonic_mean, median
from typing import Protocol

from potluck.offload.accelerated import LATE, LATE_S
from potluck.offload.bandwidth_filter import LONG, SHORT, Estimator, ProbeTimer
from potluck.offload.link_bandwidth import PROBE_BYTES
from potluck.offload.plan.problem import OffloadProblem, Operator
from potluck.offload.plan.split import Splitter

# mean, spread, drops per second
PLACES = {"indoors": (93e6 / 8, 0.35, 0.02), "outdoors": (73e6 / 8, 0.6, 0.06)}
EVERY_S, LASTS_S = 0.25, 600.0  # between two requests; of a trace
CALM_S = 2.0  # the autoregression forgets in so long
BACK_FRAC = 0.4  # of drops that end, per second
DROP = 0.02  # of the bandwidth is left
NOISE = 0.15
ODD_FRAC = 0.04
BURST = 4.0
STALL = 0.2
SENT_BYTES = 150_000
SOON = 5  # turns
GRID = tuple(10 ** (4.5 + k / 12) for k in range(41))  # 32 KB/s to 68 MB/s


class Rule(Protocol):
    """What estimates."""

    def observe(self, nbytes: int, seconds: float, at_s: float) -> None: ...

    @property
    def bytes_per_s(self) -> float: ...


class Recent:
    """Any statistic of the rates of the last `n` transfers."""

    def __init__(self, n: int, statistic: Callable[[list[float]], float]) -> None:
        self._rates: deque[float] = deque(maxlen=n)
        self._statistic = statistic

    def observe(self, nbytes: int, seconds: float, at_s: float) -> None:
        self._rates.append(nbytes / seconds)

    @property
    def bytes_per_s(self) -> float:
        return self._statistic(list(self._rates)) if self._rates else 1e7


def _ewma(weight: float) -> Callable[[list[float]], float]:
    def of(rates: list[float]) -> float:
        value = rates[0]
        for rate in rates[1:]:
            value += weight * (rate - value)
        return value

    return of


RULES: dict[str, Callable[[], Rule]] = {
    "default": lambda: Estimator(1e7),
    "latest": lambda: Recent(1, fmean),
    "ewma_0.25": lambda: Recent(30, _ewma(0.25)),
    "ewma_0.5": lambda: Recent(30, _ewma(0.5)),
    "median_3": lambda: Recent(3, median),
    "median_5": lambda: Recent(5, median),
    "harmonic_3": lambda: Recent(3, harmonic_mean),
    "harmonic_5": lambda: Recent(5, harmonic_mean),
    **{
        f"min_{short}_{long}": lambda short=short, long=long: Estimator(1e7, short=short, long=long)  # type: ignore[misc]
        for short, long in ((1, 3), (1, 5), (1, 9), (2, 5), (3, 9))
    },
}


def figures(seed: int = 0) -> dict[str, float]:
    """The regret of every rule by place, and over both (`_regret`).

    The rules' windows of today stand beside it.
    """
    latency_s = _table()
    found: dict[str, float] = {"short": SHORT, "long": LONG}
    for name, rule in RULES.items():
        each = {place: _regret(rule(), place, latency_s, seed) for place in PLACES}
        found |= {f"{name}_{place}_regret": regret for place, regret in each.items()}
        found[f"{name}_regret"] = fmean(each.values())
    return found


def trace(place: str, seed: int) -> Iterator[float]:
    """Bytes per second of a link, at every request."""
    rng = random.Random(f"{place} {seed}")
    mean, spread, drops = PLACES[place]
    keep = math.exp(-EVERY_S / CALM_S)
    level, down = 0.0, False
    for _ in range(int(LASTS_S / EVERY_S)):
        level = keep * level + math.sqrt(1 - keep * keep) * rng.gauss(0, spread)
        down = rng.random() >= BACK_FRAC * EVERY_S if down else rng.random() < drops * EVERY_S
        yield mean * math.exp(level - spread * spread / 2) * (DROP if down else 1.0)


def fade(place: str, n: int, seed: int = 0) -> tuple[float, ...]:
    """Neighbours in a trace: `n // 2` before its first drop to near zero that is soon over, and as
    many from there.
    """
    rates = tuple(trace(place, seed))
    low = [rate < 3 * DROP * PLACES[place][0] for rate in rates]
    drops = (
        turn
        for turn in range(n, len(rates))
        if low[turn] and not low[turn - 1] and not low[turn + SOON]
    )
    begin = next(drops) - n // 2
    return rates[begin : begin + n]


def _regret(rule: Rule, place: str, latency_s: list[list[float]], seed: int) -> float:
    rng = random.Random(f"noise {place} {seed}")
    taken_s = best_s = 0.0
    alone_s, probe_timer = latency_s[0][0], ProbeTimer(0.0)
    for turn, truth in enumerate(trace(place, seed)):
        at_s = turn * EVERY_S
        now = _nearest(truth)
        believed = rule.bytes_per_s
        thought = _nearest(believed)
        late_s = LATE * latency_s[thought][thought] + LATE_S
        chosen_s = latency_s[thought][now]
        taken_s += chosen_s if chosen_s <= late_s else min(chosen_s, late_s + alone_s)
        best_s += latency_s[now][now]
        odd = rng.random()
        shown = truth * math.exp(rng.gauss(0, NOISE))
        shown *= BURST if odd < ODD_FRAC / 2 else STALL if odd < ODD_FRAC else 1.0
        shares = latency_s[thought] != latency_s[0]
        if shares or probe_timer.is_due(at_s, alone=True):
            nbytes = SENT_BYTES if shares else PROBE_BYTES
            rule.observe(nbytes, nbytes / shown, at_s)
            probe_timer.observe(at_s, shown, believed, is_probe=not shares)
    return taken_s / best_s - 1


def _nearest(bytes_per_s: float) -> int:
    return max(bisect_right(GRID, bytes_per_s) - 1, 0)


def _table() -> list[list[float]]:
    """Seconds of a request [planned for][at], over `GRID`: a pyramid of convolutions, some VGG at
    1/8 of its work.
    """
    line = [Operator(name="x", count=224, row_bytes=2688)]
    for k, (count, row_bytes) in enumerate(
        ((224, 57344), (112, 57344), (56, 57344), (28, 57344), (14, 28672))
    ):
        window = _Window(2 if k else 1, line[-1].count)
        line.append(
            Operator(
                name=f"c{k}",
                count=count,
                row_bytes=row_bytes,
                side_s=(0.03, 0.003),
                inputs=((k, window),),
            )
        )
    all_rows = ((len(line) - 1, None),)
    line.append(Operator(name="y", count=1, row_bytes=4000, inputs=all_rows, divisible=False))
    splitter = Splitter(
        OffloadProblem(operators=tuple(line), bytes_per_s=GRID[0], latency_s=2e-3, piece_s=5e-4)
    )
    splits = [splitter.share(rate) for rate in GRID]
    rows: list[list[float]] = []
    for split in splits:
        tried = [splitter.tried(split.divisions, rate, split.tiles) for rate in GRID]
        rows.append([found.latency_s if found else math.inf for found in tried])
    return rows


class _Window:
    """Rows that a convolution of three with this stride reads."""

    def __init__(self, stride: int, count: int) -> None:
        self._stride, self._count = stride, count

    def rows(self, start: int, stop: int) -> tuple[int, int]:
        return max(start * self._stride - 1, 0), min((stop - 1) * self._stride + 2, self._count)
