"""A request that two sides share, as pieces: what each computes in which order, and which rows go over. Pure: no torch.

`sharing` makes the planner's problem of a traced model; `lower` makes pieces of the planner's answer. Between two
joints a side that has to wait for rows computes tile by tile: of every operator as many rows as those that have come
allow, so that no row is computed twice on one side.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from potluck.errors import ModelError
from potluck.plan.sharing import TILES, Division, Operator, Sharing, intervals
from potluck_wire.graph import BATCH, Graph, Ref, node_refs

from .cuts import Line
from .locality import Local, localities
from .pieces import Interval, Part, piece, rows_of
from .row_rules import Reads

DEVICE, HELPER = "device", "helper"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPiece:
    """One run of one side: it takes parts (its own earlier ones, or received ones) and gives parts.

    `computes`: the rows of each value that it computes.
    """

    side: str
    name: str
    takes: tuple[Part, ...]
    gives: tuple[Part, ...]
    graph: Graph
    computes: Mapping[int, Interval]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Everything that is to be done, in an order in which every part is there before it is used.

    `steps` are pieces, and parts that the named side sends to the other. `results`: the model's outputs, on the device.
    """

    steps: tuple[SharedPiece | tuple[str, Part], ...]
    results: tuple[Part, ...]


class Shareable:
    """A traced model, seen as operators whose rows may be divided. Raises ModelError where it has several inputs."""

    def __init__(self, line: Line) -> None:
        graph = line.traced.graph
        if len(graph.inputs) != 1:
            raise ModelError(
                f"a request of {len(graph.inputs)} inputs cannot be shared inside its operators.",
                next_step="Use a model with one input tensor.",
            )
        self.line, self.localities = line, localities(line)
        self.values = (0, *(graph.first_node + position for position in line.bound))
        self.place = {value: i for i, value in enumerate(self.values)}
        self.outputs = tuple(dict.fromkeys(output.ref for output in graph.outputs if output.ref.value in self.place))

    @property
    def has_rows(self) -> bool:
        """Whether any operator can compute some rows without the others."""
        return any(local.is_local for local in self.localities)

    @property
    def input_part(self) -> Part:
        """The whole input."""
        return Part(0, 0, self.rows_of(0)[1])

    def reads(self, value: int) -> dict[Ref, Reads | None]:
        """What a node reads of values that depend on the input; None: all of it."""
        graph = self.line.traced.graph
        if value < graph.first_node:
            return {}
        local: Local = self.localities[value - graph.first_node]
        found: dict[Ref, Reads | None] = {}
        for ref in node_refs(graph.nodes[value - graph.first_node]):
            if ref.value in self.place:
                reads = local.reads.get(ref)
                found[ref] = reads if reads and reads.axis == self.rows_of(ref.value)[0] else None
        return found

    def rows_of(self, value: int) -> tuple[int | None, int]:
        return rows_of(self.line, self.localities, value)

    def operators(
        self, device_s: Mapping[int, float], helper_s: Mapping[int, float], batch: int = 0
    ) -> tuple[Operator, ...]:
        """The planner's operators, given the seconds of every node by value; the last is the result.

        Sizes are those of a request of `batch` rows of the batch; 0: of the example that was traced.
        """
        traced, graph = self.line.traced, self.line.traced.graph
        symbols = {**traced.hints, **({BATCH: batch} if batch else {})}
        found = []
        for value in self.values:
            count = self.rows_of(value)[1]
            sizes = (t.nbytes(symbols) for t in traced.types[value])
            found.append(
                Operator(
                    name="input" if not value else graph.nodes[value - graph.first_node].op,
                    count=count,
                    row_bytes=-(-sum(sizes) // count),
                    device_s=device_s.get(value, 0.0),
                    helper_s=helper_s.get(value, 0.0),
                    inputs=tuple((self.place[ref.value], reads) for ref, reads in self.reads(value).items()),
                    divisible=not value or self.localities[value - graph.first_node].is_local,
                )
            )
        inputs = tuple((self.place[ref.value], None) for ref in self.outputs)
        return (*found, Operator(name="result", count=1, row_bytes=1, inputs=inputs))


@dataclass(slots=True)
class _Side:
    """What one side has: the parts of every value, in the order in which they came."""

    name: str
    parts: dict[Ref, list[Part]] = field(default_factory=dict)

    def covering(self, ref: Ref, rows: Interval) -> list[Part]:
        """Parts that have these rows together, none of them needless."""
        found: list[Part] = []
        reached = rows[0]
        for part in sorted(self.parts.get(ref, []), key=lambda p: (p.start, -p.stop)):
            if reached < rows[1] and part.start <= reached < part.stop:
                found.append(part)
                reached = part.stop
        return found


@dataclass(slots=True)
class _Draft:
    """A piece before it is known what later ones need of it."""

    side: str
    computes: dict[int, Interval]
    takes: list[Part]
    makes: list[Part]


def lower(shareable: Shareable, divisions: Sequence[Division]) -> Shared:
    """The pieces and transfers of a split."""
    return _Lowering(shareable).through(divisions)


class _Lowering:
    def __init__(self, shareable: Shareable) -> None:
        self.model = shareable
        self.sides = {name: _Side(name) for name in (DEVICE, HELPER)}
        self.steps: list[_Draft | tuple[str, Part]] = []
        operators = shareable.operators({}, {})
        self.sharing = Sharing(operators=operators, bytes_per_s=0.0)

    def through(self, divisions: Sequence[Division]) -> Shared:
        self.sides[DEVICE].parts[Ref(0)] = [self.model.input_part]
        for before, after in pairwise(divisions):
            self._block(before, after)
        return self._finished([self._result(ref) for ref in self.model.outputs])

    def _result(self, ref: Ref) -> Part:
        """All rows of an output as one part on the device; where they are several, a piece of its own joins them."""
        side, count = self.sides[DEVICE], self.model.rows_of(ref.value)[1]
        found = side.covering(ref, (0, count))
        if len(found) > 1:
            whole = Part(ref.value, 0, count, ref.item)
            self.steps.append(_Draft(DEVICE, {}, found, [whole]))
            return whole
        return found[0]

    def _block(self, before: Division, after: Division) -> None:
        """From one joint to the next: first what each side lacks goes over, then (or meanwhile) both compute."""
        rows = {DEVICE: (0, after.device), HELPER: (after.helper, self.sharing.operators[after.joint].count)}
        needed = {side: intervals(self.sharing, after.joint, rows[side]) for side in rows}
        tiles = {side: self._missing(side, before.joint, needed[side].get(before.joint, (0, 0))) for side in rows}
        had = {side: {ref: list(parts) for ref, parts in self.sides[side].parts.items()} for side in rows}
        for side in (HELPER, DEVICE):
            for part in tiles[side]:
                self.steps.append((_other(side), part))
        for side in (HELPER, DEVICE):
            self.sides[side].parts = had[side]
            self._compute(side, before.joint, after.joint, needed[side], tiles[side])

    def _missing(self, side: str, joint: int, wanted: Interval) -> list[Part]:
        """Parts of the joint that the other side sends, so that this one has the rows that it wants."""
        if joint >= len(self.model.values) or wanted[0] >= wanted[1]:
            return []
        sent = []
        value = self.model.values[joint]
        n_items = len(self.model.line.traced.types[value])
        for ref in [Ref(value)] if n_items == 1 else [Ref(value, item) for item in range(n_items)]:
            own = self.sides[side].covering(ref, wanted)
            have = {row for part in own for row in range(part.start, part.stop)}
            for part in self.sides[_other(side)].parts.get(ref, []):
                lacking = [
                    row for row in range(max(part.start, wanted[0]), min(part.stop, wanted[1])) if row not in have
                ]
                have.update(lacking)
                sent += [Part(ref.value, a, b, ref.item) for a, b in _runs(lacking)]
        return [tile for part in sent for tile in _tiles(part, TILES)]

    def _compute(self, side: str, start: int, stop: int, needed: dict[int, Interval], arriving: list[Part]) -> None:
        """The pieces of one side between two joints: one where nothing has to be waited for, else one per tile."""
        mine = self.sides[side]
        places = [p for p in range(start + 1, min(stop, len(self.model.values) - 1) + 1) if p in needed]
        done = {place: needed[place][0] for place in places}
        for i in range(max(len(arriving), 1)):
            if arriving:
                mine.parts.setdefault(arriving[i].ref, []).append(arriving[i])
            last = i == max(len(arriving), 1) - 1
            computes: dict[int, Interval] = {}
            for place in places:
                first, end = done[place], needed[place][1]
                reached = end if last else self._reach(mine, computes, place, first, end)
                if first < reached:
                    computes[self.model.values[place]] = (first, reached)
                    done[place] = reached
            if computes:
                self._draft(mine, computes)

    def _reach(self, side: _Side, computes: dict[int, Interval], place: int, first: int, end: int) -> int:
        """The last row of an operator that can be computed from what has come so far."""
        value = self.model.values[place]
        low, high = first, end
        while low < high:
            middle = (low + high + 1) // 2
            if self._ready(side, computes, value, (first, middle)):
                low = middle
            else:
                high = middle - 1
        return low

    def _ready(self, side: _Side, computes: dict[int, Interval], value: int, rows: Interval) -> bool:
        for ref, reads in self.model.reads(value).items():
            wanted = reads.rows(*rows) if reads else (0, self.model.rows_of(ref.value)[1])
            new = computes.get(ref.value)
            stops = [part.stop for part in side.covering(ref, wanted)]
            reached = max([*stops, new[1] if new and (new[0] <= max([*stops, wanted[0]])) else wanted[0]])
            if reached < wanted[1]:
                return False
        return True

    def _draft(self, side: _Side, computes: dict[int, Interval]) -> None:
        takes: dict[Part, None] = {}
        for value, rows in computes.items():
            for ref, reads in self.model.reads(value).items():
                first, last = reads.rows(*rows) if reads else (0, self.model.rows_of(ref.value)[1])
                new = computes.get(ref.value)
                if new:  # what this very piece makes is not taken
                    last = min(last, new[0]) if new[1] >= last else last
                if first < last:
                    takes |= dict.fromkeys(side.covering(ref, (first, last)))
        makes = []
        for value, rows in computes.items():
            n_items = len(self.model.line.traced.types[value])
            makes += [Part(value, *rows, item if n_items > 1 else None) for item in range(n_items)]
        for part in makes:
            side.parts.setdefault(part.ref, []).append(part)
        self.steps.append(_Draft(side.name, computes, list(takes), makes))

    # --- the end ------------------------------------------------------------------------------------------------------

    def _finished(self, results: list[Part]) -> Shared:
        """Every piece gives what later ones take of it, what is sent, and the results."""
        wanted: dict[str, dict[Part, None]] = {DEVICE: dict.fromkeys(results), HELPER: {}}
        for step in self.steps:
            if isinstance(step, _Draft):
                wanted[step.side] |= dict.fromkeys(step.takes)
            else:
                wanted[step[0]] |= {step[1]: None}
        steps: list[SharedPiece | tuple[str, Part]] = []
        count = {DEVICE: 0, HELPER: 0}
        for step in self.steps:
            if not isinstance(step, _Draft):
                steps.append(step)
                continue
            made = [p for p in wanted[step.side] if any(_inside(p, part) for part in step.makes)]
            gives = [part for part in made if part not in step.takes]  # a whole is joined from parts
            if not gives:
                continue
            graph = piece(self.model.line, self.model.localities, takes=step.takes, computes=step.computes, gives=gives)
            name = f"{step.side}-{count[step.side]}"
            count[step.side] += 1
            takes, computes = tuple(step.takes), step.computes
            steps.append(
                SharedPiece(side=step.side, name=name, takes=takes, gives=tuple(gives), graph=graph, computes=computes)
            )
        return Shared(steps=tuple(steps), results=tuple(results))


def _other(side: str) -> str:
    return HELPER if side == DEVICE else DEVICE


def _inside(part: Part, other: Part) -> bool:
    return part.ref == other.ref and other.start <= part.start and part.stop <= other.stop


def _runs(rows: Sequence[int]) -> list[Interval]:
    """Rows in order as intervals."""
    found: list[Interval] = []
    for row in rows:
        if found and found[-1][1] == row:
            found[-1] = (found[-1][0], row + 1)
        else:
            found.append((row, row + 1))
    return found


def _tiles(part: Part, n: int) -> list[Part]:
    """The part in up to `n` parts of about the same number of rows."""
    rows = part.stop - part.start
    bounds = sorted({part.start + rows * k // n for k in range(n + 1)})
    return [Part(part.value, a, b, part.item) for a, b in pairwise(bounds)]
