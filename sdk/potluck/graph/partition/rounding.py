"""A line whose values are made smaller where they cross from one layer to another. Pure: no torch.

Every layer ends by encoding the floats that later layers read, and each of these begins by decoding
them: at every offered cut, whether a plan cuts there or not. So the result depends on the choice of
the code alone, and never on the plan. A conversion's derivative is the conversion of the gradient
to the same type: gradients cross as small as values do.

int8: a block is what one row, and one token or channel of it, has: its largest magnitude is 127
steps, and each entry is the nearest one. In training it is packed into floats, whose gradients are
packed as well (`potluck_agent/worker/blocks.py`): rounding counts as a step of slope one, and its
gradient is rounded in the same way. Gradients that are packed cannot be added. So each layer that
reads a value has one of its own, which crosses beside those of others.
"""

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import prod
from typing import Any

from potluck.errors import ModelError
from potluck.graph.partition.boundary_tensors import in_order
from potluck.graph.partition.cuts import line as make_line
from potluck.graph.partition.layers import Layers, layers_with_bounds
from potluck.graph.traced import Traced, Type, moved
from potluck_wire.graph import Dtype, Node, Ref, node_refs

CASTS = ("bfloat16", "float16")
BLOCKS = "int8"
FULL = "float32"  # what is made smaller: other types stay as they are
STEPS = 127  # of an int8 on either side of 0
LEAST = 1e-30  # of a scale: a block of zeros
PER_ITEM = 4  # int8 in the bits of one float32


def rounded(laid: Layers, code: str, n_inputs: int, *, train: bool = False) -> Layers:
    """These layers, with what crosses between them in this code.

    Parameters
    ----------
    laid
        Of one mode of a model.
    code
        One of `CASTS`, or `BLOCKS`.
    n_inputs
        So many of the graph's inputs are the model's.
    train
        Gradients cross, too.
    """
    made = _Rounding(laid, code, train)
    bounds = made.bounds()
    return layers_with_bounds(make_line(made.traced()), bounds, laid, n_inputs=n_inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """A node of the new graph, the types of its results, and which of them count rows."""

    node: Node
    types: tuple[Type, ...]
    by_rows: frozenset[int | None]
    module: str


class _Rounding:
    """The nodes anew: those that depend on no input first, then layer by layer."""

    def __init__(self, laid: Layers, code: str, train: bool) -> None:
        self._old, self._code = laid.line.traced, code
        self._packs = train and code == BLOCKS
        self._first = self._old.graph.first_node
        self._written: list[_Written] = []
        self._moved: dict[int, int] = {}  # values of the old graph
        # of what crosses, by the old value and the layer that reads it
        self._codes: dict[tuple[Ref, int], tuple[Ref, ...]] = {}
        self._next_number = 1 + max((node.number for node in self._old.graph.nodes), default=0)
        line = laid.line
        layer_of = [i for i, (a, b) in enumerate(pairwise(laid.bounds)) for _ in range(a, b)]
        self._crossing = {
            ref: {layer_of[use] for use in uses if use < len(layer_of)} - {layer_of[place]}
            for ref, uses in line.uses.items()
            if self._has_code(ref)
            for place in (line.place[ref.value],)
        }
        for value in sorted(line.floating):
            self._copy(value, {})
        self._lengths = [
            self._layer(number, [self._first + p for p in line.bound[start:stop]])
            for number, (start, stop) in enumerate(pairwise(laid.bounds))
        ]

    def bounds(self) -> tuple[int, ...]:
        """Where the layers begin and end, in nodes that depend on inputs."""
        return tuple(accumulate(self._lengths, initial=0))

    def traced(self) -> Traced:
        """The new graph, with all that is known of the old one."""
        old = self._old
        nodes = tuple(item.node for item in self._written)
        outputs = tuple(replace(out, ref=self._now(out.ref, {})) for out in old.graph.outputs)
        rows = {ref for ref in old.by_rows if ref.value < self._first}
        rows |= {
            Ref(self._first + place, item)
            for place, written in enumerate(self._written)
            for item in written.by_rows
        }
        return replace(
            old,
            graph=replace(old.graph, nodes=nodes, outputs=outputs),
            types=(*old.types[: self._first], *(item.types for item in self._written)),
            by_rows=frozenset(rows),
            modules=tuple(item.module for item in self._written) if old.modules else (),
        )

    def _has_code(self, ref: Ref) -> bool:
        kind = self._old.type_of(ref)
        if kind.dtype != FULL or (self._code == BLOCKS and len(kind.shape) < 2):
            return False
        # gradients of what has no rows are added over the devices of a stage
        return not self._packs or (ref in self._old.by_rows and prod(_sizes(kind)) > 0)

    # --- a layer ----------------------------------------------------------------------------------

    def _layer(self, number: int, values: list[int]) -> int:
        """Decode what it reads of earlier layers, do its work, encode what later ones read; returns
        how many nodes that takes.
        """
        before, own = len(self._written), set(values)
        read = {ref for value in values for ref in node_refs(self._node(value))}
        decoded = {
            ref: self._decode(ref, self._codes[ref, number])
            for ref in sorted(read, key=in_order)
            if ref.value not in own and (ref, number) in self._codes
        }
        for value in values:
            self._copy(value, decoded)
        for ref in sorted(self._crossing, key=in_order):
            readers = sorted(self._crossing[ref]) if ref.value in own else []
            if self._packs:
                self._codes |= {(ref, reader): (self._pack(ref),) for reader in readers}
            elif readers:
                self._codes |= dict.fromkeys(((ref, each) for each in readers), self._encode(ref))
        return len(self._written) - before

    def _node(self, value: int) -> Node:
        return self._old.graph.nodes[value - self._first]

    def _copy(self, value: int, decoded: dict[Ref, Ref]) -> None:
        node, items = self._node(value), (None, *range(len(self._old.types[value])))
        reading = moved(node, lambda ref: self._now(ref, decoded))
        self._moved[value] = self._first + len(self._written)
        self._written.append(
            _Written(
                node=reading,
                types=self._old.types[value],
                by_rows=frozenset(item for item in items if Ref(value, item) in self._old.by_rows),
                module=self._module(value),
            )
        )

    def _now(self, ref: Ref, decoded: dict[Ref, Ref]) -> Ref:
        return decoded.get(ref) or Ref(self._moved.get(ref.value, ref.value), ref.item)

    def _module(self, value: int) -> str:
        return self._old.modules[value - self._first] if self._old.modules else ""

    # --- codes ------------------------------------------------------------------------------------

    def _encode(self, ref: Ref) -> tuple[Ref, ...]:
        kind, value = self._old.type_of(ref), self._now(ref, {})
        if self._code in CASTS:
            return (self._add(ref, "to.dtype", (value, Dtype(self._code)), _as(kind, self._code)),)
        flat = replace(kind, shape=(*kind.shape[: _fixed(kind)], *(1 for _ in _block(kind))))
        size = self._add(ref, "abs.default", (value,), kind)
        size = self._add(ref, "amax.default", (size, _block(kind), True), flat)
        size = self._add(ref, "div.Scalar", (size, float(STEPS)), flat)
        size = self._add(ref, "clamp_min.default", (size, LEAST), flat)
        steps = self._add(ref, "div.Tensor", (value, size), kind)
        steps = self._add(ref, "round.default", (steps,), kind)
        steps = self._add(ref, "to.dtype", (steps, Dtype(BLOCKS)), _as(kind, BLOCKS))
        return steps, size

    def _pack(self, ref: Ref) -> Ref:
        kind = self._old.type_of(ref)
        n_items = -(-prod(_sizes(kind)) // PER_ITEM) + 1
        packed = replace(kind, shape=(*kind.shape[: _fixed(kind)], n_items))
        args = (self._now(ref, {}), _fixed(kind))
        return self._add(ref, "potluck.pack_int8.default", args, packed)

    def _decode(self, ref: Ref, codes: tuple[Ref, ...]) -> Ref:
        kind, (first, *scale) = self._old.type_of(ref), codes
        if self._packs:
            return self._add(ref, "potluck.unpack_int8.default", (first, _sizes(kind)), kind)
        found = self._add(ref, "to.dtype", (first, Dtype(FULL)), kind)
        for size in scale:
            found = self._add(ref, "mul.Tensor", (found, size), kind)
        return found

    def _add(self, ref: Ref, op: str, args: tuple[Any, ...], kind: Type) -> Ref:
        """A node of a code of the old value `ref`; `op`: of torch's, where it has no namespace."""
        name = op if op.startswith("potluck.") else f"aten.{op}"
        node = Node(number=self._next_number, op=name, args=args)
        self._next_number += 1
        by_rows = frozenset({None}) if ref in self._old.by_rows else frozenset[int | None]()
        module = self._module(ref.value)
        self._written.append(_Written(node=node, types=(kind,), by_rows=by_rows, module=module))
        return Ref(self._first + len(self._written) - 1)


def _fixed(kind: Type) -> int:
    """The dimensions that tell blocks apart: rows, and tokens or channels where there are more."""
    return 1 if len(kind.shape) < 3 else 2


def _block(kind: Type) -> tuple[int, ...]:
    """The dimensions of a block."""
    return tuple(range(_fixed(kind), len(kind.shape)))


def _sizes(kind: Type) -> tuple[int, ...]:
    """Of a block; ModelError where they change with the inputs."""
    sizes = kind.shape[_fixed(kind) :]
    if not all(isinstance(size, int) for size in sizes):
        raise ModelError(
            f"a value of the shape {list(kind.shape)} has no blocks of a fixed size.",
            next_step="Train with rounded('bfloat16').",
        )
    return tuple(size for size in sizes if isinstance(size, int))


def _as(kind: Type, dtype: str) -> Type:
    return replace(kind, dtype=dtype)
