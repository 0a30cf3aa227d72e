"""What a layer weighs: its operations, and the bytes that it holds, hands on and keeps."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from potluck.graph.operator_costs import backward_flop, base, forward_flop, kept, kept_beside
from potluck.graph.partition.batch_norms import values_per_row
from potluck.graph.partition.boundary_tensors import BoundaryTensors
from potluck.graph.partition.cuts import Linearization
from potluck.graph.partition.random_masks import draws
from potluck.records import Edge, Layer, SharedWeight
from potluck_wire.graph import (
    BATCH,
    DTYPE_BYTES,
    FLOATS,
    Buffer,
    Graph,
    Parameter,
    Ref,
    cached,
    node_refs,
)
from potluck_wire.weight_gradients import Apart, weights_apart

VECTOR_ITEM_BYTES = 4  # of an element of the vector of a step, at the least


def layer_records(
    line: Linearization, bounds: tuple[int, ...], boundary: BoundaryTensors | None, n_inputs: int
) -> tuple[Layer, ...]:
    """The layers between these bounds, in their order.

    Parameters
    ----------
    line
        The operators.
    bounds
        Layer i is bound nodes [bounds[i], bounds[i + 1]).
    boundary
        What each hands to which; None: each to the next, without edges.
    n_inputs
        How many of the line's inputs are the model's own; the others are targets.
    """
    seen: dict[str, int] = {}
    found, fed = [], set[int]()
    apart = weights_apart(line.traced.graph)
    for layer, (start, stop) in enumerate(pairwise(bounds)):
        name = _name(line, start, stop)
        seen[name] = seen.get(name, 0) + 1
        unique = name if seen[name] == 1 else f"{name}#{seen[name]}"
        record = _record(LayerSpan(line, start, stop, apart), unique)
        new = line.inputs_of(start, stop) - fed
        fed |= new
        types = [line.traced.type_of(Ref(value)) for value in new if value < n_inputs]
        feed_bytes = sum(t.nbytes({**line.traced.hints, BATCH: 1}) for t in types) if layer else 0
        edges = _edges(line, boundary.hands[layer]) if boundary else ()
        found.append(replace(record, edges=edges, feed_bytes=feed_bytes))
    return tuple(found)


def _edges(line: Linearization, given: Mapping[Ref, tuple[int, ...]]) -> tuple[Edge, ...]:
    sizes, has_gradients = {**line.traced.hints, BATCH: 1}, _trains(line.traced.graph)
    totals: dict[tuple[int, ...], tuple[int, int]] = {}
    for ref, takers in given.items():
        outputs, gradients = totals.get(takers, (0, 0))
        size = line.traced.type_of(ref).nbytes(sizes)
        totals[takers] = (
            outputs + size,
            gradients + (size if has_gradients and ref in line.requires else 0),
        )
    return tuple(
        Edge(to=to, output_bytes=max(1, o), gradient_bytes=g)  # of an empty tensor is waited, too
        for to, (o, g) in sorted(totals.items())
    )


@dataclass(frozen=True, slots=True)
class LayerSpan:
    """Bound nodes [start, stop) of a line, as one layer. Sizes are of one row."""

    line: Linearization
    start: int
    stop: int
    apart: Apart

    @property
    def positions(self) -> tuple[int, ...]:
        """Of its operators among the nodes of the graph."""
        return self.line.bound[self.start : self.stop]

    @property
    def is_last(self) -> bool:
        """Whether it gives what the model gives."""
        return self.stop == len(self.line.bound)

    @property
    def trains(self) -> bool:
        """Whether gradients flow through it."""
        return _trains(self.line.traced.graph)

    @property
    def sizes(self) -> dict[str, int]:
        """What each symbol of a shape stands for."""
        return {**self.line.traced.hints, BATCH: 1}

    def states(self) -> tuple[list[Parameter], list[Buffer]]:
        """The parameters and buffers that its operators read."""
        graph = self.line.traced.graph
        read = sorted(frozenset().union(*self.line.needs[self.start : self.stop]))
        n_inputs = len(graph.inputs)
        states = [*graph.parameters, *graph.buffers]
        own = [states[value - n_inputs] for value in read if n_inputs <= value < graph.first_node]
        return (
            [state for state in own if isinstance(state, Parameter)],
            [state for state in own if isinstance(state, Buffer)],
        )

    def slots(self) -> int:
        """Of its caches, rows of the largest request; 0 where it has none."""
        names = cached(self.line.traced.graph)
        _, buffers = self.states()
        return min((b.shape[0] for b in buffers if b.name in names), default=0)

    def boundary(self) -> list[Ref]:
        """The values that it hands on, or that the model gives."""
        if self.is_last:
            return [output.ref for output in self.line.traced.graph.outputs]
        return list(self.line.alive(self.stop))

    def nbytes(self, values: Iterable[Ref]) -> int:
        """Of one row of these values."""
        sizes = self.sizes
        return sum(self.line.traced.type_of(ref).nbytes(sizes) for ref in values)

    def forward_flop(self) -> float:
        """Of one row."""
        sizes = self.sizes
        return sum(forward_flop(self.line.traced, p, sizes) for p in self.positions)

    def backward_flop(self) -> float:
        """Of one row; none where nothing is trained."""
        line, sizes = self.line, self.sizes
        if not self.trains:
            return 0.0
        return sum(backward_flop(line.traced, p, line.requires, sizes) for p in self.positions)

    def weight_flop(self) -> float:
        """Those of the gradients of weights that may wait."""
        line, sizes = self.line, self.sizes
        return sum(
            min(
                forward_flop(line.traced, p, sizes),
                backward_flop(line.traced, p, line.requires, sizes),
            )
            for p in self.positions
            if p in self.apart.data and self.trains
        )

    def activation_bytes(self) -> int:
        """What is kept of one row until its backward pass."""
        line = self.line
        if not self.trains:
            return 0
        saved = frozenset().union(*(kept(line.traced, p, line.requires) for p in self.positions))
        beside_bytes = sum(kept_beside(line.traced, p, line.requires) for p in self.positions)
        return self.nbytes(ref for ref in saved if ref.value in line.place) + beside_bytes

    def working_bytes(self) -> int:
        """The most of one row of the largest request that is there at once, of what its operators
        read and make; views take nothing, nor does what is the same for all rows.
        """
        line, traced = self.line, self.line.traced
        sizes = {**self.sizes, **dict(traced.largest)}
        times: dict[Ref, tuple[int, int]] = {}  # of memory: first and last operator that need it
        for ref, uses in line.uses.items():
            made = line.place[ref.value]
            if made >= self.stop or uses[-1] < self.start:
                continue
            if made < self.start and not any(self.start <= use < self.stop for use in uses):
                continue  # it only passes by
            own = base(traced, ref)
            first, last = times.get(own, (self.stop, self.start))
            times[own] = min(first, max(made, self.start)), max(last, min(uses[-1], self.stop - 1))
        changes = [0] * (self.stop - self.start + 1)
        for own, (first, last) in times.items():
            of_one, of_two = (traced.type_of(own).nbytes(sizes | {BATCH: n}) for n in (1, 2))
            if own.value in line.place and of_two > of_one:
                changes[first - self.start] += of_one
                changes[last + 1 - self.start] -= of_one
        return max(accumulate(changes))

    def waiting(self) -> set[Ref]:
        """What is kept for gradients of weights that wait: of each operator its data, and as large
        as its output that one's gradient.
        """
        graph, found = self.line.traced.graph, set[Ref]()
        for position in self.positions:
            if position in self.apart.data:
                read = [graph.nodes[position].args[place] for place in self.apart.data[position]]
                found.update(base(self.line.traced, ref) for ref in read if isinstance(ref, Ref))
                found.add(Ref(graph.first_node + position))
        return found

    def second_gradient_bytes(self) -> tuple[int, int]:
        """Of the parameters that are trained, those of the operator that has most, and those that
        several read.
        """
        graph = self.line.traced.graph
        sizes = {
            len(graph.inputs) + i: _state_bytes([p])
            for i, p in enumerate(graph.parameters)
            if p.trainable
        }
        needs = self.line.needs[self.start : self.stop]
        read = [[value for value in needed if value in sizes] for needed in needs]
        n_readers = Counter(value for values in read for value in values)
        widest_bytes = max((sum(sizes[value] for value in values) for values in read), default=0)
        return widest_bytes, sum(sizes[value] for value, n in n_readers.items() if n > 1)


def _record(span: LayerSpan, name: str) -> Layer:
    line, traced = span.line, span.line.traced
    parameters, buffers = span.states()
    learned = [parameter for parameter in parameters if parameter.trainable]
    averaged = [buffer for buffer in buffers if is_averaged(buffer)]
    parameter_bytes, buffer_bytes = _state_bytes(parameters), _state_bytes(buffers)
    boundary = span.boundary()
    flowing = line.requires if span.trains and not span.is_last else frozenset()
    widest_bytes, reused_bytes = span.second_gradient_bytes()
    shared, slots = shared_parameters(line, span.start, span.stop), span.slots()
    return Layer(
        name=name,
        parameter_bytes=parameter_bytes,
        buffer_bytes=buffer_bytes,
        frozen_bytes=parameter_bytes - _state_bytes(learned),
        fixed_buffer_bytes=buffer_bytes - _state_bytes(averaged),
        widened_bytes=_widened_bytes([*learned, *averaged]),
        output_bytes=span.nbytes(boundary),
        gradient_bytes=span.nbytes(ref for ref in boundary if ref in flowing),
        activation_bytes=span.activation_bytes(),
        forward_flop=span.forward_flop(),
        backward_flop=span.backward_flop(),
        norm_values=values_per_row(traced, span.positions),
        is_random=span.trains and draws(traced, span.positions),
        widest_parameter_bytes=widest_bytes,
        whole_batch=(traced.whole_batch and span.is_last) or slots > 0,
        slots=slots,
        reused_bytes=max(reused_bytes, _state_bytes(shared)),
        weight_flop=span.weight_flop(),
        waiting_bytes=span.nbytes(span.waiting()),
        working_bytes=span.working_bytes(),
        shared=tuple(
            SharedWeight(
                name=parameter.name,
                nbytes=_state_bytes([parameter]),
                summed_bytes=_state_bytes([parameter]) + _widened_bytes([parameter]),
            )
            for parameter in shared
        ),
    )


def shared_parameters(line: Linearization, start: int, stop: int) -> tuple[Parameter, ...]:
    """The trained parameters that bound nodes [start, stop) read, and others as well."""
    graph = line.traced.graph
    return tuple(
        graph.parameters[value - len(graph.inputs)]
        for value, places in line.shared
        if any(start <= i < stop for i in places) and any(not start <= i < stop for i in places)
    )


def _trains(graph: Graph) -> bool:
    return any(output.gradient for output in graph.outputs)


def is_averaged(buffer: Buffer) -> bool:
    """Whether replicas average it in every step: running statistics."""
    return buffer.updated and buffer.dtype in FLOATS


def _state_bytes(states: Iterable[Parameter | Buffer]) -> int:
    return sum(math.prod(state.shape) * DTYPE_BYTES[state.dtype] for state in states)


def _widened_bytes(states: Iterable[Parameter | Buffer]) -> int:
    """By how much they grow in the vector of a step, whose elements have four bytes at least."""
    return sum(
        math.prod(state.shape) * max(0, VECTOR_ITEM_BYTES - DTYPE_BYTES[state.dtype])
        for state in states
    )


def _name(line: Linearization, start: int, stop: int) -> str:
    """After the module of the first parameter, else after the first operator."""
    graph = line.traced.graph
    names = {len(graph.inputs) + i: p.name for i, p in enumerate(graph.parameters)}
    for position in line.bound[start:stop]:
        for ref in node_refs(graph.nodes[position]):
            if ref.value in names:
                return names[ref.value].rpartition(".")[0] or names[ref.value]
    return graph.nodes[line.bound[start]].op.split(".")[1]
