"""Inputs that a request leaves to the next one, such as keys and values of attention, as caches:
buffers that stay on the device where they are read. Pure: no torch.

A cache has a slot for each row of the largest request. What takes the place of an input is written
by one operator, which scatters new entries into the old ones.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from potluck.errors import ModelError
from potluck.graph.traced import Traced, Type, moved
from potluck_wire.graph import BATCH, Buffer, Graph, Ref, evaluate, node_refs, validate

MAX_NEW_TOKENS = 128  # of one text in one request: a longer prompt is read in parts

_SCATTER, _CACHE_SCATTER = "aten.scatter.src", "potluck.cache_scatter.default"


def with_caches(traced: Traced, caches: Mapping[int, int], rows: int) -> Traced:
    """The model with caches in the place of some inputs and outputs.

    Parameters
    ----------
    traced
        Of a pure function: entries come in with each request, and go out again.
    caches
        The number of an input, and that of the output that is this input of the next request.
    rows
        Of the largest request.

    Raises
    ------
    ModelError
        What an output gives is not its input with new entries scattered into it, along another
        dimension than the rows.
    """
    graph, n_inputs = traced.graph, len(traced.graph.inputs)
    first, n_nodes = graph.first_node, len(graph.nodes)
    written = {graph.outputs[output].ref: value for value, output in caches.items()}
    _check(traced, written)
    kept = [value for value in range(n_inputs) if value not in caches]
    order = [*kept, *range(n_inputs, first), *caches, *range(first, first + n_nodes)]
    number = {old: new for new, old in enumerate(order)}

    def move(ref: Ref) -> Ref:
        return Ref(number[ref.value], ref.item)

    types = [traced.types[value] for value in order]
    buffers = []
    for value in caches:
        port = graph.inputs[value]
        shape = tuple(evaluate(size, {**traced.hints, BATCH: rows}) for size in port.shape)
        types[number[value]] = (Type(dtype=port.dtype, shape=shape),)
        buffers.append(
            Buffer(name=f"cache.{port.name}", dtype=port.dtype, shape=shape, updated=True)
        )
    outputs = [output for i, output in enumerate(graph.outputs) if i not in caches.values()]
    made = Graph(
        inputs=tuple(graph.inputs[value] for value in kept),
        parameters=graph.parameters,
        buffers=(*graph.buffers, *buffers),
        nodes=tuple(
            moved(replace(node, op=_CACHE_SCATTER) if Ref(value) in written else node, move)
            for value, node in enumerate(graph.nodes, start=first)
        ),
        outputs=tuple(replace(output, ref=move(output.ref)) for output in outputs),
        symbols=tuple(replace(symbol, input=number[symbol.input]) for symbol in graph.symbols),
    )
    validate(made)
    return replace(
        traced,
        graph=made,
        types=tuple(types),
        # what a cache holds stays where it is
        by_rows=frozenset(
            move(ref) for ref in traced.by_rows if ref not in written and ref.value not in caches
        ),
        structure=None,
    )


def _check(traced: Traced, written: Mapping[Ref, int]) -> None:
    graph = traced.graph
    readers = Counter(ref.value for node in graph.nodes for ref in node_refs(node))
    measured = {symbol.input for symbol in graph.symbols}
    for ref, value in written.items():
        if readers[value] != 1 or value in measured or not _is_scattered(traced, ref, value):
            raise ModelError(
                f"{graph.inputs[value].name} is no cache: it must be read once, by a scatter "
                "whose result the next request gets."
            )


def _is_scattered(traced: Traced, ref: Ref, value: int) -> bool:
    """Whether `ref` is this input after a scatter, along another dimension than the rows."""
    position = ref.value - traced.graph.first_node
    if position < 0:
        return False
    node, rank = traced.graph.nodes[position], len(traced.type_of(ref).shape)
    return node.op == _SCATTER and node.args[0] == Ref(value) and int(str(node.args[1])) % rank != 0
