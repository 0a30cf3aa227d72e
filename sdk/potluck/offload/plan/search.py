"""Ways to share a request, and a quick search among them: where rows change hands, and how many the
device then holds.

A Pareto label (when each side is ready, when the link is free, joules) is kept per cut and level,
unless another is better in everything. Of many the ones that are ready first. Times are estimates,
for the order alone: the best few ways are carried out step by step afterwards."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from potluck.offload.plan.problem import (
    APART_FRAC,
    DEVICE,
    HELPER,
    MAX_CUTS,
    NONE,
    Division,
    Interval,
    OffloadProblem,
    Shares,
    common,
)
from potluck.offload.plan.steps import TILES

LEVELS = 11  # shares of the rows behind a cut that are tried: 0, a tenth, ... all
MARGIN = 1.05  # estimates so much later than the best may yet turn out to be the best
MAX_LABELS = 6  # kept per cut and level: the ones that are ready first


@dataclass(frozen=True, slots=True, order=True)
class PartitionPoint:
    """Behind operator `place` the device holds this share of the rows of all that is alive, the
    helpers the others.

    `rest`: up to which share of those others the first helpers hold them, and the last one what is
    left; with none the first helper holds all. `both`: each of them that has a share holds all
    rows.
    """

    place: int
    share: float
    both: bool = False
    rest: tuple[float, ...] = ()

    def bounds(self, side: int) -> tuple[float, float]:
        """The share of the rows at which a side's begin, and end."""
        if side == DEVICE:
            return 0.0, self.share
        ends = (0.0, *self.rest, 1.0)
        if side >= len(ends):
            return 1.0, 1.0
        of_others = 1.0 - self.share
        first = self.share + of_others * ends[side - 1] if side > HELPER else self.share
        return first, self.share + of_others * ends[side] if ends[side] < 1.0 else 1.0


SplitPath = tuple[PartitionPoint, ...]  # from the input to the result


def alone(shares: Shares) -> SplitPath:
    """Everything on the device."""
    return (PartitionPoint(0, 1.0), PartitionPoint(shares.last, 1.0))


def held(shares: Shares, point: PartitionPoint, side: int) -> dict[int, Interval]:
    """The rows that a side holds behind a cut. What cannot be divided is on one side.

    Parameters
    ----------
    shares
        The operators as rows.
    point
        How the cut is shared.
    side
        Its number; 0 is the device.

    Returns
    -------
    dict[int, Interval]
        Operator to its rows.
    """
    found = {}
    first, end = point.bounds(side)
    holds = point.both and (side == DEVICE or first < end or (not point.rest and side == HELPER))
    for u in shares.alive[point.place]:
        operator = shares.operators[u]
        size = operator.count if operator.divisible else 1
        rows = (round(first * size), round(end * size))
        rows = rows if operator.divisible else (rows[0] * operator.count, rows[1] * operator.count)
        found[u] = (0, operator.count) if holds else rows
    return found


def divided(shares: Shares, way: SplitPath, *, replicate: bool = True) -> tuple[Division, ...]:
    """The rows that each side computes on such a way.

    Without `replicate` no row is computed by two sides.

    Parameters
    ----------
    shares
        The operators as rows.
    way
        From cut to cut.
    replicate
        Two sides may compute the same rows.
    """
    rows: list[list[Interval]] = [[NONE] * len(shares.operators) for _ in shares.sides]
    rows[DEVICE][0] = (0, shares.operators[0].count)
    for before, after in pairwise(way):
        for side in shares.sides:
            if not replicate:
                _evenly(shares, before, after, side, rows[side])
                continue
            needed = shares.needed(after.place, held(shares, after, side), before.place)
            for place in range(before.place + 1, after.place + 1):
                rows[side][place] = needed.get(place, NONE)
    return tuple(zip(*rows, strict=True))


def _evenly(
    shares: Shares, before: PartitionPoint, after: PartitionPoint, side: int, rows: list[Interval]
) -> None:
    """Every operator between two cuts is divided like the values behind the later one: neighbours
    exchange rows.
    """
    first, end = after.bounds(side)
    for place in range(before.place + 1, after.place + 1):
        operator = shares.operators[place]
        if operator.divisible:
            rows[place] = round(first * operator.count), round(end * operator.count)
        else:
            rows[place] = operator.count * round(first), operator.count * round(end)


def cuts(shares: Shares) -> tuple[int, ...]:
    """Places where little is alive, some way apart where there are many.

    The input and the result are among them.
    """
    so_far, total = [], 0.0
    for operator in shares.operators:
        total += operator.seconds(DEVICE)
        so_far.append(total)
    chosen: list[int] = []
    apart = shares.last > MAX_CUTS + 1
    for place in sorted(range(1, shares.last), key=lambda p: (shares.cut_bytes(p), p)):
        if len(chosen) < MAX_CUTS and all(
            not apart or abs(so_far[place] - so_far[c]) >= APART_FRAC * total for c in chosen
        ):
            chosen.append(place)
    return (0, *sorted(chosen), shares.last)


@dataclass(frozen=True, slots=True)
class _CutBlock:
    """What one side does between two cuts: the rows it takes, its seconds, and those it can spend
    on the first rows.
    """

    takes: dict[int, Interval]
    seconds: float
    streamed_s: float

    @property
    def first_s(self) -> float:
        """From its first rows before to its first rows behind, if it has to wait for nobody."""
        return self.seconds - (1 - 1 / TILES) * self.streamed_s


@dataclass(frozen=True, slots=True)
class _PathSegment:
    """The way from one cut to another: what each side does, and the bytes that it takes of the
    other before.
    """

    to: PartitionPoint
    device: _CutBlock
    helper: _CutBlock
    up_bytes: int
    down_bytes: int
    device_first_s: float
    helper_first_s: float


@dataclass(slots=True)
class Label:
    """When each side has its first and its last rows behind a cut, when the link is free, what the
    device has spent.
    """

    device_s: float
    helper_s: float
    device_first_s: float
    helper_first_s: float
    free_s: float
    spent_j: float
    at: PartitionPoint
    before: "Label | None"

    def way(self) -> SplitPath:
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
    blocks: dict[tuple[PartitionPoint, int], dict[int, _CutBlock]] = field(default_factory=dict)
    holds: dict[tuple[PartitionPoint, int], dict[int, Interval]] = field(default_factory=dict)
    segments: dict[tuple[PartitionPoint, int], list[_PathSegment]] = field(default_factory=dict)
    left: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Per operator: seconds of all behind it on the device, and how many times faster the
        helper is at most.
        """
        left_s, faster = 0.0, 1.0
        for operator in reversed(self.shares.operators):
            self.left.append((left_s, faster))
            device_s, helper_s = operator.seconds(DEVICE), operator.seconds(HELPER)
            left_s += device_s
            faster = max(faster, device_s / helper_s if helper_s > 0 else 1.0)
        self.left.reverse()

    def soonest_s(self, place: int, device_first_s: float, helper_first_s: float) -> float:
        """No end is sooner than with first rows there then: both sides work all the time on what is
        left.

        Parameters
        ----------
        place
            Of the cut.
        device_first_s, helper_first_s
            When each side has rows at it.
        """
        left_s, faster = self.left[place]
        together_s = (left_s + device_first_s + faster * helper_first_s) / (1.0 + faster)
        return device_first_s if device_first_s > together_s else together_s

    def segments_from(self, at: PartitionPoint, levels: int) -> list[_PathSegment]:
        """All ways on from a cut to the cuts behind it, one for each of so many levels there."""
        key = (at, levels)
        if key not in self.segments:
            self.segments[key] = [
                self._segment(at, to)
                for place in self.places
                if place > at.place
                for to in self.points(place, levels)
            ]
        return self.segments[key]

    def points(self, place: int, levels: int) -> tuple[PartitionPoint, ...]:
        """What may be held behind a cut."""
        if place in (0, self.shares.last):
            return (PartitionPoint(place, 1.0),)
        return (
            *(PartitionPoint(place, level / (levels - 1)) for level in range(levels)),
            PartitionPoint(place, 1.0, True),
        )

    def _segment(self, at: PartitionPoint, to: PartitionPoint) -> _PathSegment:
        device, helper = self.block(at, to, DEVICE), self.block(at, to, HELPER)
        up = _lacking(self.shares.operators, helper.takes, self.held(at, HELPER))
        down = _lacking(self.shares.operators, device.takes, self.held(at, DEVICE))
        return _PathSegment(to, device, helper, up, down, device.first_s, helper.first_s)

    def block(self, before: PartitionPoint, after: PartitionPoint, side: int) -> _CutBlock:
        """What a side computes between two cuts.

        Parameters
        ----------
        before, after
            How the cuts are shared.
        side
            Its number; 0 is the device.
        """
        key = (after, side)
        if key not in self.blocks:
            self.blocks[key] = self._sweep(after, side)
        return self.blocks[key][before.place]

    def held(self, at: PartitionPoint, side: int) -> dict[int, Interval]:
        key = (at, side)
        if key not in self.holds:
            self.holds[key] = held(self.shares, at, side)
        return self.holds[key]

    def _sweep(self, after: PartitionPoint, side: int) -> dict[int, _CutBlock]:
        shares, wanted = self.shares, set(self.places)
        needed = shares.needed(after.place, self.held(after, side))
        found: dict[int, _CutBlock] = {}
        done: list[tuple[int, float]] = []  # (barrier, seconds) of every operator that runs
        for place in range(after.place, -1, -1):
            if place in wanted and place < after.place:
                # what the operators behind this cut read, and what is only passed on
                ran = [v for v in range(place + 1, after.place + 1) if v in needed]
                takes: dict[int, Interval] = {
                    u: r for u, r in self.held(after, side).items() if u <= place
                }
                for v in ran:
                    for source, read in shares.reads(v, needed[v]):
                        if source <= place:
                            a, b = takes.get(source, NONE)
                            takes[source] = read if a >= b else (min(a, read[0]), max(b, read[1]))
                streamed_s = sum(seconds for barrier, seconds in done if barrier <= place)
                found[place] = _CutBlock(takes, sum(seconds for _, seconds in done), streamed_s)
            start, stop = needed.get(place, NONE)
            if start < stop and place:
                done.append(
                    (shares.barriers[place], shares.sharing.seconds(side, place, stop - start))
                )
        return found


def search(
    blocks: Blocks,
    bytes_per_s: float,
    n: int,
    *,
    limit_s: float,
    levels: int = LEVELS,
    thrifty: bool = False,
) -> list[SplitPath]:
    """The ways that seem best at that bandwidth, of those done by `limit_s`: least latency or, if
    `thrifty`, joules.

    Parameters
    ----------
    blocks
        The problem, prepared.
    bytes_per_s
        Of the link.
    n
        How many ways to give.
    limit_s
        Ways that take longer are of no use.
    levels
        Shares of the rows behind a cut that are tried, evenly from none to all.
    thrifty
        By joules of the device, rather than latency.
    """
    sharing, last = blocks.shares.sharing, blocks.shares.last
    start = PartitionPoint(0, 1.0)
    fronts: dict[PartitionPoint, list[Label]] = {
        start: [Label(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, start, None)]
    }
    ends: list[tuple[float, float, Label]] = []
    for place in blocks.places[:-1]:
        labels = [label for at in blocks.points(place, levels) for label in fronts.pop(at, [])]
        for label in _thinned(labels, energy=thrifty):
            first_s = label.device_first_s, label.helper_first_s
            if blocks.soonest_s(place, *first_s) > limit_s:
                continue
            for segment in blocks.segments_from(label.at, levels):
                # at the soonest
                firsts_s = first_s[0] + segment.device_first_s, first_s[1] + segment.helper_first_s
                late = label.device_s + segment.device.seconds > limit_s
                if late or blocks.soonest_s(segment.to.place, *firsts_s) > limit_s:
                    continue
                found = _step(sharing, label, segment, bytes_per_s, limit_s)
                if (
                    not found
                    or blocks.soonest_s(
                        segment.to.place, found.device_first_s, found.helper_first_s
                    )
                    > limit_s
                ):
                    continue
                if segment.to.place != last:
                    fronts.setdefault(segment.to, []).append(found)
                    continue
                energy_j = found.spent_j + sharing.idle_w * found.device_s
                ends.append(
                    (
                        *((energy_j, found.device_s) if thrifty else (found.device_s, energy_j)),
                        found,
                    )
                )
                if not thrifty:
                    limit_s = min(limit_s, MARGIN * found.device_s)
    ends.sort(key=lambda row: row[:2])
    return [label.way() for _, _, label in ends[:n]]


def _step(
    sharing: OffloadProblem, label: Label, segment: _PathSegment, bytes_per_s: float, limit_s: float
) -> Label | None:
    """From one cut to the next: what is missing goes over, then (or meanwhile) both compute.

    None: later than that.
    """
    free_s, spent_j = (
        label.free_s,
        label.spent_j + segment.device.seconds * max(sharing.busy_w - sharing.idle_w, 0.0),
    )
    if segment.up_bytes or segment.down_bytes:
        if (
            bytes_per_s <= 0
            or free_s + (segment.up_bytes + segment.down_bytes) / bytes_per_s > limit_s
        ):
            return None
        spent_j += (segment.up_bytes + segment.down_bytes) / bytes_per_s * sharing.radio_w
    device, helper = (label.device_s, label.device_first_s), (label.helper_s, label.helper_first_s)
    helper_s, helper_first_s = _ends(
        segment.helper, helper, (*device, free_s), segment.up_bytes, bytes_per_s, sharing.latency_s
    )
    if segment.up_bytes:
        free_s = max(label.device_first_s, free_s) + segment.up_bytes / bytes_per_s
    device_s, device_first_s = _ends(
        segment.device,
        device,
        (*helper, free_s),
        segment.down_bytes,
        bytes_per_s,
        sharing.latency_s,
    )
    if segment.down_bytes:
        free_s = max(label.helper_first_s, free_s) + segment.down_bytes / bytes_per_s
    if device_s > limit_s:
        return None
    return Label(
        device_s, helper_s, device_first_s, helper_first_s, free_s, spent_j, segment.to, label
    )


def _ends(
    block: _CutBlock,
    own: tuple[float, float],
    given: tuple[float, float, float],
    nbytes: int,
    bytes_per_s: float,
    latency_s: float,
) -> tuple[float, float]:
    """When a side has its last and its first rows. `own`: when it had them at the cut before;
    `given`: when the other side had, and when the link is free."""
    own_s, own_first_s = own
    if not nbytes:
        return own_s + block.seconds, own_first_s + block.seconds - 0.75 * block.streamed_s
    giver_s, giver_first_s, free_s = given
    airtime_s = nbytes / bytes_per_s
    begins_s = max(giver_first_s, free_s)
    first_s = begins_s + airtime_s / TILES + latency_s
    all_s = max(begins_s + airtime_s, giver_s + airtime_s / TILES) + latency_s
    rest_s = block.seconds - block.streamed_s
    streamed_s = block.streamed_s
    end_s = max(own_s + streamed_s, all_s + streamed_s / TILES, first_s + streamed_s) + rest_s
    return end_s, max(own_first_s, first_s) + streamed_s / TILES + rest_s


def _lacking(operators: Sequence, takes: dict[int, Interval], has: dict[int, Interval]) -> int:  # type: ignore[type-arg]
    total = 0
    for u, rows in takes.items():
        have = common(rows, has.get(u, NONE))
        total += operators[u].row_bytes * (rows[1] - rows[0] - have[1] + have[0])
    return total


def _thinned(labels: list[Label], *, energy: bool) -> Iterator[Label]:
    """The labels at one cut that are not worse in everything than another, which holds at least the
    same rows.
    """
    kept: dict[PartitionPoint, list[Label]] = {}
    everywhere: list[Label] = []
    for label in sorted(
        labels, key=lambda x: (not x.at.both, x.device_s + x.helper_s, x.free_s, x.spent_j)
    ):
        rivals = kept.setdefault(label.at, [])
        if len(rivals) < MAX_LABELS and not any(
            _beats(r, label, energy=energy) for r in (*rivals, *everywhere)
        ):
            rivals.append(label)
            if label.at.both:
                everywhere.append(label)
            yield label


def _beats(one: Label, other: Label, *, energy: bool) -> bool:
    free_s = max(other.free_s, min(other.device_first_s, other.helper_first_s))
    at_once = (
        one.device_s <= other.device_s and one.helper_s <= other.helper_s and one.free_s <= free_s
    )
    return at_once and (not energy or one.spent_j <= other.spent_j)
