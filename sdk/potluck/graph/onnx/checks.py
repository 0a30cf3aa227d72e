"""What an ONNX file may hold, looked at before anything of it is read further or run.

Whoever made the file may wish harm: every tensor anywhere in it is looked at (initialisers, sparse
ones, attributes, graphs within graphs, functions), and every name has to mean one value.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import numpy_helper

from potluck.errors import ModelError
from potluck.sanitized_text import quoted
from potluck_wire.limits import MAX_DIMENSIONS
from potluck_wire.onnx_operators import OPERATORS
from potluck_wire.tensors import DTYPES

DOMAINS = ("", "ai.onnx")
FOR_PEOPLE = ("doc_string", "metadata_props", "producer_name", "producer_version")  # never read
MAX_DEPTH = 4  # of graphs within graphs; they are refused anyway, once looked at
NUMBERS = "biuf"  # the kinds of numpy's types that are numbers


def check(model: onnx.ModelProto) -> None:
    """Refuse a model that names a file, holds a tensor that is none, or uses what nothing gives.

    Raises
    ------
    ModelError
        Says what is wrong, and where.
    """
    _check_texts(model)
    for tensor in _tensors_of_model(model):
        array(tensor)
    for node in model.graph.node:
        _check_node(node)
    if model.functions or model.graph.sparse_initializer:
        raise ModelError("it has functions or sparse tensors of its own, which devices do not run.")
    for value in given(model.graph):
        _check_input(value)
    _check_names(model.graph)
    _check_dropout(model.graph)
    _check_batch_norm(model.graph)


def _check_texts(model: onnx.ModelProto) -> None:
    """Names and words are UTF-8: protobuf gives others as bytes."""
    messages: list[Any] = [model]
    while messages:
        for field, value in messages.pop().ListFields():
            if field.name in FOR_PEOPLE or field.type not in (
                field.TYPE_STRING,
                field.TYPE_MESSAGE,
            ):
                continue
            is_one = isinstance(value, str | bytes | Message)
            values = [value] if is_one else value
            if field.type == field.TYPE_MESSAGE:
                messages += values
            elif any(isinstance(text, bytes) for text in values):
                raise ModelError(
                    f"a {field.name} in it is no text in UTF-8.",
                    next_step="Export it again: torch.onnx.export(net, example, path).",
                )


def array(tensor: onnx.TensorProto) -> "np.ndarray[Any, Any]":
    """The numbers of a tensor, which takes no more memory than they have in the file.

    Raises
    ------
    ModelError
        They lie in another file, are no numbers, or are not as many as it says.
    """
    what = f"the tensor {quoted(tensor.name)}"
    if tensor.data_location != onnx.TensorProto.DEFAULT or tensor.external_data:
        raise ModelError(
            f"{what} lies in another file.", next_step="Save the model with its weights inside."
        )
    if len(tensor.dims) > MAX_DIMENSIONS or any(size < 0 for size in tensor.dims):
        _refuse_tensor(what, tensor, f"at most {MAX_DIMENSIONS} dimensions of zero or more")
    try:
        made = numpy_helper.to_array(tensor)
    except Exception:  # the package onnx promises no class
        _refuse_tensor(what, tensor, "as many numbers of a known type")
    if made.dtype.kind not in NUMBERS and made.dtype.name not in DTYPES:
        _refuse_tensor(what, tensor, "numbers")
    return made


def given(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """The inputs that a user gives: older files list the weights among them."""
    initial = {t.name for t in graph.initializer}
    return [value for value in graph.input if value.name not in initial]


def called(node: onnx.NodeProto) -> str:
    """What tells a node from others; many files give them no names."""
    return quoted(f"node {node.name}" if node.name else f"which gives {', '.join(node.output)}")


def _refuse_tensor(what: str, tensor: onnx.TensorProto, expected: str) -> NoReturn:
    dims = quoted(str(list(tensor.dims[: MAX_DIMENSIONS + 1])))
    raise ModelError(
        f"{what} of shape {dims} and type {tensor.data_type} does not hold: expected {expected}.",
        next_step="Export the model again.",
    ) from None


def _tensors_of_model(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from _tensors_of_graph(model.graph, 0)
    for function in model.functions:
        yield from _tensors_of_nodes(function.node, 0)
    for training in model.training_info:
        yield from _tensors_of_graph(training.initialization, 0)
        yield from _tensors_of_graph(training.algorithm, 0)


def _tensors_of_graph(graph: onnx.GraphProto, depth: int) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _tensors_of_nodes(graph.node, depth)


def _tensors_of_nodes(nodes: Iterable[onnx.NodeProto], depth: int) -> Iterator[onnx.TensorProto]:
    if depth > MAX_DEPTH:
        raise ModelError(f"it has graphs within graphs more than {MAX_DEPTH} deep.")
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            alone = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
            for sparse in (*alone, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _tensors_of_graph(graph, depth + 1)


def _check_node(node: onnx.NodeProto) -> None:
    if node.op_type not in OPERATORS or node.domain not in DOMAINS:
        raise ModelError(
            f"the operator {quoted(node.op_type)} is not on the devices' list ({called(node)}).",
            operator=node.op_type,
        )
    for attribute in node.attribute:
        if attribute.HasField("g") or attribute.graphs or attribute.ref_attr_name:
            raise ModelError(
                f"{quoted(node.op_type)} ({called(node)}) has a graph of its own, which devices "
                "do not run.",
                operator=node.op_type,
            )


def _check_input(value: onnx.ValueInfoProto) -> None:
    """Its type; `trace` looks at its dimensions."""
    kind = value.type.tensor_type
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    except (KeyError, ValueError, TypeError):
        dtype = f"type {kind.elem_type}"
    if dtype not in DTYPES:
        raise ModelError(
            f"the input {quoted(value.name)} is {dtype}; expected one of {', '.join(DTYPES)}."
        )
    if len(kind.shape.dim) > MAX_DIMENSIONS or any(d.dim_value < 0 for d in kind.shape.dim):
        raise ModelError(
            f"the input {quoted(value.name)} has {len(kind.shape.dim)} dimensions; expected at "
            f"most {MAX_DIMENSIONS}, each of zero or more."
        )


def _check_names(graph: onnx.GraphProto) -> None:
    """Every value is given once, before it is used."""
    inputs, weights = {v.name for v in given(graph)}, {t.name for t in graph.initializer}
    known = inputs | weights
    if len(inputs) < len(given(graph)) or len(weights) < len(graph.initializer) or "" in known:
        raise ModelError("two of its inputs or weights have one name, or one has none.")
    for node in graph.node:
        for name in node.input:
            if name and name not in known:
                raise ModelError(
                    f"{quoted(node.op_type)} ({called(node)}) uses {quoted(name)}, which nothing "
                    "before it gives."
                )
        for name in filter(None, node.output):
            if name in known:
                raise ModelError(f"the value {quoted(name)} is given twice ({called(node)}).")
            known.add(name)
    for value in graph.output:
        if value.name not in known - weights:
            raise ModelError(f"no node gives the output {quoted(value.name)}.")


def _check_dropout(graph: onnx.GraphProto) -> None:
    """What draws numbers is refused: answers would differ, and a small share shows in no trial."""
    constants = [(tensor.name, tensor) for tensor in graph.initializer]
    for node in graph.node:
        if (
            node.op_type == "Constant"
            and len(node.attribute) == 1
            and node.attribute[0].name == "value"
        ):
            constants.append((node.output[0], node.attribute[0].t))
    off = {name for name, tensor in constants if not array(tensor).any()}
    for node in graph.node:
        mode = node.input[2] if node.op_type == "Dropout" and len(node.input) > 2 else ""
        if mode and mode not in off:
            raise ModelError(
                f"Dropout ({called(node)}) is in training mode, and draws numbers.",
                operator=node.op_type,
                next_step="Export the model as it answers: after model.eval().",
            )


def _check_batch_norm(graph: onnx.GraphProto) -> None:
    """One that is training goes by all rows of a batch, and gives its statistics beside them."""
    for node in graph.node:
        if node.op_type != "BatchNormalization":
            continue
        modes = [each.i for each in node.attribute if each.name == "training_mode"]
        if any(modes) or len(node.output) > 1:
            raise ModelError(
                f"BatchNormalization ({called(node)}) is in training mode: it goes by the mean of "
                "all rows of a batch, and changes its statistics.",
                operator=node.op_type,
                next_step="Export the model as it answers: after model.eval().",
            )
