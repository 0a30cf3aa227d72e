"""The same model in half precision, with layers that hand on smaller values, or writing a text
token by token: what-if on its operators' costs. Pure.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from potluck.errors import UserError
from potluck.graph.modelgraph import ModelGraph, OperatorNode

ID_BYTES = 8  # a token on its way in is an int64
ITEM_BYTES = {"float32": 4, "float16": 2}
HALF, DECODE = "float16", "decode"
ROUNDED = {"bfloat16-links": 2, "int8-links": 4}  # so many times fewer bytes are handed on
SCALE_BYTES = 4  # of each row's tokens, as int8
FOR_ANSWERS_ONLY = frozenset({HALF, DECODE})  # nothing is trained so
_SIZES = ("parameter_bytes", "frozen_bytes", "output_bytes", "activation_bytes", "traffic_bytes")


def split(name: str) -> tuple[str, tuple[str, ...]]:
    """A model's name, and what is wanted of it: `qwen3-0.6b:float16:decode`."""
    words: list[str] = []
    while (head := name.rpartition(":"))[2] in (HALF, *ROUNDED, DECODE):
        name = head[0]
        words.insert(0, head[2])
    return name, tuple(words)


def of(graph: ModelGraph, words: Sequence[str], rows: int) -> ModelGraph:
    """The graph with what `words` say, in half precision first.

    Parameters
    ----------
    graph
        Of the library.
    words
        `float16`, `bfloat16-links` or `int8-links`, and `decode`.
    rows
        Texts that are written at a time.

    Raises
    ------
    UserError
        The model cannot be had so.
    """
    changes: dict[str, Callable[[ModelGraph], ModelGraph]] = {
        HALF: in_half,
        **{word: partial(handing_on_less, word=word) for word in ROUNDED},
        DECODE: lambda made: decoding(made, rows),
    }
    for word, change in changes.items():
        graph = change(graph) if word in words else graph
    return graph


def in_half(graph: ModelGraph) -> ModelGraph:
    """The model with weights and tensors in float16; what it is fed stays as it is.

    Raises
    ------
    UserError
        It is in half precision already, or in double.
    """
    if graph.dtype != "float32":
        raise UserError(f"{graph.name} is in {graph.dtype}; expected float32.")
    nodes = tuple(
        replace(node, **{size: -(-getattr(node, size) // 2) for size in _SIZES})
        for node in graph.nodes
    )
    return replace(graph, name=f"{graph.name}:{HALF}", nodes=nodes, dtype="float16")


def handing_on_less(graph: ModelGraph, word: str) -> ModelGraph:
    """The model whose layers hand on bfloat16 or int8: see `Model.rounded`.

    What it takes to convert is left out, and so are the scales of an image's channels. A value that
    several layers read is counted once.

    Parameters
    ----------
    graph
        The model as it is.
    word
        One of `ROUNDED`.

    Raises
    ------
    UserError
        It hands on smaller values already.
    """
    if graph.dtype != "float32" or split(graph.name)[1]:
        handed = graph.dtype if graph.dtype != "float32" else split(graph.name)[1][0]
        raise UserError(f"{graph.name} hands on {handed} already.")
    scales_bytes = SCALE_BYTES * (graph.sequence or 0) if word == "int8-links" else 0

    def handed_bytes(node: OperatorNode) -> int:
        less = -(-node.output_bytes // ROUNDED[word]) + scales_bytes
        return node.output_bytes if node.name in graph.outputs else min(node.output_bytes, less)

    nodes = tuple(replace(node, output_bytes=handed_bytes(node)) for node in graph.nodes)
    return replace(graph, name=f"{graph.name}:{word}", nodes=nodes)


def decoding(graph: ModelGraph, rows: int) -> ModelGraph:
    """The model while it writes: one new token a row, after a text as long as the model's.

    The keys and values of that text stay on the devices (in `buffer_bytes`) and are read for every
    token. What does not follow from the text, such as the encoder of a picture, has run before: its
    weights stay, beside the first operator.

    By hand: at 512 tokens, a linear layer of 4 MB of weights and 1 Gflop a row does 2 Mflop for a
    token, and reads its 4 MB again.

    Parameters
    ----------
    graph
        The model over a whole text at once.
    rows
        Texts at a time.

    Raises
    ------
    UserError
        The model has no text, or its output has no number for each of its tokens.
    """
    tokens = _tokens(graph)
    if tokens is None:
        raise UserError(
            f"{graph.name} does not write: its output has no number for each token of a text.",
            next_step="Leave out decoding; models that write are gpt2 and qwen3-0.6b, for example.",
        )
    by_name = {node.name: node for node in graph.nodes}
    text_bytes = ID_BYTES * (graph.sequence or 0)
    text = {item.name for item in graph.inputs if item.row_bytes == text_bytes}
    nodes: list[OperatorNode] = []
    idle_bytes = 0
    for node in graph.nodes:
        if text.isdisjoint(node.inputs):
            idle_bytes += node.parameter_bytes + node.buffer_bytes
            continue
        text.add(node.name)
        nodes.append(_next(node, text, tokens, _kept_bytes(node, by_name), rows))
        if node.name in graph.outputs and graph.tied and not node.parameter_bytes:
            table_bytes = node.forward_flop // (2 * tokens) * ITEM_BYTES[graph.dtype]
            nodes[-1] = replace(nodes[-1], traffic_bytes=nodes[-1].traffic_bytes + table_bytes)
    nodes[0] = replace(nodes[0], buffer_bytes=nodes[0].buffer_bytes + idle_bytes)
    inputs = tuple(replace(item, row_bytes=ID_BYTES) for item in graph.inputs if item.name in text)
    name = f"{graph.name}:{DECODE}"
    return replace(graph, name=name, nodes=tuple(nodes), inputs=inputs, sequence=1)


def _tokens(graph: ModelGraph) -> int | None:
    """The tokens that its last product sees, as from its flop by its weights; those of the text
    where its weights are another's. None: it does not write.
    """
    if not graph.sequence:
        return None
    head = next(node for node in graph.nodes if node.name == graph.outputs[0])
    if head.output_bytes < ITEM_BYTES[graph.dtype] * graph.sequence:
        return None
    weights = head.parameter_bytes // ITEM_BYTES[graph.dtype]
    return head.forward_flop // (2 * weights) if weights else graph.sequence


def _next(
    node: OperatorNode, text: Collection[str], tokens: int, kept_bytes: int, rows: int
) -> OperatorNode:
    """The operator on one token more, of the inputs that follow from the text."""
    return replace(
        node,
        inputs=tuple(name for name in node.inputs if name in text),
        forward_flop=-(-node.forward_flop // tokens),
        backward_flop=0,
        output_bytes=-(-node.output_bytes // tokens),
        activation_bytes=0,
        traffic_bytes=-(-node.traffic_bytes // tokens) + kept_bytes,
        buffer_bytes=node.buffer_bytes + rows * kept_bytes,
    )


def _kept_bytes(node: OperatorNode, by_name: Mapping[str, OperatorNode]) -> int:
    """Keys and values of a whole text, where this is an attention: all that it reads but the
    queries.
    """
    if node.kind != "attention":
        return 0
    read = [by_name[name] for name in node.inputs if name in by_name]
    if len(read) == 1:  # queries, keys and values in one
        return 2 * read[0].output_bytes // 3
    return sum(_source(one, by_name).output_bytes for one in read[1:3])


def _source(node: OperatorNode, by_name: Mapping[str, OperatorNode]) -> OperatorNode:
    """What was computed, before it was copied for several heads."""
    while node.forward_flop == 0 and len(node.inputs) == 1 and node.inputs[0] in by_name:
        node = by_name[node.inputs[0]]
    return node
