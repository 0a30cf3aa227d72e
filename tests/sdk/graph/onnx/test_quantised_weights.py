"""Weights of eight bits, as quantisers write them: every cut answers as the whole file does."""

from itertools import pairwise

import numpy as np
import pytest
import torch

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from tests.sdk.graph.onnx_files import saved  # noqa: E402

from potluck.graph import Model  # noqa: E402
from potluck_agent.worker.arrays import torch_arrays  # noqa: E402
from potluck_agent.worker.onnx.segment import OnnxSegment  # noqa: E402

SCALES = {"of columns": ({"axis": 1}, (4,)), "of all": ({}, ())}


def quantised(dtype, attributes, shape):
    """Two layers whose weights are given in eight bits, with one scale for both."""
    draw = np.random.default_rng(0)
    zero = np.full(shape, 128 if dtype == np.uint8 else 0, dtype)
    weights = [draw.integers(-60, 60, (4, 4)) + int(zero.max()) for _ in range(2)]
    scale = draw.uniform(0.01, 0.05, shape).astype(np.float32)
    given = {"p": weights[0].astype(dtype), "q": weights[1].astype(dtype), "s": scale, "z": zero}
    nodes = [
        helper.make_node("DequantizeLinear", ["p", "s", "z"], ["a"], **attributes),
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["b"], **attributes),
        helper.make_node("MatMul", ["r", "b"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in given.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    first, last = ((w - float(zero.max())) * scale for w in weights)
    return model, lambda x: np.maximum(x @ first, 0) @ last


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize(("attributes", "shape"), SCALES.values(), ids=SCALES)
def test_a_cut_rounds_no_values_to_eight_bits(tmp_path, dtype, attributes, shape):
    onnx_model, exact = quantised(dtype, attributes, shape)
    model = Model.from_onnx(saved(tmp_path, onnx_model))
    x, n = torch.randn(3, 4), len(model.layers())
    state = model.state()
    for bounds in ((0, n), tuple(range(n + 1))):
        value = x
        for start, stop in pairwise(bounds):
            segment = OnnxSegment(model.document(start, stop), torch_arrays)
            for name in segment.names():
                segment.write(name, state[name])
            (value,) = segment.forward([value])
        assert np.allclose(value, exact(x.double().numpy()), rtol=1e-5, atol=1e-4), bounds
