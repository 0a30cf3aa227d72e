"""How values lie among the devices of a division by tensor, and what an operator makes of it.

What belongs together (a column, a group of heads, a channel) is a unit. A cut axis is `outer` times
all units times `inner` entries of each: queries, keys and values in one product have an outer of 3,
and the entries of a head are inner ones. Pure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from potluck.graph.traced import Traced
from potluck_wire.graph import Expression, Node, Ref, evaluate


@dataclass(frozen=True, slots=True)
class Cut:
    """An axis of `outer` times so many units of `inner` entries; each device has some of the
    units.
    """

    axis: int
    outer: int
    inner: int


@dataclass(frozen=True, slots=True)
class Partial:
    """Each device has a summand of the same shape."""


@dataclass(frozen=True, slots=True)
class Best:
    """Each device has the largest of its own entries of an axis, and where they lie among them."""

    axis: int


PARTIAL = Partial()
Layout = Cut | Partial | Best
Arguments = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What an operator on cut operands gives, and what each device computes instead of it.

    `results`: one layout for each item. `states`: parameters and buffers that are cut, too;
    `slices`: whole values of which a device takes its own entries. `arguments` makes the arguments
    by position for a number of units. `once`: the place of an argument that one device alone adds,
    such as a bias.
    """

    results: tuple[Layout, ...]
    states: Mapping[int, Cut] = field(default_factory=dict)
    slices: Mapping[Ref, Cut] = field(default_factory=dict)
    arguments: Callable[[int], Arguments] | None = None
    once: int | None = None


@dataclass(frozen=True, slots=True)
class LayoutView:
    """A node as its rule sees it. `layouts`: of the values it reads that are not whole."""

    traced: Traced
    value: int
    units: int
    layouts: Mapping[Ref, Layout]
    sizes: Mapping[str, int]  # of symbols, that no other number is by chance

    @property
    def node(self) -> Node:
        """The node."""
        return self.traced.graph.nodes[self.value - self.traced.graph.first_node]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its first result."""
        return self.shape_of(Ref(self.value, 0))

    def argument(self, position: int, name: str = "", default: Any = None) -> Any:
        """The argument at that position or of that name."""
        return self.node.argument(position, name, default)

    def shape_of(self, ref: Ref) -> tuple[int, ...]:
        """The shape of a value."""
        return tuple(evaluate(size, self.sizes) for size in self.traced.type_of(ref).shape)

    def layout(self, ref: Any) -> Layout | None:
        """How a value lies; None where it is whole, or no value."""
        return self.layouts.get(ref) if isinstance(ref, Ref) else None

    def cut(self, ref: Any) -> Cut | None:
        """How a value is cut; None where it is not."""
        found = self.layout(ref)
        return found if isinstance(found, Cut) else None

    def is_state(self, ref: Any) -> bool:
        """Whether this is a parameter or a buffer."""
        graph = self.traced.graph
        return isinstance(ref, Ref) and len(graph.inputs) <= ref.value < graph.first_node

    def pattern(self, size: int, outer: int = 1) -> Cut | None:
        """The cut of a first axis of that size; None where the units do not go into it."""
        inner, rest = divmod(size, outer * self.units)
        return None if rest else Cut(0, outer, inner)


Rule = Callable[[LayoutView], Effect | None]


def local(size: Expression, units: int, n: int) -> "Expression | None":
    """A size with `n` of so many units of it; None where that cannot be said.

    >>> local(12, 4, 1), local(("*", 8, "batch"), 4, 3)
    (3, ('*', 6, 'batch'))
    """
    if isinstance(size, int):
        return None if size % units else size // units * n
    if isinstance(size, tuple) and size[0] == "*":
        for place, factor in enumerate(size[1:], start=1):
            if isinstance(factor, int) and factor % units == 0:
                mine = factor // units * n
                return (*size[:place], mine, *size[place + 1 :])
    return None


def same(cut: Cut) -> Effect:
    """A result that is cut so."""
    return Effect(results=(cut,))
