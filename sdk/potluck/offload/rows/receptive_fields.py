"""Which rows of its inputs an operator needs for some rows of its output (Intra-DP, section IV-B).

Every value of a traced model that depends on the input is seen along one axis, its rows: height for
images, tokens for sequences. An operator is element-wise, block-wise (a window of rows:
convolution, pooling, padding), row-wise (each row by itself, but not each element: products,
normalisation over channels, attention over its queries) or global. What is not known here is
global, and so is whatever mixes rows. Pure: no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from potluck.graph.partition.cuts import Linearization
from potluck.graph.traced import Traced
from potluck.offload.rows.row_rules import RULES, AccessPattern, Found, OperatorView, shape_of
from potluck_wire.graph import BATCH, Ref

GLOBAL = "global"
CONSTANT = "constant"  # does not depend on the input: every device has it whole


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorLocality:
    """What an operator is. Its output has `count` rows along `axis` (None: it is one piece, one
    row).

    `reads` holds, for every value that it reads, the rows it needs; a value that is not in there it
    needs whole.
    """

    kind: str
    axis: int | None = None
    count: int = 1
    reads: Mapping[Ref, AccessPattern]

    @property
    def is_local(self) -> bool:
        """Whether some rows can be computed without the others."""
        return self.kind not in (GLOBAL, CONSTANT) and self.axis is not None and self.count > 1


def localities(line: Linearization) -> tuple[OperatorLocality, ...]:
    """What each node of a traced model is, in the order of the nodes, at the sizes of its
    example.
    """
    traced, graph = line.traced, line.traced.graph
    axes: dict[int, int | None] = {
        i: row_axis(shape_of(traced, Ref(i))) for i in range(len(graph.inputs))
    }
    found = []
    for position, node in enumerate(graph.nodes):
        value = graph.first_node + position
        shape = shape_of(traced, Ref(value))
        if value not in line.place:
            found.append(OperatorLocality(kind=CONSTANT, reads={}))
            continue
        view = OperatorView(traced, node, shape, axes)
        rule = RULES.get(node.op)
        answer = rule(view) if rule else None
        if answer is None or not all(
            _regular(traced, ref, answer) for ref in _items(traced, value)
        ):
            axis = row_axis(shape) if len(traced.types[value]) == 1 else None
            if axis is not None and BATCH in str(traced.type_of(Ref(value)).shape[axis]):
                axis = None  # rows of the batch, of which a request may have others
            local = OperatorLocality(
                kind=GLOBAL, axis=axis, count=1 if axis is None else shape[axis], reads={}
            )
        else:
            kind, axis, reads = answer
            local = OperatorLocality(kind=kind, axis=axis, count=shape[axis], reads=reads)
        axes[value] = local.axis
        found.append(local)
    return tuple(found)


def row_axis(shape: tuple[int, ...]) -> int | None:
    """The axis along which a tensor of that shape is cut: height of images, tokens of sequences.

    None: it has none.
    """
    axis = {3: 1, 4: 2, 5: 2}.get(len(shape))
    return axis if axis is not None and shape[axis] > 1 else None


def _items(traced: Traced, value: int) -> list[Ref]:
    n_items = len(traced.types[value])
    return [Ref(value)] if n_items == 1 else [Ref(value, item) for item in range(n_items)]


def _regular(traced: Traced, ref: Ref, answer: Found) -> bool:
    """Whether an item of the output has the axis that the rule found, with as many rows as the
    first item.
    """
    shape, first = shape_of(traced, ref), shape_of(traced, Ref(ref.value))
    axis = answer[1]
    return (
        0 < axis < len(shape)
        and shape[axis] == first[axis]
        and BATCH not in str(traced.type_of(ref).shape[axis])
    )
