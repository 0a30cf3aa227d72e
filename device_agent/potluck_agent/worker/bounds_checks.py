"""What torch itself does not check: operators that would read or write beyond a tensor whose size
does not fit.

torch's Python functions check these before they call the operator; whoever calls the operator
itself has to.
"""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from potluck_wire.graph import SegmentError


def _refuse(text: str) -> NoReturn:
    raise SegmentError("bad-input", text[:250])


def _expect(what: str, tensor: torch.Tensor, shape: Sequence[int], like: torch.Tensor) -> None:
    """The tensor has this shape, and the type of another one."""
    if tuple(tensor.shape) != tuple(shape) or tensor.dtype is not like.dtype:
        got = f"{tensor.dtype} {list(tensor.shape)}"
        _refuse(f"{what} is {got}; expected {like.dtype} {list(shape)}")


def _binary_cross_entropy(
    x: torch.Tensor, target: torch.Tensor, weight: Any = None, *_: Any
) -> None:
    _expect("the target", target, x.shape, x)
    if weight is not None:
        _expect("the weight", weight, x.shape, x)


def _index(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> None:
    """A mask picks as many elements as it has ones: no shape function knows the size, and no plan
    can.
    """
    if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices):
        _refuse(
            "indexing by a mask makes a value whose size depends on values; use where or "
            "masked_fill"
        )


def recurrent_result(
    n_gates: int,
    x: torch.Tensor,
    states: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    biases: bool,
    n_layers: int,
    dropout: float,
    train: bool,
    two_ways: bool,
    batch_first: bool,
) -> list[int]:
    """The shape of the output, after checking every state and weight of a recurrent network
    (torch.nn.LSTM and GRU).

    torch's own shape functions would unroll the sequence, which takes 5 ms a step.
    """
    if x.dim() != 3 or not x.is_floating_point() or 0 in x.shape:
        _refuse(
            f"a sequence of the shape {list(x.shape)} and type {x.dtype}; expected [steps, rows, "
            "features]"
        )
    rows, n_ways = x.shape[0 if batch_first else 1], 2 if two_ways else 1
    if not 1 <= n_layers <= len(weights) or not 0.0 <= dropout <= 1.0:
        _refuse(f"{n_layers} layers with dropout {dropout} and {len(weights)} weights")
    if any(state.dim() != 3 for state in states):
        _refuse(
            f"states of the shapes {[list(state.shape) for state in states]}; expected 3 dimensions"
        )
    out, hidden = states[0].shape[2], states[-1].shape[2]
    is_projected = n_gates == 4 and out != hidden
    per_cell = 2 + 2 * bool(biases) + is_projected
    if not 1 <= out <= hidden or len(weights) != n_layers * n_ways * per_cell:
        _refuse(
            f"{len(weights)} weights; expected {per_cell} for each of {n_layers * n_ways} cells"
        )
    for state, width in zip(states, (out, hidden), strict=False):
        _expect("a state", state, (n_layers * n_ways, rows, width), x)
    for i in range(n_layers * n_ways):
        width = x.shape[2] if i < n_ways else out * n_ways
        gates = n_gates * hidden
        shapes = [
            (gates, width),
            (gates, out),
            *[(gates,)] * (2 * bool(biases)),
            *[(out, hidden)] * is_projected,
        ]
        for shape, weight in zip(shapes, weights[i * per_cell : (i + 1) * per_cell], strict=True):
            _expect(f"a weight of cell {i}", weight, shape, x)
    return [*x.shape[:2], out * n_ways]


def _lstm(x: torch.Tensor, states: Sequence[torch.Tensor], *rest: Any) -> list[int]:
    if len(states) != 2:
        _refuse(f"{len(states)} states; expected 2")
    return recurrent_result(4, x, states, *rest)


def _gru(x: torch.Tensor, state: torch.Tensor, *rest: Any) -> list[int]:
    return recurrent_result(3, x, [state], *rest)


def _rnn(x: torch.Tensor, state: torch.Tensor, *rest: Any) -> list[int]:
    return recurrent_result(1, x, [state], *rest)


# operator -> what raises SegmentError for its arguments
RULES: dict[str, Callable[..., object]] = {
    "aten.binary_cross_entropy.default": _binary_cross_entropy,
    "aten.index.Tensor": _index,
}
# operator -> the shape of its first output, after checking everything; nothing else is asked about
# these
SHAPES: dict[str, Callable[..., list[int]]] = {
    "aten.lstm.input": _lstm,
    "aten.gru.input": _gru,
    "aten.rnn_tanh.input": _rnn,
    "aten.rnn_relu.input": _rnn,
}
