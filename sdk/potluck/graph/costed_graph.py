"""A traced model, from torch or ONNX, as a ModelGraph: every operator with what it costs.

Pure: no torch.

So a network can be planned for on a home that does not exist; the library's models are made here,
too. Views of other tensors are no nodes; a weight counts where it is used first, and what is kept
for backward counts once.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from potluck.graph.modelgraph import ModelGraph, ModelInput, OperatorNode
from potluck.graph.operator_costs import backward_flop, base, forward_flop, kept, kept_beside, kind
from potluck.graph.partition.cuts import Linearization, line
from potluck.graph.traced import SEQUENCE, Traced
from potluck_wire.graph import BATCH, DTYPE_BYTES, Buffer, Graph, Parameter, Ref, node_refs


def priced(
    traced: Traced, *, name: str, title: str = "", source: str = "", sequence: int | None = None
) -> ModelGraph:
    """The ModelGraph of a model traced for inference.

    Its backward is that of all parameters that can be trained.

    Parameters
    ----------
    traced
        The model.
    name, title, source
        What the graph is called, and where the model is from.
    sequence
        The length of the sequence, where it may change.
    """
    graph = traced.graph
    wanted = tuple(replace(output, gradient=True) for output in graph.outputs)
    made = line(replace(traced, graph=replace(graph, outputs=wanted)))
    names = _names(made)
    return ModelGraph(
        name=name,
        title=title,
        source=source,
        inputs=tuple(
            ModelInput(name=port.name, row_bytes=_row_bytes(made, Ref(i)))
            for i, port in enumerate(graph.inputs)
        ),
        nodes=tuple(nodes_of(made).values()),
        outputs=tuple(
            dict.fromkeys(names[base(traced, output.ref).value] for output in graph.outputs)
        ),
        sequence=sequence or traced.hints.get(SEQUENCE),
        tied=tuple(sorted(_tied(made) & {p.name for p in graph.parameters})),
    )


def _tied(made: Linearization) -> set[str]:
    """What several operators read."""
    return {name for _, _, name in made.tied} | {*made.shared_names}


def nodes_by_layer(
    made: Linearization, bounds: Sequence[int]
) -> tuple[tuple[OperatorNode, ...], ...]:
    """The operators of each layer of a line.

    Parameters
    ----------
    made
        The line.
    bounds
        Layer i is bound nodes [bounds[i], bounds[i + 1]).
    """
    found = nodes_of(made)
    return tuple(
        tuple(found[i] for i in range(start, stop) if i in found)
        for start, stop in pairwise(bounds)
    )


def nodes_of(made: Linearization) -> dict[int, OperatorNode]:
    """The operators of a line by their place in it, per row of the batch."""
    traced = made.traced
    graph = made.traced.graph
    names = _names(made)
    sizes = _sizes(made)
    seen_states = set[int]()
    seen_kept = set[Ref]()
    frozen = _frozen(traced.graph)
    found = {}
    n_inputs, first = len(graph.inputs), graph.first_node
    states: list[Parameter | Buffer] = [*graph.parameters, *graph.buffers]
    for i, position in enumerate(made.bound):
        if first + position not in names:
            continue
        own = {value for value in made.needs[i] if n_inputs <= value < first} - seen_states
        seen_states |= own
        saved = {
            ref for ref in kept(traced, position, made.requires) if ref.value in names
        } - seen_kept
        seen_kept |= saved
        read = dict.fromkeys(base(traced, ref) for ref in node_refs(graph.nodes[position]))
        taken = [ref for ref in read if ref.value in names]
        output_bytes = sum(t.nbytes(sizes) for t in traced.types[first + position])
        what = kind(traced, position)
        # a gather reads as much as it writes
        read_bytes = output_bytes if what == "embedding" else 0
        found[i] = OperatorNode(
            name=names[first + position],
            kind=what,
            inputs=tuple(dict.fromkeys(names[ref.value] for ref in taken)),
            forward_flop=round(forward_flop(traced, position, sizes)),
            backward_flop=round(backward_flop(traced, position, made.requires, sizes)),
            parameter_bytes=sum(
                _bytes(states[v - n_inputs]) for v in own if v < first - len(graph.buffers)
            ),
            buffer_bytes=sum(
                _bytes(states[v - n_inputs]) for v in own if v >= first - len(graph.buffers)
            ),
            frozen_bytes=sum(_bytes(states[v - n_inputs]) for v in own & frozen),
            output_bytes=output_bytes,
            activation_bytes=sum(_row_bytes(made, ref) for ref in saved)
            + kept_beside(traced, position, made.requires),
            traffic_bytes=output_bytes + read_bytes + sum(_row_bytes(made, ref) for ref in taken),
        )
    return found


def _frozen(graph: Graph) -> frozenset[int]:
    """The weights that training leaves as they are; none where no weight says that it learns, as in
    a model that was only ever asked.
    """
    if not any(p.trainable for p in graph.parameters):
        return frozenset()
    places = enumerate(graph.parameters, start=len(graph.inputs))
    return frozenset(value for value, p in places if not p.trainable)


def _names(made: Linearization) -> dict[int, str]:
    """A name for each of the model's inputs and operators; none for views.

    After the module that an operator stands in, where that is known, else after that of its first
    weight.
    """
    traced, graph = made.traced, made.traced.graph
    names = {i: port.name for i, port in enumerate(graph.inputs)}
    counts = dict.fromkeys(names.values(), 1)
    modules = {
        len(graph.inputs) + i: p.name.rpartition(".")[0] or p.name
        for i, p in enumerate(graph.parameters)
    }
    for position in made.bound:
        value = graph.first_node + position
        if base(traced, Ref(value)) != Ref(value):
            continue
        node = graph.nodes[position]
        owned = [modules[ref.value] for ref in node_refs(node) if ref.value in modules]
        place = traced.modules[position] if traced.modules else owned[0] if owned else ""
        name = place or node.op.split(".")[1]
        counts[name] = counts.get(name, 0) + 1
        names[value] = name if counts[name] == 1 else f"{name}:{counts[name]}"
    return names


def _sizes(made: Linearization) -> dict[str, int]:
    return {**made.traced.hints, BATCH: 1}


def _row_bytes(made: Linearization, ref: Ref) -> int:
    return made.traced.type_of(ref).nbytes(_sizes(made))


def _bytes(state: Parameter | Buffer) -> int:
    return math.prod(state.shape) * DTYPE_BYTES[state.dtype]
