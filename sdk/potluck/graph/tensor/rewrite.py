"""A traced graph with its regions divided among lanes, one for each device. Pure.

Each lane computes its piece of what is divided, and all that its pieces need. So the sum of a
residual block and the norm behind it are computed on every lane. What crosses between lanes is one
summand from each to each for every region: an all-reduce of one round, forward and, as the
derivative of the same graph, backward. A weight that several lanes read is a shared weight as any
other: its gradient is the sum of all lanes'. What must be done once (statistics, a heavy product
that is not divided) is done on the first lane.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from potluck.errors import ModelError
from potluck.graph.tensor.allotment import spans
from potluck.graph.tensor.axis_rules import drops
from potluck.graph.tensor.divided_graph import DividedGraph, StateSlice, check_crossing
from potluck.graph.tensor.layouts import Best, Cut, Effect, Layout, Partial, local
from potluck.graph.tensor.phases import FIRST, Made, can_cross, groups_of, in_order
from potluck.graph.tensor.positions import AXIS, DROPOUT, position_regions
from potluck.graph.tensor.regions import EMBEDDING, Region
from potluck.graph.traced import Traced, Type, moved
from potluck_wire.graph import Buffer, Expression, Graph, Node, Output, Parameter, Ref, node_refs
from potluck_wire.operators import KIND_OF

# too much to compute on every lane where it is not divided
_HEAVY = frozenset({"convolution", "product", "attention", "recurrent", "matrix", "loss"})

Key = tuple[str, int]  # a kind of value, and its number among those of the kind


def divided(
    traced: Traced, regions: Sequence[Region], shares: Sequence[int], *, sequence: bool = False
) -> DividedGraph:
    """The graph with these regions divided in this proportion.

    Parameters
    ----------
    traced
        The graph.
    regions
        That are divided; no node is in two.
    shares
        The proportion.
    sequence
        What lies between them is divided by positions.

    Raises
    ------
    ModelError
        A value would have to cross between devices that no rows can be told of; or nothing goes by
        positions.
    """
    return _Rewriting(traced, regions, shares, sequence=sequence).done()


class _Rewriting:
    """Tells new values by `Ref`s to provisional numbers: inputs and states first, as they come."""

    def __init__(
        self, traced: Traced, regions: Sequence[Region], shares: Sequence[int], *, sequence: bool
    ) -> None:
        self.traced, self.graph = traced, traced.graph
        self.n_lanes = len(shares)
        self.whole_states: list[Parameter | Buffer] = [*self.graph.parameters, *self.graph.buffers]
        self.floating = self._floating()
        by_positions: Sequence[Region] = ()
        if sequence:
            by_positions = position_regions(
                traced, regions, shares, self._is_done_once, self.floating
            )
            if not by_positions:
                raise ModelError(
                    "nothing of it can be divided by positions: no sum of divided products is "
                    "[rows, positions, features] with a known number of positions, one or more for "
                    "each device, and read by a norm or an operator that goes by elements.",
                    next_step="Divide it without sequence=True; where from_torch got "
                    "sequence_dims=, leaving that out makes the number known.",
                )
        # of values of which each lane has some positions
        self.scattered = {v: region for region in by_positions for v in region.starts}
        self.scattered |= {v: region for region in by_positions for v in region.effects}
        every = (*regions, *by_positions)
        self.region_of = {value: region for region in every for value in region.effects}
        self.spans = {id(region): spans(region.units, shares) for region in every}
        self.made: dict[int, Made] = {}
        self.states: dict[int, tuple[Parameter | Buffer, StateSlice | None]] = {}
        self.number: dict[tuple[str, int, int], int] = {}  # (kind, value, lane) -> provisional
        self.next = len(self.graph.inputs)

    def _floating(self) -> frozenset[int]:
        """The values that depend on no input, or on small ones alone."""
        bound = {*range(len(self.graph.inputs))} - self.traced.small_inputs
        for value, node in enumerate(self.graph.nodes, start=self.graph.first_node):
            if KIND_OF[node.op] == "buffer" or any(ref.value in bound for ref in node_refs(node)):
                bound.add(value)
        values = range(self.graph.first_node, self.graph.first_node + len(self.graph.nodes))
        return frozenset(value for value in values if value not in bound)

    # --- values of lanes --------------------------------------------------------------------------

    def done(self) -> DividedGraph:
        """All nodes of all lanes, without what nobody needs, lane by lane."""
        for value, node in enumerate(self.graph.nodes, start=self.graph.first_node):
            region = self.region_of.get(value)
            if region is not None:
                self._divide(value, node, region)
            else:
                self._repeat(value, node)
        return self._written(in_order(self.made, self._kept()))

    def _kept(self) -> list[int]:
        """The outputs, and what keeps statistics."""
        outputs = [self.whole(output.ref, FIRST).value for output in self.graph.outputs]
        return outputs + [n for n, made in self.made.items() if KIND_OF[made.node.op] == "buffer"]

    def _repeat(self, value: int, node: Node) -> None:
        """A whole node: once where it must be, else on every lane."""
        if value in self.floating or self._is_done_once(value, node) or self._must_follow(node):
            lanes = [FIRST]
        else:
            lanes = [*range(self.n_lanes)]
        for lane in lanes:
            reading = moved(node, lambda ref, lane=lane: self.whole(ref, lane))  # type: ignore[misc]
            self.number["whole", value, lane] = self._add(reading, value, lane)

    def _must_follow(self, node: Node) -> bool:
        """Whether it reads what the first lane alone has, and cannot hand on."""
        return any(
            made.lane == FIRST and not can_cross(made)
            for ref in node_refs(node)
            if ("whole", ref.value, FIRST + 1) not in self.number
            and (made := self.made.get(self.number.get(("whole", ref.value, FIRST), -1)))
        )

    def _is_done_once(self, value: int, node: Node) -> bool:
        kind = KIND_OF[node.op]
        learns = any(
            isinstance(state, Buffer) and state.updated
            for ref in node_refs(node)
            if (state := self._state(ref.value)) is not None
        )
        reads_weights = any(
            isinstance(self._state(ref.value), Parameter) for ref in node_refs(node)
        )
        is_heavy = kind in _HEAVY and (reads_weights or kind not in ("product", "convolution"))
        return is_heavy or kind in ("buffer", "embedding") or learns

    def _state(self, value: int) -> Parameter | Buffer | None:
        place = value - len(self.graph.inputs)
        return self.whole_states[place] if 0 <= place < len(self.whole_states) else None

    def whole(self, ref: Ref, lane: int) -> Ref:
        """A value as it was, on a lane or else on the first."""
        if ref.value < len(self.graph.inputs):
            return ref
        if self._state(ref.value) is not None:
            return Ref(self._whole_state(ref.value))
        if ref.value in self.scattered and ("whole", ref.value, lane) not in self.number:
            parts = [self.number["piece", ref.value, each] for each in range(self.n_lanes)]
            self._gather(ref.value, AXIS, parts, lane)
        for place in (lane, FIRST):
            if ref.item and (found := self.number.get(("places", ref.value, place))) is not None:
                return Ref(found)
            if (found := self.number.get(("whole", ref.value, place))) is not None:
                return Ref(found, ref.item)
        raise ModelError(f"value {ref.value} is not there as a whole.")  # a region ends before

    def _whole_state(self, value: int) -> int:
        key = ("state", value, -1)
        if key not in self.number:
            self.number[key] = self._new_state(self._state(value), None)
        return self.number[key]

    def _new_state(self, state: Any, piece: StateSlice | None) -> int:
        number, self.next = self.next, self.next + 1
        self.states[number] = (state, piece)
        return number

    # --- divided nodes ----------------------------------------------------------------------------

    def _divide(self, value: int, node: Node, region: Region) -> None:
        """The pieces of a node, and where they end their joining."""
        parts = []
        for lane, (start, stop) in enumerate(self.spans[id(region)]):
            if node.op == EMBEDDING:
                parts.append(self._lookup(value, node, region, lane))
            elif node.op == DROPOUT and value in self.scattered and drops(node):
                self.number["piece", value, lane] = self._dropped(value, node, region, lane)
            else:
                parts.append(self._piece(value, node, region, lane, stop - start))
        if value in self.scattered and value in region.ends:
            self._scatter(value, parts)
        elif value in region.ends:
            self._join(value, region.ends[value], parts)

    def _piece(self, value: int, node: Node, region: Region, lane: int, n: int) -> int:
        effect = region.effects[value]
        if effect.arguments is not None:
            node = replace(node, args=effect.arguments(n))
        if effect.once is not None and lane != FIRST:
            node = _without(node, effect.once)
        node = moved(node, lambda ref: self._mine(ref, value, region, lane))
        types = tuple(
            self._type(kind, layout, region, n)
            for kind, layout in zip(self.traced.types[value], effect.results, strict=True)
        )
        number = self._add(node, value, lane, types)
        self.number["piece", value, lane] = number
        return number

    def _type(self, kind: Type, layout: Layout, region: Region, n: int) -> Type:
        if isinstance(layout, Partial):
            return kind
        if isinstance(layout, Best):
            most = kind.shape[layout.axis]
            assert isinstance(most, int)
            return _resized(kind, layout.axis, min(most, n))
        size = local(kind.shape[layout.axis], region.units, n)
        if size is None:
            raise ModelError(f"a size of {kind.shape[layout.axis]} cannot be divided.")
        return _resized(kind, layout.axis, size)

    def _mine(self, ref: Ref, value: int, region: Region, lane: int) -> Ref:
        """What a piece reads: a piece, a cut state, its own entries of a whole value, or all."""
        effect: Effect = region.effects[value]
        if (piece := self.number.get(("piece", ref.value, lane))) is not None and (
            ref in region.layouts
        ):
            return Ref(piece, ref.item)
        if ref.value in effect.states:
            return Ref(self._cut_state(ref.value, effect.states[ref.value], region, lane))
        if ref in effect.slices:
            return Ref(self._sliced(ref, effect.slices[ref], region, lane))
        return self.whole(ref, lane)

    def _cut_state(self, value: int, cut: Cut, region: Region, lane: int) -> int:
        key = ("cut", value, lane)
        if key not in self.number:
            state = self._state(value)
            assert state is not None
            start, stop = self.spans[id(region)][lane]
            size = cut.outer * (stop - start) * cut.inner
            shape = (*state.shape[: cut.axis], size, *state.shape[cut.axis + 1 :])
            piece = StateSlice(
                whole=state.name, cut=cut, units=region.units, start=start, stop=stop
            )
            name = f"{state.name}:{lane}"
            self.number[key] = self._new_state(replace(state, name=name, shape=shape), piece)
        return self.number[key]

    def _sliced(self, ref: Ref, cut: Cut, region: Region, lane: int) -> int:
        """A lane's own entries of a whole value, taken where that is."""
        full = self.whole(ref, lane)
        giver = self.made.get(full.value)
        at = lane if giver is None or giver.lane is None else giver.lane
        return self._slice(ref, full, cut, region, lane, at)

    def _slice(self, ref: Ref, full: Ref, cut: Cut, region: Region, lane: int, at: int) -> int:
        """Of `full`, which is like `ref`, on lane `at` what lane `lane` has."""
        start, stop = self.spans[id(region)][lane]
        kind = self._type(self.traced.type_of(ref), cut, region, stop - start)
        args = (full, cut.axis, start * cut.inner, stop * cut.inner)
        node = Node(number=self._number_of(ref.value), op="aten.slice.Tensor", args=args)
        return self._add_one(node, ref.value, at, kind, by_rows=ref in self.traced.by_rows)

    def _number_of(self, value: int) -> int:
        place = value - self.graph.first_node
        return self.graph.nodes[place].number if place >= 0 else 0

    def _lookup(self, value: int, node: Node, region: Region, lane: int) -> int:
        """Rows of a table that a lane has; zeros for the others."""
        start, stop = self.spans[id(region)][lane]
        indices = self.whole(node.args[1], lane)  # type: ignore[arg-type]
        kind = self.traced.type_of(node.args[1])  # type: ignore[arg-type]
        flags = Type(dtype="bool", shape=kind.shape)
        wide = Type(dtype="bool", shape=(*kind.shape, 1))
        pad = node.args[2] if len(node.args) > 2 else dict(node.kwargs).get("padding_idx", -1)
        assert isinstance(pad, int)
        table = Ref(self._cut_state(node.args[0].value, Cut(0, 1, 1), region, lane))  # type: ignore[union-attr]
        own = pad - start if start <= pad < stop else -1

        def step(op: str, args: tuple[Any, ...], of: Type) -> Ref:
            made = Node(number=node.number, op=f"aten.{op}", args=args)
            return Ref(self._add(made, value, lane, (of,)))

        moved = step("sub.Scalar", (indices, start), kind)
        near = step("clamp.default", (moved, 0, stop - start - 1), kind)
        rows = step("embedding.default", (table, near, own), self.traced.types[value][0])
        others = step("ne.Tensor", (moved, near), flags)
        others = step("unsqueeze.default", (others, -1), wide)
        found = step("masked_fill.Scalar", (rows, others, 0.0), self.traced.types[value][0])
        return found.value

    def _dropped(self, value: int, node: Node, region: Region, lane: int) -> int:
        """A lane's positions of a dropout: of the mask that is drawn for all of them."""
        x, whole = Ref(self.number["piece", node.args[0].value, lane]), self.traced.types[value][0]  # type: ignore[union-attr]
        start, stop = self.spans[id(region)][lane]
        mine = self._type(whole, Cut(AXIS, 1, 1), region, stop - start)

        def step(op: str, args: tuple[Any, ...], of: Type) -> Ref:
            made = Node(number=node.number, op=f"aten.{op}", args=args)
            return Ref(self._add(made, value, lane, (of,)))

        wide = step("constant_pad_nd.default", (x, (0, 0, start, region.units - stop)), whole)
        ones = step("ones_like.default", (wide,), whole)
        mask = step("dropout.default", (ones, *node.args[1:]), whole)
        part = step("slice.Tensor", (mask, AXIS, start, stop), mine)
        kept = step("clone.default", (part,), mine)  # else all of the mask would be
        return step("mul.Tensor", (x, kept), mine).value

    def _join(self, value: int, layout: Layout, parts: list[int]) -> None:
        """The whole value, on every lane: the sum of its summands, or its pieces side by side."""
        for lane in range(self.n_lanes):
            if isinstance(layout, Cut):
                self._gather(value, layout.axis, parts, lane)
            elif isinstance(layout, Best):
                self._choose(value, layout.axis, parts, lane)
            else:
                total = self._sum(value, parts, lane, self.traced.types[value])
                self.number["whole", value, lane] = total

    def _gather(self, value: int, axis: int, parts: list[int], lane: int) -> None:
        """Pieces side by side, on a lane."""
        args = (tuple(map(Ref, parts)), axis)
        node = Node(number=self._number_of(value), op="aten.cat.default", args=args)
        self.number["whole", value, lane] = self._add(node, value, lane)

    def _choose(self, value: int, axis: int, parts: list[int], lane: int) -> None:
        """The largest of the largest of each lane, and where they lie in the whole."""
        old = self.graph.nodes[value - self.graph.first_node]
        values, places = self.traced.types[value]
        sizes = [self.made[part].types[0].shape[axis] for part in parts]
        n = sum(size for size in sizes if isinstance(size, int))

        def step(op: str, args: tuple[Any, ...], of: Type) -> Ref:
            made = Node(number=old.number, op=f"aten.{op}", args=args)
            return Ref(self._add_one(made, value, lane, of))

        own = tuple(
            step("add.Tensor", (Ref(part, 1), start), self.made[part].types[1])
            for part, (start, _) in zip(parts, self.spans[id(self.region_of[value])], strict=True)
        )
        best = tuple(Ref(part, 0) for part in parts)
        best_of = step("cat.default", (best, axis), _resized(values, axis, n))
        own_of = step("cat.default", (own, axis), _resized(places, axis, n))
        chosen = self._add(replace(old, args=(best_of, *old.args[1:])), value, lane)
        self.number["whole", value, lane] = chosen
        found = step("gather.default", (own_of, axis, Ref(chosen, 1)), places)
        self.number["places", value, lane] = found.value

    def _sum(self, value: int, parts: list[int], lane: int, types: tuple[Type, ...]) -> int:
        total = parts[0]
        for part in parts[1:]:
            args = (Ref(total), Ref(part))
            node = Node(number=self._number_of(value), op="aten.add.Tensor", args=args)
            total = self._add(node, value, lane, types)
        return total

    def _scatter(self, value: int, parts: list[int]) -> None:
        """The sum of its summands, on every lane of that lane's positions."""
        region, ref = self.scattered[value], Ref(value)
        cut = region.layouts[ref]
        assert isinstance(cut, Cut)
        for lane, (start, stop) in enumerate(self.spans[id(region)]):
            mine = [
                self._slice(ref, Ref(part), cut, region, lane, at) for at, part in enumerate(parts)
            ]
            types = (self._type(self.traced.type_of(ref), cut, region, stop - start),)
            self.number["piece", value, lane] = self._sum(value, mine, lane, types)

    def _add(self, node: Node, value: int, lane: int, types: tuple[Type, ...] | None = None) -> int:
        """A node of a lane, which stands for the original's `value`."""
        number, self.next = self.next, self.next + 1
        place, rows = value - self.graph.first_node, self.traced.by_rows
        items = [None, *range(len(self.traced.types[value]))]
        floats = not any(
            (ref.value < len(self.graph.inputs) and ref.value not in self.traced.small_inputs)
            or (ref.value in self.made and self.made[ref.value].lane is not None)
            for ref in node_refs(node)
        )
        is_still = floats and KIND_OF[node.op] != "buffer"
        self.made[number] = Made(
            node=node,
            types=types or self.traced.types[value],
            lane=None if is_still else lane,
            by_rows=frozenset(item for item in items if Ref(value, item) in rows),
            module=self.traced.modules[place] if self.traced.modules and place >= 0 else "",
        )
        return number

    def _add_one(self, node: Node, value: int, lane: int, of: Type, *, by_rows: bool = True) -> int:
        """A node with one result, in the place of an item of `value`."""
        number = self._add(node, value, lane, (of,))
        self.made[number].by_rows = frozenset([None] if by_rows else [])
        return number

    # --- the new graph ----------------------------------------------------------------------------

    def _written(self, order: list[int]) -> DividedGraph:
        """The graph, its values numbered anew."""
        read = {ref.value for number in order for ref in node_refs(self.made[number].node)}
        states = sorted(
            (number for number in self.states if number in read),
            # pieces first: by them a state's place is known
            key=lambda number: (
                isinstance(self.states[number][0], Buffer),
                self.states[number][1] is None,
                number,
            ),
        )
        n_inputs = len(self.graph.inputs)
        new = {number: n_inputs + i for i, number in enumerate([*states, *order])}
        move = lambda ref: Ref(new.get(ref.value, ref.value), ref.item)  # noqa: E731
        nodes = [moved(self.made[number].node, move) for number in order]
        kept = [self.states[number][0] for number in states]
        graph = Graph(
            inputs=self.graph.inputs,
            parameters=tuple(state for state in kept if isinstance(state, Parameter)),
            buffers=tuple(state for state in kept if isinstance(state, Buffer)),
            nodes=tuple(nodes),
            outputs=tuple(self._output(output, move) for output in self.graph.outputs),
            symbols=self.graph.symbols,
        )
        types = [*self.traced.types[:n_inputs]]
        types += [(Type(dtype=state.dtype, shape=state.shape),) for state in kept]
        types += [self.made[number].types for number in order]
        rows = {ref for ref in self.traced.by_rows if ref.value < n_inputs}
        rows |= {Ref(new[number], item) for number in order for item in self.made[number].by_rows}
        traced = replace(
            self.traced,
            graph=graph,
            types=tuple(types),
            by_rows=frozenset(rows),
            tensors={},
            modules=tuple(self.made[number].module for number in order)
            if self.traced.modules
            else (),
        )
        pieces = {
            state.name: piece
            for state, piece in (self.states[number] for number in states)
            if piece is not None
        }
        found = DividedGraph(traced=traced, groups=groups_of(self.made, order), pieces=pieces)
        check_crossing(found)
        return found

    def _output(self, output: Output, move: Callable[[Ref], Ref]) -> Output:
        return replace(output, ref=move(self.whole(output.ref, FIRST)))


def _resized(kind: Type, axis: int, size: Expression) -> Type:
    """The type with this size along an axis."""
    return replace(kind, shape=(*kind.shape[:axis], size, *kind.shape[axis + 1 :]))


def _without(node: Node, place: int) -> Node:
    """The node without its bias, or summand."""
    if node.op == "aten.add.Tensor":
        return replace(node, op="aten.alias.default", args=(node.args[1 - place],))
    if node.op == "aten.addmm.default":
        return replace(node, op="aten.mm.default", args=node.args[1:])
    if len(node.args) > place:
        return replace(node, args=(*node.args[:place], None, *node.args[place + 1 :]))
    return replace(node, kwargs=tuple(pair for pair in node.kwargs if pair[0] != "bias"))
