"""A loss whose gradient is larger than it is, for training in float16: small gradients would be
lost there. Pure of devices: the factor is part of the graph, and devices change it.

As torch.amp.GradScaler: the gradient of the loss is multiplied by 2**n, and weights' gradients are
divided by it. A step whose gradients are not finite is left out and halves the factor. Many finite
steps in a row double it.
"""

from dataclasses import replace

import torch

from potluck.errors import ModelError
from potluck.graph.traced import Traced, Type, moved
from potluck_wire.graph import Argument, Buffer, Dtype, Node, Ref
from potluck_wire.optimizers import LOSS_SCALE

INITIAL = 16  # n at the beginning: a factor of 65,536, as torch's


def with_loss_scale(traced: Traced) -> Traced:
    """The same training graph, of whose loss the gradient is multiplied: its value is not.

    Parameters
    ----------
    traced
        Its output is the loss.

    Raises
    ------
    ModelError
        A weight or buffer of the model has the name of the factor.
    """
    graph = traced.graph
    if LOSS_SCALE in traced.state_types:
        raise ModelError(
            f"it has a state called {LOSS_SCALE!r}, as the factor of its loss is called.",
            next_step="Give that another name.",
        )
    place = graph.first_node  # of the new state: nodes come one later
    nodes = [moved(node, lambda ref: _later(ref, place)) for node in graph.nodes]
    types = [*traced.types[:place], (_type("int64", 2),), *traced.types[place:]]
    output = graph.outputs[0]
    kind = traced.type_of(output.ref)

    def add(op: str, *args: Argument, dtype: str = "float32") -> Ref:
        nodes.append(Node(number=len(nodes), op=f"aten.{op}", args=args))
        types.append((_type(dtype),))
        return Ref(place + len(nodes))

    loss = _later(output.ref, place)
    exponent = add("select.int", Ref(place), 0, 0, dtype="int64")
    factor = add("exp2.default", add("to.dtype", exponent, Dtype("float32")))
    value = add("detach.default", loss, dtype=kind.dtype)
    nothing = add("sub.Tensor", loss, value, dtype=kind.dtype)  # but for its gradient
    dtype = "float64" if kind.dtype == "float64" else "float32"
    scaled = add("add.Tensor", value, add("mul.Tensor", nothing, factor, dtype=dtype), dtype=dtype)
    state = Buffer(name=LOSS_SCALE, dtype="int64", shape=(2,), updated=True)
    return replace(
        traced,
        graph=replace(
            graph,
            buffers=(*graph.buffers, state),
            nodes=tuple(nodes),
            outputs=(replace(output, ref=scaled, dtype=dtype), *graph.outputs[1:]),
        ),
        types=tuple(types),
        by_rows=frozenset(_later(ref, place) for ref in traced.by_rows),
        tensors={**traced.tensors, LOSS_SCALE: torch.tensor([INITIAL, 0])},
        modules=(*traced.modules, *[""] * (len(nodes) - len(graph.nodes)))
        if traced.modules
        else (),
    )


def _later(ref: Ref, place: int) -> Ref:
    return ref if ref.value < place else Ref(ref.value + 1, ref.item)


def _type(dtype: str, *shape: int) -> Type:
    return Type(dtype=dtype, shape=shape)
