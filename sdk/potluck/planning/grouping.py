"""Two levels of groups: devices that are well connected, and among these the ones that are alike.

DeepCEE (Wang et al., section 3.2): agglomerative clustering, first by what the network between two
devices is capable of, then by compute. What a pair is capable of is p = alpha + beta / m there. We
take the seconds alpha + beta m that m bytes take, alpha from a tiny payload and beta from a large
one. The paper leaves its thresholds open: here every one that makes other groups is a candidate,
and what it does to a plan decides (`best_grouping`).
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from potluck.records import Network, Problem
from potluck.simulate import cost

TINY_BYTES = 20  # five int32 (section 3.2.1)
LARGE_BYTES = 8 * 2**20  # many times what a link's latency lets through
PAYLOAD_BYTES = 2**20  # of an activation or gradient, whose seconds tell how far two devices are
HEIGHT_DIGITS = 6  # merges of equal links are equal

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PairSpeed:
    """What the network between two devices is capable of.

    `alpha_s`: latency; `beta_s_per_byte`: what each byte takes.
    """

    alpha_s: float
    beta_s_per_byte: float

    def seconds(self, nbytes: int) -> float:
        """What so many bytes take."""
        return self.alpha_s + self.beta_s_per_byte * nbytes


def pair_speed(tiny_s: float, large_s: float, tiny_bytes: int, large_bytes: int) -> PairSpeed:
    """Alpha and beta from the seconds of a tiny and of a large payload (section 3.2.1).

    >>> pair_speed(0.5, 1.5, 0, 1000)
    PairSpeed(alpha_s=0.5, beta_s_per_byte=0.001)

    Parameters
    ----------
    tiny_s, large_s
        Measured seconds.
    tiny_bytes, large_bytes
        Of the payloads.
    """
    beta = max(0.0, large_s - tiny_s) / (large_bytes - tiny_bytes)
    return PairSpeed(max(0.0, tiny_s - beta * tiny_bytes), beta)


def pair_speeds(network: Network, names: Sequence[str]) -> dict[Pair, PairSpeed]:
    """Of every pair by what is known of the network, the worse direction of each; none where no
    path joins them.

    Parameters
    ----------
    network
        As profiled.
    names
        Of the devices.
    """
    found = {}
    for a, b in combinations(names, 2):
        if (a, b) in network.paths and (b, a) in network.paths:
            ways = [_timed(network, pair) for pair in ((a, b), (b, a))]
            tiny_s, large_s = (max(times) for times in zip(*ways, strict=True))
            found[a, b] = pair_speed(tiny_s, large_s, TINY_BYTES, LARGE_BYTES)
    return found


def _timed(network: Network, pair: Pair) -> tuple[float, float]:
    latency_s, rate = network.latency(*pair), network.bandwidth(*pair)
    return latency_s + TINY_BYTES / rate, latency_s + LARGE_BYTES / rate


@dataclass(frozen=True, slots=True)
class Merge:
    """Two groups become one, at `height`: the mean seconds of a payload between their devices (of
    compute: how many times as fast or roomy).
    """

    left: frozenset[str]
    right: frozenset[str]
    height: float

    @property
    def members(self) -> frozenset[str]:
        """Of both."""
        return self.left | self.right


@dataclass(frozen=True, slots=True, kw_only=True)
class Dendrogram:
    """All merges, the nearest first; `unit` says what heights are."""

    names: tuple[str, ...]
    merges: tuple[Merge, ...] = ()
    unit: str = "s"

    def cut(self, height: float) -> tuple[tuple[str, ...], ...]:
        """The groups when all merges up to this height are made, in the order of their devices."""
        group = {name: frozenset({name}) for name in self.names}
        for merge in self.merges:
            if merge.height <= height:
                group.update(dict.fromkeys(merge.members, merge.members))
        found = dict.fromkeys(group[name] for name in self.names)
        return tuple(tuple(n for n in self.names if n in members) for members in found)

    @property
    def thresholds(self) -> tuple[float, ...]:
        """Heights that make all different groups there are: each merge's, and 0 for none."""
        return tuple(dict.fromkeys((0.0, *(merge.height for merge in self.merges))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """First-level groups by network, and in each the second-level ones by compute and memory.

    `threshold`: seconds of a payload within a group of the first level; `factor`: how many times as
    fast or roomy devices of one of the second are.
    """

    groups: tuple[tuple[tuple[str, ...], ...], ...]
    threshold: float = 0.0
    factor: float = 1.0
    network: Dendrogram = field(default_factory=lambda: Dendrogram(names=()))

    @property
    def regions(self) -> tuple[tuple[str, ...], ...]:
        """The first-level groups."""
        return tuple(tuple(name for part in region for name in part) for region in self.groups)


def network_dendrogram(problem: Problem, payload_bytes: int = PAYLOAD_BYTES) -> Dendrogram:
    """Devices by the network between them: mean linkage of the logarithms of seconds, as what
    counts is how many times slower a link is. Those that no path joins come last.

    Parameters
    ----------
    problem
        Devices and network.
    payload_bytes
        What a transfer carries.
    """
    names = tuple(device.name for device in problem.devices)
    speeds = pair_speeds(problem.network, names)
    seconds = {pair: speed.seconds(payload_bytes) for pair, speed in speeds.items()}
    apart_s = 1e3 * max(seconds.values(), default=1.0)
    return _clustered(names, lambda a, b: seconds.get((a, b), apart_s))


def compute_dendrogram(problem: Problem, names: Sequence[str]) -> Dendrogram:
    """These devices by speed on this model and by memory: a pair is as far apart as the larger
    factor between the two.

    Parameters
    ----------
    problem
        Costs and memories.
    names
        Of devices.
    """
    table, n_layers = cost.CostTable(problem), len(problem.layers)
    rows = max(1, min(8, problem.workload.batch))
    seconds = {name: max(1e-12, table.forward_s(name, 0, n_layers, rows)) for name in names}
    memory = {name: max(1, table.budgets[name]) for name in names}

    def factor(a: str, b: str) -> float:
        return max(_times(seconds[a], seconds[b]), _times(memory[a], memory[b]))

    return _clustered(tuple(names), factor, unit="times")


def _times(a: float, b: float) -> float:
    return max(a / b, b / a)


def _clustered(
    names: tuple[str, ...], far: Callable[[str, str], float], unit: str = "s"
) -> Dendrogram:
    """Merges by mean linkage of the logarithm of how far two are: again and again the nearest two
    become one, whose distance to others is the mean over its devices (Lance and Williams, 1967).

    Written out, as planning loads no scipy; `scipy.cluster.hierarchy.linkage` gives the same.
    """
    alive = [frozenset({name}) for name in names]
    apart = {
        frozenset({alive[i], alive[j]}): math.log(max(far(names[i], names[j]), 1e-12))
        for i, j in combinations(range(len(names)), 2)
    }
    merges = list[Merge]()
    while len(alive) > 1:
        pairs = (frozenset({left, right}) for left, right in combinations(alive, 2))
        nearest = min(pairs, key=apart.__getitem__)
        left, right = (group for group in alive if group in nearest)
        height = float(f"{math.exp(apart[nearest]):.{HEIGHT_DIGITS}g}")
        merges.append(Merge(left, right, height))
        alive = [group for group in alive if group not in nearest]
        for other in alive:
            to_left, to_right = apart[frozenset({left, other})], apart[frozenset({right, other})]
            mean = (len(left) * to_left + len(right) * to_right) / (len(left) + len(right))
            apart[frozenset({left | right, other})] = mean
        alive.append(left | right)
    return Dendrogram(names=names, merges=tuple(merges), unit=unit)


def groupings(problem: Problem) -> Iterator[Grouping]:
    """Every one that thresholds of both levels make, the fewest groups first.

    Parameters
    ----------
    problem
        Devices, network and costs.
    """
    network, seen = network_dendrogram(problem), set[Hashable]()
    for threshold in reversed(network.thresholds):
        inner = [compute_dendrogram(problem, region) for region in network.cut(threshold)]
        factors = {factor for dendrogram in inner for factor in (*dendrogram.thresholds, 1.0)}
        for factor in sorted(factors - {0.0}, reverse=True):
            groups = tuple(dendrogram.cut(factor) for dendrogram in inner)
            if groups not in seen:
                seen.add(groups)
                yield Grouping(groups=groups, threshold=threshold, factor=factor, network=network)


def best_grouping(
    problem: Problem, plan_s: Callable[[Grouping], float], *, most_groups: int | None = None
) -> tuple[Grouping, Mapping[tuple[float, float], float]]:
    """The grouping whose thresholds make the soonest plan, and the seconds of each; of equals the
    fewest groups.

    Parameters
    ----------
    problem
        Devices, network and costs.
    plan_s
        Seconds of the best plan for a grouping.
    most_groups
        Of the first level, that are tried; default: any number.

    Returns
    -------
    tuple[Grouping, Mapping[tuple[float, float], float]]
        The grouping, and (threshold, factor) -> seconds.
    """
    tried = [
        (plan_s(grouping), grouping)
        for grouping in groupings(problem)
        if most_groups is None or len(grouping.groups) <= most_groups
    ]
    best = min(tried, key=lambda pair: (pair[0], sum(map(len, pair[1].groups))))[1]
    return best, {(item.threshold, item.factor): seconds for seconds, item in tried}
