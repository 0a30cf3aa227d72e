"""Packed sequences (torch.nn.utils.rnn), whose sizes are data, computed on padded ones.

While a module is exported, what it packs stays padded, beside the lengths. A recurrent layer then
runs over the padding, too, and what it makes there is left out: its last state is that of the last
step of each row, and its way back starts there. A cell of an LSTM keeps what it holds over
the padding: one more feature of its inputs, which is 1 there, closes its gate of inputs and opens
its gate of memory.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional
from torch.nn.utils import rnn

from potluck.errors import ModelError

_SHUT = 3e4  # what closes a gate, in half precision, too: sigmoid(-3e4) is 0, and of 3e4 it is 1
_LAYERS = (nn.LSTM, nn.GRU, nn.RNN)


class PaddedSequence(rnn.PackedSequence):
    """What a module takes for a packed sequence while it is exported.

    Parameters
    ----------
    steps
        Shape [batch, time, ...]: all of them, 0 beyond the lengths.
    lengths
        Shape [batch]: how many steps of each row count.
    """

    steps: torch.Tensor
    lengths: torch.Tensor

    def __new__(cls, steps: torch.Tensor, lengths: torch.Tensor) -> "PaddedSequence":
        made: PaddedSequence = tuple.__new__(cls, (None,) * 4)
        made.lengths = lengths
        made.steps = made.filled(steps, 0.0)
        return made

    def filled(self, steps: torch.Tensor, value: float) -> torch.Tensor:
        """Steps beyond the lengths replaced."""
        there = torch.arange(steps.shape[1], device=steps.device) < self.lengths[:, None]
        there = there.reshape(*there.shape, *(1,) * (steps.ndim - 2))
        return torch.where(there, steps, value)

    def backwards(self, steps: torch.Tensor) -> torch.Tensor:
        """The steps of each row that count in the other order, before its padding."""
        time, lengths = torch.arange(steps.shape[1], device=steps.device), self.lengths[:, None]
        order = torch.where(time < lengths, lengths - 1 - time, time)
        return steps.gather(1, order[..., None].expand_as(steps))

    def last(self, steps: torch.Tensor) -> torch.Tensor:
        """The last step of each row that counts, shape [batch, features]."""
        at = (self.lengths - 1)[:, None, None].expand(-1, 1, steps.shape[2])
        return steps.gather(1, at)[:, 0]

    def _refuse(self, *_: object) -> Any:
        raise ModelError(
            "it looks into a packed sequence, which has sizes of the data.",
            next_step="Recurrent layers and pad_packed_sequence take it as it is; for all else, "
            "use the padded sequence, and a mask of the lengths.",
        )

    __iter__ = __getitem__ = _refuse
    data = property(_refuse)
    batch_sizes = property(_refuse)
    sorted_indices = property(_refuse)
    unsorted_indices = property(_refuse)


@contextmanager
def kept_padded() -> Iterator[None]:
    """Within, what an exported module packs stays padded. Of torch's functions the code is another
    one, as a user's file may have imported them by name.
    """
    plain = {layer: layer.forward for layer in _LAYERS}
    rnn.pack_padded_sequence.__code__ = _pack.__code__
    rnn.pad_packed_sequence.__code__ = _pad.__code__
    for layer, forward in plain.items():
        layer.forward = _forward(forward)  # type: ignore[method-assign]
    try:
        yield
    finally:
        rnn.pack_padded_sequence.__code__ = plain_pack.__code__
        rnn.pad_packed_sequence.__code__ = plain_pad.__code__
        for layer, forward in plain.items():
            layer.forward = forward  # type: ignore[method-assign]


def _copied(function: Any) -> Any:
    return FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__
    )


plain_pack, plain_pad = _copied(rnn.pack_padded_sequence), _copied(rnn.pad_packed_sequence)


# These two run as part of torch's file, and in other threads as well.
def _pack(
    input: Any,  # noqa: A002 - as torch names it
    lengths: Any,
    batch_first: bool = False,
    enforce_sorted: bool = True,
) -> Any:
    from potluck.graph.torch import packed_sequences

    if packed_sequences.is_exported(input):
        return packed_sequences.packed(input, lengths, batch_first)
    return packed_sequences.plain_pack(input, lengths, batch_first, enforce_sorted)


def _pad(
    sequence: Any,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> Any:
    from potluck.graph.torch import packed_sequences

    exported = isinstance(sequence, packed_sequences.PaddedSequence)
    pad = packed_sequences.padded if exported else packed_sequences.plain_pad
    return pad(sequence, batch_first, padding_value, total_length)


def is_exported(steps: Any) -> bool:
    """Whether a tensor is one of the module that is exported; other threads go on as always."""
    return isinstance(steps, FakeTensor)


def packed(steps: torch.Tensor, lengths: Any, batch_first: bool) -> PaddedSequence:
    """As torch's pack_padded_sequence; rows stay in their order."""
    lengths = torch.as_tensor(lengths, dtype=torch.int64, device=steps.device)
    return PaddedSequence(steps if batch_first else steps.transpose(0, 1), lengths)


def padded(
    sequence: PaddedSequence, batch_first: bool, value: float, total_length: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As torch's pad_packed_sequence; raises ModelError where its length depends on the data."""
    steps = sequence.steps
    if total_length is None or total_length < steps.shape[1]:
        raise ModelError(
            f"pad_packed_sequence(total_length={total_length}) has a length of the data.",
            next_step="Say how long the padded sequence was: total_length=x.size(1).",
        )
    if total_length > steps.shape[1]:
        more = steps.new_zeros(steps.shape[0], total_length - steps.shape[1], *steps.shape[2:])
        steps = torch.cat((steps, more), 1)
    if value:
        steps = sequence.filled(steps, value)
    return (steps if batch_first else steps.transpose(0, 1)), sequence.lengths


def _forward(plain: Any) -> Any:
    def forward(layer: Any, input: Any, hx: Any = None) -> Any:  # noqa: A002 - as torch names it
        if isinstance(input, PaddedSequence):
            return _over_padded(layer, input, hx)
        return plain(layer, input, hx)

    return forward


def _over_padded(layer: nn.RNNBase, sequence: PaddedSequence, hx: Any) -> tuple[Any, Any]:
    """What a recurrent layer makes of a packed sequence: its outputs, and its last states."""
    ways = 2 if layer.bidirectional else 1
    first = _first_states(layer, sequence.steps) if hx is None else hx
    first = (first,) if isinstance(first, torch.Tensor) else first
    taken = sequence
    made: list[torch.Tensor] = []
    ends: list[list[torch.Tensor]] = []
    for i, weights in enumerate(layer.all_weights):
        if i and i % ways == 0:
            steps = torch.cat(made[-ways:], 2)
            dropped = functional.dropout(steps, layer.dropout, layer.training)
            taken = PaddedSequence(dropped, sequence.lengths)
        state = [each[i : i + 1] for each in first]
        back = i % ways == 1
        steps, end = _one_way(layer, taken, weights, state, back)
        made.append(steps)
        ends.append(end)
    last = [torch.stack(each) for each in zip(*ends, strict=True)]
    states = tuple(last) if layer.mode == "LSTM" else last[0]
    return PaddedSequence(torch.cat(made[-ways:], 2), sequence.lengths), states


def _first_states(layer: nn.RNNBase, steps: torch.Tensor) -> list[torch.Tensor]:
    widths = [layer.proj_size or layer.hidden_size]
    if layer.mode == "LSTM":
        widths.append(layer.hidden_size)
    return [steps.new_zeros(len(layer.all_weights), steps.shape[0], width) for width in widths]


def _one_way(
    layer: nn.RNNBase,
    sequence: PaddedSequence,
    weights: Sequence[torch.Tensor],
    state: list[torch.Tensor],
    back: bool,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """One layer in one direction: what it makes of each step, and its last states, [batch, h]."""
    steps = sequence.backwards(sequence.steps) if back else sequence.steps
    compute = getattr(torch, layer.mode.lower())
    if layer.mode in ("LSTM", "RNN_RELU"):
        steps, weights = _shut_over_padding(layer, sequence, steps, weights)
    hx = tuple(state) if layer.mode == "LSTM" else state[0]
    out, *states = compute(steps, hx, weights, layer.bias, 1, 0.0, layer.training, False, True)
    end = [sequence.last(out), *(each[0] for each in states[1:])]
    return sequence.backwards(out) if back else out, end


def _shut_over_padding(
    layer: nn.RNNBase,
    sequence: PaddedSequence,
    steps: torch.Tensor,
    weights: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """With one feature more, 1 over the padding: it keeps the cell of an LSTM as it is, and at 0
    a state that nothing else bounds.
    """
    flags = 1 - sequence.filled(torch.ones_like(steps[..., :1]), 0.0)
    shut = steps.new_full((layer.hidden_size, 1), -_SHUT)
    inputs, *others = weights
    by_flag = torch.cat((shut, -shut, 0 * shut, 0 * shut)) if layer.mode == "LSTM" else shut
    return torch.cat((steps, flags), 2), [torch.cat((inputs, by_flag), 1), *others]
