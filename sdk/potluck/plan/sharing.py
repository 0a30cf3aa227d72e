"""Sharing one request between a device and a helper: who has to compute which rows, and how long that takes.

Rows are handed over at *joints* alone, operators whose output is all that lives on behind them. Between two joints each
side computes what it needs of every operator; where windows overlap, both compute the same rows (the replication of
Intra-DP, section IV-C), so that nothing waits inside. A side that waits for rows starts on the first of them.
"""

from dataclasses import dataclass
from typing import Protocol

from potluck.errors import PlanError

LEVELS = 11  # divisions of the rows at a joint that are tried: 0, a tenth, ... all
MAX_JOINTS = 16  # those that carry the fewest bytes
TILES = 4  # a side that waits for rows starts on the first quarter of them


class Reads(Protocol):
    """Which rows of an input an operator needs for some rows of its output."""

    def rows(self, start: int, stop: int) -> tuple[int, int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator, or (first of all) the input. Its inputs are earlier operators; None: all of that input is needed.

    `device_s` and `helper_s` for all of its `count` rows; a part takes that side's overhead and its share of the rest.
    One that is not `divisible` is computed whole or not at all.
    """

    name: str
    count: int
    row_bytes: int
    device_s: float = 0.0
    helper_s: float = 0.0
    inputs: tuple[tuple[int, Reads | None], ...] = ()
    divisible: bool = True


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
        if not sharing.operators[place].divisible:
            needed[place] = (0, sharing.operators[place].count)
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

    def soonest_s(self, joint: int, device_s: float, helper_s: float) -> float:
        """No end is sooner if the sides are ready behind `joint` then: both work all the time on what is left."""
        left_s, faster = self._left[joint]
        return max(device_s, (left_s + device_s + faster * helper_s) / (1.0 + faster))

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
