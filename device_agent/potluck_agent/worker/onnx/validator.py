"""Whether an ONNX model may be given to onnxruntime: it names no file, no code, no loop, and is
small enough.

onnxruntime follows external data even out of models that come as bytes, so every tensor anywhere in
the model is looked at: initialisers, sparse ones, attributes, subgraphs, functions.
"""

import math
from collections.abc import Iterator

import onnx
from google.protobuf.message import DecodeError

from potluck_wire.graph import SegmentError
from potluck_wire.onnx_operators import OPERATORS

MAX_NODES = 20_000
MAX_BYTES = 8 << 20  # one buffer of the wire; weights are written afterwards
MAX_ELEMENTS = 2**40
MAX_DEPTH = 4  # of graphs within graphs; they are refused anyway, once looked at
DOMAINS = frozenset({"", "ai.onnx"})
OPSETS = range(7, 26)


def validate(data: bytes) -> onnx.ModelProto:
    """The model of a document. Raises SegmentError that says what is wrong."""
    if len(data) > MAX_BYTES:
        raise SegmentError(
            "document", f"the model has {len(data)} bytes; at most {MAX_BYTES} are read"
        )
    try:
        model: onnx.ModelProto = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise SegmentError("document", "not an ONNX model") from error
    if not model.HasField("graph") or not model.graph.output:
        raise SegmentError("document", "the model has no graph with outputs")
    for opset in model.opset_import:
        if opset.domain not in DOMAINS or opset.version not in OPSETS:
            raise SegmentError(
                "operator",
                f"operators of {opset.domain!r} version {opset.version} are not run"[:200],
            )
    if model.training_info:
        raise SegmentError("document", "the model has training information")
    _check_tensors(model)
    if model.functions:
        raise SegmentError("operator", "the model defines functions of its own")
    _check_nodes(model.graph)
    return model


def _check_tensors(model: onnx.ModelProto) -> None:
    for tensor in _tensors_of_graph(model.graph, 0):
        _check_tensor(tensor)
    for function in model.functions:
        for tensor in _tensors_of_nodes(function.node, 0):
            _check_tensor(tensor)


def _check_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_location != onnx.TensorProto.DEFAULT or tensor.external_data:
        raise SegmentError("document", f"the tensor {tensor.name!r} lies in another file"[:200])
    if (
        any(size < 0 for size in tensor.dims)
        or math.prod(max(size, 1) for size in tensor.dims) > MAX_ELEMENTS  # beside a zero too
    ):
        raise SegmentError(
            "document", f"the tensor {tensor.name!r} has the shape {list(tensor.dims)}"[:200]
        )


def _tensors_of_graph(graph: onnx.GraphProto, depth: int) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _tensors_of_nodes(graph.node, depth)


def _tensors_of_nodes(nodes: "Iterator[onnx.NodeProto]", depth: int) -> Iterator[onnx.TensorProto]:
    if depth > MAX_DEPTH:
        raise SegmentError("document", "graphs within graphs within graphs")
    for node in nodes:
        for attribute in node.attribute:
            yield attribute.t
            yield from attribute.tensors
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            for graph in (attribute.g, *attribute.graphs):
                yield from _tensors_of_graph(graph, depth + 1)


def _check_nodes(graph: onnx.GraphProto) -> None:
    if len(graph.node) > MAX_NODES:
        raise SegmentError(
            "document", f"the model has {len(graph.node)} nodes; at most {MAX_NODES} are run"
        )
    if graph.sparse_initializer:
        raise SegmentError("document", "sparse initialisers are not run")
    for position, node in enumerate(graph.node):
        where = f"node {position} ({node.op_type[:80]})"
        if node.domain not in DOMAINS or node.op_type not in OPERATORS:
            raise SegmentError(
                "operator", f"{where}: the operator is not on the list of this device"
            )
        for attribute in node.attribute:
            if attribute.HasField("g") or attribute.graphs:
                raise SegmentError("operator", f"{where}: a graph within a graph")
            if attribute.ref_attr_name:
                raise SegmentError("document", f"{where}: an attribute refers to a function's")
