"""The weights of a segment in two versions, where updates come late: forwards go on with the new
ones while backwards that are outstanding end with those of their forward.

Double-buffered weights after Narayanan et al., "Memory-efficient pipeline-parallel DNN training"
(2021), section 3.1. Autograd keeps the tensors of a forward, so a version is tensors of its own.
"""

from collections.abc import Collection, Mapping

import torch

from potluck_wire.graph import SegmentError

from . import available_memory

Weights = Mapping[str, torch.Tensor]


class WeightVersions:
    """One version is the segment's own memory, which others may look into; the other one is there
    only while it is needed.

    Parameters
    ----------
    own
        The parameters that are trained, by name.
    """

    def __init__(self, own: Weights) -> None:
        self._own = self.current = own
        self._second: Weights | None = None

    def to_write(self, outstanding: Collection[Weights]) -> Weights:
        """The version that a step may write into, with the values of the current one, and current
        from now on: the segment's own as soon as no backward needs it.

        Parameters
        ----------
        outstanding
            Of each forward without its backward, the version that it took.

        Raises
        ------
        SegmentError
            Both are needed: updates would be more than one step late.
        """
        target = self._own if self.current is not self._own else self._beside(outstanding)
        if any(version is target for version in outstanding):
            raise SegmentError(
                "bad-input", "a backward is outstanding from before the last step but one"
            )
        if target is not self.current:
            with torch.no_grad():
                for name, tensor in self.current.items():
                    target[name].copy_(tensor)
        self.current = target
        if not outstanding:
            self._second = None
        return target

    def _beside(self, outstanding: Collection[Weights]) -> Weights:
        if not outstanding:
            return self._own
        if self._second is None:
            self._second = {name: _like(tensor, name) for name, tensor in self._own.items()}
        return self._second


def _like(tensor: torch.Tensor, name: str) -> torch.Tensor:
    available_memory.require(tensor.numel() * tensor.element_size(), name)
    return torch.empty_like(tensor).requires_grad_(tensor.requires_grad)
