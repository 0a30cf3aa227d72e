"""From who computes which rows to what is done in which order: pieces to run, rows to send as soon
as they are made.

Whatever a side computes is done for a *goal*: a tile of rows that another side waits for, in the
order in which they are needed, and last of all the result. Rows of one goal that wait for the same
arrivals are one piece. So rows that are sent are computed first, nothing waits for rows that it
does not need, and no side computes a row twice (the overlap of Intra-DP, section IV-B).
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from potluck.errors import PlanError
from potluck.offload.plan.problem import (
    DEVICE,
    NONE,
    Division,
    Interval,
    Shares,
    common,
    hull,
    without,
)

# rows that go over do so in four parts, so that three quarters of the way can be spent computing
TILES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadStep:
    """One side computes rows of operators or, where there is somebody `to` have them, hands over
    rows of one operator.

    `after`: the steps, all of them earlier, whose rows it takes. Steps stand in the order of their
    urgency.
    """

    side: int
    rows: tuple[tuple[int, Interval], ...]
    to: int | None = None
    after: tuple[int, ...]

    @property
    def sends(self) -> bool:
        return self.to is not None


def steps(
    shares: Shares, divisions: Sequence[Division], tiles: int = TILES
) -> tuple[OffloadStep, ...]:
    """Everything to be done, in an order in which all is there before it is used.

    Rows of no use are left out.

    Parameters
    ----------
    shares
        The operators as rows.
    divisions
        Per operator, the rows of each side.
    tiles
        Parts in which rows go over.

    Raises
    ------
    PlanError
        Rows are needed that no side computes.
    """
    return _StepDrafts(shares, divisions, tiles).ordered()


@dataclass(slots=True)
class _RowRun:
    """Rows of one operator that a side has at once: made by a step (-1: there from the beginning)
    at some level.
    """

    start: int
    stop: int
    level: int
    step: int


@dataclass(slots=True)
class _StepDraft:
    side: int
    rows: dict[int, Interval]
    to: int | None
    after: set[int]
    rank: tuple[int, int]  # goal, level


class MissingRows(NamedTuple):
    """Rows that a side needs of an operator and has of another side."""

    rows: Interval
    source: int


class _StepDrafts:
    """The steps in the making: rows are traced back from the result, given goals, then arranged
    from the input on.
    """

    def __init__(self, shares: Shares, divisions: Sequence[Division], tiles: int) -> None:
        self.shares, self.tiles = shares, tiles
        self.own, self.lacking = useful(shares, divisions)
        self.drafts: list[_StepDraft] = []
        self.runs: list[list[list[_RowRun]]] = [
            [[] for _ in shares.operators] for _ in shares.sides
        ]
        self.goals: list[list[list[tuple[Interval, int]]]] = [
            [[] for _ in shares.operators] for _ in shares.sides
        ]
        self._transfers()
        for side in shares.sides:
            self._arrange(side)
        for draft in self.drafts:
            if draft.to is not None:
                ((place, rows),) = draft.rows.items()
                draft.after |= {
                    run.step
                    for run in _overlapping(self.runs[draft.side][place], rows)
                    if run.step >= 0
                }

    def _transfers(self) -> None:
        """Tiles of the rows that each side lacks are the goals of who has them, in the order of the
        operators.
        """
        self.runs[DEVICE][0].append(_RowRun(0, self.shares.operators[0].count, 0, -1))
        # by source
        tiles: list[list[tuple[int, Interval, int, int]]] = [[] for _ in self.shares.sides]
        for side, places in enumerate(self.lacking):
            arrival = 0
            for place, parts in enumerate(places):
                for lack in parts:
                    for tile in _tiles(lack.rows, self.tiles):
                        arrival += 1
                        tiles[lack.source].append((place, tile, side, arrival))
        for source, given in enumerate(tiles):
            given.sort(key=lambda row: row[0])
            for goal, (place, tile, side, arrival) in enumerate(given):
                self.runs[side][place].append(_RowRun(*tile, arrival << 16, len(self.drafts)))
                self.drafts.append(_StepDraft(source, {place: tile}, side, set(), (goal, 0)))
                self._aim(source, place, tile, goal)
        self._aim(DEVICE, self.shares.last, (0, 1), 1 << 30)

    def _aim(self, side: int, place: int, rows: Interval, goal: int) -> None:
        """All rows that these need, and that have no goal yet, have this one."""
        need = {place: rows}
        waiting = [-place]
        while waiting:
            v = -heapq.heappop(waiting)
            mine = self.goals[side][v]
            wanted, own = need.pop(v), self.own[side][v]
            wanted = common(wanted, own) if self.shares.operators[v].divisible else own
            for new in without(wanted, [run for run, _ in mine]):
                mine.append((new, goal))
                for source, read in self.shares.reads(v, new):
                    if source not in need:
                        heapq.heappush(waiting, -source)
                    need[source] = hull(need.get(source, NONE), read)

    def _arrange(self, side: int) -> None:
        """Rows with the same goal that wait for the same arrivals go into one piece."""
        pieces: dict[tuple[int, int], int] = {}
        runs = self.runs[side]
        for place in range(len(self.shares.operators)):
            for goal, part in self._parts(side, place) if place else ():
                level, after = 0, set()
                for source, read in self.shares.reads(place, part):
                    for run in _overlapping(runs[source], read):
                        after.add(run.step)
                        level = max(level, run.level)
                while True:  # a piece has one interval of each operator
                    number = pieces.setdefault((goal, level), len(self.drafts))
                    if number == len(self.drafts):
                        self.drafts.append(_StepDraft(side, {}, None, set(), (goal, level)))
                    draft = self.drafts[number]
                    have = draft.rows.get(place)
                    if have is None or have[1] == part[0]:
                        break
                    level += 1
                draft.rows[place] = hull(have or NONE, part)
                draft.after |= after - {-1, number}
                if (
                    runs[place]
                    and runs[place][-1].step == number
                    and runs[place][-1].stop == part[0]
                ):
                    runs[place][-1].stop = part[1]
                else:
                    runs[place].append(_RowRun(*part, level, number))
            runs[place].sort(key=_start)

    def _parts(self, side: int, place: int) -> Iterator[tuple[int, Interval]]:
        """The rows of an operator and their goal, divided where they begin to need others' work."""
        goals = sorted(self.goals[side][place])
        if not goals:
            return
        rows = (goals[0][0][0], goals[-1][0][1])
        bounds = {rows[1]}
        for which, (source, _) in enumerate(self.shares.windows[place]):
            have = self.runs[side][source]
            if len(have) > 1:
                for run in have:
                    bounds.update(self.shares.readers(place, which, rows, run.start))
                    bounds.update(self.shares.readers(place, which, rows, run.stop))
        ends = sorted(bounds)
        at = 0
        for (start, stop), goal in goals:
            while ends[at] <= start:
                at += 1
            while ends[at] < stop:
                yield goal, (start, ends[at])
                start = ends[at]
                at += 1
            yield goal, (start, stop)

    def ordered(self) -> tuple[OffloadStep, ...]:
        """The drafts in an order in which they can be done, the most urgent first."""
        missing = [len(draft.after) for draft in self.drafts]
        users: list[list[int]] = [[] for _ in self.drafts]
        for number, draft in enumerate(self.drafts):
            for before in draft.after:
                users[before].append(number)
        ready = [(draft.rank, n) for n, draft in enumerate(self.drafts) if not missing[n]]
        heapq.heapify(ready)
        place: dict[int, int] = {}
        found: list[OffloadStep] = []
        while ready:
            _, number = heapq.heappop(ready)
            draft, place[number] = self.drafts[number], len(found)
            after = tuple(sorted(place[before] for before in draft.after))
            found.append(
                OffloadStep(
                    side=draft.side, rows=tuple(draft.rows.items()), to=draft.to, after=after
                )
            )
            for user in users[number]:
                missing[user] -= 1
                if not missing[user]:
                    heapq.heappush(ready, (self.drafts[user].rank, user))
        return tuple(found)


def useful(
    shares: Shares, divisions: Sequence[Division]
) -> tuple[list[list[Interval]], list[list[list[MissingRows]]]]:
    """The rows that each side computes and that are of use, and those that it lacks, per side and
    operator.

    Raises PlanError where rows are needed that no side computes.
    """
    n, sides = len(shares.operators), shares.sides
    wanted: list[list[Interval]] = [[NONE] * n for _ in sides]
    wanted[DEVICE][n - 1] = (0, shares.operators[n - 1].count)
    own: list[list[Interval]] = [[NONE] * n for _ in sides]
    lacking: list[list[list[MissingRows]]] = [[[] for _ in range(n)] for _ in sides]
    for place in range(n - 1, -1, -1):
        operator = shares.operators[place]
        have = list(divisions[place])
        if place in (0, n - 1):
            have = [(0, operator.count), *[NONE] * (len(sides) - 1)]
        used = [common(wanted[side][place], have[side]) for side in sides]
        for side in sides:
            for part in without(wanted[side][place], [have[side]]):
                for lack in _sources(operator.name, part, side, have):
                    lacking[side][place].append(lack)
                    used[lack.source] = hull(used[lack.source], lack.rows)
        for side in sides:
            if used[side] != NONE and not operator.divisible:
                used[side] = (0, operator.count)
            own[side][place] = used[side]
            if used[side] != NONE:
                for source, read in shares.reads(place, used[side]):
                    wanted[side][source] = hull(wanted[side][source], read)
    return own, lacking


def _sources(
    name: str, rows: Interval, side: int, have: Sequence[Interval]
) -> Iterator[MissingRows]:
    """Who hands these rows to a side: the nearest that has them, a helper rather than the
    device.
    """
    start, stop = rows
    while start < stop:
        near = [s for s, (a, b) in enumerate(have) if s != side and a <= start < b]
        if not near:
            raise PlanError(
                f"rows {(start, stop)} of {name} are needed, but no side computes them."
            )
        source = min(near, key=lambda other: (abs(other - side), other == DEVICE))
        end = min(have[source][1], stop)
        yield MissingRows((start, end), source)
        start = end


def _start(run: _RowRun) -> int:
    return run.start


def _overlapping(runs: Sequence[_RowRun], rows: Interval) -> list[_RowRun]:
    return [run for run in runs if run.start < rows[1] and rows[0] < run.stop]


def _tiles(rows: Interval, n: int) -> list[Interval]:
    """The rows in up to `n` parts of about the same size."""
    bounds = sorted({rows[0] + (rows[1] - rows[0]) * k // n for k in range(n + 1)})
    return list(pairwise(bounds))
