"""Ways to share a request, and a quick search among them: where rows change hands, and how many the device then holds.

A Pareto label (when each side is ready, when the link is free, joules) is kept per cut and level, unless another is
better in everything; of many the ones that are ready first. Times are estimates, for the order alone: the best few ways
are carried out step by step afterwards.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from .sharing import APART_FRAC, DEVICE, HELPER, MAX_CUTS, NONE, SIDES, Division, Interval, Shares, common
from .sharing_steps import TILES

LEVELS = 11  # shares of the rows behind a cut that are tried: 0, a tenth, ... all
MARGIN = 1.05  # estimates so much later than the best may yet turn out to be the best
MAX_LABELS = 6  # kept per cut and level: the ones that are ready first


@dataclass(frozen=True, slots=True, order=True)
class Handover:
    """Behind operator `place` the device holds this share of the rows of all that is alive, the helper the others.

    `both`: each of them holds all rows.
    """

    place: int
    share: float
    both: bool = False


Way = tuple[Handover, ...]  # from the input to the result


def alone(shares: Shares) -> Way:
    """Everything on the device."""
    return (Handover(0, 1.0), Handover(shares.last, 1.0))


def held(shares: Shares, handover: Handover, side: str) -> dict[int, Interval]:
    """The rows that a side holds behind a cut. What cannot be divided is on one side."""
    found = {}
    for u in shares.alive[handover.place]:
        operator = shares.operators[u]
        cut = round(handover.share * (operator.count if operator.divisible else 1))
        cut = cut if operator.divisible else cut * operator.count
        rows = (0, cut) if side == DEVICE else (cut, operator.count)
        found[u] = (0, operator.count) if handover.both else rows
    return found


def divided(shares: Shares, way: Way, *, replicate: bool = True) -> tuple[Division, ...]:
    """The rows that each side computes on such a way; without `replicate` no row is computed by both sides."""
    rows: dict[str, list[Interval]] = {side: [NONE] * len(shares.operators) for side in SIDES}
    rows[DEVICE][0] = (0, shares.operators[0].count)
    for before, after in pairwise(way):
        if not replicate:
            _evenly(shares, before, after, rows)
            continue
        for side in SIDES:
            needed = shares.needed(after.place, held(shares, after, side), before.place)
            for place in range(before.place + 1, after.place + 1):
                rows[side][place] = needed.get(place, NONE)
    return tuple(map(Division, rows[DEVICE], rows[HELPER]))


def _evenly(shares: Shares, before: Handover, after: Handover, rows: dict[str, list[Interval]]) -> None:
    """Every operator between two cuts is divided like the values behind the later one: neighbours exchange rows."""
    for place in range(before.place + 1, after.place + 1):
        operator = shares.operators[place]
        cut = round(after.share * operator.count) if operator.divisible else operator.count * round(after.share)
        rows[DEVICE][place], rows[HELPER][place] = (0, cut), (cut, operator.count)


def cuts(shares: Shares) -> tuple[int, ...]:
    """Places where little is alive, some way apart; the input and the result are among them."""
    so_far, total = [], 0.0
    for operator in shares.operators:
        total += operator.device_s
        so_far.append(total)
    chosen: list[int] = []
    for place in sorted(range(1, shares.last), key=lambda p: (shares.cut_bytes(p), p)):
        if len(chosen) < MAX_CUTS and all(abs(so_far[place] - so_far[c]) >= APART_FRAC * total for c in chosen):
            chosen.append(place)
    return (0, *sorted(chosen), shares.last)


@dataclass(frozen=True, slots=True)
class _Block:
    """What one side does between two cuts: the rows it takes, its seconds, and those it can spend on the first rows."""

    takes: dict[int, Interval]
    seconds: float
    streamed_s: float


@dataclass(slots=True)
class Label:
    """When each side has its first and its last rows behind a cut, when the link is free, what the device has spent."""

    device_s: float
    helper_s: float
    device_first_s: float
    helper_first_s: float
    free_s: float
    spent_j: float
    at: Handover
    before: "Label | None"

    def way(self) -> Way:
        found = [self.at]
        label = self.before
        while label:
            found.append(label.at)
            label = label.before
        return tuple(reversed(found))


@dataclass(slots=True)
class Blocks:
    """What each side does between any two cuts, found once for all bandwidths."""

    shares: Shares
    places: tuple[int, ...]
    blocks: dict[tuple[Handover, str], dict[int, _Block]] = field(default_factory=dict)
    holds: dict[tuple[Handover, str], dict[int, Interval]] = field(default_factory=dict)
    lacks: dict[tuple[Handover, Handover, str], int] = field(default_factory=dict)
    left: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Per operator: seconds of all behind it on the device, and how many times faster the helper is at most."""
        left_s, faster = 0.0, 1.0
        for operator in reversed(self.shares.operators):
            self.left.append((left_s, faster))
            left_s += operator.device_s
            faster = max(faster, operator.device_s / operator.helper_s if operator.helper_s > 0 else 1.0)
        self.left.reverse()

    def soonest_s(self, label: "Label") -> float:
        """No end is sooner from there: both sides work all the time on what is left."""
        left_s, faster = self.left[label.at.place]
        together_s = (left_s + label.device_first_s + faster * label.helper_first_s) / (1.0 + faster)
        return max(label.device_first_s, together_s)

    def lacking(self, before: Handover, after: Handover, side: str) -> int:
        """The bytes that a side takes between two cuts and does not hold behind the first."""
        key = (before, after, side)
        if key not in self.lacks:
            takes, has = self.block(before, after, side).takes, self.held(before, side)
            self.lacks[key] = _lacking(self.shares.operators, takes, has)
        return self.lacks[key]

    def block(self, before: Handover, after: Handover, side: str) -> _Block:
        key = (after, side)
        if key not in self.blocks:
            self.blocks[key] = self._sweep(after, side)
        return self.blocks[key][before.place]

    def held(self, at: Handover, side: str) -> dict[int, Interval]:
        key = (at, side)
        if key not in self.holds:
            self.holds[key] = held(self.shares, at, side)
        return self.holds[key]

    def _sweep(self, after: Handover, side: str) -> dict[int, _Block]:
        shares, wanted = self.shares, set(self.places)
        needed = shares.needed(after.place, self.held(after, side))
        found: dict[int, _Block] = {}
        done: list[tuple[int, float]] = []  # (barrier, seconds) of every operator that runs
        for place in range(after.place, -1, -1):
            if place in wanted and place < after.place:
                # what the operators behind this cut read, and what is only passed on
                ran = [v for v in range(place + 1, after.place + 1) if v in needed]
                takes: dict[int, Interval] = {u: r for u, r in self.held(after, side).items() if u <= place}
                for v in ran:
                    for source, read in shares.reads(v, needed[v]):
                        if source <= place:
                            a, b = takes.get(source, NONE)
                            takes[source] = read if a >= b else (min(a, read[0]), max(b, read[1]))
                streamed_s = sum(seconds for barrier, seconds in done if barrier <= place)
                found[place] = _Block(takes, sum(seconds for _, seconds in done), streamed_s)
            start, stop = needed.get(place, NONE)
            if start < stop and place:
                done.append((shares.barriers[place], shares.sharing.seconds(side, place, stop - start)))
        return found


def search(
    blocks: Blocks, bytes_per_s: float, n: int, *, limit_s: float, levels: int = LEVELS, thrifty: bool = False
) -> list[Way]:
    """The ways that seem best at that bandwidth, of those done by `limit_s`: least latency or, if `thrifty`, joules."""
    shares, places = blocks.shares, blocks.places
    sharing = shares.sharing
    start, end = Handover(0, 1.0), Handover(shares.last, 1.0)
    options = {p: _levels(p, levels) for p in places[1:-1]} | {shares.last: (end,)}
    fronts: dict[Handover, list[Label]] = {start: [Label(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, start, None)]}
    ends: list[tuple[float, float, Label]] = []
    for i, place in enumerate(places[:-1]):
        here = [label for at in (options[place] if i else (start,)) for label in fronts.pop(at, [])]
        for label in _thinned(here, energy=thrifty):
            if blocks.soonest_s(label) > limit_s:
                continue
            for to in (to for later in places[i + 1 :] for to in options[later]):
                found = _step(blocks, label, to, bytes_per_s)
                if found is None or found.device_s > limit_s or blocks.soonest_s(found) > limit_s:
                    continue
                if to.place != shares.last:
                    fronts.setdefault(to, []).append(found)
                    continue
                energy_j = found.spent_j + sharing.idle_w * found.device_s
                ends.append((*((energy_j, found.device_s) if thrifty else (found.device_s, energy_j)), found))
                if not thrifty:
                    limit_s = min(limit_s, MARGIN * found.device_s)
    ends.sort(key=lambda row: row[:2])
    return [label.way() for _, _, label in ends[:n]]


def _levels(place: int, levels: int) -> tuple[Handover, ...]:
    return (*(Handover(place, level / (levels - 1)) for level in range(levels)), Handover(place, 1.0, True))


def _step(blocks: Blocks, label: Label, to: Handover, bytes_per_s: float) -> Label | None:
    """From one cut to the next: what is missing goes over, then (or meanwhile) both compute."""
    sharing = blocks.shares.sharing
    device, helper = blocks.block(label.at, to, DEVICE), blocks.block(label.at, to, HELPER)
    up, down = blocks.lacking(label.at, to, HELPER), blocks.lacking(label.at, to, DEVICE)
    if (up or down) and bytes_per_s <= 0:
        return None
    free_s, spent_j = label.free_s, label.spent_j
    ready = {DEVICE: (label.device_s, label.device_first_s), HELPER: (label.helper_s, label.helper_first_s)}
    ends = {}
    for side, block, nbytes in ((HELPER, helper, up), (DEVICE, device, down)):
        own_s, own_first_s = ready[side]
        if not nbytes:
            ends[side] = (own_s + block.seconds, own_first_s + block.seconds - 0.75 * block.streamed_s)
            continue
        giver_s, giver_first_s = ready[DEVICE if side == HELPER else HELPER]
        airtime_s = nbytes / bytes_per_s
        begins_s = max(giver_first_s, free_s)
        first_s = begins_s + airtime_s / TILES + sharing.latency_s
        all_s = max(begins_s + airtime_s, giver_s + airtime_s / TILES) + sharing.latency_s
        free_s = begins_s + airtime_s
        spent_j += airtime_s * sharing.radio_w
        rest_s = block.seconds - block.streamed_s
        end_s = max(own_s + block.streamed_s, all_s + block.streamed_s / TILES, first_s + block.streamed_s) + rest_s
        ends[side] = (end_s, max(own_first_s, first_s) + block.streamed_s / TILES + rest_s)
    spent_j += device.seconds * max(sharing.busy_w - sharing.idle_w, 0.0)
    (device_s, device_first_s), (helper_s, helper_first_s) = ends[DEVICE], ends[HELPER]
    return Label(device_s, helper_s, device_first_s, helper_first_s, free_s, spent_j, to, label)


def _lacking(operators: Sequence, takes: dict[int, Interval], has: dict[int, Interval]) -> int:  # type: ignore[type-arg]
    total = 0
    for u, rows in takes.items():
        have = common(rows, has.get(u, NONE))
        total += operators[u].row_bytes * (rows[1] - rows[0] - have[1] + have[0])
    return total


def _thinned(labels: list[Label], *, energy: bool) -> Iterator[Label]:
    """The labels at one cut that are not worse in everything than another, which holds at least the same rows."""
    kept: dict[Handover, list[Label]] = {}
    everywhere: list[Label] = []
    for label in sorted(labels, key=lambda x: (not x.at.both, x.device_s + x.helper_s, x.free_s, x.spent_j)):
        rivals = kept.setdefault(label.at, [])
        if len(rivals) < MAX_LABELS and not any(_beats(r, label, energy=energy) for r in (*rivals, *everywhere)):
            rivals.append(label)
            if label.at.both:
                everywhere.append(label)
            yield label


def _beats(one: Label, other: Label, *, energy: bool) -> bool:
    free_s = max(other.free_s, min(other.device_first_s, other.helper_first_s))
    at_once = one.device_s <= other.device_s and one.helper_s <= other.helper_s and one.free_s <= free_s
    return at_once and (not energy or one.spent_j <= other.spent_j)
