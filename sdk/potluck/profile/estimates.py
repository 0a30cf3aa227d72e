"""How long each layer of a model should take on a device that is not here, from its data sheet by the roofline.

A layer counts as one operator of the kind that most of its arithmetic is, and a launch for each of its operators.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from potluck.graph.modelgraph import Node
from potluck.profile.library import DeviceSpec
from potluck.profile.roofline import LAUNCH_S, node_s
from potluck.records import Layer, LayerCost
from potluck_wire.operators import KIND_OF

# what the roofline calls it, the heaviest first
_KINDS = (
    ("convolution", "conv"),
    ("attention", "attention"),
    ("product", "matmul"),
    ("recurrent", "matmul"),
    ("embedding", "embedding"),
    ("normalisation", "norm"),
    ("pooling", "pool"),
)


def estimates(model: Any, spec: DeviceSpec, rows: Sequence[int], *, train: bool) -> tuple[LayerCost, ...]:
    """A cost table for each layer of `model` on `spec`, labelled as an estimate.

    Raises
    ------
    FileError
        Where the device's peak or bandwidth is not known.
    """
    found = []
    entering = sum(port.row_bytes for port in model.inputs(train))
    for index, layer in enumerate(model.layers(train)):
        _, graph = model.segment(index, index + 1, train=train)
        node = _as_node(layer, entering, [KIND_OF.get(node.op, "") for node in graph.nodes])
        launches_s = (spec.get("launch_s") or LAUNCH_S[spec.kind]) * max(len(graph.nodes) - 1, 0)
        times = [node_s(spec, node, count) for count in rows]
        found.append(
            LayerCost(
                rows=tuple(rows),
                forward_s=tuple(launches_s + forward_s for forward_s, _ in times),
                backward_s=tuple(2 * launches_s + backward_s for _, backward_s in times) if train else (),
                source="estimated",
            )
        )
        entering = layer.output_bytes
    return tuple(found)


def _as_node(layer: Layer, entering_bytes: int, kinds: Iterable[str]) -> Node:
    """The layer as one operator. What it keeps for its backward, it has written and read on the way."""
    there = set(kinds)
    return Node(
        name=layer.name,
        kind=next((name for kind, name in _KINDS if kind in there), "elementwise"),
        forward_flop=round(layer.forward_flop),
        backward_flop=round(layer.backward_flop),
        parameter_bytes=layer.parameter_bytes,
        traffic_bytes=entering_bytes + layer.output_bytes + 2 * layer.activation_bytes,
    )
