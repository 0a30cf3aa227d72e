"""Share one request inside its operators between a device and helpers: which rows where (Intra-DP's
LOSS, IV-C).

The paper searches intervals per operator by differential evolution. Here a Pareto search over cuts
and levels (`search`) names some promising ways. They are carried out in time step by step, as the
agents would (`times`), next to what others would do (`baselines`). The best of them is improved by
moving rows, moving cuts and changing the size of what is sent, while that helps. So it is never
worse than any of the others.

With several helpers (the paper has one) the search takes them for one that is as fast as all
together, whose rows are then divided among them by their speed. What is best without the last
helper, and with it alone, is among the candidates: a further helper never makes it worse.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import accumulate, combinations, pairwise

from potluck.errors import PlanError
from potluck.offload.plan import baselines
from potluck.offload.plan.problem import NONE, Division, OffloadProblem, Shares, common
from potluck.offload.plan.search import (
    LEVELS,
    MARGIN,
    Blocks,
    PartitionPoint,
    SplitPath,
    alone,
    cuts,
    divided,
    search,
)
from potluck.offload.plan.steps import TILES, steps, useful
from potluck.offload.plan.times import times

N_WAYS = 6  # of those that the search found, carried out in time
N_IMPROVED = 2  # of those, made better; with several helpers, which take longer to try, one
MAX_TRIES = 120  # changes of a way that are tried
TILE_COUNTS = (1, 2, 4, 8)
STEPS_KEPT = 512  # of divisions, which are tried again at other bandwidths; some tens of MB


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRules:
    """The paper's constraints (IV-C4), for who wants them. Intervals are contiguous always.

    `raw_bound`: no rows go over of a value that is larger than the raw input. `replicate`: both
    sides may compute the same rows.
    """

    raw_bound: bool = False
    replicate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The answer: the rows of each operator on each side, in how many parts they go over.

    Seconds, joules and bytes.
    """

    divisions: tuple[Division, ...]
    tiles: int = TILES
    latency_s: float
    energy_j: float
    sent_bytes: int
    received_bytes: int

    def does_as(self, other: "Split") -> bool:
        """Whether the same is done, however long it takes."""
        return (self.divisions, self.tiles) == (other.divisions, other.tiles)

    def __repr__(self) -> str:  # the rows of hundreds of operators tell nobody anything
        from potluck import units

        moved = f"{units.size(self.sent_bytes)} there, {units.size(self.received_bytes)} back"
        return f"<Split: {units.duration(self.latency_s)}, {units.energy(self.energy_j)}, {moved}>"


class Splitter:
    """A problem prepared for any bandwidth: what does not depend on it is found once.

    `share` gives the best split at a bandwidth, `front` those between the fastest and the most
    frugal.

    Parameters
    ----------
    sharing
        The problem.
    rules
        The paper's constraints; default: none but those that always hold.
    levels
        Shares of the rows behind a cut that are tried, evenly from none to all.
    """

    def __init__(
        self, sharing: OffloadProblem, *, rules: SplitRules | None = None, levels: int = LEVELS
    ) -> None:
        self.shares = Shares(sharing)
        self.rules = rules or SplitRules()
        self.levels = levels
        one_helper, sides = self.shares, tuple(sharing.sides)
        # the sides that are left, and what they can do
        self.fewer: list[tuple[tuple[int, ...], Splitter]] = []
        if len(sides) > 2:
            one_helper = Shares(sharing.merged())
            for left in (sides[:-1], (sides[0], sides[-1])):
                self.fewer.append((left, Splitter(sharing.among(left), rules=rules, levels=levels)))
        self.blocks = Blocks(one_helper, cuts(one_helper))
        self._steps = lru_cache(maxsize=STEPS_KEPT)(partial(steps, self.shares))

    def share(
        self, bytes_per_s: float, *, deadline_s: float | None = None, near: Sequence[Split] = ()
    ) -> Split:
        """The split with the least latency.

        With `deadline_s`, the one with the least joules of the device within it.

        Intra-DP, equations (2) and (3), on rows instead of operations; the input and the result are
        on the device. `near`: splits of other bandwidths, which may be good here too.

        Parameters
        ----------
        bytes_per_s
            Of the link.
        deadline_s
            Seconds; default: as soon as possible.
        near
            Splits of other bandwidths.

        Raises
        ------
        PlanError
            Where no split is done by the deadline; says how soon the fastest is.
        """
        fastest = self._best(bytes_per_s, None, near)
        if deadline_s is None:
            return fastest
        if fastest.latency_s > deadline_s:
            soonest_ms = fastest.latency_s * 1e3
            raise PlanError(
                f"no split answers within {deadline_s * 1e3:.1f} ms; the fastest takes "
                f"{soonest_ms:.1f} ms.",
                next_step="Allow more time, or use a faster helper or link.",
            )
        return self._best(bytes_per_s, deadline_s, (fastest, *near))

    def front(self, bytes_per_s: float, n: int = 8) -> tuple[Split, ...]:
        """Splits of which none is both faster and more frugal: from the fastest to the one with the
        fewest joules.
        """
        fastest = self.share(bytes_per_s)
        on_device = self.evaluate(baselines.all_on_device(self.shares), bytes_per_s)
        slowest_s = max(on_device.latency_s, 2 * fastest.latency_s)
        limits = (
            fastest.latency_s + (slowest_s - fastest.latency_s) * k / (n - 1) for k in range(n)
        )
        found: list[Split] = []
        for split in (fastest, *(self._best(bytes_per_s, limit, (fastest,)) for limit in limits)):
            if not found or split.energy_j < found[-1].energy_j * (1 - 1e-9):
                found.append(split)
        return tuple(found)

    def evaluate(
        self, divisions: Sequence[Division], bytes_per_s: float, tiles: int = TILES
    ) -> Split:
        """What comes of these divisions.

        Parameters
        ----------
        divisions
            Per operator, the rows of each side.
        bytes_per_s
            Of the link.
        tiles
            Parts in which rows go over.

        Raises
        ------
        PlanError
            They need a link, and it carries nothing.
        """
        split = self.tried(divisions, bytes_per_s, tiles)
        if split is None:
            raise PlanError("this split sends something, but the link carries nothing.")
        return split

    def tried(self, divisions: Sequence[Division], bytes_per_s: float, tiles: int) -> Split | None:
        """What comes of these divisions; None where they need a link and it carries nothing.

        Parameters
        ----------
        divisions
            Per operator, the rows of each side.
        bytes_per_s
            Of the link.
        tiles
            Parts in which rows go over.
        """
        sharing = self.shares.sharing
        taken = times(sharing, self._steps(tuple(divisions), tiles), bytes_per_s)
        if taken is None:
            return None
        energy_j = (
            sharing.idle_w * taken.latency_s
            + max(sharing.busy_w - sharing.idle_w, 0.0) * taken.busy_s
            + sharing.radio_w * taken.radio_s
        )
        return Split(
            divisions=tuple(divisions),
            tiles=tiles,
            latency_s=taken.latency_s,
            energy_j=energy_j,
            sent_bytes=taken.sent_bytes,
            received_bytes=taken.received_bytes,
        )

    # --- the search -------------------------------------------------------------------------------

    def _best(self, bytes_per_s: float, deadline_s: float | None, near: Sequence[Split]) -> Split:
        """The best of what others do, what was good elsewhere, and the ways that were found, these
        made better.
        """
        known = [
            *self._baselines(bytes_per_s, deadline_s),
            *((split.divisions, split.tiles) for split in near),
        ]
        tried = (
            self.tried(divisions, bytes_per_s, tiles)
            for divisions, tiles in known
            if self._allowed(divisions)
        )
        splits = [split for split in tried if split]
        limit_s = (
            MARGIN * min(split.latency_s for split in splits) if deadline_s is None else deadline_s
        )
        link_bytes_per_s = self.shares.sharing.link_bytes_per_s(bytes_per_s)
        ways = search(
            self.blocks,
            link_bytes_per_s,
            N_WAYS,
            limit_s=limit_s,
            levels=self.levels,
            thrifty=deadline_s is not None,
        )
        ranked = []
        seen = set()
        promising = [way for found in ways for way in self._handed_on(found)]
        for way in (*promising, alone(self.shares)):
            split = self._of_way(way, bytes_per_s, TILES)
            if split and split.divisions not in seen:
                seen.add(split.divisions)
                ranked.append((rank(split, deadline_s), way, split))
        ranked.sort(key=lambda row: row[0])
        for _, way, split in ranked[: 1 if self.fewer else N_IMPROVED]:
            splits.append(self._improved(way, split, bytes_per_s, deadline_s))
        return min(splits, key=lambda split: rank(split, deadline_s))

    def _baselines(
        self, bytes_per_s: float, deadline_s: float | None
    ) -> Iterator[tuple[tuple[Division, ...], int]]:
        """What others would do, in one part and in several; or what fewer helpers do."""
        for sides, splitter in self.fewer:
            split = splitter._best(bytes_per_s, deadline_s, ())
            yield tuple(self._widened(division, sides) for division in split.divisions), split.tiles
        if self.fewer:
            return
        found = [baselines.all_on_device(self.shares), baselines.all_on_helper(self.shares)]
        found += [
            baselines.least_cut(self.shares, bytes_per_s),
            baselines.greedy_tiling(self.shares, bytes_per_s),
        ]
        if deadline_s is not None:
            found.append(baselines.thriftiest_cut(self, bytes_per_s, deadline_s).divisions)
        for divisions in dict.fromkeys(found):
            yield divisions, 1
            yield divisions, TILES

    def _widened(self, division: Division, sides: Sequence[int]) -> Division:
        """A division among these sides, as one of all."""
        rows = dict(zip(sides, division, strict=True))
        return tuple(rows.get(side, NONE) for side in self.shares.sides)

    def _handed_on(self, way: SplitPath) -> Iterator[SplitPath]:
        """A way of the device and one helper as ways of all: its rows divided by speed, there and
        at every cut.
        """
        if not self.fewer:
            yield way
            return
        rest = self._by_speed()
        yield tuple(replace(at, rest=rest) for at in way)
        often = [way[0]]
        for before, after in pairwise(way):
            if not after.share:  # the device does nothing meanwhile
                often += [
                    PartitionPoint(p, 0.0)
                    for p in self.blocks.places
                    if before.place < p < after.place
                ]
            often.append(after)
        if len(often) > len(way):
            yield tuple(replace(at, rest=rest) for at in often)

    def _by_speed(self) -> tuple[float, ...]:
        """Up to which share of the helpers' rows the first, the second ...

        Do them, so that all take equally long.
        """
        sharing = self.shares.sharing
        seconds = [
            sum(operator.seconds(side) for operator in sharing.operators)
            for side in sharing.sides[1:]
        ]
        speed = [1.0 / s if s else 0.0 for s in seconds]
        return tuple(part / sum(speed) for part in accumulate(speed[:-1]))

    def _of_way(self, way: SplitPath, bytes_per_s: float, tiles: int) -> Split | None:
        divisions = divided(self.shares, way, replicate=self.rules.replicate)
        return self.tried(divisions, bytes_per_s, tiles) if self._allowed(divisions) else None

    def _allowed(self, divisions: Sequence[Division]) -> bool:
        if self.rules == SplitRules():
            return True
        own, lacking = useful(self.shares, divisions)
        operators = self.shares.operators
        both = any(
            common(a, b)[1]
            for one, other in combinations(own, 2)
            for a, b in zip(one, other, strict=True)
        )
        large = any(
            parts and operators[place].nbytes > operators[0].nbytes
            for side in lacking
            for place, parts in enumerate(side)
        )
        return not (both and not self.rules.replicate) and not (large and self.rules.raw_bound)

    def _improved(
        self, way: SplitPath, split: Split, bytes_per_s: float, deadline_s: float | None
    ) -> Split:
        """The split of a way that is changed in one place at a time, in ever smaller steps, while
        that helps.
        """
        size, tries = 1 / 8, 0
        seen = {(way, split.tiles)}
        while size >= 1 / 256 and tries < MAX_TRIES:
            better = False
            for other, tiles in self._changes(way, split.tiles, size):
                if (other, tiles) in seen or tries >= MAX_TRIES:
                    continue
                seen.add((other, tiles))
                tries += 1
                found = self._of_way(other, bytes_per_s, tiles)
                if found and rank(found, deadline_s) < rank(split, deadline_s):
                    way = other
                    split = found
                    better = True
                    break
            if not better:
                size /= 2
        return split

    def _changes(self, way: SplitPath, tiles: int, size: float) -> Iterator[tuple[SplitPath, int]]:
        """A point left out, moved to another cut, or with another share; other tiles."""
        yield from ((way, other) for other in TILE_COUNTS if other in (tiles // 2, tiles * 2))
        places = self.blocks.places
        for i in range(1, len(way) - 1):
            at = way[i]
            yield (*way[:i], *way[i + 1 :]), tiles
            changed = [
                replace(at, share=min(max(at.share + d, 0.0), 1.0))
                for d in (-size, size)
                if not at.both
            ]
            changed += [
                replace(at, rest=(*at.rest[:k], min(max(end + d, 0.0), 1.0), *at.rest[k + 1 :]))
                for k, end in enumerate(at.rest)
                for d in (-size, size)
            ]
            if at.place in places:
                k = places.index(at.place)
                changed += [replace(at, place=p) for p in (places[k - 1], places[k + 1])]
            for other in changed:
                if way[i - 1].place < other.place < way[i + 1].place:
                    yield (*way[:i], other, *way[i + 1 :]), tiles
        if self.fewer:
            yield from ((other, tiles) for other in self._more_changes(way, size))

    def _more_changes(self, way: SplitPath, size: float) -> Iterator[SplitPath]:
        """Of several helpers: another share of one everywhere, one point more."""
        for k in range(len(self.shares.sides) - 2):
            for d in (-size, size):
                yield tuple(
                    replace(
                        at,
                        rest=(*at.rest[:k], min(max(at.rest[k] + d, 0.0), 1.0), *at.rest[k + 1 :]),
                    )
                    if at.rest
                    else at
                    for at in way
                )
        for i, (before, after) in enumerate(pairwise(way)):
            for place in self.blocks.places:
                if before.place < place < after.place and after.rest:
                    yield (
                        *way[: i + 1],
                        replace(after, place=place, share=after.share),
                        *way[i + 1 :],
                    )


def share(
    sharing: OffloadProblem, *, deadline_s: float | None = None, levels: int = LEVELS
) -> Split:
    """The best split at the bandwidth of the problem: see `Splitter.share`.

    Parameters
    ----------
    sharing
        The problem, with its bandwidth.
    deadline_s
        Seconds; default: as soon as possible.
    levels
        Shares of the rows behind a cut that are tried, evenly from none to all.
    """
    return Splitter(sharing, levels=levels).share(sharing.bytes_per_s, deadline_s=deadline_s)


def rank(split: Split, deadline_s: float | None) -> tuple[float, float]:
    """The less, the better: of seconds or, with a deadline, of joules.

    Without one that is held, of seconds.
    """
    if deadline_s is None:
        return split.latency_s, split.energy_j
    return (split.energy_j if split.latency_s <= deadline_s else float("inf")), split.latency_s
