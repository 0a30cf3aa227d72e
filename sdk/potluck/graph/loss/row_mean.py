"""Whether a loss is a mean over the rows of a batch, derived from its graph. Pure: no torch.

Potluck divides the rows among devices, and adds up what they make of their shares. That is what one
machine makes of all rows where the loss is a mean over rows, and nowhere else. So each value is
followed from the inputs to the loss.
"""

from dataclasses import dataclass, field

from potluck.errors import ModelError
from potluck.graph.loss.dependence import (
    FREE,
    MEAN,
    NUMBER,
    NUMBERS,
    PAIRS,
    ROWS,
    Dependence,
    DependenceKind,
    RowsMixed,
)
from potluck.graph.loss.dependence_rules import RULES
from potluck.graph.loss.node_view import NodeView, degree, outer_of, row_axes, shape_at
from potluck.graph.partition.outputs import OR_WHOLE
from potluck.graph.traced import Traced
from potluck_wire.graph import Node, Ref, Shape, Sym, node_refs
from potluck_wire.operators import KIND_OF

NEXT_STEP = (
    'Take the mean, as reduction="mean" does. What is divided by may come from all rows of the '
    "targets, if it does not "
    "depend on the output. One that compares rows is trained on whole batches: "
    "from_torch(..., compares_rows=True)."
)
_LIKE = (
    "aten.expand_as.default",
    "aten.view_as.default",
    "aten.reshape_as.default",
    "aten.type_as.default",
)
_OF_OTHER_ROWS = (DependenceKind.MIXED, DependenceKind.LINEAR)
_INDEX = "aten.index.Tensor"  # takes rows by their numbers
_FILLS = ("aten.fill.Scalar", "aten.fill.Tensor")


@dataclass(slots=True)
class RowDependence:
    """How each value depends on the rows.

    `assumed`: operators of which only trials say that they keep rows apart.
    """

    known: dict[Ref, Dependence] = field(default_factory=dict)
    assumed: dict[Ref, str] = field(default_factory=dict)

    @property
    def first_assumed(self) -> str:
        """The first operator of which only trials say so; empty: there is none."""
        return next(iter(self.assumed.values()), "")

    def in_order(self, refs: frozenset[Ref]) -> frozenset[Ref]:
        """Those of the values that hold the rows of any batch one after the other, if they do not
        mix them.

        That some rows are so may be chance, as where all are zero.
        """
        found = {ref: self.known[ref] for ref in refs}
        return frozenset(
            ref
            for ref, value in found.items()
            if value.kind == DependenceKind.MIXED or (value.degree, value.outer) == (0, 1)
        )


def follow(traced: Traced) -> RowDependence:
    """How each value of a traced model depends on the rows of its batch."""
    graph, followed = traced.graph, RowDependence()
    given = len(traced.given)
    for value in range(graph.first_node):
        is_input = value < len(graph.inputs)
        # a reduction: the same in all rows
        followed.known[Ref(value)] = ROWS if is_input and value < given else FREE
    for position, node in enumerate(graph.nodes):
        value = graph.first_node + position
        module = traced.modules[position] if position < len(traced.modules) else ""
        where = f"{node.op}{f' in the module {module}' if module else ''}"
        n_items = len(traced.types[value])
        refs = [Ref(value)] if n_items == 1 else [Ref(value, item) for item in range(n_items)]
        found = _results(traced, node, refs, followed.known, where)
        for ref, dependence in zip(refs, found, strict=True):
            if (
                dependence.kind == DependenceKind.UNKNOWN
                and ref in traced.by_rows
                and not _reads_sums(node, followed.known)
            ):
                dependence = ROWS
                followed.assumed[ref] = where
            followed.known[ref] = dependence
            followed.known.setdefault(Ref(value, 0), dependence)  # the only part of a list
    return followed


def _reads_sums(node: Node, known: dict[Ref, Dependence]) -> bool:
    return any(
        known[ref].kind in (DependenceKind.SUM, DependenceKind.LINEAR) for ref in _read(node)
    )


def _read(node: Node) -> list[Ref]:
    """The values of which a node reads more than their shape."""
    if KIND_OF.get(node.op) == "creation":
        return []
    read = list(node_refs(node))
    if node.op in _FILLS:
        return read[1:]
    return read[: 1 if node.op in _LIKE else None]


def _results(
    traced: Traced, node: Node, refs: list[Ref], known: dict[Ref, Dependence], where: str
) -> list[Dependence]:
    """How the results of one node depend on the rows."""
    read = [known[ref] for ref in _read(node)]
    for kind in (DependenceKind.MIXED, DependenceKind.UNKNOWN):
        for value in read:
            if value.kind == kind:
                return [value] * len(refs)
    look = NodeView(traced, node, tuple(traced.type_of(ref).shape for ref in refs), known)
    unknown, rule = Dependence(DependenceKind.UNKNOWN, why=where), RULES.get(node.op)
    numbered = any(value.kind == DependenceKind.COUNT for value in read)
    try:
        if numbered and node.op != _INDEX and not look.keeps_places:
            raise RowsMixed(NUMBERS)
        found = rule(look) if rule else None
        if found is None and look.without_rows:
            found = FREE
        each = found if isinstance(found, list) else [found or unknown] * len(refs)
        return [
            _checked(value, shape, unknown) for value, shape in zip(each, look.shapes, strict=True)
        ]
    except RowsMixed as mixes:
        return [Dependence(DependenceKind.MIXED, why=f"{where} {mixes}")] * len(refs)


def _checked(value: Dependence, shape: Shape, unknown: Dependence) -> Dependence:
    """The dependence found, if a value of such a shape can have it."""
    axes = row_axes(shape)
    if value.kind == DependenceKind.UNKNOWN:
        return value
    if not axes:
        return value if value.kind in (DependenceKind.FREE, DependenceKind.SUM) else unknown
    if len(axes) > 1:
        raise RowsMixed(PAIRS)
    fits = value.kind != DependenceKind.SUM and outer_of(shape_at(shape), axes[0], value.outer)
    if (fits or value.kind == DependenceKind.FREE) and degree(Sym(shape[axes[0]])) != 1:
        raise RowsMixed(NUMBER)
    return value if fits else unknown


def check_loss(traced: Traced) -> tuple[str, bool]:
    """The operator because of which it is not proven that the loss is a mean over rows, and whether
    it is a sum over them instead, which is always proven.

    Empty where it is proven.

    Raises ModelError where it is neither, and names the operator that mixes rows.
    """
    followed = follow(traced)
    loss = followed.known[traced.graph.outputs[0].ref]
    if loss.kind == DependenceKind.UNKNOWN:
        return loss.why, False
    if loss.kind == DependenceKind.MIXED:
        text = loss.why
    elif loss in (FREE, MEAN):
        return followed.first_assumed, False
    elif loss == MEAN.times(1):
        if not followed.assumed:
            return "", True
        text = f"it is a sum over them, as far as {followed.first_assumed} keeps them apart"
    else:
        text = "it changes with the number of rows"
    raise ModelError(f"the loss is no mean over rows: {text}.", next_step=NEXT_STEP)


def check_apart(traced: Traced) -> str:
    """The operator because of which it is not proven that each row is answered by itself.

    Empty where it is proven. Raises ModelError for an output that holds something of other rows,
    and names the operator that mixes them.
    """
    followed = follow(traced)
    for output in traced.graph.outputs:
        found = followed.known[output.ref]
        if found.kind in _OF_OTHER_ROWS:
            since = found.why or "a sum over all rows is added to each"
            raise ModelError(
                f"{output.name} does not hold one result for each row of the batch: {since}.",
                next_step=OR_WHOLE,
            )
    return followed.first_assumed


def mixes_rows(traced: Traced) -> bool:
    """Whether an output holds something of other rows, or nobody has proven that none does."""
    followed = follow(traced)
    return bool(followed.first_assumed) or any(
        output.ref not in traced.by_rows or followed.known[output.ref].kind in _OF_OTHER_ROWS
        for output in traced.graph.outputs
    )
