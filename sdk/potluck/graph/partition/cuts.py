"""Where a traced model may be cut, and what crosses each cut. Pure: no torch.

`IndexBound` nodes depend on the model's inputs and stand in one line; the others (masks, positions,
tables) cost little and are computed again in every segment that needs them. A cut stands before a
bound node. It is open where every tensor alive there counts rows in its first dimension, and where
nothing that belongs together is torn apart: running statistics, a random mask. A trained parameter
may be used on both sides (tied weights): segments that hold it add up their gradients.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from potluck.graph.gradient_flow import flow
from potluck.graph.traced import Traced, Type, moved
from potluck_wire.graph import (
    BATCH,
    Expression,
    Graph,
    Input,
    Node,
    Output,
    Ref,
    Symbol,
    node_refs,
    symbols_in,
    symbols_of,
)
from potluck_wire.operators import KIND_OF
from potluck_wire.optimizers import LOSS_SCALE

_SELECTS = frozenset({"aten.where.self", "aten.masked_fill.Scalar", "aten.masked_fill.Tensor"})


def multiple(shape: tuple[Expression, ...]) -> int:
    """k where the first dimension is k times the batch and no other depends on it; 0 where that is
    not so.
    """
    return _times(shape[0], BATCH) if row_dim(shape) == 0 else 0


def row_dim(shape: tuple[Expression, ...]) -> int | None:
    """The only dimension that depends on the batch, where it is a multiple of it; None where there
    is none.
    """
    dims = [dim for dim, size in enumerate(shape) if BATCH in symbols_in(size)]
    return dims[0] if len(dims) == 1 and _times(shape[dims[0]], BATCH) else None


def _times(size: Expression, name: str) -> int:
    """k where the size is k times the symbol, else 0."""
    if size == name:
        return 1
    if isinstance(size, tuple) and size[0] == "*" and name in size[1:] and len(size) == 3:
        (other,) = [factor for factor in size[1:] if factor != name] or [0]
        return other if isinstance(other, int) else 0
    return 0


@dataclass(frozen=True, slots=True)
class Linearization:
    """A traced model in a line. `bound[i]` is the position of a node.

    `tied` are ranges of i that stay together; `shared`: of each parameter that several i read, the
    value and these.
    """

    traced: Traced
    bound: tuple[int, ...]
    place: dict[int, int]  # value -> bound index
    floating: frozenset[int]  # values
    requires: frozenset[Ref]  # values through which a gradient flows
    # the bound nodes that read a value, ascending; len(bound) for the model's outputs
    uses: dict[Ref, tuple[int, ...]]
    tied: tuple[tuple[int, int, str], ...]
    shared: tuple[tuple[int, tuple[int, ...]], ...]
    # per bound node: all values outside the line that it needs, transitively
    needs: tuple[frozenset[int], ...]

    @property
    def shared_names(self) -> tuple[str, ...]:
        """Of the parameters that several nodes read, and segments may share."""
        graph = self.traced.graph
        return tuple(graph.parameters[value - len(graph.inputs)].name for value, _ in self.shared)

    def alive(self, cut: int) -> tuple[Ref, ...]:
        """The values that cross the cut before bound node `cut`, in the order in which they are
        made.
        """
        boundary = [
            ref for ref, uses in self.uses.items() if self.place[ref.value] < cut <= uses[-1]
        ]
        return tuple(sorted(boundary, key=lambda ref: (ref.value, ref.item or 0)))

    def reads(self) -> tuple[tuple[int, ...], ...]:
        """For each bound node the bound nodes that it reads."""
        nodes = self.traced.graph.nodes
        read = ([ref.value for ref in node_refs(nodes[position])] for position in self.bound)
        return tuple(
            tuple(sorted({self.place[v] for v in values if v in self.place})) for values in read
        )

    def inputs_of(self, start: int, stop: int) -> set[int]:
        """The model's inputs that bound nodes [start, stop) read."""
        nodes, n_inputs = self.traced.graph.nodes, len(self.traced.graph.inputs)
        read = {
            ref.value for position in self.bound[start:stop] for ref in node_refs(nodes[position])
        }
        return {value for value in read.union(*self.needs[start:stop]) if value < n_inputs}

    def symbols_of(self, start: int, stop: int) -> frozenset[str]:
        """The sizes that bound nodes [start, stop) need to know."""
        return frozenset().union(*(self._symbols_at(i) for i in range(start, stop)))

    def shuts(self, cut: int) -> str:
        """Why the cut before bound node `cut` must stay shut because of what belongs together.

        Empty if it need not.
        """
        return next((name for start, stop, name in self.tied if start < cut <= stop), "")

    def open_cuts(self) -> tuple[int, ...]:
        """Every cut that may be made."""
        found, by_rows = [], self.traced.by_rows
        symbols_after = self._symbols_after()
        for cut in range(1, len(self.bound)):
            if self.shuts(cut):
                continue
            alive = self.alive(cut)
            types = [self.traced.type_of(ref) for ref in alive]
            if not alive or any(
                ref not in by_rows or not multiple(t.shape)
                for ref, t in zip(alive, types, strict=True)
            ):
                continue
            if all(name == BATCH or _readable(name, types) for name in symbols_after[cut]):
                found.append(cut)
        return tuple(found)

    def _symbols_after(self) -> list[frozenset[str]]:
        after: list[frozenset[str]] = [frozenset()] * (len(self.bound) + 1)
        for i in reversed(range(len(self.bound))):
            after[i] = after[i + 1] | self._symbols_at(i)
        return after

    def _symbols_at(self, i: int) -> frozenset[str]:
        graph, types = self.traced.graph, self.traced.types
        used: set[str] = set()
        for value in {graph.first_node + self.bound[i]} | self.needs[i]:
            used |= {name for t in types[value] for size in t.shape for name in symbols_in(size)}
            if value >= graph.first_node:
                used |= _symbols_of(graph.nodes[value - graph.first_node])
        return frozenset(used)


def line(traced: Traced, order: Sequence[int] = ()) -> Linearization:
    """The line of a traced model; `order`: the places of its bound nodes in another order in which
    they can run.
    """
    graph = traced.graph
    first, n_inputs = graph.first_node, len(graph.inputs)
    bound_values = set(range(n_inputs)) - traced.small_inputs
    bound = []
    needs: dict[int, frozenset[int]] = {}
    for position, node in enumerate(graph.nodes):
        value = first + position
        read = {ref.value for ref in node_refs(node)}
        if read & bound_values or KIND_OF[node.op] == "buffer":
            bound_values.add(value)
            bound.append(position)
        outside = {v for v in read if v not in bound_values}
        needs[value] = frozenset(outside).union(*(needs.get(v, frozenset()) for v in outside))
    bound = [bound[i] for i in order] or bound
    place = {first + position: i for i, position in enumerate(bound)}
    per_bound = tuple(needs[first + position] for position in bound)
    floating = frozenset(first + p for p in range(len(graph.nodes)) if first + p not in place)
    requires = flow(traced)
    shared = _shared(traced, bound, per_bound, requires)
    return Linearization(
        traced=traced,
        bound=tuple(bound),
        place=place,
        floating=floating,
        requires=requires,
        uses=_uses(graph, bound, place),
        tied=_tied(graph, per_bound, {value for value, _ in shared}),
        shared=shared,
        needs=per_bound,
    )


def _uses(graph: Graph, bound: Sequence[int], place: dict[int, int]) -> dict[Ref, tuple[int, ...]]:
    found: dict[Ref, list[int]] = {}
    for i, position in enumerate(bound):
        for ref in node_refs(graph.nodes[position]):
            if ref.value in place:
                found.setdefault(ref, []).append(i)
    for output in graph.outputs:
        if output.ref.value in place:
            found.setdefault(output.ref, []).append(len(bound))
    return {ref: tuple(uses) for ref, uses in found.items()}


def _shared(
    traced: Traced,
    bound: Sequence[int],
    needs: tuple[frozenset[int], ...],
    requires: frozenset[Ref],
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """The trained parameters that several bound nodes read, each of which hands it a gradient: so
    that every segment with one of them learns.
    """
    graph = traced.graph
    n_inputs, uses = len(graph.inputs), dict[int, list[int]]()
    if not any(output.gradient for output in graph.outputs):
        return ()
    trained = {n_inputs + i for i, p in enumerate(graph.parameters) if p.trainable}
    for i, values in enumerate(needs):
        for value in values & trained:
            uses.setdefault(value, []).append(i)
    flowing = {ref.value for ref in requires}
    return tuple(
        (value, tuple(places))
        for value, places in sorted(uses.items())
        if len(places) > 1 and all(graph.first_node + bound[i] in flowing for i in places)
    )


def _tied(
    graph: Graph, needs: tuple[frozenset[int], ...], shared: Collection[int]
) -> tuple[tuple[int, int, str], ...]:
    """Ranges (first use, last use, name) of everything that must not be in two segments: not what
    is `shared`.
    """
    n_inputs, first = len(graph.inputs), graph.first_node
    parameters = {n_inputs + i: p for i, p in enumerate(graph.parameters)}
    names = {v: p.name for v, p in parameters.items() if p.trainable and v not in shared}
    names |= {
        first - len(graph.buffers) + i: b.name for i, b in enumerate(graph.buffers) if b.updated
    }
    names |= {
        first + i: f"a mask of node {i}"
        for i, node in enumerate(graph.nodes)
        if KIND_OF[node.op] in ("random", "draw")
    }
    if not any(output.gradient for output in graph.outputs):
        return ()  # in inference a copy on both sides does no harm
    uses: dict[int, list[int]] = {}
    for i, values in enumerate(needs):
        for value in values & names.keys():
            uses.setdefault(value, []).append(i)
    scale = next((value for value, name in names.items() if name == LOSS_SCALE), None)
    if scale in uses:  # it changes with the weights of its stage, so that there are some
        weights = {value for value, parameter in parameters.items() if parameter.trainable}
        uses[scale] += [i for i, values in enumerate(needs) if values & weights][-1:]
    return tuple((min(i), max(i), names[value]) for value, i in uses.items() if len(i) > 1)


def _readable(name: str, types: Iterable[Type]) -> bool:
    return any(_times(size, name) for t in types for size in t.shape)


def _symbols_of(node: Node) -> frozenset[str]:
    return symbols_of((*node.args, *(argument for _, argument in node.kwargs)))


def _name(ref: Ref) -> str:
    return f"v{ref.value}" if ref.item is None else f"v{ref.value}.{ref.item}"


def cut_out(
    line: Linearization,
    start: int,
    stop: int,
    inputs: Sequence[Ref] | None = None,
    outputs: Sequence[Ref] | None = None,
) -> Graph:
    """Bound nodes [start, stop) as a graph of their own: first the model's inputs that it reads,
    then what crosses.

    `inputs` and `outputs`: what comes from and goes to others; all that is alive at the cuts unless
    given.
    """
    traced, graph = line.traced, line.traced.graph
    first, n_inputs = graph.first_node, len(graph.inputs)
    last = stop == len(line.bound)
    own = {first + position for position in line.bound[start:stop]}
    ports = (
        _ports(line, line.alive(stop) if outputs is None else outputs)
        if not last
        else graph.outputs
    )
    needed = own | frozenset().union(*line.needs[start:stop])
    for output in ports:
        if output.ref.value in line.floating or output.ref.value < first:
            needed |= {output.ref.value} | _closure(graph, output.ref.value)
    read = {ref.value for value in own for ref in node_refs(graph.nodes[value - first])} | needed
    feeds = [Ref(value) for value in range(n_inputs) if value in read]
    boundary = (line.alive(start) if start else ()) if inputs is None else inputs
    taken = [*feeds, *boundary]
    states = [value for value in range(n_inputs, first) if value in read]
    nodes = sorted(value for value in needed if value >= first)
    number = {ref: i for i, ref in enumerate([*taken, *map(Ref, states), *map(Ref, nodes)])}

    def move(ref: Ref) -> Ref:
        return Ref(number[ref]) if ref in number else Ref(number[Ref(ref.value)], ref.item)

    parameters, buffers = graph.states(states)
    return Graph(
        inputs=tuple(_input(line, ref) for ref in taken),
        parameters=parameters,
        buffers=buffers,
        nodes=tuple(moved(graph.nodes[value - first], move) for value in nodes),
        outputs=tuple(
            Output(name=o.name, ref=move(o.ref), dtype=o.dtype, shape=o.shape, gradient=o.gradient)
            for o in ports
        ),
        symbols=symbols_read(traced, [traced.type_of(ref) for ref in taken]),
    )


def _closure(graph: Graph, value: int) -> frozenset[int]:
    """All values that a value outside the line needs."""
    if value < graph.first_node:
        return frozenset()
    read = {ref.value for ref in node_refs(graph.nodes[value - graph.first_node])}
    return frozenset(read).union(*(_closure(graph, v) for v in read))


def _ports(line: Linearization, refs: Iterable[Ref]) -> tuple[Output, ...]:
    training = any(output.gradient for output in line.traced.graph.outputs)
    found = []
    for ref in refs:
        t = line.traced.type_of(ref)
        gradient = training and ref in line.requires
        found.append(
            Output(name=_name(ref), ref=ref, dtype=t.dtype, shape=t.shape, gradient=gradient)
        )
    return tuple(found)


def _input(line: Linearization, ref: Ref) -> Input:
    graph = line.traced.graph
    if ref.value < len(graph.inputs):
        return graph.inputs[ref.value]
    (port,) = _ports(line, [ref])
    return Input(name=port.name, dtype=port.dtype, shape=port.shape, gradient=port.gradient)


def symbols_read(traced: Traced, types: list[Type]) -> tuple[Symbol, ...]:
    """Where a segment reads each symbol from: the first of its inputs that has it in a
    dimension.
    """
    found = []
    for symbol in traced.graph.symbols:
        places = [
            (i, dim, _times(size, symbol.name))
            for i, t in enumerate(types)
            for dim, size in enumerate(t.shape)
            if _times(size, symbol.name)
        ]
        if places:
            i, dim, k = places[0]
            found.append(Symbol(name=symbol.name, input=i, dim=dim, multiple=k, hint=symbol.hint))
    return tuple(found)
