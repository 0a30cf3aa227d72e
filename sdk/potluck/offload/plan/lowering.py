"""A request that several sides share, as pieces: what each computes in which order, which rows go
over. Pure: no torch.

`Shareable.operators` makes the planner's problem of a traced model; `lower` makes pieces of the
planner's answer. Nodes that follow each other row by row (a convolution, its normalisation and
activation) are one operator to the planner.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from potluck.errors import ModelError
from potluck.graph.partition.cuts import Linearization
from potluck.offload.plan.problem import (
    DEVICE,
    HELPER,
    Division,
    Interval,
    OffloadProblem,
    Operator,
    Shares,
    without,
)
from potluck.offload.plan.steps import TILES, OffloadStep, steps
from potluck.offload.rows.operator_times import OperatorTimes
from potluck.offload.rows.receptive_fields import OperatorLocality, localities
from potluck.offload.rows.row_rules import AccessPattern
from potluck.offload.rows.tiles import TensorSlice, piece, rows_of
from potluck_wire.graph import BATCH, Graph, Ref, node_refs

__all__ = ["DEVICE", "HELPER", "SentPart", "Shareable", "LoweredRequest", "SharedPiece", "lower"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPiece:
    """One run of one side: it takes parts (its own earlier ones, or received ones) and gives parts.

    `computes`: the rows of every node, by value, in the order in which they run.
    """

    side: int
    name: str
    takes: tuple[TensorSlice, ...]
    gives: tuple[TensorSlice, ...]
    graph: Graph
    computes: Mapping[int, Interval]


@dataclass(frozen=True, slots=True, kw_only=True)
class SentPart:
    """A part that one side sends to another."""

    side: int
    to: int
    part: TensorSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredRequest:
    """Everything that is to be done, in an order in which every part is there before it is used,
    the most urgent first.

    `results`: the model's outputs, on the device.
    """

    steps: tuple[SharedPiece | SentPart, ...]
    results: tuple[TensorSlice, ...]


class Shareable:
    """A traced model, seen as operators whose rows may be divided.

    Parameters
    ----------
    line
        The traced model.

    Raises
    ------
    ModelError
        It has several inputs, or an output that depends on none.
    """

    def __init__(self, line: Linearization) -> None:
        graph = line.traced.graph
        if len(graph.inputs) != 1:
            raise ModelError(
                f"a request of {len(graph.inputs)} inputs cannot be shared inside its operators.",
                next_step="Use a model with one input tensor.",
            )
        self.line, self.localities = line, localities(line)
        self.values: tuple[int, ...] = (
            0,
            *(graph.first_node + position for position in line.bound),
        )
        self._bound = frozenset(self.values)
        for output in graph.outputs:
            if output.ref.value not in self._bound:
                raise ModelError(
                    f"the output {output.name} is the same for every request, so that none of it "
                    "can be shared.",
                    next_step="Return what is made of the input, and keep the rest beside it.",
                )
        self.outputs = tuple(dict.fromkeys(output.ref for output in graph.outputs))
        self.groups = self._groups()
        self.place = {value: place for place, group in enumerate(self.groups) for value in group}

    @property
    def has_rows(self) -> bool:
        """Whether any operator can compute some rows without the others."""
        return any(local.is_local for local in self.localities)

    @property
    def input_part(self) -> TensorSlice:
        """The whole input."""
        return TensorSlice(0, 0, self.rows_of(0)[1])

    def reads(self, value: int) -> dict[Ref, AccessPattern | None]:
        """What a node reads of values that depend on the input; None: all of it."""
        graph = self.line.traced.graph
        if value < graph.first_node:
            return {}
        local: OperatorLocality = self.localities[value - graph.first_node]
        found: dict[Ref, AccessPattern | None] = {}
        for ref in node_refs(graph.nodes[value - graph.first_node]):
            if ref.value in self._bound:
                reads = local.reads.get(ref)
                found[ref] = reads if reads and reads.axis == self.rows_of(ref.value)[0] else None
        return found

    def rows_of(self, value: int) -> tuple[int | None, int]:
        return rows_of(self.line, self.localities, value)

    def _groups(self) -> tuple[tuple[int, ...], ...]:
        """The nodes that are one operator: each reads the one before it alone, row by row, and is
        not larger than it.

        Nobody else reads that one, so little would be gained by dividing the two differently.
        """
        users: dict[int, set[int]] = {output.value: {-1} for output in self.outputs}
        for value in self.values:
            for ref in self.reads(value):
                users.setdefault(ref.value, set()).add(value)
        groups: dict[int, tuple[int, ...]] = {}  # by their last node
        for value in self.values:
            reads = self.reads(value)
            before = next((ref.value for ref in reads if self._follows(ref, reads[ref], value)), 0)
            if not all(
                self._follows(ref, reads[ref], value) for ref in reads if ref.value == before
            ):
                before = 0  # other items of it are read in other ways
            if before in groups and before and users.get(before) == {value}:
                groups[value] = (*groups.pop(before), value)
            else:
                groups[value] = (value,)
        return tuple(groups[value] for value in sorted(groups))

    def _follows(self, ref: Ref, reads: AccessPattern | None, value: int) -> bool:
        if self._is_divisible(ref.value) != self._is_divisible(value) or self._bytes(
            ref.value
        ) < self._bytes(value):
            return False
        count = self.rows_of(value)[1]
        if not self._is_divisible(value):
            return self.rows_of(ref.value)[1] == count == 1
        return (
            reads is not None
            and reads == AccessPattern(axis=reads.axis, count=count)
            and reads.count == count
        )

    def _is_divisible(self, value: int) -> bool:
        first = self.line.traced.graph.first_node
        return value < first or self.localities[value - first].is_local

    def _bytes(self, value: int, batch: int = 0) -> int:
        traced = self.line.traced
        sizes = {**traced.hints, **({BATCH: batch} if batch else {})}
        return sum(t.nbytes(sizes) for t in traced.types[value])

    def operators(
        self, side_times: Sequence[OperatorTimes], batch: int = 0
    ) -> tuple[Operator, ...]:
        """The planner's operators, given what every node takes each side; the last is the result.

        Sizes are those of a request of `batch` rows of the batch; 0: of the example that was
        traced.
        """
        graph, found = self.line.traced.graph, []
        for group in self.groups:
            last, count = group[-1], self.rows_of(group[-1])[1]
            inputs: dict[tuple[int, AccessPattern | None], None] = {}
            halos = []
            for value in group:
                read = self.reads(value)
                if any(reads and _overlap(reads) for reads in read.values()):
                    halos.append(value)
                for ref, reads in read.items():
                    if ref.value not in group:
                        inputs[self.place[ref.value], reads] = None
            found.append(
                Operator(
                    name="input" if not last else graph.nodes[group[0] - graph.first_node].op,
                    count=count,
                    row_bytes=-(-self._bytes(last, batch) // count),
                    side_s=tuple(
                        sum(times.seconds.get(value, 0.0) for value in group)
                        for times in side_times
                    ),
                    side_fixed_s=tuple(
                        sum(times.fixed_s.get(value, 0.0) for value in group)
                        for times in side_times
                    ),
                    side_halo_s=tuple(
                        sum(times.halo_s.get(value, 0.0) for value in halos) for times in side_times
                    ),
                    inputs=tuple(inputs),
                    divisible=self._is_divisible(last),
                )
            )
        inputs = {(self.place[ref.value], None): None for ref in self.outputs}
        return (*found, Operator(name="result", count=1, row_bytes=1, inputs=tuple(inputs)))


def lower(
    shareable: Shareable, divisions: Sequence[Division], tiles: int = TILES
) -> LoweredRequest:
    """The pieces and transfers of a split: its divisions, and in how many parts rows go over.

    Parameters
    ----------
    shareable
        The model.
    divisions
        Per operator, the rows of each side.
    tiles
        Parts in which rows go over.
    """
    n_sides = len(divisions[0])
    operators = shareable.operators((OperatorTimes(),) * n_sides)
    shares = Shares(OffloadProblem(operators=operators, bytes_per_s=0.0, n_sides=n_sides))
    return _Lowering(shareable, n_sides).through(steps(shares, divisions, tiles))


@dataclass(slots=True)
class _TileDraft:
    """A piece before it is known what later ones need of it."""

    side: int
    computes: dict[int, Interval]
    takes: list[TensorSlice]
    makes: list[TensorSlice]


@dataclass(slots=True)
class _Lowering:
    model: Shareable
    n_sides: int
    parts: list[dict[Ref, list[TensorSlice]]] = field(default_factory=list)
    drafts: list[_TileDraft | SentPart] = field(default_factory=list)

    def through(self, todo: Sequence[OffloadStep]) -> LoweredRequest:
        self.parts = [{} for _ in range(self.n_sides)]
        self.parts[DEVICE][Ref(0)] = [self.model.input_part]
        for step in todo:
            if step.to is not None:
                ((place, rows),) = step.rows
                for part in self._items(self.model.groups[place][-1], rows):
                    self._send(step.side, step.to, part)
            else:
                groups = (group for group in step.rows if group[0] < len(self.model.groups))
                computes = {
                    value: rows for place, rows in groups for value in self.model.groups[place]
                }
                if computes:
                    self._run(step.side, computes)
        return self._finished([self._result(ref) for ref in self.model.outputs])

    def _items(self, value: int, rows: Interval) -> list[TensorSlice]:
        """Rows of a value, one part for each of its items."""
        n_items = len(self.model.line.traced.types[value])
        return [TensorSlice(value, *rows, item if n_items > 1 else None) for item in range(n_items)]

    def _send(self, side: int, to: int, rows: TensorSlice) -> None:
        """Rows go over as one part, or as those of the several pieces that made them."""
        for made in _covering(self.parts[side].get(rows.ref, []), (rows.start, rows.stop)):
            part = TensorSlice(
                rows.value, max(made.start, rows.start), min(made.stop, rows.stop), rows.item
            )
            self.drafts.append(SentPart(side=side, to=to, part=part))
            self.parts[to].setdefault(part.ref, []).append(part)

    def _run(self, side: int, computes: dict[int, Interval]) -> None:
        mine = self.parts[side]
        takes: dict[TensorSlice, None] = {}
        for value, rows in computes.items():
            for ref, reads in self.model.reads(value).items():
                wanted = reads.rows(*rows) if reads else (0, self.model.rows_of(ref.value)[1])
                for missing in without(wanted, [computes.get(ref.value, (0, 0))]):
                    takes |= dict.fromkeys(_covering(mine.get(ref, []), missing))
        made = [part for value, rows in computes.items() for part in self._items(value, rows)]
        for part in made:
            mine.setdefault(part.ref, []).append(part)
        self.drafts.append(_TileDraft(side, computes, list(takes), made))

    def _result(self, ref: Ref) -> TensorSlice:
        """All rows of an output as one part on the device.

        Where they are several, a piece of its own joins them.
        """
        count = self.model.rows_of(ref.value)[1]
        found = _covering(self.parts[DEVICE].get(ref, []), (0, count))
        if len(found) > 1:
            joined = TensorSlice(ref.value, 0, count, ref.item)
            self.drafts.append(_TileDraft(DEVICE, {}, found, [joined]))
            return joined
        return found[0]

    def _finished(self, results: list[TensorSlice]) -> LoweredRequest:
        """Every piece gives what later ones take of it, what is sent, and the results."""
        wanted: list[dict[TensorSlice, None]] = [{} for _ in range(self.n_sides)]
        wanted[DEVICE] = dict.fromkeys(results)
        for draft in self.drafts:
            wanted[draft.side] |= dict.fromkeys(
                draft.takes if isinstance(draft, _TileDraft) else (draft.part,)
            )
        found: list[SharedPiece | SentPart] = []
        count = [0] * self.n_sides
        for draft in self.drafts:
            if not isinstance(draft, _TileDraft):
                found.append(draft)
                continue
            made = [
                part
                for part in wanted[draft.side]
                if any(_inside(part, made_part) for made_part in draft.makes)
            ]
            # a whole is joined from parts
            gives = [part for part in made if part not in draft.takes]
            if not gives:
                continue
            takes, computes = draft.takes, draft.computes
            graph = piece(
                self.model.line, self.model.localities, takes=takes, computes=computes, gives=gives
            )
            found.append(
                SharedPiece(
                    side=draft.side,
                    name=f"side-{draft.side}-{count[draft.side]}",
                    takes=tuple(takes),
                    gives=tuple(gives),
                    graph=graph,
                    computes=computes,
                )
            )
            count[draft.side] += 1
        return LoweredRequest(steps=tuple(found), results=tuple(results))


def _covering(parts: Sequence[TensorSlice], rows: Interval) -> list[TensorSlice]:
    """Parts that have these rows together, none of them needless."""
    found: list[TensorSlice] = []
    reached = rows[0]
    for part in sorted(parts, key=lambda p: (p.start, -p.stop)):
        if reached < rows[1] and part.start <= reached < part.stop:
            found.append(part)
            reached = part.stop
    return found


def _inside(part: TensorSlice, other: TensorSlice) -> bool:
    return part.ref == other.ref and other.start <= part.start and part.stop <= other.stop


def _overlap(reads: AccessPattern) -> bool:
    """Whether neighbouring rows read some of the same rows."""
    return reads.window(0, 1)[1] > reads.window(1, 2)[0]
