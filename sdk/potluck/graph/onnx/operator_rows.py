"""Whether each operator of an ONNX model works row by row, tried on numbers of its own.

In a run of the whole model an operator sees what those before it gave, and that may hide what it
does: `CumSum` over rows of zeros is zero. So the model is run once more with every value that
counts rows replaced, where it is used, by made-up numbers.
"""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper

from potluck.errors import ModelError
from potluck.graph.onnx.trial_run import ROWS, TrialValue, run_apart
from potluck_wire.onnx_operators import KIND_OF

# those of these kinds work row by row wherever their shapes have rows, but for the named ones
_SAFE_KINDS = (
    *("convolution", "product", "activation", "pooling"),
    *("comparison", "arithmetic", "reduction"),
)
_MAY_MIX = ("CumSum", "Einsum", "LogSoftmax", "Resize", "Softmax", "Upsample")
_SAFE = {"BatchNormalization", "Constant", "Dropout", "Flatten", "Identity", "Reshape", "Shape"} | {
    name for name, kind in KIND_OF.items() if kind in _SAFE_KINDS and name not in _MAY_MIX
}


def mixed_by_one_operator(model: onnx.ModelProto, by_rows: Mapping[str, TrialValue]) -> set[str]:
    """Values that one operator makes of several rows though a run of the whole does not show it.

    Nothing is found where made-up numbers are none that the operators take (indices past the end).

    Parameters
    ----------
    model
        With a free first dimension in all inputs.
    by_rows
        The values that count rows in a run of the whole, its inputs among them.
    """
    if {node.op_type for node in model.graph.node} <= _SAFE:
        return set()
    apart = onnx.ModelProto()
    apart.CopyFrom(model)
    renamed = {name: f"{name}.alone" for name in by_rows}
    for node in apart.graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = renamed.get(name, name)
    del apart.graph.input[:], apart.graph.output[:]
    watched = [name for node in model.graph.node for name in node.output if name in by_rows]
    inputs = []
    for name, seen in by_rows.items():
        element = helper.np_dtype_to_tensor_dtype(np.dtype(seen.dtype))
        shape = seen.shapes[0]
        inputs.append((renamed[name], seen.dtype, (shape[0] // ROWS, *shape[1:])))
        apart.graph.input.append(
            helper.make_tensor_value_info(renamed[name], element, [None, *shape[1:]])
        )
    apart.graph.output.extend(onnx.ValueInfoProto(name=name) for name in watched)
    try:
        alone = run_apart(apart.SerializeToString(), inputs, watched=watched)
    except ModelError:
        return set()
    return {name for name in watched if not alone.values[name].is_by_rows}
