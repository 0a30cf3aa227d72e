"""An ONNX model seen as a traced graph, so that it is cut by the same rules as a torch module.

It is run by onnxruntime on three, one and two rows of made-up inputs, every value watched: that
gives all types and shapes, and shows which values count rows. Its operators get the name of the
ATen operator that is most like them, for reckoning alone; what devices get is ONNX, cut by names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

from potluck.errors import ModelError
from potluck.graph.partition.outputs import check_outputs
from potluck.graph.traced import Traced, Type
from potluck_wire.graph import BATCH, Expression, Graph, Input, Node, Output, Parameter, Ref, Symbol
from potluck_wire.onnx_operators import KIND_OF, OPERATORS

Array: TypeAlias = "np.ndarray[Any, Any]"

ROWS, PART = 3, 1
_TOLERANCE = 1e-3
_LIKE = {
    "convolution": "aten.conv2d.default",
    "product": "aten.matmul.default",
    "recurrent": "aten.tanh.default",
    "normalisation": "aten.layer_norm.default",
    "activation": "aten.gelu.default",
    "pooling": "aten.avg_pool2d.default",
    "shape": "aten.cat.default",
    "creation": "aten.full.default",
    "arithmetic": "aten.add.Tensor",
    "comparison": "aten.eq.Tensor",
    "reduction": "aten.sum.default",
}


@dataclass(frozen=True, slots=True)
class OnnxTrace:
    """The plain model (without anything private), and how it looks as a traced graph with the same
    names of values.

    `fixed`: what nodes give whatever the inputs are; `example`: made-up inputs and what comes out
    of them; `inputs`: what the file calls the inputs.
    """

    model: onnx.ModelProto
    traced: Traced
    types: Mapping[str, Type]
    fixed: Mapping[str, Array]
    example: Mapping[str, Array]
    inputs: tuple[str, ...]


def trace(model: onnx.ModelProto, sizes: Mapping[str, int]) -> OnnxTrace:
    """Raises ModelError for operators that no device runs, and where the batch is not the first
    dimension.
    """
    given, model = model.graph, _plain(model, sizes)
    graph, inputs = model.graph, tuple(value.name for value in _given(given))
    tensors = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    runs = _runs(model)
    kinds = {name: _type(name, runs) for name in runs[0]}
    kinds |= {
        name: Type(dtype=array.dtype.name, shape=array.shape) for name, array in tensors.items()
    }
    numbers: dict[str, Ref] = {}
    for name in (*(v.name for v in graph.input), *tensors):
        numbers[name] = Ref(len(numbers))
    types: list[tuple[Type, ...]] = [(kinds[name],) for name in numbers]
    first, nodes = len(numbers), []
    for i, node in enumerate(graph.node):
        several = len(node.output) > 1
        numbers |= {
            name: Ref(first + i, item if several else None)
            for item, name in enumerate(node.output)
            if name
        }
        missing = Type(dtype="float32", shape=())
        types.append(tuple(kinds.get(name, missing) for name in node.output))
        refs = tuple(numbers[name] for name in node.input if name)
        nodes.append(Node(number=i, op=_LIKE[KIND_OF[node.op_type]], args=refs))
    traced = Traced(
        graph=Graph(
            inputs=tuple(
                Input(name=v.name, dtype=kinds[v.name].dtype, shape=kinds[v.name].shape)
                for v in graph.input
            ),
            parameters=tuple(
                Parameter(name=name, dtype=kinds[name].dtype, shape=array.shape, trainable=False)
                for name, array in tensors.items()
            ),
            nodes=tuple(nodes),
            outputs=tuple(
                Output(
                    name=v.name,
                    ref=numbers[v.name],
                    dtype=kinds[v.name].dtype,
                    shape=kinds[v.name].shape,
                )
                for v in graph.output
            ),
            symbols=(Symbol(name=BATCH, input=0, dim=0),),
        ),
        types=tuple(types),
        by_rows=frozenset(
            numbers[name] for name in runs[0] if name in numbers and _counts_rows(name, runs)
        ),
        tensors=tensors,
    )
    outputs = [value.name for value in given.output]
    check_outputs(traced, outputs, [f"{n.op_type}, {_called(n)}" for n in given.node])
    moving = varying(graph)
    return OnnxTrace(
        model=model,
        traced=traced,
        types=kinds,
        fixed={
            name: a
            for name, a in runs[0].items()
            if name not in moving and np.array_equal(a, runs[1][name])
        },
        example={value.name: runs[0][value.name] for value in (*graph.input, *graph.output)},
        inputs=inputs,
    )


def _given(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """The inputs that a user gives: older files list the weights among them."""
    initial = {t.name for t in graph.initializer}
    return [value for value in graph.input if value.name not in initial]


def _called(node: onnx.NodeProto) -> str:
    """What tells a node from others; many files give them no names."""
    return f"node {node.name}" if node.name else f"which gives {', '.join(node.output)}"


def varying(graph: onnx.GraphProto) -> frozenset[str]:
    """Values that depend on the data, not on the shapes of the inputs alone."""
    found = {value.name for value in graph.input}
    for node in graph.node:
        if node.op_type not in ("Shape", "Size") and found & set(node.input):
            found |= set(node.output)
    return frozenset(found)


def _plain(model: onnx.ModelProto, sizes: Mapping[str, int]) -> onnx.ModelProto:
    """A copy with plain names, fixed sizes but for the batch, and nothing beside the graph."""
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise ModelError(
                f"the tensor {tensor.name} lies in another file.",
                next_step="Save the model with its weights inside.",
            )
    for node in model.graph.node:
        if node.op_type not in OPERATORS or node.domain not in ("", "ai.onnx"):
            raise ModelError(
                f"the operator {node.op_type} is not on the devices' list ({_called(node)}).",
                operator=node.op_type,
            )
    if model.functions or model.graph.sparse_initializer:
        raise ModelError("it has functions or sparse tensors of its own, which devices do not run.")
    inputs = _given(model.graph)
    renamed = {v.name: f"input_{i}" if i else "input" for i, v in enumerate(inputs)}
    renamed |= {t.name: f"w{i}" for i, t in enumerate(model.graph.initializer)}
    first = len(renamed)
    for i, node in enumerate(model.graph.node):  # as `cuts` calls what crosses a cut
        several = len(node.output) > 1
        renamed |= {
            name: f"v{first + i}.{k}" if several else f"v{first + i}"
            for k, name in enumerate(node.output)
            if name
        }
    plain = onnx.ModelProto(ir_version=min(model.ir_version, 10))
    plain.opset_import.extend(o for o in model.opset_import if o.domain in ("", "ai.onnx"))
    plain.graph.name = "graph"
    for value in inputs:
        plain.graph.input.append(_fixed(value, renamed[value.name], sizes))
    for value in model.graph.output:
        element = value.type.tensor_type.elem_type
        plain.graph.output.append(
            onnx.helper.make_tensor_value_info(renamed[value.name], element, None)
        )
    for tensor in model.graph.initializer:
        plain.graph.initializer.append(
            numpy_helper.from_array(numpy_helper.to_array(tensor), renamed[tensor.name])
        )
    for node in model.graph.node:
        copy = plain.graph.node.add()
        copy.op_type = node.op_type
        copy.input.extend(renamed.get(name, name) for name in node.input)
        copy.output.extend(renamed.get(name, name) for name in node.output)
        copy.attribute.extend(node.attribute)
        for attribute in copy.attribute:
            attribute.doc_string = ""
    return plain


def _fixed(value: onnx.ValueInfoProto, name: str, sizes: Mapping[str, int]) -> onnx.ValueInfoProto:
    dims = value.type.tensor_type.shape.dim
    if not dims or dims[0].HasField("dim_value"):
        raise ModelError(
            f"the input {value.name} has no free first dimension.",
            next_step="Export it with a dynamic batch.",
        )
    shape: list[int | str] = [BATCH]
    for dim in dims[1:]:
        if not dim.HasField("dim_value") and dim.dim_param not in sizes:
            raise ModelError(
                f"the input {value.name} has the free dimension {dim.dim_param or '?'}.",
                next_step=f"Give its size: Model.from_onnx(path, sizes={{{dim.dim_param!r}: 16}}).",
            )
        shape.append(dim.dim_value if dim.HasField("dim_value") else sizes[dim.dim_param])
    return onnx.helper.make_tensor_value_info(name, value.type.tensor_type.elem_type, shape)


def _runs(model: onnx.ModelProto) -> tuple[dict[str, Array], ...]:
    """Every value, on three rows, on the first of them, and on the other two."""
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    del watched.graph.output[:]
    names = [name for node in model.graph.node for name in node.output if name]
    watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        data = watched.SerializeToString()
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        inputs = {v.name: _example(v, i) for i, v in enumerate(model.graph.input)}
        parts = [(0, ROWS), (0, PART), (PART, ROWS)]
        feeds = [
            {name: array[start:stop] for name, array in inputs.items()} for start, stop in parts
        ]
        return tuple(fed | dict(zip(names, session.run(names, fed), strict=True)) for fed in feeds)
    except Exception as error:  # onnxruntime's classes share no other base
        raise ModelError(
            f"onnxruntime cannot run it: {str(error).strip().splitlines()[0][:240]}"
        ) from error


def _example(value: onnx.ValueInfoProto, seed: int) -> Array:
    kind = value.type.tensor_type
    shape = [ROWS, *(dim.dim_value for dim in kind.shape.dim[1:])]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    rng = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.floating):
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)  # valid as tokens, types and masks


def _counts_rows(name: str, runs: tuple[dict[str, Array], ...]) -> bool:
    whole, first, second = (run[name] for run in runs)
    if whole.ndim == 0 or first.ndim == 0 or first.shape[0] == 0:
        return False
    k = first.shape[0]
    shapes = [(k * rows, *first.shape[1:]) for rows in (ROWS, PART, ROWS - PART)]
    if [whole.shape, first.shape, second.shape] != shapes:
        return False
    joined = np.concatenate([first, second]).astype(np.float64)
    scale = float(
        np.abs(np.nan_to_num(whole.astype(np.float64), posinf=0, neginf=0)).max(initial=0.0)
    )
    return bool(
        np.allclose(whole, joined, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True)
    )


def _type(name: str, runs: tuple[dict[str, Array], ...]) -> Type:
    three, one = runs[0][name], runs[1][name]
    shape: list[Expression] = []
    for many, single in zip(three.shape, one.shape, strict=True):
        if many == single:
            shape.append(int(single))
        elif many == ROWS * single:
            shape.append(BATCH if single == 1 else ("*", BATCH, int(single)))
        else:
            shape.append(("+", BATCH, BATCH))  # depends on the batch in another way: never at a cut
    return Type(dtype=three.dtype.name, shape=tuple(shape))
