"""Sharing one request between a device and its helpers: operators, which rows each side computes,
where rows may change hands.

Any place in the line of operators is a cut: behind it some values are alive, each of which the
sides may hold by rows. Between two cuts each side computes what it needs of every operator. Where
windows overlap, both compute the same rows (the replication of Intra-DP, section IV-C), so that
nothing waits inside. Sides are numbered in the order of their rows: the device has the first, then
its helper, then further helpers."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from potluck.errors import PlanError

Interval = tuple[int, int]  # rows [start, stop)
Route = tuple[tuple[int, int], ...]  # (medium, how often it is crossed)
DEVICE, HELPER = 0, 1  # and further helpers from 2 on
NONE: Interval = (0, 0)
# tried as places where rows change hands: those that carry the fewest bytes, some way apart
MAX_CUTS = 16
APART_FRAC = 1 / 32  # of the device's time for all of the request


class Reads(Protocol):
    """Which rows of an input an operator needs for some rows of its output.

    Neither end ever moves back.
    """

    def rows(self, start: int, stop: int) -> tuple[int, int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator, or (first of all) the input. Its inputs are earlier operators.

    None: all of that input is needed.

    `side_s`: seconds for all of its `count` rows, by side; empty where it takes no time. Of these
    the `fixed` ones are there however few rows are computed: being called, reading the weights.
    `side_halo_s` come on top where not all of it is computed: what it reads beyond its own rows is
    cut out and joined. One that is not `divisible` is computed whole or not at all.
    """

    name: str
    count: int
    row_bytes: int
    side_s: tuple[float, ...] = ()
    side_fixed_s: tuple[float, ...] = ()
    side_halo_s: tuple[float, ...] = ()
    inputs: tuple[tuple[int, Reads | None], ...] = ()
    divisible: bool = True

    @property
    def nbytes(self) -> int:
        return self.count * self.row_bytes

    def seconds(self, side: int) -> float:
        """What all of it takes a side."""
        return self.side_s[side] if self.side_s else 0.0

    def fixed_s(self, side: int) -> float:
        """What any of it takes a side."""
        return self.side_fixed_s[side] if self.side_fixed_s else 0.0

    def halo_s(self, side: int) -> float:
        """What a piece of it takes a side on top."""
        return self.side_halo_s[side] if self.side_halo_s else 0.0

    def among(self, sides: Sequence[int]) -> "Operator":
        """The same for these sides, in this order."""
        return replace(
            self,
            side_s=tuple(self.seconds(side) for side in sides),
            side_fixed_s=tuple(self.fixed_s(side) for side in sides),
            side_halo_s=tuple(self.halo_s(side) for side in sides),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLink:
    """From one side to another: the media that are crossed, and the latency.

    Medium 0 is the device's own link.
    """

    media: Route = ((0, 1),)
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadProblem:
    """The problem: operators in topological order, and what the sides and their links can do.

    The first operator is the input, the last the result, which the device needs whole; neither
    takes time.

    Powers are the device's, in watts: computing, sending or receiving, and waiting. `latency_s` is
    paid per transfer, and `piece_s` for whatever a side is told to compute in one go.

    All that the device sends or receives shares its link of `bytes_per_s`, and so does all else
    without a line of its own. `lines`: from side to side. `media_bytes_per_s`: of the media beside
    the device's link, which are 1, 2 ...
    """

    operators: tuple[Operator, ...]
    bytes_per_s: float
    n_sides: int = 2
    latency_s: float = 0.0
    piece_s: float = 0.0
    busy_w: float = 0.0
    radio_w: float = 0.0
    idle_w: float = 0.0
    lines: Mapping[tuple[int, int], SharedLink] = field(default_factory=dict)
    media_bytes_per_s: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.operators) < 2:
            raise PlanError("A request that is to be shared needs an input and a result.")
        if self.n_sides < 2:
            raise PlanError(
                f"A request is shared by a device and at least one helper, not by {self.n_sides}."
            )
        for place, operator in enumerate(self.operators):
            if any(source >= place for source, _ in operator.inputs):
                raise PlanError(f"{operator.name} reads an operator that comes after it.")
            for known in (operator.side_s, operator.side_fixed_s, operator.side_halo_s):
                if len(known) not in (0, self.n_sides):
                    raise PlanError(
                        f"{operator.name} has the seconds of {len(known)} sides, not of "
                        f"{self.n_sides}."
                    )
        if not self.bytes_per_s >= 0:
            raise PlanError(f"The link cannot carry {self.bytes_per_s} bytes a second.")

    @property
    def sides(self) -> range:
        """The device, and every helper."""
        return range(self.n_sides)

    def seconds(self, side: int, place: int, rows: int) -> float:
        """What so many rows of an operator take one side.

        Parameters
        ----------
        side
            Its number; 0 is the device.
        place
            Of the operator.
        rows
            How many.
        """
        operator = self.operators[place]
        if not rows:
            return 0.0
        fixed_s = operator.fixed_s(side)
        halo_s = operator.halo_s(side) if rows < operator.count else 0.0
        return fixed_s + halo_s + (operator.seconds(side) - fixed_s) * rows / operator.count

    def line(self, source: int, target: int) -> SharedLink:
        """How rows get from one side to another."""
        return self.lines.get((source, target)) or SharedLink(latency_s=self.latency_s)

    def link_bytes_per_s(self, bytes_per_s: float) -> float:
        """What one transfer gets between the device and its first helper, where the device's link
        carries so much.
        """
        capacity = (bytes_per_s, *self.media_bytes_per_s)
        both = (*self.line(DEVICE, HELPER).media, *self.line(HELPER, DEVICE).media)
        return min(capacity[medium] / times for medium, times in both)

    def among(self, sides: Sequence[int]) -> "OffloadProblem":
        """The problem of these sides alone, the device first."""
        operators = tuple(operator.among(sides) for operator in self.operators)
        number = {side: new for new, side in enumerate(sides)}
        lines = {
            (number[a], number[b]): line
            for (a, b), line in self.lines.items()
            if a in number and b in number
        }
        latency_s = self.line(DEVICE, sides[1]).latency_s
        return replace(
            self, operators=operators, n_sides=len(sides), lines=lines, latency_s=latency_s
        )

    def merged(self) -> "OffloadProblem":
        """The problem with one helper that is as fast as all of them together."""
        operators = []
        for operator in self.operators:
            helpers = self.sides[1:]
            fixed_s = max(operator.fixed_s(side) for side in helpers)
            moving_s = [operator.seconds(side) - operator.fixed_s(side) for side in helpers]
            together_s = (
                1.0 / sum(1.0 / s for s in moving_s) if all(s > 0 for s in moving_s) else 0.0
            )
            operators.append(
                replace(
                    operator,
                    side_s=(operator.seconds(DEVICE), fixed_s + together_s),
                    side_fixed_s=(operator.fixed_s(DEVICE), fixed_s),
                    side_halo_s=(
                        operator.halo_s(DEVICE),
                        max(operator.halo_s(side) for side in helpers),
                    ),
                )
            )
        return replace(self, operators=tuple(operators), n_sides=2)


# Which rows of an operator each side computes, by side. They may overlap, and be more than anybody
# needs.
Division = tuple[Interval, ...]


class Shares:
    """A problem prepared: which rows are read for which, what is alive where.

    Independent of times and bandwidth.
    """

    def __init__(self, sharing: OffloadProblem) -> None:
        self.sharing = sharing
        self.operators = sharing.operators
        self.sides = sharing.sides
        tables: dict[tuple[object, int], tuple[tuple[int, ...], tuple[int, ...]]] = {}
        # per operator and input: (source, first row read by each row, end of the rows read by each
        # row); None: all
        self.windows: list[list[tuple[int, tuple[tuple[int, ...], tuple[int, ...]] | None]]] = []
        for operator in self.operators:
            found: list[tuple[int, tuple[tuple[int, ...], tuple[int, ...]] | None]] = []
            for source, reads in operator.inputs:
                if reads is None or not operator.divisible:
                    found.append((source, None))
                    continue
                key = (reads, operator.count)
                if key not in tables:
                    firsts, ends = zip(
                        *(reads.rows(row, row + 1) for row in range(operator.count)), strict=True
                    )
                    tables[key] = firsts, ends
                found.append((source, tables[key]))
            self.windows.append(found)
        n = len(self.operators)
        last_use = list(range(n))
        for place, operator in enumerate(self.operators):
            for source, _ in operator.inputs:
                last_use[source] = place
        self.alive = [tuple(u for u in range(p + 1) if last_use[u] > p) for p in range(n - 1)] + [
            (n - 1,)
        ]
        # the last operator up to this one, among those it needs, that needs every row
        self.barriers = [0] * n
        for place, reads_of in enumerate(self.windows):
            needs_all = any(window is None for _, window in reads_of)
            self.barriers[place] = (
                place if needs_all else max((self.barriers[s] for s, _ in reads_of), default=0)
            )

    @property
    def last(self) -> int:
        return len(self.operators) - 1

    def cut_bytes(self, place: int) -> int:
        """The bytes of all that is alive behind an operator."""
        return sum(self.operators[u].nbytes for u in self.alive[place])

    def reads(self, place: int, rows: Interval) -> Iterable[tuple[int, Interval]]:
        """The rows of every input that some rows of an operator need."""
        for source, window in self.windows[place]:
            if window is None:
                yield source, (0, self.operators[source].count)
            else:
                yield source, (window[0][rows[0]], window[1][rows[1] - 1])

    def readers(self, place: int, which: int, rows: Interval, boundary: int) -> tuple[int, int]:
        """Among those rows: the first that reads beyond `boundary` of an input, the first that
        reads none before it.

        Parameters
        ----------
        place
            Of the operator.
        which
            Of its inputs.
        rows
            [start, stop) of its output.
        boundary
            A row of the input.
        """
        window = self.windows[place][which][1]
        if window is None:
            return rows[0], rows[0]
        return bisect_left(window[1], boundary + 1, *rows), bisect_left(window[0], boundary, *rows)

    def needed(
        self, place: int, targets: dict[int, Interval], floor: int = 0
    ) -> dict[int, Interval]:
        """The rows of every operator up to `place` that the targets need.

        Of those up to `floor` only what is read.

        Parameters
        ----------
        place
            The last operator.
        targets
            Operator to the rows that are wanted.
        floor
            Of operators up to here only the rows that are read.
        """
        needed = {u: rows for u, rows in targets.items() if rows[0] < rows[1]}
        for v in range(place, floor, -1):
            rows = needed.get(v)
            if rows is None:
                continue
            if not self.operators[v].divisible:
                rows = needed[v] = (0, self.operators[v].count)
            for source, read in self.reads(v, rows):
                needed[source] = hull(needed.get(source, NONE), read)
        return needed


def hull(a: Interval, b: Interval) -> Interval:
    """The smallest interval with both."""
    if a[0] >= a[1]:
        return b
    return a if b[0] >= b[1] else (min(a[0], b[0]), max(a[1], b[1]))


def common(a: Interval, b: Interval) -> Interval:
    """The rows that are in both."""
    start, stop = max(a[0], b[0]), min(a[1], b[1])
    return (start, stop) if start < stop else NONE


def without(rows: Interval, taken: Sequence[Interval]) -> list[Interval]:
    """The rows that are in none of the others, ascending."""
    found, start = [], rows[0]
    for a, b in sorted(taken):
        if a < b and start < rows[1]:
            if start < a:
                found.append((start, min(a, rows[1])))
            start = max(start, b)
    if start < rows[1]:
        found.append((start, rows[1]))
    return found
