"""Random masks and noise in a traced graph. A device draws those of a whole micro-batch and takes
its own rows, which it has in the first dimension; of what no row has a part in, all devices draw
the same.

So rows in another dimension are brought to the first one and back, and recurrent layers that drop
between them become layers with a dropout between them. What is neither is refused.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from potluck.errors import ModelError
from potluck.graph.partition.cuts import multiple, row_dim
from potluck.graph.torch import symbolic_sizes
from potluck.graph.traced import Type
from potluck_wire.graph import BATCH, Argument, Graph, Node, Ref, rowless, symbols_in
from potluck_wire.operators import KIND_OF

if TYPE_CHECKING:
    from potluck.graph.torch.convert import Converter

_DROPOUT = "aten.dropout.default"
_FEATURES = "aten.feature_dropout.default"  # of whole channels, which the second dimension counts


@dataclass(frozen=True, slots=True)
class Mask:
    """A mask that a node draws. `shown`: a value with the same rows that the user's program has."""

    value: int
    shown: Ref


def drawn(to: "Converter", node: Node, value: Any) -> Any:
    """What a random node gives, of nodes whose masks are of rows in the first dimension."""
    if KIND_OF[node.op] == "recurrent":
        return _layer_by_layer(to, node, value)
    dim = row_dim(symbolic_sizes.shape(value, to.symbols))
    known = KIND_OF[node.op] in ("random", "draw")
    if not known or not dim or (node.op == _FEATURES and dim > 1):
        made = to.add(node.op, node.args, dict(node.kwargs), value)
        to.masks.append(Mask(made.value, made))
        return made
    mask, back = _moved(to, node.op, node.args, dim, value)
    to.masks.append(Mask(mask, back))
    return back


def _moved(
    to: "Converter", op: str, args: tuple[Argument, ...], dim: int, value: Any
) -> tuple[int, Ref]:
    """A dropout, or noise, whose rows are in dimension `dim`: where it is drawn, and what that
    gives.
    """
    turned = value.transpose(0, dim)
    first = to.add("aten.transpose.int", (args[0], 0, dim), {}, turned)
    dropped = to.add(op, (first, *args[1:]), {}, turned)
    return dropped.value, to.add("aten.transpose.int", (dropped, 0, dim), {}, value)


def _layer_by_layer(to: "Converter", node: Node, value: Any) -> tuple[Ref, ...]:
    """Recurrent layers one after the other, with a dropout between them."""
    x, states, weights, biased, n_layers, p, train, both, batch_first = node.args
    begins: Any = states if isinstance(states, tuple) else (states,)
    ways, n_weights = 2 if both else 1, len(weights) // n_layers  # type: ignore[arg-type, operator]
    lasts = [last[:ways] for last in value[1:]]
    made: list[Ref] = []
    for layer in range(n_layers):  # type: ignore[arg-type]
        if layer:
            x = _between(to, x, p, value[0], 0 if batch_first else 1, shown=node.args[0])
        own = tuple(
            to.add("aten.slice.Tensor", (begin, 0, layer * ways, (layer + 1) * ways), {}, last)
            for begin, last in zip(begins, lasts, strict=True)
        )
        begin = own if isinstance(states, tuple) else own[0]
        of_layer = weights[layer * n_weights : (layer + 1) * n_weights]  # type: ignore[index]
        args = (x, begin, of_layer, biased, 1, 0.0, train, both, batch_first)
        made.append(to.add(node.op, args, {}, (value[0], *lasts)))
        x = Ref(made[-1].value, 0)
    ends = (
        to.add("aten.cat.default", (tuple(Ref(ref.value, i) for ref in made), 0), {}, last)
        for i, last in enumerate(value[1:], start=1)
    )
    return (x, *ends)  # type: ignore[arg-type]


def _between(to: "Converter", x: Any, p: Argument, value: Any, dim: int, *, shown: Any) -> Ref:
    """A dropout between two recurrent layers."""
    if dim:
        mask, result = _moved(to, _DROPOUT, (x, p, True), dim, value)
    else:
        result = to.add(_DROPOUT, (x, p, True), {}, value)
        mask = result.value
    to.masks.append(Mask(mask, shown))
    return result


def check_masks(
    graph: Graph,
    masks: Sequence[Mask],
    types: Sequence[tuple[Type, ...]],
    rows: Collection[Ref],
    modules: Sequence[str],
) -> None:
    """Raise ModelError for a mask that replicas would draw otherwise than one device.

    `rows`: the values of which one dimension counts rows, one after the other.
    """
    without = rowless(graph)
    for mask in masks:
        position = mask.value - graph.first_node
        node, module = graph.nodes[position], modules[position]
        operands = node.args[:2] if KIND_OF[node.op] == "attention" else node.args[:1]
        known = [(ref, types[ref.value][ref.item or 0]) for ref in operands if isinstance(ref, Ref)]
        shared = not any(BATCH in symbols_in(size) for _, t in known for size in t.shape)
        if mask.value in without if shared else _by_rows(mask, known, rows):
            continue
        noise = KIND_OF[node.op] == "draw"
        raise ModelError(
            f"the {'noise' if noise else 'mask'} of {node.op.split('.')[1]}"
            f"{f' in the module {module}' if module else ''} "
            + (
                "is shared by all rows, and drawn of a value that is computed from them."
                if shared
                else "is of a value in which the rows do not lie one after the other in one "
                "dimension, so that it cannot be divided by rows."
            ),
            next_step=f"{'Draw as many as' if noise else 'Drop'} a value that is made of weights "
            "and constants alone, such as torch.ones(16); or give it rows, as in "
            "x.new_ones(x.shape[0], 16)."
            if shared
            else f"{'Draw' if noise else 'Drop'} before the rows are mixed with another dimension, "
            "or put them first: transpose(0, 1), or batch_first=True.",
        )


def _by_rows(mask: Mask, known: Sequence[tuple[Ref, Type]], rows: Collection[Ref]) -> bool:
    """Whether the first dimension of what is masked counts rows."""
    if len(known) == 1:
        return mask.shown in rows and bool(multiple(known[0][1].shape))
    max_dims = max(len(t.shape) for _, t in known)
    counted = [(ref, t) for ref, t in known if any(BATCH in symbols_in(s) for s in t.shape)]
    return any(len(t.shape) == max_dims for _, t in counted) and all(
        ref in rows and bool(multiple(t.shape)) for ref, t in counted
    )
