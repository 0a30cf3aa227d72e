"""An ONNX model as a torch module, so that it can be traced like any other, and its operators
divided by rows.

Weights become parameters and constants buffers; what only works out shapes is left out, as the
shapes are known from running it. On made-up inputs it has to answer as onnxruntime does, or it is
refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import torch

from potluck.errors import ModelError
from potluck.graph.onnx.operator_table import TABLE, Call
from potluck.graph.onnx.trace import Array, OnnxTrace, varying
from potluck.sanitized_text import quoted
from potluck_wire.graph import BATCH, Expression

# by the shape that comes out
_SIZED = frozenset({"Reshape", "Expand", "ConstantOfShape", "Resize", "Upsample"})
# of the largest output; the two sum in different orders, and fuse different operators
TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class _Step:
    """One node: the names of the tensors that it computes with, and of those that it gives."""

    call: Call
    takes: tuple[str, ...]
    gives: tuple[str, ...]


class OnnxNet(torch.nn.Module):
    """An ONNX model as a module of torch's operators.

    Raises
    ------
    ModelError
        Torch does not have an operator, or does not answer as onnxruntime.
    """

    def __init__(self, trace: OnnxTrace) -> None:
        super().__init__()
        graph = trace.model.graph
        opset = next(
            (o.version for o in trace.model.opset_import if o.domain in ("", "ai.onnx")), 1
        )
        self._inputs = [value.name for value in graph.input]
        self._outputs = [value.name for value in graph.output]
        self._shapes = {name: kind.shape for name, kind in trace.types.items()}
        known = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer} | dict(
            trace.fixed
        )
        moving = varying(graph)
        needed, steps = set(self._outputs), list[_Step]()
        for node in reversed(graph.node):
            if needed & set(node.output) - known.keys():
                steps.append(_step(node, opset, known, moving))
                needed |= set(steps[-1].takes)
        self._steps = steps[::-1]
        made = {*self._inputs, *(name for step in steps for name in step.gives)}
        weights = {t.name for t in graph.initializer}
        for name in sorted(needed - made):
            if name not in known:
                raise ModelError(
                    f"the value {quoted(name)} depends on the batch in a way that cannot be "
                    "followed."
                )
            self._hold(name, known[name], name in weights)
        self._check(trace)

    def forward(self, *inputs: torch.Tensor) -> Any:
        """The outputs, one tensor or a tuple."""
        values: dict[str, torch.Tensor] = dict(zip(self._inputs, inputs, strict=True))
        batch = inputs[0].shape[0]
        for step in self._steps:
            shapes = [_sized(self._shapes[name], batch) for name in step.gives]
            tensors = [
                values[name] if name in values else getattr(self, _attribute(name))
                for name in step.takes
            ]
            made = TABLE[step.call.op][1](replace(step.call, shapes=shapes), *tensors)
            values |= zip(step.gives, made if isinstance(made, tuple) else (made,), strict=True)
        results = tuple(
            values[n] if n in values else getattr(self, _attribute(n)) for n in self._outputs
        )
        return results if len(results) > 1 else results[0]

    def _hold(self, name: str, array: Array, weight: bool) -> None:
        tensor = torch.from_numpy(np.array(array))
        if weight and tensor.is_floating_point():
            self.register_parameter(
                _attribute(name), torch.nn.Parameter(tensor, requires_grad=False)
            )
        else:
            self.register_buffer(_attribute(name), tensor)

    def _check(self, trace: OnnxTrace) -> None:
        inputs = [torch.from_numpy(trace.example[name].copy()) for name in self._inputs]
        with torch.no_grad():
            made = self(*inputs)
        for name, got in zip(
            self._outputs, made if isinstance(made, tuple) else (made,), strict=True
        ):
            wanted = torch.from_numpy(trace.example[name].copy())
            same = (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
            off = (
                float((got.double() - wanted.double()).abs().max()) if same and got.numel() else 0.0
            )
            if not (
                same
                and off
                <= TOLERANCE
                * max(1.0, float(wanted.double().abs().max()) if wanted.numel() else 0.0)
            ):
                raise ModelError(
                    f"made of torch's operators it answers {got.dtype} of {list(got.shape)}, off "
                    f"by {off:.3g}; onnxruntime answers {wanted.dtype} of {list(wanted.shape)}."
                )


def _step(
    node: onnx.NodeProto, opset: int, known: Mapping[str, Array], moving: frozenset[str]
) -> _Step:
    if node.op_type not in TABLE:
        raise ModelError(
            f"the ONNX operator {quoted(node.op_type)} is not one that potluck knows in torch.",
            operator=node.op_type,
        )
    n_tensors = TABLE[node.op_type][0]
    attributes = {a.name: _value(a) for a in node.attribute}
    fixed = tuple(known.get(name) if name and name not in moving else None for name in node.input)
    for name, value in zip(node.input[n_tensors:], fixed[n_tensors:], strict=True):
        if name and value is None and node.op_type not in _SIZED:
            raise ModelError(
                f"the ONNX operator {quoted(node.op_type)} takes sizes that depend on the data or "
                "the batch.",
                operator=node.op_type,
            )
    takes = tuple(name for name in node.input[:n_tensors] if name)
    return _Step(
        Call(op=node.op_type, opset=opset, attributes=attributes, fixed=fixed, shapes=()),
        takes,
        tuple(name for name in node.output if name),
    )


def _value(attribute: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _sized(shape: tuple[Expression, ...], batch: Any) -> tuple[Any, ...]:
    """A shape at that batch, which torch.export may not know as a number."""
    return tuple(
        batch if size == BATCH else batch * size[2] if isinstance(size, tuple) else size
        for size in shape
    )


def _attribute(name: str) -> str:
    return name.replace(".", "_")
