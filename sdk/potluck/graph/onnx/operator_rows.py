"""Whether each operator of an ONNX model works row by row, tried on numbers of its own.

In a run of the whole model an operator sees what those before it gave, and that may hide what it
does: `CumSum` over rows of zeros is zero. So operators are run once more with every value that
counts rows replaced, where it is used, by made-up numbers.
"""

from collections.abc import Collection, Mapping, Sequence

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
# of these kinds also where the rows are another dimension than the first
_SAFE_ANYWHERE = {"Constant", "Dropout", "Identity", "Shape"} | {
    name for name in _SAFE if KIND_OF[name] in ("activation", "comparison", "arithmetic")
}


def mixed_by_one_operator(
    model: onnx.ModelProto, with_rows: Mapping[str, TrialValue]
) -> frozenset[str]:
    """Values that one operator makes of several rows though a run of the whole does not show it.

    An operator that takes no made-up whole numbers (indices past the end) gets those of a run of
    the whole, and made-up numbers beside them. One that takes none of them is not judged.

    Parameters
    ----------
    model
        With a free first dimension in all inputs.
    with_rows
        The values that count rows in a run of the whole, in any one dimension; its inputs among
        them.
    """
    inner = {name for name, seen in with_rows.items() if not seen.is_by_rows}
    judged = [
        node
        for node in model.graph.node
        if node.op_type not in (_SAFE_ANYWHERE if inner & {*node.input} else _SAFE)
        and with_rows.keys() & {*node.output}
    ]
    return _mixed(model, judged, with_rows) if judged else frozenset()


def _mixed(
    model: onnx.ModelProto, judged: Sequence[onnx.NodeProto], with_rows: Mapping[str, TrialValue]
) -> frozenset[str]:
    """What these operators mix: tried together, and where one of them fails in halves."""
    try:
        return _mixed_together(model, judged, with_rows)
    except ModelError:
        if len(judged) > 1:
            half = len(judged) // 2
            return _mixed(model, judged[:half], with_rows) | _mixed(model, judged[half:], with_rows)
    made_up = {n: seen for n, seen in with_rows.items() if np.dtype(seen.dtype).kind == "f"}
    try:
        return _mixed_together(model, judged, with_rows, made_up)
    except ModelError:
        return frozenset()


def _mixed_together(
    model: onnx.ModelProto,
    judged: Sequence[onnx.NodeProto],
    with_rows: Mapping[str, TrialValue],
    made_up: Mapping[str, TrialValue] | None = None,
) -> frozenset[str]:
    """What operators mix where all values with rows are made up wherever they are used; or these
    alone, where the judged operators use them.

    Raises
    ------
    ModelError
        They cannot be run so.
    """
    watched = [name for node in judged for name in node.output if name in with_rows]
    own = None if made_up is None else {*watched}
    made_up = with_rows if made_up is None else made_up
    apart = _needed_for(model, watched, made_up.keys(), own)
    inputs = []
    replaced = {f"{name}.alone": seen for name, seen in made_up.items()}
    for name, seen in (
        *replaced.items(),
        *((v.name, with_rows[v.name]) for v in model.graph.input),
    ):
        dim, shape = seen.rows_dim, [*seen.shapes[0]]
        assert dim is not None  # it counts rows
        shape[dim] //= ROWS
        inputs.append((name, seen.dtype, tuple(shape), dim))
        element = helper.np_dtype_to_tensor_dtype(np.dtype(seen.dtype))
        free = [None if i == dim else size for i, size in enumerate(shape)]
        apart.graph.input.append(helper.make_tensor_value_info(name, element, free))
    apart.graph.output.extend(onnx.ValueInfoProto(name=name) for name in watched)
    alone = run_apart(apart.SerializeToString(), inputs, watched=watched)
    return frozenset(
        name for name in watched if alone.values[name].rows_dim != with_rows[name].rows_dim
    )


def _needed_for(
    model: onnx.ModelProto,
    watched: Sequence[str],
    made_up: Collection[str],
    own: Collection[str] | None,
) -> onnx.ModelProto:
    """What gives the watched values, where made-up ones are read under other names: by all nodes,
    or by those alone that give one of their `own`. Without inputs and outputs.
    """
    apart = onnx.ModelProto(ir_version=model.ir_version)
    apart.opset_import.extend(model.opset_import)
    apart.graph.name = model.graph.name
    needed, nodes = set(watched), []
    for node in reversed(model.graph.node):
        if not needed & {*node.output}:
            continue
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        reads = made_up if own is None or {*own} & {*node.output} else ()
        needed |= {*node.input} - {*reads}
        for place, name in enumerate(node.input):
            if name in reads:
                copy.input[place] = f"{name}.alone"
        nodes.append(copy)
    apart.graph.node.extend(reversed(nodes))
    apart.graph.initializer.extend(t for t in model.graph.initializer if t.name in needed)
    return apart
