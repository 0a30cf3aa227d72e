"""In which order the nodes of all lanes run: phase by phase, and lane by lane in each. A value that
another lane reads ends a phase, so that all summands of a sum cross in one round. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from potluck.graph.partition.cuts import multiple
from potluck.graph.traced import Type
from potluck_wire.graph import Node, node_refs
from potluck_wire.operators import KIND_OF

FIRST = 0  # the lane that does what is done once


@dataclass(slots=True)
class Made:
    """A node of a divided graph. `lane` is None for what depends on no input."""

    node: Node
    types: tuple[Type, ...]
    lane: int | None
    by_rows: frozenset[int | None]
    module: str
    phase: int = 0


def can_cross(made: Made) -> bool:
    """Whether each of its results counts rows in its first dimension."""
    return bool(made.by_rows) and all(multiple(kind.shape) for kind in made.types)


def in_order(made: Mapping[int, Made], kept: Sequence[int]) -> list[int]:
    """The nodes that lead to these, in the order of groups; each learns its phase.

    Parameters
    ----------
    made
        By number; a node reads smaller numbers alone.
    kept
        Outputs, and what keeps statistics.
    """
    needed, todo = set[int](), [*kept]
    while todo:
        number = todo.pop()
        if number in made and number not in needed:
            needed.add(number)
            todo += [ref.value for ref in node_refs(made[number].node)]
    _set_phases(made, needed)

    def place(number: int) -> tuple[int, int, int]:
        lane = made[number].lane
        return (-1, 0, number) if lane is None else (made[number].phase, lane, number)

    return sorted(needed, key=place)


def groups_of(made: Mapping[int, Made], order: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Runs of nodes of one phase and lane: (lane, number of nodes).

    Parameters
    ----------
    made
        By number.
    order
        That of `in_order`.
    """
    found: list[tuple[tuple[int, int], int]] = []
    for number in order:
        lane = made[number].lane
        if lane is None:
            continue
        key = (made[number].phase, lane)
        if found and found[-1][0] == key:
            found[-1] = (key, found[-1][1] + 1)
        else:
            found.append((key, 1))
    return tuple((lane, n) for (_, lane), n in found)


def _set_phases(nodes: Mapping[int, Made], needed: set[int]) -> None:
    """A value that another lane reads ends a phase: whoever reads it comes later."""
    crossing = {
        ref.value
        for number in needed
        for ref in node_refs(nodes[number].node)
        if (giver := nodes.get(ref.value)) is not None
        and giver.lane not in (None, nodes[number].lane)
        and nodes[number].lane is not None
    }
    latest = 0
    for number in sorted(needed):
        made = nodes[number]
        if made.lane is None:
            continue
        read = [ref.value for ref in node_refs(made.node) if ref.value in nodes]
        phases = [
            nodes[value].phase + (value in crossing)
            for value in read
            if nodes[value].lane is not None
        ]
        is_counter = KIND_OF[made.node.op] == "buffer"
        made.phase = max(phases, default=latest if is_counter else 0)
        latest = made.phase if made.lane == FIRST else latest
    _delay(nodes, needed)


def _delay(nodes: Mapping[int, Made], needed: set[int]) -> None:
    """What cannot be handed on is computed where it is read first."""
    users: dict[int, list[Made]] = {}
    for number in sorted(needed, reverse=True):
        made = nodes[number]
        if made.lane is not None and number in users and not can_cross(made):
            made.phase = max(made.phase, min(user.phase for user in users[number]))
        for ref in node_refs(made.node):
            users.setdefault(ref.value, []).append(made)
