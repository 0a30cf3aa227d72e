"""Whether a reduction grows with the number of rows, read from the operators that make it.

Counts and sums over rows grow, and so do they with a least value, `clamp(min=1)`, or something
small added; means, extremes and quotients of counts do not. Values are not looked at: a mask that
counts nothing in the examples says nothing of the batches to come.
"""

from collections.abc import Callable, Iterable, Mapping

import torch

from potluck_wire.operators import KIND_OF

_SUMS = frozenset({"sum", "nansum", "count_nonzero"})
_NO_SUMS = frozenset({"mean", "amax", "amin", "max", "min", "any", "all"})
_KEEPING = frozenset(
    {"neg", "abs", "to", "type_as", "clone", "alias", "detach", "view", "reshape", "unsqueeze"}
    | {"squeeze", "expand", "expand_as", "select", "index", "nan_to_num", "ceil", "floor", "round"}
)
_OF_ITS_ENTRIES = _SUMS | {"mean", "amax", "amin", "max", "min"}
# of one that grows and of one that does not, the result grows
_JOINING = frozenset({"add", "sub", "rsub", "maximum", "fmax", "clamp_min", "where", "masked_fill"})
_QUOTIENTS = frozenset({"div", "reciprocal"})


def growing(
    nodes: Iterable[torch.fx.Node], has_rows: Callable[[torch.fx.Node], bool]
) -> Mapping[torch.fx.Node, bool | None]:
    """Of each node, in their order, whether its value grows with the rows; None: only trials tell.

    `has_rows`: whether a value has a dimension of rows. One that has grows where each row does.
    """
    found: dict[torch.fx.Node, bool | None] = {}
    for node in nodes:
        sources = [found[source] for source in node.all_input_nodes if source in found]
        if node.op != "call_function" or KIND_OF.get(str(node.target)) == "creation":
            found[node] = False
        elif not isinstance(node.meta.get("val"), torch.Tensor):
            found[node] = None
        elif has_rows(node):
            found[node] = None if any(grows is not False for grows in sources) else False
        else:
            found[node] = _without_rows(node, sources, found, has_rows)
    return found


def _without_rows(
    node: torch.fx.Node,
    sources: list[bool | None],
    found: Mapping[torch.fx.Node, bool | None],
    has_rows: Callable[[torch.fx.Node], bool],
) -> bool | None:
    """Whether a value grows that has no dimension of rows."""
    if None in sources:  # so is a part of what gives several
        return None
    packet = str(node.target).split(".")[1]
    if any(has_rows(source) for source in node.all_input_nodes):
        return _reduced(packet)
    if not any(sources):
        return False
    if node.meta["val"].dtype is torch.bool or packet in _QUOTIENTS:
        return _quotient(node, found) if packet == "div" else False
    if packet == "clamp":
        return True if len(node.args) < 3 and "max" not in node.kwargs else None
    if packet == "mul":
        return True if sources.count(True) == 1 else None
    if packet in _KEEPING | _OF_ITS_ENTRIES:
        return found.get(node.all_input_nodes[0])
    return True if packet in _JOINING else None


def _reduced(packet: str) -> bool | None:
    return True if packet in _SUMS else False if packet in _NO_SUMS else None


def _quotient(node: torch.fx.Node, found: Mapping[torch.fx.Node, bool | None]) -> bool:
    """What is divided grows, and what it is divided by does not."""
    above, below = node.args[:2]
    grows = isinstance(above, torch.fx.Node) and bool(found.get(above))
    return grows and not (isinstance(below, torch.fx.Node) and bool(found.get(below)))
