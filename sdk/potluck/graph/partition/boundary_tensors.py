"""What crosses between the layers of a line: which values each takes and gives. Pure: no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from potluck.graph.partition.branches import hand_on
from potluck.graph.partition.cuts import Linearization
from potluck_wire.graph import Ref


@dataclass(frozen=True, slots=True)
class BoundaryTensors:
    """`hands[layer]`: each value that the layer hands on, and to which layers."""

    hands: tuple[dict[Ref, tuple[int, ...]], ...]

    def into(self, start: int, stop: int) -> tuple[tuple[Ref, int], ...]:
        """The values that layers [start, stop) take from earlier ones, each with the layer that
        gives it.

        What comes from the layer just before and from its maker as well is taken from the layer
        before.
        """
        givers: dict[Ref, int] = {}
        for layer in range(start):
            for ref, takers in self.hands[layer].items():
                if any(start <= taker < stop for taker in takers):
                    givers[ref] = layer
        return tuple(sorted(givers.items(), key=lambda item: in_order(item[0])))

    def out_of(self, start: int, stop: int) -> tuple[Ref, ...]:
        """The values that layers [start, stop) hand to later ones."""
        refs = {
            ref
            for given in self.hands[start:stop]
            for ref, takers in given.items()
            if max(takers) >= stop
        }
        return tuple(sorted(refs, key=in_order))


def boundary_tensors(
    line: Linearization, bounds: Sequence[int], *, branched: bool
) -> BoundaryTensors:
    """What crosses between the layers [bounds[i], bounds[i + 1]) of bound nodes; one chain unless
    `branched`.
    """
    layer_of = [
        layer for layer in range(len(bounds) - 1) for _ in range(bounds[layer], bounds[layer + 1])
    ]
    readers = _readers(line, layer_of)
    made = {ref: layer_of[line.place[ref.value]] for ref in readers}
    return BoundaryTensors(hands=hand_on(made, readers, len(bounds) - 1, branched=branched))


def _readers(line: Linearization, layer_of: Sequence[int]) -> dict[Ref, set[int]]:
    """For each value the layers that read it; the last layer gives the model's outputs."""
    last = layer_of[-1]
    return {
        ref: {layer_of[i] if i < len(layer_of) else last for i in uses}
        for ref, uses in line.uses.items()
    }


def in_order(ref: Ref) -> tuple[int, int]:
    """Values cross in the order in which they are made."""
    return ref.value, ref.item or 0
