"""A piece of a traced torch model as an ONNX model without its weights, for devices that have
onnxruntime alone.

torch's own exporter writes the nodes: it traces the piece as it is carried out, operator by
operator. It is asked twice, for two numbers of rows, and must answer the same: then nothing of the
example has got into the model.
"""

import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch

from potluck.errors import ModelError
from potluck.graph.onnx.agreement import check_agreement
from potluck.graph.onnx.ports import port
from potluck.graph.torch.export_program import exporting
from potluck_wire.graph import (
    BATCH,
    FLOATS,
    OPERATIONS,
    Buffer,
    Dtype,
    Expression,
    Graph,
    Input,
    Parameter,
    Ref,
    Sym,
    evaluate,
)
from potluck_wire.onnx_operators import OPERATORS

OPSET = 20  # the first with Gelu; onnxruntime 1.19 runs it
ROWS = (2, 3)


class _Piece(torch.nn.Module):
    """The nodes of a graph, carried out so that torch's tracer sees where each size comes from."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._graph = graph

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Values of the outputs; `tensors` are the inputs, then the state."""
        graph, values = self._graph, list[Any](tensors)
        symbols = {
            s.name: _divided(tensors[s.input].shape[s.dim], s.multiple) for s in graph.symbols
        }
        for node in graph.nodes:
            args = [_resolved(argument, values, symbols) for argument in node.args]
            kwargs = {name: _resolved(argument, values, symbols) for name, argument in node.kwargs}
            values.append(
                _call(
                    node.op,
                    args,
                    kwargs,
                    sized=_has_size((*node.args, *(a for _, a in node.kwargs))),
                )
            )
        return tuple(_resolved(output.ref, values, symbols) for output in graph.outputs)


def _resolved(argument: Any, values: Sequence[Any], symbols: Mapping[str, Any]) -> Any:
    match argument:
        case Ref(value, None):
            return values[value]
        case Ref(value, item):
            return values[value][item]
        case Sym(expression):
            return _size(expression, symbols)
        case Dtype(name):
            return getattr(torch, name)
        case tuple():
            return [_resolved(item, values, symbols) for item in argument]
        case _:
            return argument


def _size(expression: Expression, symbols: Mapping[str, Any]) -> Any:
    """Like `evaluate`, over sizes that the tracer follows."""
    if isinstance(expression, int):
        return expression
    if isinstance(expression, str):
        return symbols[expression]
    return OPERATIONS[expression[0]][0]([_size(operand, symbols) for operand in expression[1:]])


def _divided(size: Any, by: int) -> Any:
    return size if by == 1 else size // by


def _has_size(argument: Any) -> bool:
    return isinstance(argument, Sym) or (
        isinstance(argument, tuple) and any(map(_has_size, argument))
    )


def _call(op: str, args: list[Any], kwargs: dict[str, Any], *, sized: bool) -> Any:
    """The operator itself; where a size is among the arguments its method, as the tracer follows
    sizes only there.
    """
    _, name, overload = op.split(".")
    down = name == "floor_divide" or (name == "div" and kwargs.get("rounding_mode") == "floor")
    if down or name == "remainder":
        quotient, rest = _rounded_down(*args)
        return quotient if down else rest
    if not sized:
        return getattr(getattr(torch.ops.aten, name), overload)(*args, **kwargs)
    if name == "slice":
        value, dim, *bounds = args
        return value[(*[slice(None)] * dim, slice(*bounds))]
    function = getattr(torch.Tensor, name, None) if isinstance(args[0], torch.Tensor) else None
    return (function or getattr(torch, name))(*args, **kwargs)


def _rounded_down(a: Any, b: Any) -> tuple[Any, Any]:
    """A quotient rounded down, and the rest. Of floats as torch makes them, of the exact rest: the
    exporter rounds a quotient that was rounded before, and some towards zero.
    """
    if not isinstance(a, torch.Tensor) or not torch.result_type(a, b).is_floating_point:
        return torch.div(a, b, rounding_mode="floor"), torch.remainder(a, b)
    toward_zero = torch.fmod(a, b)
    turned = (toward_zero != 0) & ((toward_zero < 0) != (torch.as_tensor(b) < 0))
    rest = torch.where(turned, toward_zero + b, toward_zero)
    exact = ((a - rest) / b).round()
    return torch.where(torch.as_tensor(b) == 0, a / b, exact), rest


def document(graph: Graph, tensors: Mapping[str, torch.Tensor]) -> bytes:
    """The ONNX model of a graph whose state is among `tensors`.

    What it takes, gives and holds has the same names.

    Raises
    ------
    ModelError
        Where ONNX on devices does not have an operator or an element type, or computes something
        else; or a size beside the batch changes.
    """
    _check(graph)
    states = _states(graph)
    weights = [tensors[item.name].detach() for item in states]
    first, second = (_exported(graph, rows, weights) for rows in ROWS)
    if first != second:
        raise ModelError(
            "as ONNX a piece of it would do something else for another number of rows."
        )
    for node in first.graph.node:
        if node.op_type not in OPERATORS or node.domain:
            raise ModelError(
                f"the ONNX operator {node.op_type} is not on the devices' list.",
                operator=node.op_type,
            )
    first.graph.name = "segment"
    first.graph.input.extend(port(p.name, p.dtype, p.shape) for p in graph.inputs)
    first.graph.output.extend(port(p.name, p.dtype, p.shape) for p in graph.outputs)
    check_agreement(first, graph, states, weights, _Piece(graph))
    first.graph.initializer.extend(
        onnx.TensorProto(
            name=item.name,
            data_type=onnx.helper.np_dtype_to_tensor_dtype(np.dtype(item.dtype)),
            dims=item.shape,
        )
        for item in states
    )
    return bytes(first.SerializeToString())


def _states(graph: Graph) -> tuple[Parameter | Buffer, ...]:
    return (*graph.parameters, *graph.buffers)


def _check(graph: Graph) -> None:
    for symbol in graph.symbols:
        if symbol.name != BATCH:
            raise ModelError(
                f"its {symbol.name} changes its length, and ONNX pieces know the batch alone.",
                next_step="Make the model without sequence_dims.",
            )
    dtypes = [port.dtype for port in graph.inputs] + [port.dtype for port in graph.outputs]
    dtypes += [item.dtype for item in _states(graph)]
    given = [a for node in graph.nodes for a in (*node.args, *(value for _, value in node.kwargs))]
    dtypes += [argument.name for argument in given if isinstance(argument, Dtype)]
    if "bfloat16" in dtypes:
        raise ModelError("it computes with bfloat16, which onnxruntime does not.")


def _exported(graph: Graph, rows: int, weights: Sequence[torch.Tensor]) -> onnx.ModelProto:
    """The nodes as torch exports them for an example of so many rows, with our names, and no shape
    of any value.
    """
    inputs = [_example(port, rows) for port in graph.inputs]
    taken = [port.name for port in graph.inputs] + [item.name for item in _states(graph)]
    given = [output.name for output in graph.outputs]
    names = {f"taken{i}": name for i, name in enumerate(taken)} | {
        f"given{i}": name for i, name in enumerate(given)
    }
    axes = {
        f"taken{i}": {
            dim: f"free{i}_{dim}" for dim, size in enumerate(p.shape) if not isinstance(size, int)
        }
        for i, p in enumerate(graph.inputs)
    }
    with exporting, warnings.catch_warnings():
        # this exporter is called old; the new one needs a package more, and seconds
        warnings.simplefilter("ignore")
        written = io.BytesIO()
        try:
            torch.onnx.export(
                _Piece(graph),
                (*inputs, *weights),
                written,  # type: ignore[arg-type]  # it takes files that are open
                dynamo=False,
                opset_version=OPSET,
                do_constant_folding=False,
                input_names=[f"taken{i}" for i in range(len(taken))],
                output_names=[f"given{i}" for i in range(len(given))],
                dynamic_axes=axes,
            )
        except Exception as error:  # it raises whatever it comes across
            raise ModelError(
                f"torch cannot write a piece of it as ONNX: {str(error).strip()[:240]}"
            ) from error
    model: onnx.ModelProto = onnx.ModelProto.FromString(written.getvalue())
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        node.doc_string = ""
    # by this piece, unchanged
    passed = [node for node in model.graph.node if list(node.input) == list(node.output)]
    for node in passed:
        model.graph.node.remove(node)
    del model.graph.input[:], model.graph.output[:], model.graph.value_info[:]
    return model


def _example(port: Input, rows: int) -> torch.Tensor:
    """Made-up values; ones are valid as indices, types and masks."""
    shape = [evaluate(size, {BATCH: rows}) for size in port.shape]
    dtype = getattr(torch, port.dtype)
    return torch.rand(shape).to(dtype) if port.dtype in FLOATS else torch.ones(shape, dtype=dtype)
