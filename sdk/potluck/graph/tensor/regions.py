"""Where a traced model can be divided by tensor: from products whose columns are cut to the sums in
which the pieces meet again. Pure.

A region begins at the products that read one value (queries, keys and values; gate and up), follows
`axis_rules` while every operator keeps its operands apart, and ends where each device has a summand
(Megatron: columns, then rows; Shoeybi et al., 2019). A product that leads to no such end is
gathered right behind, where it weighs enough. A table of embeddings is divided by its rows.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

from potluck.graph.partition.cuts import multiple
from potluck.graph.tensor.axis_rules import RULES, columns
from potluck.graph.tensor.layouts import (
    PARTIAL,
    Best,
    Cut,
    Effect,
    Layout,
    LayoutView,
    Partial,
    local,
)
from potluck.graph.traced import Traced
from potluck_wire.graph import Buffer, Parameter, Ref, node_refs
from potluck_wire.operators import KIND_OF

# Of the weights in a product or table that is gathered, or looked up, in pieces: below that its
# bytes are not worth one more exchange.
WORTH = 1 / 50
_PRIMES = (1009, 1013, 1019, 1021)  # sizes of rows and sequences that are no model's by chance
EMBEDDING = "aten.embedding.default"
_MIXES = ("product", "attention")  # of keys or values, and something else
_PRODUCTS = ("aten.linear.default", "aten.addmm.default")


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Nodes that are divided alike, by so many `units`.

    `effects`: of each divided value what it gives; `layouts`: how values lie that are not whole
    behind it; `ends`: values of which each device has a part, joined where they are made; `states`:
    the parameters and buffers that are cut, by value. `starts`: the first products. `optional`: it
    is no more than a table or an output layer, which may as well stay whole.
    """

    starts: tuple[int, ...]
    units: int
    effects: Mapping[int, Effect]
    layouts: Mapping[Ref, Layout]
    ends: Mapping[int, Layout]
    states: Mapping[int, Cut]
    optional: bool = False


@dataclass(slots=True)
class _Spread:
    """A region as it grows."""

    effects: dict[int, Effect] = field(default_factory=dict)
    layouts: dict[Ref, Layout] = field(default_factory=dict)
    ends: dict[int, Layout] = field(default_factory=dict)
    states: dict[int, Cut] = field(default_factory=dict)


class RegionFinder:
    """Finds the regions of one graph.

    Parameters
    ----------
    traced
        The graph.
    undivided
        Names of parameters that stay whole.
    """

    def __init__(self, traced: Traced, undivided: Collection[str] = ()) -> None:
        self._traced, self._graph = traced, traced.graph
        self._sizes = sizes_of(traced)
        self._users: dict[int, list[int]] = {}
        for value, node in enumerate(self._graph.nodes, start=self._graph.first_node):
            for ref in dict.fromkeys(node_refs(node)):
                self._users.setdefault(ref.value, []).append(value)
        self._outputs = {output.ref.value for output in self._graph.outputs}
        first = len(self._graph.inputs)
        states: list[Parameter | Buffer] = [*self._graph.parameters, *self._graph.buffers]
        self._names = {first + i: state.name for i, state in enumerate(states)}
        self._whole = {value for value, name in self._names.items() if name in undivided}
        self._cached = self._from_caches()
        self._taken = set[int]()  # nodes of the regions found so far
        self._n_weights = sum(prod(p.shape) for p in self._graph.parameters)

    def regions(self) -> tuple[Region, ...]:
        """All of them, in running order; no node is in two."""
        found = list[Region]()
        self._taken.clear()
        for value, node in enumerate(self._graph.nodes, start=self._graph.first_node):
            if value in self._taken:
                continue
            region = self._looked_up(value) if node.op == EMBEDDING else self._begun(value)
            if region is not None:
                found.append(region)
                self._taken.update(region.effects)
        return tuple(found)

    def _begun(self, value: int) -> Region | None:
        """The region that begins at a product: with all products that read the same, by itself, or
        gathered behind it.
        """
        if columns(self._view(value, 1, {}), 1) is None:
            return None
        refs = node_refs(self._graph.nodes[value - self._graph.first_node])
        read = next((ref for ref in refs if ref.value not in self._names), None)
        if read is None or read.value in self._cached:
            return None
        siblings = [
            user
            for user in self._users[read.value]
            if user not in self._taken and columns(self._view(user, 1, {}), 1) is not None
        ]
        for starts in dict.fromkeys((tuple(siblings), (value,))):
            for units, outer in self._ways(starts):
                region = self._spread(starts, units, outer)
                if region is not None:
                    return region
        return self._looked_up(value)

    def _ways(self, starts: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Numbers of units, the finest first, and of outer parts, that may be meant."""
        near = range(min(starts), min(max(starts) + 60, len(self._traced.types)))
        shapes = [self._view(value, 1, {}).shape for value in near]
        widths = [prod(shape[axis:]) for shape in shapes for axis in range(len(shape))]
        numbers = {size for shape in shapes for size in shape} | set(widths)
        items = {len(self._traced.types[value]) for value in near}
        outers = [
            1,
            *sorted((items | {size for s in shapes for size in s if size <= 4}) - {0, 1})[:6],
        ]
        ends = [self._view(value, 1, {}) for value in starts]
        sizes = [v.shape[-1 if v.node.op in _PRODUCTS else 1] for v in ends]
        good = [n for n in numbers if n > 1 and all(size % n == 0 for size in sizes)]
        return product(sorted(good, reverse=True), outers)

    def _spread(self, starts: Sequence[int], units: int, outer: int) -> Region | None:
        """The region from these products on, with so many units; None where an operator knows no
        way.
        """
        spread, todo = _Spread(), set(starts)
        while todo:
            value = min(todo)
            todo.discard(value)
            if value in starts and not self._view(value, units, spread.layouts).layouts:
                effect = columns(self._view(value, units, {}), outer)
            else:
                effect = self._ruled(value, units, spread)
            if effect is None or not self._add(spread, value, effect, units):
                return None
            if value not in spread.ends:
                if value in self._outputs:
                    return None
                todo.update(self._users.get(value, ()))
        is_best = any(isinstance(end, Best) for end in spread.ends.values())
        if is_best and not all(self._is_heavy(spread.effects[value]) for value in starts):
            return None
        return self._region(starts, units, spread, optional=is_best)

    def _ruled(self, value: int, units: int, spread: _Spread) -> Effect | None:
        """What an operator gives of operands that lie so; None where no way is known."""
        view = self._view(value, units, spread.layouts)
        rule = RULES.get(view.node.op)
        return rule(view) if rule else None

    def _add(self, spread: _Spread, value: int, effect: Effect, units: int) -> bool:
        """Take an effect in; False where a state would be cut in two ways, a size has not so many
        units, or the node is another region's.
        """
        if value in self._taken or not self._comes_in_pieces(value, effect, units):
            return False
        for state, cut in effect.states.items():
            if state in self._whole or spread.states.setdefault(state, cut) != cut:
                return False
        if any(cut.outer != 1 for cut in effect.slices.values()):
            return False
        if any(ref.value in self._cached for ref in effect.slices):
            return False
        spread.effects[value] = effect
        if isinstance(effect.results[0], Partial) and can_cross(self._traced, Ref(value)):
            spread.ends[value] = effect.results[0]
            return True
        if isinstance(effect.results[0], Best):
            spread.ends[value] = effect.results[0]
            return all(can_cross(self._traced, Ref(value, item)) for item in range(2))
        several = len(self._traced.types[value]) > 1
        for item, layout in enumerate(effect.results):
            spread.layouts[Ref(value, item if several else None)] = layout
        return True

    def _comes_in_pieces(self, value: int, effect: Effect, units: int) -> bool:
        """Whether the cut axis of each of its results has so many units."""
        return all(
            not isinstance(layout, Cut) or local(kind.shape[layout.axis], units, 1) is not None
            for kind, layout in zip(self._traced.types[value], effect.results, strict=True)
        )

    def _from_caches(self) -> frozenset[int]:
        """What is made of caches alone, which stay where they are."""
        found = set[int]()
        for value, node in enumerate(self._graph.nodes, start=self._graph.first_node):
            kind, read = KIND_OF[node.op], {ref.value for ref in node_refs(node)}
            if kind == "cache" or (kind not in _MIXES and found & read):
                found.add(value)
        return frozenset(found)

    def _looked_up(self, value: int) -> Region | None:
        """A heavy weight by its rows, all that read it together: a table of embeddings, of which
        each device has zeros for the others' rows, and products whose columns are put together at
        once.
        """
        node = self._graph.nodes[value - self._graph.first_node]
        place = {EMBEDDING: 0, "aten.addmm.default": 2}.get(node.op, 1)
        weight = self._view(value, 1, {}).argument(place)
        if not isinstance(weight, Ref) or weight.value not in self._names:
            return None
        users, spread = self._users[weight.value], _Spread()
        units = self._view(value, 1, {}).shape_of(weight)[1 if place == 2 else 0]
        for user in users:
            effect = self._lookup(user, weight, units)
            if (
                effect is None
                or not can_cross(self._traced, Ref(user))
                or not self._is_heavy(effect)
            ):
                return None
            if not self._add(spread, user, effect, units):
                return None
            if not self._chosen(spread, user, units):
                spread.ends[user] = effect.results[0]
                spread.layouts.pop(Ref(user), None)
        return self._region(users, units, spread, optional=True) if units > 1 else None

    def _chosen(self, spread: _Spread, value: int, units: int) -> bool:
        """Follow columns to where the best of them are chosen, if that is all that is made of
        them.
        """
        path = replace(spread, effects={**spread.effects}, layouts={**spread.layouts})
        while len(self._users.get(value, ())) == 1 and value not in self._outputs:
            (value,) = self._users[value]
            effect = self._ruled(value, units, path)
            if effect is None or effect.states or not self._add(path, value, effect, units):
                return False
            if value in path.ends:
                spread.effects, spread.layouts = path.effects, path.layouts
                return True
        return False

    def _lookup(self, value: int, weight: Ref, units: int) -> Effect | None:
        """What a product or a table gives of some rows of its weight."""
        view = self._view(value, units, {})
        if view.node.op != EMBEDDING:
            return columns(view, 1) if view.argument(0) != weight else None
        args, more = view.node.args, set(dict(view.node.kwargs)) - {"padding_idx"}
        if args[0] != weight or len(args) > 3 or more:
            return None
        return Effect(results=(PARTIAL,), states={weight.value: Cut(0, 1, 1)})

    def _is_heavy(self, effect: Effect) -> bool:
        n_weights = sum(self._traced.type_of(Ref(value)).elements({}) for value in effect.states)
        return n_weights >= WORTH * self._n_weights

    def _region(
        self, starts: Sequence[int], units: int, spread: _Spread, *, optional: bool = False
    ) -> Region | None:
        """It stands where nobody reads the states that are cut as a whole, of its own nodes too."""
        for state in spread.states:
            effects = [spread.effects.get(user) for user in self._users[state]]
            if any(effect is None or state not in effect.states for effect in effects):
                return None
        return Region(
            starts=tuple(starts),
            units=units,
            effects=spread.effects,
            layouts=spread.layouts,
            ends=spread.ends,
            states=spread.states,
            optional=optional,
        )

    def _view(self, value: int, units: int, layouts: Mapping[Ref, Layout]) -> LayoutView:
        node = self._graph.nodes[value - self._graph.first_node]
        mine = {ref: layouts[ref] for ref in node_refs(node) if ref in layouts}
        return LayoutView(self._traced, value, units, mine, self._sizes)


def sizes_of(traced: Traced) -> dict[str, int]:
    """Numbers in the place of its symbols, that no size is by chance."""
    return dict(zip((symbol.name for symbol in traced.graph.symbols), _PRIMES, strict=False))


def can_cross(traced: Traced, ref: Ref) -> bool:
    """Whether a value counts rows in its first dimension, so that segments can hand it on."""
    return ref in traced.by_rows and bool(multiple(traced.type_of(ref).shape))
