"""An ONNX model seen as a traced graph, so that it is cut by the same rules as a torch module.

It is checked, and then run by onnxruntime on three, one and two rows of made-up inputs, in a
process of its own and with every value watched: that gives all types and shapes, and shows which
values count rows. Its operators get the name of the ATen operator that is most like them, for
reckoning alone; what devices get is ONNX, cut by names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import numpy_helper

from potluck.errors import ModelError
from potluck.graph.onnx.batch_size import made_of_batch_size
from potluck.graph.onnx.checks import array, called, check, given
from potluck.graph.onnx.operator_rows import mixed_by_one_operator
from potluck.graph.onnx.trial_run import ROWS, TrialRun, TrialValue, run_apart
from potluck.graph.partition.outputs import APART, check_outputs
from potluck.graph.traced import Traced, Type
from potluck.sanitized_text import quoted
from potluck_wire.graph import BATCH, Expression, Graph, Input, Node, Output, Parameter, Ref, Symbol
from potluck_wire.onnx_operators import KIND_OF

Array: TypeAlias = "np.ndarray[Any, Any]"

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
_STATIC = (
    "Quantise it by constant scales, as onnxruntime.quantization.quantize_static does; or take the "
    "model as it was before."
)
_UNSIZED = (
    "Leave out what is computed of the number of rows: a device computes some of them at a time."
)
# of how many inputs the numbers are read, where it is not all of them
_DATA_OF = {"Shape": 0, "Size": 0, "EyeLike": 0, "CastLike": 1}


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


def trace(
    model: onnx.ModelProto, sizes: Mapping[str, int], *, file: str = "the model"
) -> OnnxTrace:
    """The operators of an ONNX model, with the type of every value.

    Parameters
    ----------
    model
        The file, checked.
    sizes
        Of its dimensions with a name.
    file
        Its name, for errors.

    Raises
    ------
    ModelError
        No device runs an operator, or the batch is not the first dimension.
    """
    check(model)
    original, model = model.graph, _plain(model, sizes)
    graph, inputs = model.graph, tuple(value.name for value in given(original))
    tensors = {t.name: array(t) for t in graph.initializer}
    moving = varying(graph)
    run = _run(model, moving, file)
    sized = made_of_batch_size(graph, run.values, moving, run.still)
    kinds = {name: _type(seen) for name, seen in run.values.items()}
    kinds |= {name: Type(dtype=held.dtype.name, shape=held.shape) for name, held in tensors.items()}
    refs = _refs(graph, tensors)
    missing = Type(dtype="float32", shape=())
    traced = Traced(
        graph=_as_aten(graph, tensors, kinds, refs),
        types=(
            *((kinds[name],) for name in (*(value.name for value in graph.input), *tensors)),
            *(tuple(kinds.get(name, missing) for name in node.output) for node in graph.node),
        ),
        by_rows=frozenset(refs[name] for name in _by_rows(model, moving, run) - sized),
        tensors=tensors,
    )
    outputs = [quoted(value.name) for value in original.output]
    outs = [value.name for value in graph.output]
    dynamic = any(node.op_type == "DynamicQuantizeLinear" for node in original.node)
    check_outputs(
        traced,
        outputs,
        [f"{n.op_type}, {called(n)}" for n in original.node],
        next_step=_STATIC if dynamic else APART if not sized & {*outs} else _UNSIZED,
    )
    return OnnxTrace(
        model=model,
        traced=traced,
        types=kinds,
        fixed={name: value for name, value in run.still.items() if name not in sized},
        example=run.wanted,
        inputs=inputs,
    )


def _refs(graph: onnx.GraphProto, tensors: Mapping[str, Array]) -> dict[str, Ref]:
    """The value that each name stands for in the traced graph: inputs, weights, then what nodes
    give.
    """
    names = (*(value.name for value in graph.input), *tensors)
    refs = {name: Ref(number) for number, name in enumerate(names)}
    for number, node in enumerate(graph.node, start=len(refs)):
        several = len(node.output) > 1
        refs |= {
            name: Ref(number, item if several else None)
            for item, name in enumerate(node.output)
            if name
        }
    return refs


def _as_aten(
    graph: onnx.GraphProto,
    tensors: Mapping[str, Array],
    types: Mapping[str, Type],
    refs: Mapping[str, Ref],
) -> Graph:
    """The graph with operators of ATen, for reckoning alone."""

    def port(name: str) -> dict[str, Any]:
        return {"name": name, "dtype": types[name].dtype, "shape": types[name].shape}

    return Graph(
        inputs=tuple(Input(**port(value.name)) for value in graph.input),
        parameters=tuple(Parameter(**port(name), trainable=False) for name in tensors),
        nodes=tuple(
            Node(
                number=i,
                op=_LIKE[KIND_OF[node.op_type]],
                args=tuple(refs[name] for name in node.input if name),
            )
            for i, node in enumerate(graph.node)
        ),
        outputs=tuple(Output(**port(value.name), ref=refs[value.name]) for value in graph.output),
        symbols=(Symbol(name=BATCH, input=0, dim=0),),
    )


def varying(graph: onnx.GraphProto) -> frozenset[str]:
    """Values that depend on the data, not on the shapes of the inputs alone."""
    found = {value.name for value in graph.input}
    for node in graph.node:
        read = node.input[: _DATA_OF.get(node.op_type)]
        if found & set(read):
            found |= set(node.output)
    return frozenset(found)


def _by_rows(model: onnx.ModelProto, moving: frozenset[str], run: TrialRun) -> frozenset[str]:
    """Values that count rows. What is made of something that all rows have in common, such as the
    scale of `DynamicQuantizeLinear`, does not, however little a trial shows of it: what is made of
    the data and has a shape without rows, and what one operator mixes, as was seen or tried alone.
    """
    values = run.values
    mixed = {name for name in moving & values.keys() if len({*values[name].shapes}) == 1}
    with_rows = {n: v for n in moving if (v := values.get(n)) and v.rows_dim is not None}
    mixed |= mixed_by_one_operator(model, with_rows)
    for node in model.graph.node:
        if KIND_OF[node.op_type] != "shape" and {*node.input} & moving <= with_rows.keys() | mixed:
            mixed |= ({*node.output} & moving & values.keys()) - with_rows.keys()
    for node in model.graph.node:
        if mixed & {*node.input, *node.output}:
            mixed |= {*node.output}
    return frozenset(name for name in values.keys() - mixed if values[name].is_by_rows)


def _plain(model: onnx.ModelProto, sizes: Mapping[str, int]) -> onnx.ModelProto:
    """A copy with plain names, fixed sizes but for the batch, and nothing beside the graph."""
    inputs = given(model.graph)
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
        plain.graph.initializer.append(numpy_helper.from_array(array(tensor), renamed[tensor.name]))
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
            f"the input {quoted(value.name)} has no free first dimension.",
            next_step="Export it with a dynamic batch.",
        )
    shape: list[int | str] = [BATCH]
    for dim in dims[1:]:
        if not dim.HasField("dim_value") and dim.dim_param not in sizes:
            raise ModelError(
                f"the input {quoted(value.name)} has the free dimension "
                f"{quoted(dim.dim_param) or '?'}.",
                next_step=f"Give its size: Model.from_onnx(path, "
                f"sizes={{{quoted(dim.dim_param)!r}: 16}}).",
            )
        shape.append(dim.dim_value if dim.HasField("dim_value") else sizes[dim.dim_param])
    return onnx.helper.make_tensor_value_info(name, value.type.tensor_type.elem_type, shape)


def _run(model: onnx.ModelProto, moving: frozenset[str], file: str) -> TrialRun:
    """Every value, watched."""
    graph, watched = model.graph, onnx.ModelProto()
    watched.CopyFrom(model)
    del watched.graph.output[:]
    names = [name for node in graph.node for name in node.output if name]
    watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return run_apart(
        watched.SerializeToString(),
        [_sized(value) for value in graph.input],
        watched=names,
        still=[name for name in names if name not in moving],
        wanted=[*dict.fromkeys(value.name for value in (*graph.input, *graph.output))],
        file=file,
    )


def _sized(value: onnx.ValueInfoProto) -> tuple[str, str, tuple[int, ...], int]:
    kind = value.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
    return value.name, dtype.name, (1, *(dim.dim_value for dim in kind.shape.dim[1:])), 0


def _type(seen: TrialValue) -> Type:
    shape: list[Expression] = []
    for many, single in zip(*seen.shapes[:2], strict=True):
        if many == single:
            shape.append(int(single))
        elif many == ROWS * single:
            shape.append(BATCH if single == 1 else ("*", BATCH, int(single)))
        else:
            shape.append(("+", BATCH, BATCH))  # depends on the batch in another way: never at a cut
    return Type(dtype=seen.dtype, shape=tuple(shape))
