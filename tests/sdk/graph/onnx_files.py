"""Small ONNX files for tests."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def small(node: onnx.NodeProto | None = None) -> onnx.ModelProto:
    """y = relu(x) + w, or another node in the place of the first."""
    nodes = [
        node or helper.make_node("Relu", ["x"], ["h"]),
        helper.make_node("Add", ["h", "w"], ["y"]),
    ]
    weight = numpy_helper.from_array(np.ones(4, np.float32), "w")
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def saved(tmp_path: Path, model: onnx.ModelProto) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path
