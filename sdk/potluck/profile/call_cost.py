"""What a device takes for each call of a piece, however few layers it has: libraries are entered,
kernels launched, gradients' machinery set up.

A layer that is measured alone takes it as well. A stage takes it once, so it is measured by tiny
pieces and is no layer's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import repeat
from statistics import mean

from potluck.records import LayerCost
from potluck_wire.graph import BATCH, Graph, Input, Node, Output, Parameter, Ref, Symbol
from potluck_wire.segment import dumps

N_FEW, N_MANY = 1, 9  # operators of the two tiny pieces
LEAST_FRAC = 0.01  # of a layer's time is its own, whatever the noise
NO_CALL = LayerCost(rows=(1,), forward_s=(0.0,), update_s=0.0, sgd_s=(0.0, 0.0))
_WIDTH = 8


def tiny_piece(n: int) -> bytes:
    """The document of a piece of `n` operators, each with a weight that is trained; a row is 8
    float32.

    Parameters
    ----------
    n
        Operators.
    """
    row = (BATCH, _WIDTH)
    values = (0, *range(1 + n, 1 + 2 * n))  # the input, n weights, then what the operators give
    graph = Graph(
        symbols=(Symbol(name=BATCH, input=0, dim=0),),
        inputs=(Input(name="x", dtype="float32", shape=row, gradient=True),),
        parameters=tuple(
            Parameter(name=f"w{i}", dtype="float32", shape=(_WIDTH,)) for i in range(n)
        ),
        nodes=tuple(
            Node(number=i, op="aten.mul.Tensor", args=(Ref(values[i]), Ref(1 + i)))
            for i in range(n)
        ),
        outputs=(Output(name="y", ref=Ref(values[-1]), dtype="float32", shape=row, gradient=True),),
    )
    return dumps(graph)


def call_cost(few: LayerCost, many: LayerCost) -> LayerCost:
    """What is left of the times of tiny pieces at no operators at all.

    Parameters
    ----------
    few, many
        Of `N_FEW` and of `N_MANY` operators.
    """

    def left_s(few_s: float, many_s: float) -> float:
        each_s = (many_s - few_s) / (N_MANY - N_FEW)
        return min(few_s, max(0.0, few_s - N_FEW * each_s))

    def left(few_s: Sequence[float], many_s: Sequence[float]) -> tuple[float, ...]:
        return tuple(map(left_s, few_s, many_s))

    return replace(
        few,
        forward_s=left(few.forward_s, many.forward_s),
        backward_s=left(few.backward_s, many.backward_s),
        update_s=left_s(few.update_s or 0.0, many.update_s or 0.0),
        sgd_s=left(few.sgd_s, many.sgd_s),
        weight_frac=None,
    )


def without(cost: LayerCost, call: LayerCost) -> LayerCost:
    """The times of a layer that was called alone, without the call's.

    Parameters
    ----------
    cost
        As measured.
    call
        See `call_cost`.
    """

    def own_s(each_s: float, call_s: float) -> float:
        return max(LEAST_FRAC * each_s, each_s - call_s)

    def own(seconds: Sequence[float], calls_s: Iterable[float]) -> tuple[float, ...]:
        return tuple(map(own_s, seconds, calls_s))

    return replace(
        cost,
        forward_s=own(cost.forward_s, repeat(call.forward_s[0])),
        backward_s=own(cost.backward_s, repeat(call.backward_s[0] if call.backward_s else 0.0)),
        update_s=None if cost.update_s is None else own_s(cost.update_s, call.update_s or 0.0),
        sgd_s=own(cost.sgd_s, call.sgd_s),
    )


def seconds_of(call: LayerCost) -> float:
    """Of a call, on average over forward and backward.

    Parameters
    ----------
    call
        See `call_cost`.
    """
    return mean((*call.forward_s, *call.backward_s))
