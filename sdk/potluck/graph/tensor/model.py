"""A model divided by tensor: a model like any other, whose layers belong to lanes, one for each
device, and whose weights are pieces of the whole model's.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from potluck.errors import ModelError
from potluck.graph.model import Model
from potluck.graph.partition.cuts import line
from potluck.graph.partition.layers import Layers, layers_at
from potluck.graph.tensor.allotment import TOLERANCE_FRAC, check, excess_frac
from potluck.graph.tensor.divided_graph import DividedGraph, StateSlice
from potluck.graph.tensor.regions import Region, RegionFinder
from potluck.graph.tensor.rewrite import divided
from potluck.graph.traced import Traced
from potluck_wire.graph import cached

if TYPE_CHECKING:
    import torch


class DividedModel(Model):
    """A model whose products, heads, channels and tables are divided among `shares`.

    Made by `Model.divided`. Devices keep pieces of the weights, as `NAME:LANE`; `state_dict` and
    `load_state` speak of the whole ones. Of each layer `lane` says whose it is.

    Parameters
    ----------
    whole
        The model that is divided.
    shares
        The proportion, one number for each lane.
    tolerance_frac
        By which part a lane may get more than its share, as heads and groups stay whole.
    sequence
        What lies between is divided by positions.
    """

    def __init__(
        self,
        whole: Model,
        shares: Sequence[int],
        *,
        tolerance_frac: float = TOLERANCE_FRAC,
        sequence: bool = False,
    ) -> None:
        self.whole, self.shares = whole, _checked(shares)
        traced = [whole.laid_out(train).line.traced for train in _modes(whole)]
        parts = [
            divided(graph, regions, self.shares, sequence=sequence)
            for graph, regions in zip(
                traced, _regions_of(traced, self.shares, tolerance_frac), strict=True
            )
        ]
        caches = frozenset[str]().union(*(cached(graph.graph) for graph in traced))
        # of each state that is cut; what a request leaves is nobody's but the devices'
        self.pieces: Mapping[str, StateSlice] = {
            k: v for part in parts for k, v in part.pieces.items() if v.whole not in caches
        }
        laid = [_laid_out(part, len(whole.laid_out(False).line.traced.given)) for part in parts]
        super().__init__(
            inference=laid[0],
            training=laid[1] if whole.trains else None,
            net=whole._net,
            loss=whole._loss,
            name=f"{whole.name}-by-{'-'.join(map(str, self.shares))}" + "-and-positions" * sequence,
            arguments=whole.arguments,
        )
        self.untrained = whole.untrained

    def kinds(self, train: bool = False) -> tuple[str, ...]:
        """Torch's operators alone."""
        return ("aten",)

    def save(self, path: Any) -> None:
        """Refused: the whole model is what a file holds.

        Parameters
        ----------
        path
            Where to.

        Raises
        ------
        ModelError
            Always.
        """
        raise ModelError(
            "a divided model is not saved, but made of the whole one.",
            next_step="Save the whole model, and divide it again after Model.load.",
        )

    # --- state ---

    def _tensors(self) -> "dict[str, torch.Tensor]":
        state = self.whole.state()
        found = {name: piece_of(state[piece.whole], piece) for name, piece in self.pieces.items()}
        cut = {piece.whole for piece in self.pieces.values()}
        return found | {
            name: tensor for name, tensor in self.whole._tensors().items() if name not in cut
        }

    def joined(self, state: "Mapping[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
        """The state of devices with whole tensors in the place of their pieces.

        Parameters
        ----------
        state
            By the names of devices; all pieces of a tensor, or none of them.
        """
        found, parts = {}, dict[str, list[tuple[StateSlice, Any]]]()
        for name, tensor in state.items():
            if name in self.pieces:
                piece = self.pieces[name]
                parts.setdefault(piece.whole, []).append((piece, tensor))
            else:
                found[name] = tensor
        return found | {name: joined_of(pieces) for name, pieces in parts.items()}

    def state_dict(
        self, state: "Mapping[str, torch.Tensor]", *, unchanging: bool = False
    ) -> "dict[str, torch.Tensor]":
        """The state of devices as the module's own `state_dict`: whole tensors."""
        return self.whole.state_dict(self.joined(state), unchanging=unchanging)

    def load_state(self, state: "Mapping[str, torch.Tensor]") -> None:
        """Put the state of devices into the user's own module, and its loss."""
        self.whole.load_state(self.joined(state))

    def unused_state(self) -> "dict[str, torch.Tensor]":
        """As of the whole model: of pieces no device has the tensor itself."""
        return self.whole.unused_state()

    def check_inputs(self, *tensors: Any, train: bool = False) -> int:
        """As of the whole model: a table that is cut would look for no index outside of it."""
        return self.whole.check_inputs(*tensors, train=train)

    def value_marks(self) -> Any:
        """Marks of the whole tensors."""
        return self.whole.value_marks()

    def names_by_identity(self) -> dict[int, str]:
        """As of the whole model, where they are not cut."""
        return self.whole.names_by_identity()


def _checked(shares: Sequence[int]) -> tuple[int, ...]:
    found = tuple(shares)
    if len(found) < 2 or any(type(share) is not int or share < 1 for share in found):
        raise ModelError(
            f"a model is divided by two shares or more, whole numbers of 1 or more; got {found}.",
            next_step="Give one for each device, such as (1, 1) or (1, 2, 2, 4).",
        )
    return found


def _modes(model: Model) -> tuple[bool, ...]:
    return (False, True) if model.trains else (False,)


def _regions_of(
    graphs: Sequence[Traced], shares: Sequence[int], tolerance_frac: float
) -> list[tuple[Region, ...]]:
    """The regions of each graph, all of which cut the same states in the same way."""
    undivided = set[str]()
    while True:
        found = [RegionFinder(traced, undivided).regions() for traced in graphs]
        cuts = [_cuts(traced, regions) for traced, regions in zip(graphs, found, strict=True)]
        odd = set().union(
            *(
                _names(traced, region)
                for traced, regions in zip(graphs, found, strict=True)
                for region in regions
                if region.optional and excess_frac(region.units, shares) > tolerance_frac
            )
        ) or {
            name
            for name in set().union(*cuts)
            if len(
                {
                    cut.get(name)
                    for cut, traced in zip(cuts, graphs, strict=True)
                    if name in traced.state_types
                }
            )
            > 1
        }
        if not odd:
            break
        undivided |= odd
    if not any(found):
        raise ModelError(
            "nothing of it can be divided by tensor: no product leads to a sum by operators that "
            "keep columns, heads or channels apart.",
            next_step="Plan it by layers and rows.",
        )
    for traced, regions in zip(graphs, found, strict=True):
        for region in regions:
            check(_names(traced, region)[0], region.units, shares, tolerance_frac)
    return found


def _cuts(traced: Traced, regions: Sequence[Region]) -> dict[str, tuple[Any, int]]:
    names = [*traced.state_types]
    first = len(traced.graph.inputs)
    return {
        names[value - first]: (cut, region.units)
        for region in regions
        for value, cut in region.states.items()
    }


def _names(traced: Traced, region: Region) -> list[str]:
    """The states that a region cuts, in their order."""
    names = [*traced.state_types]
    return [names[value - len(traced.graph.inputs)] for value in sorted(region.states)]


def _laid_out(part: DividedGraph, n_inputs: int) -> Layers:
    bounds = tuple(accumulate((n for _, n in part.groups), initial=0))
    lanes = [lane for lane, _ in part.groups]
    return layers_at(line(part.traced), bounds, n_inputs=n_inputs, lanes=lanes)


def piece_of(full: "torch.Tensor", piece: StateSlice) -> "torch.Tensor":
    """A lane's part of a tensor.

    Parameters
    ----------
    full
        The tensor.
    piece
        Which units of which axis.
    """
    wide = _by_units(full, piece, piece.units)
    axis = piece.cut.axis
    return wide.narrow(axis + 1, piece.start, piece.stop - piece.start).flatten(axis, axis + 2)


def joined_of(parts: "Sequence[tuple[StateSlice, torch.Tensor]]") -> "torch.Tensor":
    """The tensor of all its pieces.

    Parameters
    ----------
    parts
        Pieces and their tensors, in any order.
    """
    import torch

    ordered = sorted(parts, key=lambda part: part[0].start)
    axis = ordered[0][0].cut.axis
    wide = [_by_units(tensor, piece, piece.stop - piece.start) for piece, tensor in ordered]
    return torch.cat(wide, dim=axis + 1).flatten(axis, axis + 2)


def _by_units(tensor: "torch.Tensor", piece: StateSlice, units: int) -> "torch.Tensor":
    """With three axes in the place of the cut one: outer parts, units, entries of each."""
    axis, shape = piece.cut.axis, tensor.shape
    return tensor.reshape(
        *shape[:axis], piece.cut.outer, units, piece.cut.inner, *shape[axis + 1 :]
    )
