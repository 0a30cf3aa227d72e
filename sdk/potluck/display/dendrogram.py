"""Groups of devices drawn: which are joined at what distance, and where they are cut."""

from collections.abc import Mapping

from potluck.display.scene import Item, Line, Scene, Text
from potluck.planning.grouping import Dendrogram, Grouping
from potluck.units import duration

ROW = 18.0
LEFT = 12.0
WIDTH = 360.0
RIGHT = 150.0


def text(grouping: Grouping, seconds: Mapping[tuple[float, float], float] | None = None) -> str:
    """The tree of the network, a line for each merge and device, and the groups it is cut into.

    Parameters
    ----------
    grouping
        Both levels.
    seconds
        Of the best plan, by thresholds; shown where given.
    """
    tree = grouping.network
    lines = ["seconds of 1 MiB from device to device:", *_branches(tree, tree.names, "")]
    lines.append("")
    for number, region in enumerate(grouping.groups, start=1):
        parts = "; ".join(", ".join(part) for part in region)
        lines.append(f"group {number}: {parts}")
    if seconds:
        lines.append("")
        for (threshold, factor), plan_s in sorted(seconds.items()):
            chosen = (threshold, factor) == (grouping.threshold, grouping.factor)
            lines.append(
                f"cut at {_height(threshold)}, alike within {factor:.3g} times: "
                f"{duration(plan_s) if plan_s < float('inf') else 'no plan'}"
                + (" <- chosen" if chosen else "")
            )
    return "\n".join(lines)


def _height(seconds: float) -> str:
    return duration(seconds) if seconds else "nothing"


def _branches(dendrogram: Dendrogram, members: tuple[str, ...], indent: str) -> list[str]:
    """What is joined last first; merges of one height are one."""
    inside = [m for m in dendrogram.merges if m.members <= {*members}]
    if len(members) == 1 or not inside:
        return [f"{indent}{name}" for name in members]
    height = inside[-1].height
    below = [m.height for m in inside if m.height < height]
    parts = [part for part in dendrogram.cut(max(below, default=-1.0)) if {*part} <= {*members}]
    lines = [f"{indent}{duration(height)}:"]
    if all(len(part) == 1 for part in parts):
        return [f"{lines[0]} {', '.join(name for (name,) in parts)}"]
    return lines + [line for part in parts for line in _branches(dendrogram, part, indent + "  ")]


def picture(grouping: Grouping) -> Scene:
    """The tree as a drawing, distances to the right on a scale of logarithms, and the cut."""
    tree = grouping.network
    order = _leaves(tree)
    y = {frozenset({name}): ROW * (row + 1) for row, name in enumerate(order)}
    x = dict.fromkeys(y, LEFT + RIGHT)
    heights = sorted({merge.height for merge in tree.merges})
    items: list[Item] = [
        Text(x=LEFT + RIGHT - 6, y=ROW * (row + 1), text=name, size=11, anchor="end")
        for row, name in enumerate(order)
    ]

    def place(height: float) -> float:
        rank = 1 + heights.index(height) if height in heights else 0
        return LEFT + RIGHT + WIDTH * rank / max(1, len(heights))

    for merge in tree.merges:
        at = place(merge.height)
        up, down = y[merge.left], y[merge.right]
        corners = ((x[merge.left], up), (at, up), (at, down), (x[merge.right], down))
        items.append(Line(points=corners, stroke="ink"))
        y[merge.members], x[merge.members] = (up + down) / 2, at
    bottom = ROW * (len(order) + 1)
    items += [
        Text(x=place(height), y=bottom + ROW / 2, text=duration(height), size=10, anchor="middle")
        for height in heights
    ]
    cut = place(grouping.threshold) + 4
    items.append(Line(points=((cut, ROW / 2), (cut, bottom)), stroke="orange", dashed=True))
    return Scene(
        width=LEFT + RIGHT + WIDTH + 40,
        height=bottom + 2 * ROW,
        title=f"{len(tree.names)} devices in {len(grouping.groups)} groups",
        items=tuple(items),
    )


def _leaves(tree: Dendrogram) -> list[str]:
    """Devices so that no lines cross: as merges put them together."""
    chains = {frozenset({name}): [name] for name in tree.names}
    for merge in tree.merges:
        chains[merge.members] = chains[merge.left] + chains[merge.right]
    return max(chains.values(), key=len, default=[])
