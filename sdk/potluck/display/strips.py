"""Rows of strips under one heading: who has which layers, how full a memory is, where time goes.

What records show first, before their numbers. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from potluck.display.palette import ON_COLOUR
from potluck.display.scene import Item, Rect, Scene, Text, fitting, legend, text_width

WIDTH = 760.0
MARGIN = 16.0
MOST_NAME = 190.0
MOST_LABEL = 260.0
HEIGHT = 15.0  # of a strip
THIN = 7.0  # of those below the first
GAP = 11.0
MOST_ROWS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """From `start` to `stop`, of one, in a colour of the palette; `title` when the pointer rests on
    it.
    """

    start: float
    stop: float
    fill: str
    title: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """One row: a name, a strip and perhaps thin ones below it, and what they say."""

    name: str
    parts: Sequence[Sequence[Part]]
    label: str = ""


def draw(
    title: str, rows: Sequence[Strip], colours: Sequence[tuple[str, str]] = (), note: str = ""
) -> Scene:
    """The picture.

    Parameters
    ----------
    title
        Its heading.
    rows
        At most `MOST_ROWS` are drawn, the others counted.
    colours
        What each colour means.
    note
        Beside the heading.
    """
    shown = rows[:MOST_ROWS]
    names_width = min(MOST_NAME, max((text_width(row.name, 12) for row in shown), default=0) + 14)
    labels_width = min(
        MOST_LABEL, max((text_width(row.label, 11) for row in shown), default=0) + 12
    )
    left, right = MARGIN + names_width, WIDTH - MARGIN - labels_width
    items: list[Item] = [
        Text(x=MARGIN, y=20, text=fitting(title, WIDTH - 32, 15), size=15, bold=True)
    ]
    if note:
        space = WIDTH - 48 - text_width(title, 15)
        fitted = fitting(note, space, 11)
        items.append(Text(x=WIDTH - MARGIN, y=20, text=fitted, size=11, fill="muted", anchor="end"))
    y = 38.0
    if colours:
        items += legend(colours, MARGIN, y + 4)
        y += 20
    for row in shown:
        items += _row(row, left, right, y)
        y += HEIGHT + THIN * 1.4 * (len(row.parts) - 1) + GAP
    if len(rows) > len(shown):
        more = f"and {len(rows) - len(shown)} more"
        items.append(Text(x=MARGIN, y=y + 4, text=more, size=11, fill="muted"))
        y += 18
    return Scene(width=WIDTH, height=y + 4, title=title, items=tuple(items))


def _row(row: Strip, left: float, right: float, y: float) -> list[Item]:
    middle = y + HEIGHT / 2
    items: list[Item] = [
        Text(x=MARGIN, y=middle, text=fitting(row.name, left - MARGIN - 10, 12), size=12)
    ]
    label = fitting(row.label, WIDTH - MARGIN - right - 8, 11)
    items.append(Text(x=right + 12, y=middle, text=label, size=11, fill="muted"))
    top, height = y, HEIGHT
    for parts in row.parts:
        items.append(
            Rect(
                x=left, y=top, width=right - left, height=height, fill="grid", radius=2, opacity=0.7
            )
        )
        for part in parts:
            items += _part(part, left, right - left, top, height)
        top, height = top + height + THIN * 0.4, THIN
    return items


def _part(part: Part, left: float, width: float, top: float, height: float) -> list[Item]:
    start, stop = (min(max(at, 0.0), 1.0) for at in (part.start, part.stop))
    wide = max((stop - start) * width, 1.0)
    x = min(left + start * width, left + width - wide)
    items: list[Item] = [
        Rect(x=x, y=top, width=wide, height=height, fill=part.fill, radius=2, title=part.title)
    ]
    if part.text and height >= HEIGHT and text_width(part.text, 10) + 6 <= wide:
        ink = ON_COLOUR.get(part.fill, "#ffffff")
        items.append(
            Text(
                x=x + wide / 2,
                y=top + height / 2,
                text=part.text,
                size=10,
                fill=ink,
                anchor="middle",
            )
        )
    return items
