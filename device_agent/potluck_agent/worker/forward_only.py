"""What segments share that run forward and learn nothing, and that may have their state from
another one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from potluck_agent.worker.arrays.backends import Arrays
from potluck_wire.graph import SegmentError

from .tasks import NO_OPTIONS, LoadedSegment, StepOptions, Tensors


class ForwardOnly:
    """What a segment refuses that does not train; `what` it is."""

    what = "a segment that does not train"

    def forget(self, prefix: str = "") -> None:
        """Nothing is kept for backward."""

    def backward(self, key: str, gradients: Tensors = (), scale: float = 1.0) -> Tensors:
        """Raises SegmentError: there is no backward."""
        raise self.refusal()

    def backward_input(self, key: str, gradients: Tensors = (), scale: float = 1.0) -> Tensors:
        """Raises SegmentError: there is no backward."""
        raise self.refusal()

    def backward_weight(self, key: str) -> None:
        """Raises SegmentError: there is no backward."""
        raise self.refusal()

    def gradients(self, share_frac: float = 1.0, *, taken: bool = False) -> Any:
        """Raises SegmentError: there are none."""
        raise self.refusal()

    def norms(self, vector: Any, order: float) -> Any:
        """Raises SegmentError: there are none."""
        raise self.refusal()

    def limit(
        self,
        norms: Tensors,
        places: Sequence[int],
        max_norm: float,
        order: float,
        *,
        scaled: bool = False,
    ) -> tuple[Any, Any]:
        """Raises SegmentError: there are no gradients."""
        raise self.refusal()

    def step(
        self, vector: Any, optimizer: Mapping[str, Any], options: StepOptions = NO_OPTIONS
    ) -> None:
        """Raises SegmentError: nothing can be learned."""
        raise self.refusal()

    def refusal(self) -> SegmentError:
        """Why."""
        return SegmentError("bad-input", f"{self.what} does not train")


def borrowed(
    weight_source: LoadedSegment, name: str, dtype: str, shape: Sequence[int], arrays: Arrays
) -> Any:
    """A named state of the weight source, not copied, once it is known to be what is expected."""
    state = weight_source.read(name)
    if arrays.name_of(state) != dtype or tuple(state.shape) != tuple(shape):
        got = f"{state.dtype} {list(state.shape)}"
        raise SegmentError(
            "document", f"{name} is {got} in the other segment, not {dtype} {list(shape)}"[:300]
        )
    return state
