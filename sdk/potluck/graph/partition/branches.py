"""Parallel branches of a graph of operators, found where they join; each in one piece.

And what they hand each other.

A join reads several operators. What only one of them depends on is that one's branch. Two branches
of a join depend on nothing of each other, so two devices can work on them at once. Branches lighter
than `least` are not worth a device and are left where they are. A skip connection is none: nothing
belongs to it alone. Pure: the standard library only."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

Value = TypeVar("Value", bound=Hashable)

# Of the model in a branch. Dora merges what is below 5 %; the widest shortcut of a ResNet-50 has
# 5.4 % and would not pay for two more transfers, the audio encoder of an Omni has 6.2 %.
LEAST = 0.06


@dataclass(frozen=True, slots=True)
class Branches:
    """`order`: every operator's number, in an order in which they can run. `spans`: half-open
    places in `order`, one for each branch; they are apart or one within the other."""

    order: tuple[int, ...]
    spans: tuple[tuple[int, int], ...] = ()

    @property
    def chains(self) -> tuple[tuple[int, int], ...]:
        """The order cut wherever a branch begins or ends: the model in serial pieces.

        >>> Branches(order=(0, 1, 2, 3, 4), spans=((1, 2), (2, 4))).chains
        ((0, 1), (1, 2), (2, 4), (4, 5))
        """
        ends = sorted({0, len(self.order), *(end for span in self.spans for end in span)})
        return tuple(pairwise(ends))


def find(
    reads: Sequence[Sequence[int]], weights: Sequence[float], least: float = LEAST
) -> Branches:
    """The branches of operators that read earlier ones; `weights` are shares of the model.

    Cost: some operations on integers of as many bits as there are operators, for each that an
    operator reads.
    """
    regions = sorted(
        _regions(reads, weights, least), key=lambda region: -sum(region[1]).bit_count()
    )
    order = list(range(len(reads)))
    for join, masks in regions:
        if not all(_span(order, mask) for mask in masks):
            place = order.index(join)
            order = _gathered(order[:place], masks, reads) + order[place:]
    found: list[tuple[int, int]] = []
    for mask in dict.fromkeys(mask for _, masks in regions for mask in masks):
        span = _span(order, mask)
        if span and all(_apart(span, other) for other in found):
            found.append(span)
    return Branches(order=tuple(order), spans=tuple(sorted(found)))


def hand_on(
    made: Mapping[Value, int],
    readers: Mapping[Value, AbstractSet[int]],
    n_layers: int,
    *,
    branched: bool,
) -> tuple[dict[Value, tuple[int, ...]], ...]:
    """For each layer the values that it hands on, and to which layers: along a branch from one to
    the next, into another branch directly.

    `made` and `readers` say which layer makes a value and which read it. A layer carries on the
    branch of the layer before it where it reads something that this one makes, else it begins one;
    all are one chain unless `branched`.
    """
    joined = {(made[value], layer) for value, layers in readers.items() for layer in layers}
    branch = [0]
    for layer in range(1, n_layers):
        branch.append(branch[-1] + (branched and (layer - 1, layer) not in joined))
    hands: list[dict[Value, tuple[int, ...]]] = [{} for _ in branch]
    for value, layers in readers.items():
        maker = made[value]
        for number in sorted({branch[layer] for layer in layers if layer != maker}):
            readers_in_branch = [layer for layer in layers if branch[layer] == number]
            first = maker if number == branch[maker] else min(readers_in_branch)
            ways = [(maker, first)] if first != maker else []
            for giver, taker in (*ways, *pairwise(range(first, max(readers_in_branch) + 1))):
                hands[giver][value] = (*hands[giver].get(value, ()), taker)
    return tuple(
        {value: tuple(sorted(takers)) for value, takers in given.items()} for given in hands
    )


def _regions(
    reads: Sequence[Sequence[int]], weights: Sequence[float], least: float
) -> Iterator[tuple[int, list[int]]]:
    """Each join with branches of enough weight, and the operators of each branch as the bits of an
    integer.
    """
    needed: list[int] = []  # per operator, itself and all that it depends on
    for operator, sources in enumerate(reads):
        mine = 1 << operator
        for source in sources:
            mine |= needed[source]
        needed.append(mine)
        operands = [needed[source] for source in set(sources)]
        once = shared = 0
        for operand in operands:
            shared |= once & operand
            once |= operand
        alone = [operand & ~shared for operand in operands if operand & ~shared]
        if len(alone) > 1:
            heavy = sorted(mask for mask in alone if sum(weights[i] for i in _bits(mask)) >= least)
            if len(heavy) > 1:
                yield operator, heavy


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _span(order: Sequence[int], mask: int) -> tuple[int, int] | None:
    """Where the operators of `mask` stand, if that is in one piece."""
    places = [place for place, operator in enumerate(order) if mask >> operator & 1]
    return (places[0], places[-1] + 1) if places[-1] - places[0] + 1 == len(places) else None


def _gathered(
    order: Sequence[int], masks: Sequence[int], reads: Sequence[Sequence[int]]
) -> list[int]:
    """The same operators, those of each mask together, behind all that needs none of them and
    before all that does.
    """
    inside, later = 0, 0
    for mask in masks:
        inside |= mask
    for operator in order:
        if not inside >> operator & 1 and any(
            (inside | later) >> source & 1 for source in reads[operator]
        ):
            later |= 1 << operator
    first = [operator for operator in order if not (inside | later) >> operator & 1]
    for mask in masks:
        first += [operator for operator in order if mask >> operator & 1]
    return first + [operator for operator in order if later >> operator & 1]


def _apart(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Whether two spans are disjoint, or one lies in the other."""
    return (
        a[1] <= b[0]
        or b[1] <= a[0]
        or (a[0] <= b[0] and b[1] <= a[1])
        or (b[0] <= a[0] and a[1] <= b[1])
    )
