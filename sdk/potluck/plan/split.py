"""Share one request inside its operators between a device and a helper: which rows where (Intra-DP's LOSS, IV-C).

The paper searches intervals per operator by differential evolution. Here rows are handed over at *joints* alone, where
one tensor is all that lives on; between two joints both sides compute what they need of every operator, the overlap
twice (the paper's replication), so that nothing waits inside. A joint at every operator is the paper's form. A Pareto
label (device ready, helper ready, link free, joules) per joint and division of its rows is exact for divisions on a
grid: no label that is worse in everything can lead to a better end. Then the rows move one by one while that helps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from potluck.errors import PlanError

LEVELS = 11  # divisions of the rows at a joint that are tried: 0, a tenth, ... all
MAX_JOINTS = 16  # those that carry the fewest bytes
TILES = 4  # a side that waits for rows starts on the first quarter of them
MAX_LABELS = 8  # kept per joint and division: the ones that are ready first


class Reads(Protocol):
    """Which rows of an input an operator needs for some rows of its output."""

    def rows(self, start: int, stop: int) -> tuple[int, int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator, or (first of all) the input. Its inputs are earlier operators; None: all of that input is needed.

    `device_s` and `helper_s` for all of its `count` rows; a part takes `overhead_s` of that side and its share.
    """

    name: str
    count: int
    row_bytes: int
    device_s: float = 0.0
    helper_s: float = 0.0
    inputs: tuple[tuple[int, Reads | None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """The problem: operators in topological order, and what the two sides and their link can do.

    The first operator is the input, the last the result, which the device needs whole; neither takes time.

    Powers are the device's, in watts: computing, sending or receiving, and waiting. `latency_s` is paid per transfer.
    """

    operators: tuple[Operator, ...]
    bytes_per_s: float
    latency_s: float = 0.0
    device_overhead_s: float = 0.0
    helper_overhead_s: float = 0.0
    busy_w: float = 0.0
    radio_w: float = 0.0
    idle_w: float = 0.0

    def __post_init__(self) -> None:
        if len(self.operators) < 2:
            raise PlanError("A request that is to be shared needs an input and a result.")
        for place, operator in enumerate(self.operators):
            if any(source >= place for source, _ in operator.inputs):
                raise PlanError(f"{operator.name} reads an operator that comes after it.")
        if self.bytes_per_s < 0:
            raise PlanError(f"The link cannot carry {self.bytes_per_s} bytes a second.")


@dataclass(frozen=True, slots=True, order=True)
class Division:
    """How the rows behind a joint are held: the device has [0, device), the helper [helper, all of them)."""

    joint: int  # the operator whose output it is
    device: int
    helper: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The answer: divisions from the input to the end, with predicted seconds, joules of the device and bytes sent."""

    divisions: tuple[Division, ...]
    latency_s: float
    energy_j: float
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True, slots=True)
class Side:
    """What one side does between two joints: the rows [start, stop) of the first joint that it needs, and its seconds.

    `streamed_s` of them can be spent on the first rows while others are on their way; the rest follows a barrier, an
    operator that needs every row. Each further tile of rows costs `tile_s`.
    """

    start: int
    stop: int
    seconds: float
    streamed_s: float
    tile_s: float

    def done_s(self, ready_s: float, first_s: float, airtime_s: float) -> float:
        """When it is done, if it is ready itself at `ready_s` and rows come in from `first_s` on for `airtime_s`."""
        streamed_s = self.streamed_s + (TILES - 1) * self.tile_s
        whole_s = max(ready_s, first_s + airtime_s) + self.streamed_s
        tiled_s = max(
            ready_s + streamed_s, first_s + airtime_s + streamed_s / TILES, first_s + airtime_s / TILES + streamed_s
        )
        return min(whole_s, tiled_s) + self.seconds - self.streamed_s


def intervals(sharing: Sharing, joint: int, rows: tuple[int, int]) -> dict[int, tuple[int, int]]:
    """The rows of every operator up to `joint` that `rows` of it need; of an operator not in there, none."""
    needed = {joint: rows} if rows[0] < rows[1] else {}
    for place in range(joint, 0, -1):
        if place not in needed:
            continue
        for source, reads in sharing.operators[place].inputs:
            first, last = reads.rows(*needed[place]) if reads else (0, sharing.operators[source].count)
            if first < last:
                have = needed.get(source, (first, last))
                needed[source] = (min(have[0], first), max(have[1], last))
    return needed


class Shares:
    """A problem prepared: its joints, and what each side does between any two of them. Independent of the bandwidth."""

    def __init__(self, sharing: Sharing) -> None:
        self.sharing = sharing
        self.joints = _joints(sharing)
        self._sides: dict[tuple[int, bool, int, int], dict[int, Side]] = {}
        self._barrier = [0] * len(sharing.operators)  # the last operator up to this one that needs every row
        for place, operator in enumerate(sharing.operators):
            needs_all = any(reads is None for _, reads in operator.inputs)
            before = max((self._barrier[source] for source, _ in operator.inputs), default=0)
            self._barrier[place] = place if needs_all else before
        # per operator: seconds of all behind it on the device, and how many times faster the helper is at most
        self._left = [(0.0, 1.0)] * len(sharing.operators)
        for place in range(len(sharing.operators) - 2, -1, -1):
            after, (left_s, faster) = sharing.operators[place + 1], self._left[place + 1]
            ratio = after.device_s / after.helper_s if after.helper_s > 0 else float("inf")
            self._left[place] = left_s + after.device_s, max(faster, min(ratio, 1e9))

    def side(self, i: int, j: int, rows: tuple[int, int], *, helper: bool) -> Side:
        """What one side does between joint `i` and joint `j` to have `rows` behind `j`."""
        key = (j, helper, *rows)
        if key not in self._sides:
            self._sides[key] = self._sweep(j, rows, helper)
        return self._sides[key][i]

    def _sweep(self, j: int, rows: tuple[int, int], helper: bool) -> dict[int, Side]:
        operators, wanted = self.sharing.operators, set(self.joints)
        needed = intervals(self.sharing, j, rows)
        overhead_s = self.sharing.helper_overhead_s if helper else self.sharing.device_overhead_s
        found: dict[int, Side] = {}
        done: list[tuple[int, float]] = []  # (barrier, seconds) of every operator that runs
        for place in range(j, -1, -1):
            start, stop = needed.get(place, (0, 0))
            if place in wanted and place < j:
                streamed = [seconds for barrier, seconds in done if barrier <= place]
                found[place] = Side(
                    start, stop, sum(seconds for _, seconds in done), sum(streamed), overhead_s * len(streamed)
                )
            if start < stop and place:
                operator = operators[place]
                whole_s = operator.helper_s if helper else operator.device_s
                seconds = overhead_s + max(whole_s - overhead_s, 0.0) * (stop - start) / operator.count
                done.append((self._barrier[place], seconds if whole_s else 0.0))
        return found

    def soonest_s(self, label: "Label") -> float:
        """No end behind `label` is sooner: both sides work all the time, on what is left, without overlap."""
        left_s, faster = self._left[label.division.joint]
        return max(label.device_s, (left_s + label.device_s + faster * label.helper_s) / (1.0 + faster))

    def divisions(self, joint: int, levels: int = LEVELS) -> tuple[Division, ...]:
        """The divisions of a joint that are tried: cut at a level, or all of it on both sides."""
        count = self.sharing.operators[joint].count
        cuts = sorted({round(count * level / (levels - 1)) for level in range(levels)})
        return (*(Division(joint, cut, cut) for cut in cuts), Division(joint, count, 0))


def _joints(sharing: Sharing) -> tuple[int, ...]:
    """Operators whose output is all that lives on behind them; the input and the last of all are always among them."""
    n = len(sharing.operators)
    last_use = list(range(n))
    for place, operator in enumerate(sharing.operators):
        for source, _ in operator.inputs:
            last_use[source] = place
    alive_until, joints = -1, []
    for place in range(n):
        if alive_until <= place:  # nothing made earlier is used later
            joints.append(place)
        alive_until = max(alive_until, last_use[place])
    inner = [joint for joint in joints if 0 < joint < n - 1]
    lightest = sorted(inner, key=lambda joint: sharing.operators[joint].count * sharing.operators[joint].row_bytes)
    return (0, *sorted(lightest[:MAX_JOINTS]), n - 1)


@dataclass(slots=True)
class Label:
    """When each side is ready behind a joint, when the link is free, and what the device has spent so far."""

    device_s: float
    helper_s: float
    free_s: float
    spent_j: float
    sent: int
    received: int
    division: Division
    before: "Label | None"


def step(shares: Shares, label: Label, to: Division, limit_s: float = float("inf")) -> Label | None:
    """From one division to the next: what is missing is sent, then both compute. None where it cannot be done."""
    sharing, at = shares.sharing, label.division
    device = shares.side(at.joint, to.joint, (0, to.device), helper=False)
    count = sharing.operators[to.joint].count
    helper = shares.side(at.joint, to.joint, (to.helper, count), helper=True)
    row_bytes = sharing.operators[at.joint].row_bytes
    up = max(min(at.helper, helper.stop) - helper.start, 0) * row_bytes if helper.stop > helper.start else 0
    down = max(device.stop - max(at.device, device.start), 0) * row_bytes if device.stop > device.start else 0
    if (up or down) and sharing.bytes_per_s <= 0:
        return None
    device_s, helper_s, free_s, spent_j = label.device_s, label.helper_s, label.free_s, label.spent_j
    if up:
        airtime_s = up / sharing.bytes_per_s
        begins_s = max(device_s, free_s)
        free_s = begins_s + airtime_s
        helper_s = helper.done_s(helper_s, begins_s + sharing.latency_s, airtime_s)
        spent_j += airtime_s * sharing.radio_w
    else:
        helper_s += helper.seconds
    if down:
        airtime_s = down / sharing.bytes_per_s
        begins_s = max(label.helper_s, free_s)
        free_s = begins_s + airtime_s
        device_s = device.done_s(device_s, begins_s + sharing.latency_s, airtime_s)
        spent_j += airtime_s * sharing.radio_w
    else:
        device_s += device.seconds
    if device_s > limit_s or helper_s > limit_s:
        return None
    spent_j += device.seconds * max(sharing.busy_w - sharing.idle_w, 0.0)
    return Label(
        device_s, helper_s, free_s, spent_j, label.sent + up, label.received + down, to, label
    )  # fmt: skip


def share(sharing: Sharing | Shares, *, deadline_s: float | None = None, levels: int = LEVELS) -> Split:
    """The split with the least latency; with `deadline_s`, the one with the least joules of the device within it.

    Intra-DP, equations (2) and (3), on rows instead of operations; the input and the result are on the device.

    Raises
    ------
    PlanError
        Where no split is done by the deadline; says how soon the fastest is.
    """
    shares = sharing if isinstance(sharing, Shares) else Shares(sharing)
    fastest = _polished(shares, _search(shares, levels, None), None)
    if deadline_s is None:
        return fastest
    if fastest.latency_s > deadline_s:
        raise PlanError(
            f"no split answers within {deadline_s * 1e3:.1f} ms; the fastest takes {fastest.latency_s * 1e3:.1f} ms.",
            next_step="Allow more time, or use a faster helper or link.",
        )
    thrifty = _search(shares, levels, deadline_s)
    candidates = [fastest, *((_polished(shares, thrifty, deadline_s),) if thrifty else ())]
    return min(candidates, key=lambda split: (split.energy_j, split.latency_s))


def front(sharing: Sharing | Shares, n: int = 8) -> tuple[Split, ...]:
    """Splits of which none is both faster and more frugal: from the fastest to the one with the fewest joules."""
    shares = sharing if isinstance(sharing, Shares) else Shares(sharing)
    fastest, alone = share(shares), evaluate(shares, alone_on_device(shares))
    slowest_s = max(alone.latency_s, 2 * fastest.latency_s)
    limits = (fastest.latency_s + (slowest_s - fastest.latency_s) * k / (n - 1) for k in range(n))
    found: list[Split] = []
    for split in (fastest, *(share(shares, deadline_s=limit) for limit in limits)):
        if not found or split.energy_j < found[-1].energy_j * (1 - 1e-9):
            found.append(split)
    return tuple(found)


def alone_on_device(shares: Shares) -> tuple[Division, ...]:
    """Everything on the device."""
    count = shares.sharing.operators
    return tuple(Division(j, count[j].count, count[j].count) for j in (shares.joints[0], shares.joints[-1]))


def evaluate(shares: Shares, divisions: Sequence[Division]) -> Split:
    """The split of these divisions. Raises PlanError where the link is too slow to carry anything."""
    split = _walk(shares, divisions)
    if split is None:
        raise PlanError("this split sends something, but the link carries nothing.")
    return split


def _walk(shares: Shares, divisions: Sequence[Division]) -> Split | None:
    label: Label | None = _start(shares)
    for division in divisions[1:]:
        label = step(shares, label, division) if label else None
    return _split(shares, label) if label else None


def _start(shares: Shares) -> Label:
    count = shares.sharing.operators[0].count
    return Label(0.0, 0.0, 0.0, 0.0, 0, 0, Division(0, count, count), None)


def _split(shares: Shares, label: Label) -> Split:
    path: list[Division] = []
    at: Label | None = label
    while at:
        path.append(at.division)
        at = at.before
    energy_j = label.spent_j + shares.sharing.idle_w * label.device_s
    return Split(
        divisions=tuple(reversed(path)),
        latency_s=label.device_s,
        energy_j=energy_j,
        sent_bytes=label.sent,
        received_bytes=label.received,
    )


def _search(shares: Shares, levels: int, deadline_s: float | None) -> Split | None:
    """The best path over all joints and divisions on the grid."""
    limit_s = deadline_s if deadline_s is not None else evaluate(shares, alone_on_device(shares)).latency_s * (1 + 1e-9)
    limit_j, idle_w = float("inf"), shares.sharing.idle_w
    last = shares.joints[-1]
    whole = shares.sharing.operators[last].count
    divisions = {j: shares.divisions(j, levels) for j in shares.joints[:-1]}
    divisions[last] = (Division(last, whole, whole),)
    fronts: dict[Division, list[Label]] = {_start(shares).division: [_start(shares)]}
    best: Label | None = None
    for i, joint in enumerate(shares.joints[:-1]):
        here = [
            label for d in ((_start(shares).division,) if not i else divisions[joint]) for label in fronts.pop(d, [])
        ]
        for label in _thinned(here, energy=deadline_s is not None):
            soonest_s = shares.soonest_s(label)
            if soonest_s >= limit_s or label.spent_j + idle_w * soonest_s >= limit_j:
                continue
            for to in (to for target in reversed(shares.joints[i + 1 :]) for to in divisions[target]):
                found = step(shares, label, to, limit_s)
                if found is None:
                    continue
                if to.joint != last:
                    fronts.setdefault(to, []).append(found)
                elif best is None or _worth(shares, found, deadline_s) < _worth(shares, best, deadline_s):
                    best = found
                    if deadline_s is None:
                        limit_s = found.device_s
                    else:
                        limit_j = found.spent_j + idle_w * found.device_s
    return _split(shares, best) if best else None


def _worth(shares: Shares, label: Label, deadline_s: float | None) -> tuple[float, float]:
    energy_j = label.spent_j + shares.sharing.idle_w * label.device_s
    return (label.device_s, energy_j) if deadline_s is None else (energy_j, label.device_s)


def _thinned(labels: list[Label], *, energy: bool) -> list[Label]:
    """The labels at one joint that are not worse than another, which holds at least the same rows, in everything."""
    kept: dict[Division, list[Label]] = {}
    for label in sorted(labels, key=lambda x: (x.device_s + x.helper_s, x.free_s, x.spent_j)):
        rivals = kept.setdefault(label.division, [])
        if len(rivals) < MAX_LABELS and not any(_beats(rival, label, energy=energy) for rival in rivals):
            rivals.append(label)
    everywhere = [rival for division, rivals in kept.items() if division.helper < division.device for rival in rivals]
    return [
        label
        for division, rivals in kept.items()
        for label in rivals
        if division.helper < division.device or not any(_beats(r, label, energy=energy) for r in everywhere)
    ]


def _beats(one: Label, other: Label, *, energy: bool) -> bool:
    free_s = max(other.free_s, min(other.device_s, other.helper_s))
    at_once = one.device_s <= other.device_s and one.helper_s <= other.helper_s and one.free_s <= free_s
    return at_once and (not energy or one.spent_j <= other.spent_j)


def _polished(shares: Shares, split: Split | None, deadline_s: float | None) -> Split:
    """Single rows move over the divisions while that helps."""
    if split is None:
        split = evaluate(shares, alone_on_device(shares))
    size = 8
    while size >= 1:
        moved = min(_moves(shares, split, size), key=lambda s: _rank(s, deadline_s), default=split)
        if _rank(moved, deadline_s) < _rank(split, deadline_s):
            split = moved
        else:
            size //= 2
    return split


def _rank(split: Split, deadline_s: float | None) -> tuple[float, float]:
    if deadline_s is None:
        return split.latency_s, split.energy_j
    return (split.energy_j if split.latency_s <= deadline_s else float("inf")), split.latency_s


def _moves(shares: Shares, split: Split, size: int) -> Iterator[Split]:
    """The split with one division moved by `size` rows, or left out."""
    before = split.divisions
    for place in range(1, len(before) - 1):
        at = before[place]
        count = shares.sharing.operators[at.joint].count
        cuts = {min(max(at.device + way * size, 0), count) for way in (-1, 1)} if at.device == at.helper else set()
        for middle in ((), *((Division(at.joint, cut, cut),) for cut in sorted(cuts - {at.device}))):
            found = _walk(shares, (*before[:place], *middle, *before[place + 1 :]))
            if found:
                yield found
