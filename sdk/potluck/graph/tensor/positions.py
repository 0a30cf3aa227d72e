"""Sequence parallelism: what lies between two regions is divided by the positions of a sequence.
Pure.

Norms, residual sums and all else that goes by positions is computed by each device for its own, and
kept for them alone (Korthikanti et al., "Reducing activation recomputation in large transformer
models", 2022, section 4.2.2). In the place of one exchange come two, which together carry no more:
each device gets all summands of its positions, and later the positions of the others.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from potluck.graph.tensor.allotment import allotted
from potluck.graph.tensor.axis_rules import RULES
from potluck.graph.tensor.layouts import PARTIAL, Cut, Effect, Layout, LayoutView
from potluck.graph.tensor.regions import Region, can_cross, sizes_of
from potluck.graph.traced import Traced
from potluck_wire.graph import Node, Ref, node_refs

DROPOUT = "aten.dropout.default"
AXIS = 1  # of [rows, positions, features]
_BY_POSITION = Cut(AXIS, 1, 1)

IsWhole = Callable[[int, Node], bool]
Stays = Callable[[int, Effect], bool]


def position_regions(
    traced: Traced,
    regions: Sequence[Region],
    shares: Sequence[int],
    is_whole: IsWhole,
    floating: Collection[int],
) -> tuple[Region, ...]:
    """What goes by positions behind the sums of these regions: a region for each length, whose
    `starts` are those sums.

    Parameters
    ----------
    traced
        The graph.
    regions
        Of the division by tensor.
    shares
        The proportion.
    is_whole
        Called with the value and the node: whether it is computed as a whole, whatever it reads.
    floating
        Values that depend on no input, which every device has.
    """
    sums = [v for region in regions for v, layout in region.ends.items() if layout == PARTIAL]
    by_length: dict[int, list[int]] = {}
    for value in sums:
        length = _length(traced, value)
        if length and min(allotted(length, shares)) > 0:
            by_length.setdefault(length, []).append(value)
    taken = {value for region in regions for value in region.effects}

    def stays(value: int, effect: Effect) -> bool:
        """Whether positions can be handed on, and be taken of what is whole."""
        cut = [ref for ref in effect.slices if ref.value not in floating]
        return value not in taken and all(can_cross(traced, ref) for ref in (Ref(value), *cut))

    found = [
        _region(traced, starts, length, stays, is_whole) for length, starts in by_length.items()
    ]
    return tuple(region for region in found if region.starts)


def _length(traced: Traced, value: int) -> int:
    """Positions of a value; 0 where they are not one axis of a known size."""
    shape = traced.types[value][0].shape
    length = shape[AXIS] if len(shape) == AXIS + 2 else 0
    return length if isinstance(length, int) else 0


def _region(
    traced: Traced, sums: Sequence[int], length: int, stays: Stays, is_whole: IsWhole
) -> Region:
    """Without the sums that nobody reads by positions: these are joined at once."""
    starts = tuple(sums)
    while True:
        effects, layouts = _spread(traced, starts, length, stays, is_whole)
        read = {
            ref.value
            for value in effects
            for ref in node_refs(traced.graph.nodes[value - traced.graph.first_node])
        }
        useful = tuple(value for value in starts if value in read)
        if useful == starts:
            return Region(
                starts=starts, units=length, effects=effects, layouts=layouts, ends={}, states={}
            )
        starts = useful


def _spread(
    traced: Traced, starts: Sequence[int], length: int, stays: Stays, is_whole: IsWhole
) -> tuple[dict[int, Effect], Mapping[Ref, Layout]]:
    effects, sizes = dict[int, Effect](), sizes_of(traced)
    layouts: dict[Ref, Layout] = {Ref(value): _BY_POSITION for value in starts}
    for value, node in enumerate(traced.graph.nodes, start=traced.graph.first_node):
        mine = {ref: layouts[ref] for ref in node_refs(node) if ref in layouts}
        rule = _dropped if node.op == DROPOUT else RULES.get(node.op)
        if not mine or rule is None or is_whole(value, node):
            continue
        effect = rule(LayoutView(traced, value, length, mine, sizes))
        if effect is None or effect.results != (_BY_POSITION,) or effect.states:
            continue
        if not stays(value, effect):
            continue
        effects[value], layouts[Ref(value)] = effect, _BY_POSITION
    return effects, layouts


def _dropped(view: LayoutView) -> Effect:
    """Each device draws the whole mask and takes its own positions of it."""
    return Effect(results=(_BY_POSITION,))
