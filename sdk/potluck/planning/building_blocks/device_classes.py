"""Which devices are alike, so that a search need not tell them apart, and which may form a stage
together.

A pattern says how many devices of each class of alike ones a group takes.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import combinations, product

from potluck.planning.plans import is_thrifty
from potluck.records import Plan, Problem
from potluck.simulate import cost

Pattern = tuple[int, ...]

ALL_PAIRS = 16  # classes of which any two may form a group
# devices up to which every subset may be a group; beyond, those that one would choose by hand
ALL_SUBSETS = 5


def alike(problem: Problem) -> list[list[int]]:
    """Classes of devices (by index) of which any two can swap their names without changing the
    problem.

    Their watts count only where joules do; where not, those that take least come first.
    """
    classes: list[list[int]] = []
    network = _PathsOf(problem)
    for i in sorted(range(len(problem.devices)), key=lambda i: _watts(problem, i)):
        for members in classes:
            if _same(problem, network, members[0], i):  # swaps with the first give all other swaps
                members.append(i)
                break
        else:
            classes.append([i])
    return sorted(classes, key=min)


def _watts(problem: Problem, i: int) -> tuple[float, ...]:
    """What device i takes, busy first; of devices whose watts count none comes before another."""
    watts = (problem.devices[i].busy_w, problem.devices[i].idle_w, problem.devices[i].radio_w)
    return () if _joules_count(problem) else tuple(value or 0.0 for value in watts)


def _joules_count(problem: Problem) -> bool:
    return (
        is_thrifty(problem) or problem.qoe.energy_j is not None or bool(problem.qoe.device_energy_j)
    )


@cost.kept_by_table
def classes_of(table: cost.CostTable) -> list[list[int]]:
    """`alike` of the table's problem, found once."""
    return alike(table.problem)


def peers(table: cost.CostTable) -> dict[str, tuple[str, ...]]:
    """Of every device by name, those of its class."""
    names = [device.name for device in table.problem.devices]
    classes = [tuple(names[i] for i in members) for members in classes_of(table)]
    return {name: members for members in classes for name in members}


def shape(plan: Plan, peers: Mapping[str, Sequence[str]]) -> Hashable:
    """The same for two plans where alike devices have changed places."""
    stages = tuple((s.start, s.stop, s.shares, s.warm_up, s.recompute) for s in plan.stages)
    return plan.micro_batch, stages, plan.schedule, ordered(plan, peers)


def ordered(plan: Plan, peers: Mapping[str, Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """The devices of each stage, of alike ones those named first that come first: the same for
    plans that differ only in which of them does what. `peers`: of every device, those of its class.
    """
    given: dict[str, str] = {}
    taken: Counter[str] = Counter()
    for name in (name for stage in plan.stages for name in stage.devices):
        if name not in given:
            first = peers[name][0]
            given[name] = peers[name][taken[first]]
            taken[first] += 1
    return tuple(tuple(given[name] for name in stage.devices) for stage in plan.stages)


def _same(problem: Problem, network: "_PathsOf", i: int, j: int) -> bool:
    a, b = problem.devices[i], problem.devices[j]
    facts = ["memory_bytes", "overhead_s", "copy_bytes_per_s", "host_cores", "handling_s"]
    facts += ["idle_w", "busy_w", "radio_w"] if _joules_count(problem) else []
    if (
        any(getattr(a, fact) != getattr(b, fact) for fact in facts)
        or problem.costs[a.name] != problem.costs[b.name]
    ):
        return False
    if a.host_cores is not None and a.host != b.host:
        return False
    for limits in (problem.qoe.memory_bytes, problem.qoe.device_energy_j):
        if limits.get(a.name) != limits.get(b.name):
            return False
    return network.swap(a.name, b.name)


class _PathsOf:
    """The paths of every device of a problem, and how many cross each medium.

    Parameters
    ----------
    problem
        With its network.
    """

    def __init__(self, problem: Problem) -> None:
        self._paths = problem.network.paths
        self._capacity = {m.name: m.capacity_bytes_per_s for m in problem.network.media}
        self._n_paths = Counter(name for path in self._paths.values() for name, _ in path.media)
        self._pairs: dict[str, list[tuple[str, str]]] = {}
        for pair in self._paths:
            for name in dict.fromkeys(pair):
                self._pairs.setdefault(name, []).append(pair)

    def swap(self, a: str, b: str) -> bool:
        """Whether the network is the same when two devices swap names, and media of their own with
        them: their cables.
        """
        twin = {a: b, b: a}
        renamed, seen = dict[str, str](), Counter[str]()
        for source, target in {*self._pairs.get(a, ()), *self._pairs.get(b, ())}:
            path = self._paths[source, target]
            other = self._paths.get((twin.get(source, source), twin.get(target, target)))
            if other is None or (other.latency_s, other.host) != (path.latency_s, path.host):
                return False
            if len(other.media) != len(path.media):
                return False
            for (name, times), (other_name, other_times) in zip(
                path.media, other.media, strict=True
            ):
                alike = times == other_times and self._capacity[name] == self._capacity[other_name]
                if not alike or renamed.setdefault(name, other_name) != other_name:
                    return False
                if renamed.setdefault(other_name, name) != name:
                    return False
                seen[name] += 1
        # a cable of one of them is on no path between others
        return all(
            name == other_name or seen[name] == self._n_paths[name]
            for name, other_name in renamed.items()
        )


def patterns(
    problem: Problem, classes: Sequence[Sequence[int]], speeds: Sequence[float]
) -> list[Pattern]:
    """Patterns of groups that may share a stage, the smallest first.

    All of them in a home of at most `ALL_SUBSETS` devices; else single devices, pairs, runs of
    devices of neighbouring speed or memory, and the first few of each class. Where too many are
    unlike for all pairs, for each device those of the fastest links to it. `speeds` are per device.

    Parameters
    ----------
    problem
        What is planned.
    classes
        Devices that are alike, by number.
    speeds
        Per device.
    """
    n = len(problem.devices)
    if n <= ALL_SUBSETS:
        found = [
            pattern
            for pattern in product(*(range(len(members) + 1) for members in classes))
            if any(pattern)
        ]
        return sorted(found, key=sum)
    home = {i: number for number, members in enumerate(classes) for i in members}
    groups: list[Sequence[int]] = [(i,) for i in range(n)]
    if len(classes) <= ALL_PAIRS:
        groups += combinations([members[0] for members in classes], 2)
    else:
        groups += _near(problem, speeds)
    budgets = [float(cost.budget_bytes(problem, device)) for device in problem.devices]
    lengths = (
        range(2, n + 1) if n <= 16 else [size for size in (2, 4, 8, 16, 32, 64) if size < n] + [n]
    )
    for values in (speeds, budgets):
        order = sorted(range(n), key=lambda i, values=values: (-values[i], i))  # type: ignore[misc]
        groups += [order[a : a + size] for size in lengths for a in range(n - size + 1)]
    groups += [members[:size] for members in classes for size in range(2, len(members) + 1)]
    counted = [Counter(home[i] for i in group) for group in groups]
    return sorted(
        dict.fromkeys(tuple(count[c] for c in range(len(classes))) for count in counted), key=sum
    )


def _near(problem: Problem, speeds: Sequence[float]) -> list[list[int]]:
    """For each device itself with those to which it sends fastest, of equal links the fastest
    devices: 2, 4, 8.
    """
    names = [device.name for device in problem.devices]
    network = problem.network
    found = list[list[int]]()
    for i, name in enumerate(names):
        others = [j for j in range(len(names)) if j != i]
        others.sort(
            key=lambda j: (
                -network.bandwidth(name, names[j]),
                network.latency(name, names[j]),
                -speeds[j],
                j,
            )
        )
        found += [[i, *others[: size - 1]] for size in (2, 4, 8)]
    return found


def members(
    pattern: Pattern, classes: Sequence[Sequence[int]], used: Sequence[int]
) -> tuple[int, ...]:
    """The devices that a pattern stands for when the first `used[c]` of each class are taken.

    Parameters
    ----------
    pattern
        How many devices of each class.
    classes
        Devices that are alike, by number.
    used
        Per class, how many are taken.

    Returns
    -------
    tuple[int, ...]
        Numbers of the devices.
    """
    taken = ((c, size) for c, size in enumerate(pattern) if size)
    return tuple(i for c, size in taken for i in classes[c][used[c] : used[c] + size])
