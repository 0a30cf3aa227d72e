"""A traced model, from torch or ONNX, as a ModelGraph: every operator with what it costs. Pure: no torch.

So a network of one's own can be planned for on a home that does not exist. Views of other tensors are no nodes; a
weight counts where it is used first, and what is kept for backward counts once.
"""

import math
from dataclasses import replace

from potluck.errors import ModelError
from potluck_wire.graph import BATCH, DTYPE_BYTES, Ref, evaluate, node_refs
from potluck_wire.operators import KIND_OF

from .costs import backward_flop, base, forward_flop, kept
from .cuts import Line, line
from .modelgraph import Input, ModelGraph, Node
from .traced import Traced

_KINDS = {
    "convolution": "conv", "product": "matmul", "recurrent": "matmul", "attention": "attention",
    "embedding": "embedding", "normalisation": "norm", "pooling": "pool", "reduction": "pool",
}  # fmt: skip
FEW_CHANNELS = 8  # per group, fewer than a vector unit has lanes: bound by memory


def priced(traced: Traced, *, name: str, source: str = "") -> ModelGraph:
    """The ModelGraph of a model traced for inference; its backward is that of all parameters that can be trained.

    Raises ModelError where it has several outputs.
    """
    graph = traced.graph
    if len(graph.outputs) != 1:
        raise ModelError(f"a model graph has one output; this model has {len(graph.outputs)}.")
    wanted = tuple(replace(output, gradient=True) for output in graph.outputs)
    made = line(replace(traced, graph=replace(graph, outputs=wanted)))
    return ModelGraph(
        name=name,
        source=source,
        inputs=tuple(Input(name=port.name, row_bytes=_row_bytes(made, Ref(i))) for i, port in enumerate(graph.inputs)),
        nodes=tuple(_nodes(made)),
        output=_names(made)[base(traced, graph.outputs[0].ref).value],
        rows=traced.hints.get(BATCH, 1),
    )


def _nodes(made: Line) -> list[Node]:
    traced, graph, names = made.traced, made.traced.graph, _names(made)
    sizes, seen_states, seen_kept, found = _sizes(made), set[int](), set[Ref](), []
    n_inputs, first = len(graph.inputs), graph.first_node
    for i, position in enumerate(made.bound):
        states = {value for value in made.needs[i] if n_inputs <= value < first} - seen_states
        if first + position not in names:
            continue
        seen_states |= states
        of_parameters = [value - n_inputs for value in states if value < first - len(graph.buffers)]
        of_buffers = [value - first + len(graph.buffers) for value in states if value >= first - len(graph.buffers)]
        saved = {ref for ref in kept(traced, position, made.requires) if ref.value in names} - seen_kept
        seen_kept |= saved
        read = dict.fromkeys(base(traced, ref) for ref in node_refs(graph.nodes[position]))
        taken = [ref for ref in read if ref.value in names]
        output_bytes = sum(t.nbytes(sizes) for t in traced.types[first + position])
        node = Node(
            name=names[first + position],
            kind=_kind(made, position),
            inputs=tuple(dict.fromkeys(names[ref.value] for ref in taken)),
            forward_flop=round(forward_flop(traced, position, sizes)),
            backward_flop=round(backward_flop(traced, position, made.requires, sizes)),
            parameter_bytes=sum(_bytes(graph.parameters[k].shape, graph.parameters[k].dtype) for k in of_parameters),
            buffer_bytes=sum(_bytes(graph.buffers[k].shape, graph.buffers[k].dtype) for k in of_buffers),
            output_bytes=output_bytes,
            activation_bytes=sum(_row_bytes(made, ref) for ref in saved),
            traffic_bytes=output_bytes + sum(_row_bytes(made, ref) for ref in taken),
        )
        found.append(node)
    return found


def _names(made: Line) -> dict[int, str]:
    """A name for each of the model's inputs and operators, after the module of its first weight; none for views."""
    graph, counts = made.traced.graph, dict[str, int]()
    names = {i: port.name for i, port in enumerate(graph.inputs)}
    modules = {len(graph.inputs) + i: p.name.rpartition(".")[0] or p.name for i, p in enumerate(graph.parameters)}
    for position in made.bound:
        value = graph.first_node + position
        if base(made.traced, Ref(value)) != Ref(value):
            continue
        node = graph.nodes[position]
        owned = [modules[ref.value] for ref in node_refs(node) if ref.value in modules]
        name = owned[0] if owned else node.op.split(".")[1]
        counts[name] = counts.get(name, 0) + 1
        names[value] = name if counts[name] == 1 else f"{name}:{counts[name]}"
    return names


def _kind(made: Line, position: int) -> str:
    node, sizes = made.traced.graph.nodes[position], _sizes(made)
    kind = _KINDS.get(KIND_OF[node.op], "elementwise")
    if kind == "conv":
        image, weight = ([evaluate(s, sizes) for s in made.traced.type_of(r).shape] for r in node_refs(node)[:2])
        if image[1] != weight[1] < FEW_CHANNELS:  # fewer than the image has: in groups
            return "depthwise"
    return kind


def _sizes(made: Line) -> dict[str, int]:
    return {**made.traced.hints, BATCH: 1}


def _row_bytes(made: Line, ref: Ref) -> int:
    return made.traced.type_of(ref).nbytes(_sizes(made))


def _bytes(shape: tuple[int, ...], dtype: str) -> int:
    return math.prod(shape) * DTYPE_BYTES[dtype]
