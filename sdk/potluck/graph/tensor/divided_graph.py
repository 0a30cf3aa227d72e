"""What a graph divided by tensor is: nodes of lanes in groups, and states in pieces."""

from collections.abc import Mapping
from dataclasses import dataclass

from potluck.errors import ModelError
from potluck.graph.partition.cuts import multiple
from potluck.graph.tensor.layouts import Cut
from potluck.graph.traced import Traced
from potluck_wire.graph import node_refs


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSlice:
    """A state of a lane: units [start, stop) of so many of the state `whole`, along a cut axis."""

    whole: str
    cut: Cut
    units: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedGraph:
    """What a graph was divided into.

    `groups`: runs of nodes of one lane, in running order: (lane, number of nodes that depend on
    inputs). `pieces`: of each state that is cut, by its name.
    """

    traced: Traced
    groups: tuple[tuple[int, int], ...]
    pieces: Mapping[str, StateSlice]


def check_crossing(found: DividedGraph) -> None:
    """Refuse where a value that crosses between groups has no rows to cut, as segments need.

    Raises
    ------
    ModelError
        Says what made the value.
    """
    traced, graph = found.traced, found.traced.graph
    group_of = dict[int, int]()
    still = len(graph.nodes) - sum(n for _, n in found.groups)
    value = graph.first_node + still
    for group, (_, n) in enumerate(found.groups):
        for _ in range(n):
            group_of[value] = group
            value += 1
    for value, node in enumerate(graph.nodes, start=graph.first_node):
        for ref in node_refs(node):
            if group_of.get(ref.value, group_of.get(value)) == group_of.get(value):
                continue
            if ref not in traced.by_rows or not multiple(traced.type_of(ref).shape):
                maker = graph.nodes[ref.value - graph.first_node].op
                raise ModelError(
                    f"the result of {maker} would cross between devices, and its first dimension "
                    "does not count rows.",
                    next_step="Divide the model by layers or rows instead.",
                )
