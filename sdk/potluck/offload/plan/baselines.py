"""What others do with one request and a helper: all of it on one side, a cut between layers, greedy
tiling.

Of several helpers they know the first.

- `least_cut`: DNN surgery (Hu et al. 2019; Liang et al. 2023), or DSCCS, the baseline of Intra-DP:
  every layer wholly on one side; the least sum of seconds is found exactly, as a minimum cut of the
  graph of layers.
- `thriftiest_cut`: SPSO-GA (Chen et al. 2021) looks for the layer cut with the least joules under a
  deadline by swarm and genes; here every cut of the line is tried, and the least cuts of seconds
  and joules in five proportions.
- `greedy_tiling`: after CoActo (Bin et al. 2024): each operator in turn goes where its rows are
  ready soonest.

`answer` is any of them by its name in `WAYS`, `answers` several.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from potluck.errors import UserError
from potluck.offload.plan.problem import DEVICE, HELPER, NONE, Division, Interval, Shares, without

if TYPE_CHECKING:
    from potluck.offload.plan.split import Split, Splitter

ENDLESS = 1e12  # seconds
TINY = 1e-12
WAYS = ("device", "helper", "layer cut", "thriftiest cut", "greedy tiling")


def answer(
    way: str, splitter: "Splitter", bytes_per_s: float, deadline_s: float | None = None
) -> "Split | None":
    """What one of `WAYS` does at this bandwidth; None where it sends, and the link carries nothing.

    The thriftiest cut needs a deadline; a layer cut may be all on one side.

    Parameters
    ----------
    way
        One of `WAYS`.
    splitter
        The problem, prepared.
    bytes_per_s
        Of the link.
    deadline_s
        For the thriftiest cut.

    Raises
    ------
    UserError
        There is no such way.
    """
    shares = splitter.shares
    match way:
        case "device":
            divisions = all_on_device(shares)
        case "helper":
            divisions = all_on_helper(shares)
        case "layer cut":
            known = (all_on_device(shares), all_on_helper(shares), least_cut(shares, bytes_per_s))
            tried = (splitter.tried(divisions, bytes_per_s, 1) for divisions in known)
            return min((split for split in tried if split), key=lambda split: split.latency_s)
        case "greedy tiling":
            divisions = greedy_tiling(shares, bytes_per_s)
        case "thriftiest cut" if deadline_s is not None:
            return thriftiest_cut(splitter, bytes_per_s, deadline_s)
        case _:
            raise UserError(
                f"no baseline is called {way!r}.", next_step=f"There are {', '.join(WAYS)}."
            )
    return splitter.tried(divisions, bytes_per_s, 1)


def answers(ways: Iterable[str], splitter: "Splitter", bytes_per_s: float) -> "dict[str, Split]":
    """What each of these ways does at this bandwidth, where it can be done: without a link only the
    device answers.

    Parameters
    ----------
    ways
        Of `WAYS`.
    splitter
        The problem, prepared.
    bytes_per_s
        Of the link.
    """
    found = {way: answer(way, splitter, bytes_per_s) for way in ways}
    return {way: split for way, split in found.items() if split is not None}


def all_on_device(shares: Shares) -> tuple[Division, ...]:
    return layers_on(shares, frozenset(range(len(shares.operators))))


def all_on_helper(shares: Shares) -> tuple[Division, ...]:
    return layers_on(shares, frozenset())


def layers_on(shares: Shares, on_device: frozenset[int]) -> tuple[Division, ...]:
    """These operators on the device, all others on the helper.

    Input and result are on the device.
    """
    last, idle = shares.last, (NONE,) * (len(shares.sides) - 2)
    return tuple(
        ((0, op.count), NONE, *idle)
        if place in on_device or place in (0, last)
        else (NONE, (0, op.count), *idle)
        for place, op in enumerate(shares.operators)
    )


def least_cut(
    shares: Shares,
    bytes_per_s: float,
    *,
    second_w: float = 1.0,
    busy_w: float = 0.0,
    radio_w: float = 0.0,
) -> tuple[Division, ...]:
    """The layer cut with the least sum of all seconds: the device computes, then sends, then the
    helper computes.

    Each second counts `second_w`, more while the device computes (`busy_w`) or sends or receives
    (`radio_w`). What is sent goes over once, however many operators need it.

    Parameters
    ----------
    shares
        The operators as rows.
    bytes_per_s
        Of the link.
    second_w
        What every second counts.
    busy_w
        What it counts more while the device computes.
    radio_w
        What it counts more while the device sends or receives.
    """
    sharing = shares.sharing
    operators = shares.operators
    last = shares.last
    n = len(operators)
    # the two ends; n + i stands for the value of operator i on the helper
    device, helper = 2 * n, 2 * n + 1
    flow = _Flow(2 * n + 2)
    for place, operator in enumerate(operators):
        if place in (0, last):
            flow.edge(device, place, ENDLESS)
            continue
        flow.edge(device, place, sharing.seconds(HELPER, place, operator.count) * second_w)
        flow.edge(
            place, helper, sharing.seconds(DEVICE, place, operator.count) * (second_w + busy_w)
        )
    for before, operator in enumerate(operators):
        price = ENDLESS
        if bytes_per_s > 0:
            price = (
                operator.nbytes / bytes_per_s * (second_w + radio_w) + sharing.latency_s * second_w
            )
        flow.edge(before, n + before, price)
    for place in range(n):
        for before, _ in shares.windows[place]:
            flow.edge(n + before, place, ENDLESS)
            # what the helper has made comes back for the result alone
            returned_s = (
                operators[before].nbytes / bytes_per_s + sharing.latency_s
                if bytes_per_s > 0
                else ENDLESS
            )
            flow.edge(place, before, returned_s * second_w if place == last else ENDLESS)
    return layers_on(shares, frozenset(flow.side(device, helper)))


def line_cuts(shares: Shares) -> Iterator[tuple[Division, ...]]:
    """Every cut of the line of operators, with the front on the device."""
    for place in range(len(shares.operators)):
        yield layers_on(shares, frozenset(range(place + 1)))


def thriftiest_cut(splitter: "Splitter", bytes_per_s: float, deadline_s: float) -> "Split":
    """The layer cut with the least joules of the device among those that are done by the deadline,
    else the fastest.

    Parameters
    ----------
    splitter
        The problem, prepared.
    bytes_per_s
        Of the link.
    deadline_s
        Seconds.
    """
    shares, sharing = splitter.shares, splitter.shares.sharing
    known = [*line_cuts(shares), all_on_device(shares), least_cut(shares, bytes_per_s)]
    for weight in (0.0, 0.5, 1.0, 2.0, 4.0):  # seconds weigh ever more
        known.append(
            least_cut(
                shares,
                bytes_per_s,
                second_w=sharing.idle_w * (1 + weight) or 1.0,
                busy_w=max(sharing.busy_w - sharing.idle_w, 0.0),
                radio_w=sharing.radio_w,
            )
        )
    tried = [splitter.tried(divisions, bytes_per_s, 1) for divisions in dict.fromkeys(known)]
    splits = [split for split in tried if split]
    in_time = [split for split in splits if split.latency_s <= deadline_s]
    return (
        min(in_time, key=lambda split: split.energy_j)
        if in_time
        else min(splits, key=lambda s: s.latency_s)
    )


def greedy_tiling(shares: Shares, bytes_per_s: float, n_shares: int = 5) -> tuple[Division, ...]:
    """Each operator in turn is divided so that its last rows are ready soonest; nobody looks ahead.

    Parameters
    ----------
    shares
        The operators as rows.
    bytes_per_s
        Of the link.
    n_shares
        Ways to divide an operator that are tried.
    """
    sharing = shares.sharing
    last = shares.last
    idle = (NONE,) * (len(shares.sides) - 2)
    found: list[Division] = [((0, shares.operators[0].count), NONE, *idle)]
    ready = {DEVICE: 0.0, HELPER: 0.0}
    for place in range(1, last):
        operator = shares.operators[place]
        options = []
        for level in (
            range(n_shares) if operator.divisible and operator.count > 1 else (0, n_shares - 1)
        ):
            cut = round(operator.count * level / (n_shares - 1))
            division: Division = ((0, cut), (cut, operator.count), *idle)
            after = dict(ready)
            for side in ready:
                rows = division[side]
                if rows[0] < rows[1]:
                    sent = _fetched_bytes(shares, found, place, side, rows)
                    if sent and bytes_per_s <= 0:
                        break
                    begins_s = (
                        max(ready.values()) + sent / bytes_per_s + sharing.latency_s
                        if sent
                        else ready[side]
                    )
                    after[side] = begins_s + sharing.seconds(side, place, rows[1] - rows[0])
            else:
                options.append(
                    (max(after[s] for s in ready if division[s] != NONE), level, division, after)
                )
        _, _, division, ready = min(options, key=lambda option: (option[0], -option[1]))
        found.append(division)
    return (*found, ((0, 1), NONE, *idle))


def _fetched_bytes(
    shares: Shares, divisions: list[Division], place: int, side: int, rows: Interval
) -> int:
    """What one side has to fetch of the inputs before it can compute these rows."""
    total = 0
    for source, read in shares.reads(place, rows):
        parts = without(read, [divisions[source][side]])
        total += sum(b - a for a, b in parts) * shares.operators[source].row_bytes
    return total


class _Flow:
    """Maximum flow, by shortest augmenting levels (Dinic 1970)."""

    def __init__(self, n: int) -> None:
        self.edges: list[list[int]] = [[] for _ in range(n)]
        self.to: list[int] = []
        self.room: list[float] = []

    def edge(self, a: int, b: int, room: float) -> None:
        for start, end, amount in ((a, b, room), (b, a, 0.0)):
            self.edges[start].append(len(self.to))
            self.to.append(end)
            self.room.append(amount)

    def side(self, source: int, sink: int) -> list[int]:
        """The nodes on the source's side of a least cut."""
        while True:
            depth = self._depths(source)
            if sink not in depth:
                return list(depth)
            tried = [0] * len(self.edges)
            while self._push(source, sink, depth, tried):
                pass

    def _depths(self, source: int) -> dict[int, int]:
        depth, waiting = {source: 0}, deque([source])
        while waiting:
            node = waiting.popleft()
            for edge in self.edges[node]:
                if self.room[edge] > TINY and self.to[edge] not in depth:
                    depth[self.to[edge]] = depth[node] + 1
                    waiting.append(self.to[edge])
        return depth

    def _push(self, source: int, sink: int, depth: dict[int, int], tried: list[int]) -> float:
        """Send what fits along one path that goes one level deeper at each edge."""
        path: list[int] = []
        node = source
        while node != sink:
            while tried[node] < len(self.edges[node]):
                edge = self.edges[node][tried[node]]
                if self.room[edge] > TINY and depth.get(self.to[edge], -1) == depth[node] + 1:
                    break
                tried[node] += 1
            else:
                if not path:
                    return 0.0
                node = self.to[path.pop() ^ 1]
                tried[node] += 1
                continue
            path.append(edge)
            node = self.to[edge]
        amount = min(self.room[edge] for edge in path)
        for edge in path:
            self.room[edge] -= amount
            self.room[edge ^ 1] += amount
        return amount
