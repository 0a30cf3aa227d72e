"""Which values of an ONNX model are made of the number of rows in its batch: a micro-batch has
another one, and each row would get another answer in it.

Sizes are there for shapes: `Reshape` and `Expand` read them. Where one becomes a number to compute
with, a trial on three rows may show nothing of it: a hundred-thousandth of the size is little, and
a hundredth of it, rounded down, is nothing. So they are followed through the graph.
"""

from collections.abc import Collection, Mapping

import onnx

from potluck.graph.onnx.trial_run import TrialValue

# the inputs that are numbers to compute with, where it is not all of them; others are shapes,
# or say which part is taken
_NUMBERS_OF = {
    **dict.fromkeys(("Reshape", "Expand", "Tile", "Squeeze", "Unsqueeze", "Slice", "Split"), (0,)),
    **dict.fromkeys(("Gather", "GatherElements", "GatherND", "TopK", "Trilu", "CumSum"), (0,)),
    **dict.fromkeys(("Resize", "Upsample", "CastLike"), (0,)),
    **dict.fromkeys(("ConstantOfShape", "EyeLike"), ()),
    "Pad": (0, 2),
    "OneHot": (0, 2),
}
_GATHERS = ("Gather", "GatherElements", "GatherND")
# what they give depends on those other inputs, not its shape alone
_TAKES_PART = {*_GATHERS, "Slice", "Split", "TopK", "Trilu", "CumSum", "Pad", "Resize", "Upsample"}
# each number that they give is one that they get
_HANDS_ON = {*_GATHERS, "Slice", "Split", "Squeeze", "Unsqueeze", "Reshape", "Flatten"} | {
    *("Transpose", "Concat", "Identity", "Cast", "Expand", "Tile")
}


def made_of_batch_size(
    graph: onnx.GraphProto,
    values: Mapping[str, TrialValue],
    moving: Collection[str],
    still: Collection[str],
) -> frozenset[str]:
    """Values whose numbers depend on how many rows there are, or on which of them a row is.

    Parameters
    ----------
    graph
        With a free first dimension in all inputs.
    values
        What was seen of each in a run of the whole.
    moving
        Those that depend on the data.
    still
        Those others that were the same at any number of rows.
    """
    sizes, made = set[str](), set[str]()  # sizes as they are; what is computed of them

    def is_resized(name: str) -> bool:
        return name in values and len({*values[name].shapes}) > 1

    for node in graph.node:
        given = {name for name in node.output if name in values}
        changing = given - {*still}
        numbers = {name for i, name in enumerate(node.input) if _is_number(node, i)}
        others = {*node.input} - numbers
        if node.op_type in ("Shape", "Size"):
            if is_resized(node.input[0]):
                (sizes if node.op_type == "Shape" else made).update(changing)
        elif numbers & made:
            made |= given
        elif numbers & sizes:
            if node.op_type in _HANDS_ON and not given & {*moving}:
                sizes |= changing  # none where it is the size of something else than the batch
            else:
                made |= given
        elif node.op_type in _TAKES_PART and others & (sizes | made):
            # a place for each row, in the data, is judged by what was seen; so is the batch's end
            is_seen = numbers & {*moving} and (
                not others & made or (node.op_type in _GATHERS and is_resized(node.input[1]))
            )
            if not is_seen:
                made |= given if others & made else changing
        else:
            # not of the data, and neither the same for all batches nor by rows
            made |= {n for n in changing - {*moving} if values[n].rows_dim is None}
    return frozenset(sizes | made)


def _is_number(node: onnx.NodeProto, place: int) -> bool:
    if node.op_type.startswith("Reduce"):
        return place == 0  # then, along which dimensions
    return place in _NUMBERS_OF.get(node.op_type, range(len(node.input)))
