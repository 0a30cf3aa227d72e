"""What is kept of a forward whose activations are not: enough to compute it again to the bit.

Activation recomputation after Chen et al., "Training deep nets with sublinear memory cost" (2016).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch


class Recomputed:
    """A forward to be computed again: its inputs, which rows of which micro-batch they are, and
    what it changed, as it was before.

    Parameters
    ----------
    inputs
        Of the forward; their memory is shared.
    updated
        The buffers that a forward changes, which are copied.
    rows, step, micro_batch
        What masks of dropout depend on.
    split
        Its backward comes in two parts.
    """

    def __init__(
        self,
        inputs: Sequence[torch.Tensor],
        updated: Mapping[str, torch.Tensor],
        rows: tuple[int, int, int] | None,
        step: int,
        micro_batch: int,
        split: bool = False,
    ) -> None:
        self.inputs = [x.detach() for x in inputs]
        self.rows = rows
        self.step = step
        self.micro_batch = micro_batch
        self.split = split
        self._buffers = {name: buffer.clone() for name, buffer in updated.items()}
        self._random = torch.get_rng_state()

    def state_of(self, buffers: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """The buffers as they were before the forward, in the order of `buffers`."""
        return [self._buffers.get(name, buffer) for name, buffer in buffers.items()]

    @contextmanager
    def random_numbers(self) -> Iterator[None]:
        """Inside, torch's generator draws what it drew in the forward; afterwards it goes on."""
        present = torch.get_rng_state()
        torch.set_rng_state(self._random)
        try:
            yield
        finally:
            torch.set_rng_state(present)


def unsaved() -> AbstractContextManager[object]:
    """Inside, autograd keeps no tensor for a backward: there must be none."""
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: None, lambda nothing: nothing)
