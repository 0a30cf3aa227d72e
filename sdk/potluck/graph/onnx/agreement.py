"""Whether a piece of a torch model, written as ONNX, computes what torch does: torch's exporter
promises it, and keeps it for most operators.
"""

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx
import torch

from potluck.errors import ModelError
from potluck.graph.onnx.ports import port
from potluck_wire.graph import BATCH, FLOATS, Buffer, Graph, Parameter, evaluate

ROWS = 3
TOLERANCE = 1e-3
# of the entries of an output: where values jump, single ones may fall on either side
FEW_FRAC = 0.01

Tensors = Sequence[torch.Tensor]


def check_agreement(
    written: onnx.ModelProto,
    graph: Graph,
    states: Sequence[Parameter | Buffer],
    weights: Tensors,
    by_torch: Callable[..., Tensors],
) -> None:
    """Compare a piece with torch on made-up values, where onnxruntime is installed here.

    Parameters
    ----------
    written
        As torch's exporter wrote it, with the inputs and outputs of the graph.
    graph
        The piece.
    states, weights
        What it keeps, and their values.
    by_torch
        Called with inputs, then weights; gives the outputs.

    Raises
    ------
    ModelError
        onnxruntime cannot run it, or gives something else.
    """
    if find_spec("onnxruntime") is None:
        return
    fed = onnx.ModelProto()
    fed.CopyFrom(written)
    fed.graph.input.extend(port(item.name, item.dtype, item.shape) for item in states)
    kept = {item.name: _array(w) for item, w in zip(states, weights, strict=True)}
    names = [output.name for output in graph.outputs]
    wrong: list[str] = []
    n_draws = 0
    try:
        session = _session(fed)
        for inputs, expected in _draws(graph, weights, by_torch):
            taken = zip(graph.inputs, inputs, strict=True)
            given = session.run(names, kept | {p.name: _array(x) for p, x in taken})
            wrong += _first_wrong(names, given, expected)
            n_draws += 1
    except Exception as error:  # onnxruntime's classes share no other base
        text = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(f"onnxruntime cannot run a piece of it: {text[:240]}") from error
    if n_draws and len(wrong) == n_draws:
        operators = ", ".join(dict.fromkeys(node.op.split(".")[1] for node in graph.nodes))
        raise ModelError(
            f"as ONNX, a piece of it gives something else than torch (operators: "
            f"{operators[:200]}).",
            next_step="Devices with torch compute it.",
        )


def _draws(
    graph: Graph, weights: Tensors, by_torch: Callable[..., Tensors]
) -> Iterator[tuple[Tensors, Tensors]]:
    """Made-up inputs, and what torch makes of them; whole numbers are valid as indices or masks."""
    drawn = torch.Generator().manual_seed(0)
    for highest in (0, 1):
        inputs = []
        for item in graph.inputs:
            shape = [evaluate(size, {BATCH: ROWS}) for size in item.shape]
            dtype = getattr(torch, item.dtype)
            made = (
                torch.randn(shape, generator=drawn) * 2
                if item.dtype in FLOATS
                else 1 - torch.randint(0, highest + 1, shape, generator=drawn)
            )
            inputs.append(made.to(dtype))
        with torch.no_grad():
            yield inputs, by_torch(*inputs, *weights)


def _session(model: onnx.ModelProto) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _first_wrong(names: Sequence[str], given: Sequence[Any], expected: Tensors) -> list[str]:
    """The first output that is another one than torch's, if any."""
    for name, array, tensor in zip(names, given, expected, strict=True):
        wanted = _array(tensor)
        if array.shape != wanted.shape or array.dtype != wanted.dtype:
            return [name]
        got, wanted = array.astype(np.float64), wanted.astype(np.float64)
        scale = np.abs(np.nan_to_num(wanted, posinf=0, neginf=0)).max(initial=0.0)
        alike = np.isclose(got, wanted, TOLERANCE, TOLERANCE * scale, equal_nan=True)
        if alike.size and 1 - alike.mean() > FEW_FRAC:
            return [name]
    return []


def _array(tensor: torch.Tensor) -> "np.ndarray[Any, Any]":
    return np.ascontiguousarray(tensor.detach().numpy())
