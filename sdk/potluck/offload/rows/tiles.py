"""Some rows of some operators as a graph of its own, made of the same allow-listed operators:
slice, pad, run, join.

A `TensorSlice` is an interval of rows of one value. A piece takes parts in, computes an interval of
rows of each of its nodes, and gives parts out. Rows of padding that lie outside the tensor are put
back where the interval touches its edge, and nowhere else. So every row is computed from exactly
the numbers it has in the whole. Pure: no torch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from potluck.errors import PlanError
from potluck.graph.partition.cuts import Linearization, symbols_read
from potluck.graph.traced import Type
from potluck.offload.rows.receptive_fields import OperatorLocality, row_axis
from potluck.offload.rows.row_rules import AccessPattern, padding_of, per_dim, shape_of
from potluck_wire.graph import Argument, Graph, Input, Node, Output, Ref, Sym, evaluate, node_refs
from potluck_wire.operators import KINDS

Interval = tuple[int, int]
_REAL = {"complex64": "float32", "complex128": "float64"}  # by which complex numbers travel
_CLONE = "aten.clone.default"
_CONVOLUTIONS = frozenset(KINDS["convolution"])
_TRANSPOSED = frozenset({"aten.conv_transpose1d.default", "aten.conv_transpose2d.input"})
_POOLS = frozenset(f"aten.{kind}_pool{n}d.default" for kind in ("max", "avg") for n in (1, 2))
_PADS = frozenset({"aten.pad.default", "aten.constant_pad_nd.default"})
_UPSAMPLES = frozenset({"aten.upsample_nearest2d.vec", "aten.upsample_bilinear2d.vec"})
_VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        "view.default",
        "reshape.default",
        "flatten.using_ints",
        "unflatten.int",
        "unsqueeze.default",
        "squeeze.dim",
        "squeeze.dims",
    )
)


@dataclass(frozen=True, slots=True, order=True)
class TensorSlice:
    """Rows [start, stop) of a value; of a value without rows there is one part, [0, 1)."""

    value: int
    start: int
    stop: int
    item: int | None = None

    @property
    def ref(self) -> Ref:
        return Ref(self.value, self.item)

    @property
    def name(self) -> str:
        """What it is called between segments."""
        item = "" if self.item is None else f".{self.item}"
        return f"v{self.value}{item}-{self.start}-{self.stop}"


def part_type(
    line: Linearization, localities: Sequence[OperatorLocality], part: TensorSlice
) -> Type:
    """Data type and shape of a part as it travels: of complex numbers real and imaginary parts.

    Parameters
    ----------
    line
        The traced model.
    localities
        Per operator, how its rows depend on its inputs'.
    part
        Rows of a value.
    """
    full_type = line.traced.type_of(part.ref)
    axis, count = rows_of(line, localities, part.value)
    shape = full_type.shape
    if axis is not None and (part.start, part.stop) != (0, count):
        shape = (*shape[:axis], part.stop - part.start, *shape[axis + 1 :])
    if full_type.dtype in _REAL:
        return Type(dtype=_REAL[full_type.dtype], shape=(*shape, 2))
    return Type(dtype=full_type.dtype, shape=shape)


def rows_of(
    line: Linearization, localities: Sequence[OperatorLocality], value: int
) -> tuple[int | None, int]:
    """The axis of a value's rows and how many there are; (None, 1) where it is one piece.

    Parameters
    ----------
    line
        The traced model.
    localities
        Per operator, how its rows depend on its inputs'.
    value
        Its number.
    """
    graph = line.traced.graph
    if value >= graph.first_node:
        local = localities[value - graph.first_node]
        return local.axis, local.count
    if value >= len(graph.inputs):
        return None, 1
    shape = shape_of(line.traced, Ref(value))
    axis = row_axis(shape)
    return axis, 1 if axis is None else shape[axis]


def piece(
    line: Linearization,
    localities: Sequence[OperatorLocality],
    *,
    takes: Sequence[TensorSlice],
    computes: Mapping[int, Interval],
    gives: Sequence[TensorSlice],
    names: Mapping[TensorSlice, str] | None = None,
) -> Graph:
    """The graph that computes rows `computes[value]` of these nodes from parts that it takes, and
    gives parts.

    `names` renames parts at the edge.

    Parameters
    ----------
    line
        The traced model.
    localities
        Per operator, how its rows depend on its inputs'.
    takes
        Parts that come in.
    computes
        Per value, its rows.
    gives
        Parts that go out.
    names
        Names of parts at the edge; default: their own.

    Raises
    ------
    PlanError
        Rows that a node needs are neither taken nor computed.
    """
    build = _TileBuilder(line, localities, takes)
    first = line.traced.graph.first_node
    for value in sorted(computes):
        if computes[value][0] < computes[value][1]:
            build.node(value - first, computes[value])
    return build.finish(gives, names or {})


@dataclass(frozen=True, slots=True)
class _Made:
    """A node of the new graph, by its place among them."""

    place: int
    item: int | None = None


class _TileBuilder:
    """One graph in the making. Until it is finished, arguments are parts taken, states (Ref) or
    nodes (_Made).
    """

    def __init__(
        self,
        line: Linearization,
        localities: Sequence[OperatorLocality],
        takes: Sequence[TensorSlice],
    ) -> None:
        self.line = line
        self.localities = localities
        self.takes = tuple(dict.fromkeys(takes))
        self.graph = line.traced.graph
        self.nodes: list[tuple[int, str, tuple[Any, ...], dict[str, Any]]] = []
        self.at: dict[Ref, list[tuple[Interval, Any]]] = {}
        for part in self.takes:
            at: Any = part
            if self._is_complex(part):
                at = self.add(-1, "aten.view_as_complex.default", (part,))
            self.at.setdefault(part.ref, []).append(((part.start, part.stop), at))
        self.constants: dict[int, _Made] = {}

    def add(
        self, number: int, op: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
    ) -> _Made:
        self.nodes.append((number, op, tuple(args), dict(kwargs or {})))
        return _Made(len(self.nodes) - 1)

    def _is_complex(self, part: TensorSlice) -> bool:
        return self.line.traced.type_of(part.ref).dtype in _REAL

    # --- one node ---------------------------------------------------------------------------------

    def node(self, position: int, rows: Interval) -> None:
        """Compute rows of a node."""
        node, local = self.graph.nodes[position], self.localities[position]
        value = self.graph.first_node + position
        if rows == (0, local.count) and all(
            r.rows(*rows) == (0, r.count) for r in local.reads.values()
        ):
            values = {ref: self.whole(ref) for ref in _refs_of(node)}
            made = self.add(
                node.number,
                node.op,
                _put(node.args, values),
                {k: _put(a, values) for k, a in node.kwargs},
            )
        else:
            made = self._some(node, local, value, rows)
        for item in range(len(self.line.traced.types[value])):
            several = len(self.line.traced.types[value]) > 1
            ref = Ref(value, item) if several else Ref(value)
            self.at.setdefault(ref, []).append((rows, _Made(made.place, item) if several else made))

    def _some(self, node: Node, local: OperatorLocality, value: int, rows: Interval) -> Any:
        values: dict[Ref, Any] = {}
        padded = (0, 0)
        first = 0
        n_read = 0
        for ref in _refs_of(node):
            reads = local.reads.get(ref)
            if reads is None:
                values[ref] = self.whole(ref)
                continue
            start, stop = reads.rows(*rows)
            window = reads.window(*rows)
            padded = start - window[0], window[1] - stop  # below zero: rows that are cropped
            first, n_read = start, window[1] - window[0]
            values[ref] = self.rows(ref, reads, (start, stop), node.number)
        args = _put(node.args, values)
        kwargs = {k: _put(a, values) for k, a in node.kwargs}
        axis = local.axis or 0
        if node.op in _TRANSPOSED:
            return self._transposed(node, local, args, rows, first)
        if node.op in _CONVOLUTIONS or node.op in _POOLS:
            return self._windowed(node, local, args, kwargs, padded, n_read)
        if node.op in _PADS:
            fill = (
                (args[3:] or (kwargs.get("value"),))[0]
                if node.op == "aten.pad.default"
                else (args[2:] or (0.0,))[0]
            )
            amounts = _amounts(args[1], axis, self._rank(node), _added(padded))
            made = self.add(
                node.number, "aten.constant_pad_nd.default", (args[0], amounts, fill or 0.0)
            )
            return self._cropped(made, axis, padded, n_read, node.number)
        reads = next(iter(local.reads.values()))
        begins = first * reads.div // reads.mul if reads.div > 1 else rows[0]
        n_made = -(-(reads.rows(*rows)[1] - first) * reads.div // reads.mul)
        if node.op in _VIEWS:
            shape = self.line.traced.types[value][0].shape
            sizes = tuple(n_made if i == axis else _size(s) for i, s in enumerate(shape))
            made = self.add(node.number, "aten.reshape.default", (args[0], sizes))
        elif node.op in _UPSAMPLES:
            size = (n_made, _size(self.line.traced.types[value][0].shape[3]))
            made = self.add(node.number, node.op, (args[0], size, *args[2:-1], None))
        else:
            made = self.add(node.number, node.op, args, kwargs)
        return self.trimmed(made, axis, (begins, begins + n_made), rows, node.number)

    def _windowed(
        self,
        node: Node,
        local: OperatorLocality,
        args: Any,
        kwargs: Any,
        padded: Interval,
        n_read: int,
    ) -> _Made:
        """A convolution or pooling without padding along the rows, over rows that were padded where
        they need it.
        """
        rank = self._rank(node)
        n_spatial, dim = rank - 2, (local.axis or 0) - 2
        pool = node.op in _POOLS
        place = 3 if pool else 4
        given = args[place] if len(args) > place else kwargs.get("padding", 0)
        amounts: list[tuple[int, int]]
        if isinstance(given, str):
            amounts = [
                _same(self, node, d) if given == "same" else (0, 0) for d in range(n_spatial)
            ]
            keep = [0] * n_spatial
        else:
            numbers = per_dim(given, n_spatial)
            amounts = [(0, 0)] * n_spatial
            keep = [0 if d == dim else numbers[d] for d in range(n_spatial)]
        amounts[dim] = _added(padded)
        x = args[0]
        if any(amount != (0, 0) for amount in amounts):
            fill = -math.inf if "max_pool" in node.op else 0.0
            flat = tuple(n for pair in reversed(amounts) for n in pair)
            x = self.add(node.number, "aten.constant_pad_nd.default", (x, flat, fill))
            x = self._cropped(x, dim + 2, padded, n_read, node.number)
        rest = list(args[1:])
        while len(rest) < place:
            name = _POSITIONS[pool][len(rest) + 1]
            default = rest[0] if pool and name == "stride" else _DEFAULTS[name]
            rest.append(kwargs.pop(name, default))
        rest[place - 1] = tuple(keep)
        if not pool:  # torch itself takes one number for all dimensions only from Python
            rest[place - 2] = per_dim(rest[place - 2], n_spatial)
        kwargs.pop("padding", None)
        op = node.op.replace(".padding", ".default")
        return self.add(node.number, op, (x, *rest), kwargs)

    def _cropped(self, made: _Made, axis: int, padded: Interval, n_rows: int, number: int) -> Any:
        """Without the rows that `padded` takes away: a window in nothing but padding reads a row
        that it has not.
        """
        before, behind = max(-padded[0], 0), max(-padded[1], 0)
        return self.trimmed(
            made, axis, (0, before + n_rows + behind), (before, before + n_rows), number
        )

    def _transposed(
        self, node: Node, local: OperatorLocality, args: Any, rows: Interval, first: int
    ) -> Any:
        """A transposed convolution of the input rows from `first` on, unpadded along the rows, then
        trimmed.
        """
        reads = next(iter(local.reads.values()))
        n_spatial, dim = self._rank(node) - 2, (local.axis or 0) - 2
        stride, padding, output_padding = (
            list(per_dim(args[i] if len(args) > i else d, n_spatial))
            for i, d in ((3, 1), (4, 0), (5, 0))
        )
        weight = self.line.traced.type_of(_refs_of(node)[1]).shape
        dilation = per_dim(args[7] if len(args) > 7 else 1, n_spatial)
        begins = first * stride[dim] - padding[dim]
        taken = reads.rows(*rows)
        size = evaluate(weight[2 + dim], self.line.traced.hints)
        ends = begins + (taken[1] - taken[0] - 1) * stride[dim] + dilation[dim] * (size - 1) + 1
        output_padding[dim] = max(rows[1] - ends, 0)
        padding[dim] = 0
        bias = args[2] if len(args) > 2 else None
        groups = args[6] if len(args) > 6 else 1
        made = self.add(
            node.number,
            node.op,
            (
                args[0],
                args[1],
                bias,
                tuple(stride),
                tuple(padding),
                tuple(output_padding),
                groups,
                dilation,
            ),
        )
        return self.trimmed(
            made, local.axis or 0, (begins, ends + output_padding[dim]), rows, node.number
        )

    def _rank(self, node: Node) -> int:
        return len(self.line.traced.type_of(_refs_of(node)[0]).shape)

    # --- rows of a value --------------------------------------------------------------------------

    def rows(self, ref: Ref, reads: AccessPattern, wanted: Interval, number: int) -> Any:
        """These rows of a value along the axis that its reader cuts it."""
        axis, count = rows_of(self.line, self.localities, ref.value)
        # one piece, or a constant: sliced from the whole
        if axis != reads.axis or ref not in self.at:
            return self.trimmed(self.whole(ref), reads.axis, (0, reads.count), wanted, number)
        return self._joined(ref, axis, count, wanted, number)

    def whole(self, ref: Ref) -> Any:
        """All of a value."""
        if ref in self.at:
            axis, count = rows_of(self.line, self.localities, ref.value)
            return self._joined(ref, axis, count, (0, count), -1)
        if ref.value < len(self.graph.inputs) or ref.value in self.line.place:
            raise PlanError(
                f"value {ref.value} is needed, but it is neither computed here nor received."
            )
        return self._constant(ref)

    def _constant(self, ref: Ref) -> Any:
        """A state, or something computed from states alone, which every piece that needs it
        computes for itself.
        """
        if ref.value < self.graph.first_node:
            return ref
        if ref.value not in self.constants:
            node = self.graph.nodes[ref.value - self.graph.first_node]
            values = {r: self._constant(r) for r in _refs_of(node)}
            made = self.add(
                node.number,
                node.op,
                _put(node.args, values),
                {k: _put(a, values) for k, a in node.kwargs},
            )
            self.constants[ref.value] = made
        return _Made(self.constants[ref.value].place, ref.item)

    def _joined(self, ref: Ref, axis: int | None, count: int, wanted: Interval, number: int) -> Any:
        """Rows of a value from what is here: sliced from one part where one has them all, else put
        together.
        """
        spans = self.at[ref]
        for have, at in spans:
            if have[0] <= wanted[0] and wanted[1] <= have[1]:
                return at if axis is None else self.trimmed(at, axis, have, wanted, number)
        joined, reached = [], wanted[0]
        for have, at in sorted(spans, key=lambda row: row[0]):
            if have[0] <= reached < have[1] and axis is not None:
                stop = min(have[1], wanted[1])
                joined.append(self.trimmed(at, axis, have, (reached, stop), number))
                reached = stop
        if reached < wanted[1]:
            raise PlanError(
                f"rows [{wanted[0]}, {wanted[1]}) of value {ref.value} are needed; here are "
                f"{[row[0] for row in spans]}."
            )
        return self.add(number, "aten.cat.default", (tuple(joined), axis))

    def trimmed(self, at: Any, axis: int, have: Interval, wanted: Interval, number: int) -> Any:
        """`at`, which has rows `have`, cut to `wanted`."""
        if have == wanted:
            return at
        return self.add(
            number, "aten.slice.Tensor", (at, axis, wanted[0] - have[0], wanted[1] - have[0])
        )

    # --- the end ----------------------------------------------------------------------------------

    def finish(self, gives: Sequence[TensorSlice], names: Mapping[TensorSlice, str]) -> Graph:
        """The graph, numbered."""
        outputs = [(part, self._given(part)) for part in gives]
        states = sorted(
            {
                r.value
                for _, _, args, kwargs in self.nodes
                for r in _states((args, tuple(kwargs.values())))
            }
        )
        number: dict[Any, int] = {part: i for i, part in enumerate(self.takes)}
        number |= {value: len(self.takes) + i for i, value in enumerate(states)}
        first = len(number)

        def settle(argument: Any) -> Any:
            return _numbered(argument, number, first)

        types = [part_type(self.line, self.localities, part) for part in self.takes]
        parameters, buffers = self.graph.states(states)
        return Graph(
            inputs=tuple(
                Input(name=names.get(part, part.name), dtype=t.dtype, shape=t.shape)
                for part, t in zip(self.takes, types, strict=True)
            ),
            parameters=parameters,
            buffers=buffers,
            nodes=tuple(
                Node(
                    number=max(n, 0),
                    op=op,
                    args=settle(args),
                    kwargs=tuple(zip(kwargs, settle(values), strict=True)),
                )
                for n, op, args, kwargs in self.nodes
                for values in (tuple(kwargs.values()),)
            ),
            outputs=tuple(
                Output(
                    name=names.get(part, part.name), ref=settle(at), dtype=t.dtype, shape=t.shape
                )
                for part, at in outputs
                for t in (part_type(self.line, self.localities, part),)
            ),
            symbols=symbols_read(self.line.traced, types),
        )

    def _given(self, part: TensorSlice) -> Any:
        """What has these rows, joined from all that have some of them."""
        axis, count = rows_of(self.line, self.localities, part.value)
        at = self._joined(part.ref, axis, count, (part.start, part.stop), 0)
        if self._is_complex(part):
            # torch conjugates when it reads, and a view cannot wait for that
            at = self.add(0, "aten.view_as_real.default", (self.add(0, _CLONE, (at,)),))
        return at


def _numbered(argument: Any, number: Mapping[Any, int], first: int) -> Any:
    """An argument of a node as the graph has it.

    `number`: of each slice taken and each state; `first`: that of the first node.
    """
    match argument:
        case TensorSlice():
            return Ref(number[argument])
        case _Made(place, item):
            return Ref(first + place, item)
        case Ref(value, item):
            return Ref(number[value], item)
        case tuple():
            return tuple(_numbered(each, number, first) for each in argument)
    return argument


_POSITIONS = {
    False: ("input", "weight", "bias", "stride", "padding", "dilation", "groups"),
    True: ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode"),
}
_DEFAULTS: dict[str, Any] = {"bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}


def _same(build: _TileBuilder, node: Node, dim: int) -> Interval:
    weight = build.line.traced.type_of(_refs_of(node)[1]).shape
    dilations = next((a for a in node.args[5:6]), dict(node.kwargs).get("dilation", 1))
    size = evaluate(weight[2 + dim], build.line.traced.hints)
    total = per_dim(dilations, len(weight) - 2)[dim] * (size - 1)
    return total // 2, total - total // 2


def _added(padded: Interval) -> Interval:
    return max(padded[0], 0), max(padded[1], 0)


def _amounts(given: tuple[int, ...], axis: int, rank: int, padded: Interval) -> tuple[int, ...]:
    """The amounts of `constant_pad_nd` with those of one axis replaced."""
    if padding_of(given, rank, axis) == (0, 0):
        return given
    place = 2 * (rank - 1 - axis)
    return (*given[:place], *padded, *given[place + 2 :])


def _size(size: Any) -> Argument:
    return size if isinstance(size, int) else Sym(size)


def _refs_of(node: Node) -> tuple[Ref, ...]:
    return tuple(dict.fromkeys(node_refs(node)))


def _put(argument: Any, values: Mapping[Ref, Any]) -> Any:
    if isinstance(argument, Ref):
        return values[argument]
    return tuple(_put(a, values) for a in argument) if isinstance(argument, tuple) else argument


def _states(argument: Any) -> list[Ref]:
    if isinstance(argument, Ref):
        return [argument]
    return [ref for a in argument for ref in _states(a)] if isinstance(argument, tuple) else []
