"""A picture as data: rectangles, lines, dots and text in pixels, drawn the same as SVG and as PNG.

Colours are names in `palette`. `ink` is the text colour of wherever the picture stands. Pure, but
for `save_svg`.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from potluck.display.markup import escaped, fragment
from potluck.display.palette import DARK_INK, DARK_PAPER, FADED, FONT, INK, PALETTE, PAPER
from potluck.documents import write_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Rect:
    """`title` shows when the pointer rests on it."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    radius: float = 0.0
    title: str = ""
    opacity: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """An open line through `points`."""

    points: tuple[tuple[float, float], ...]
    stroke: str = "grid"
    width: float = 1.0
    dashed: bool = False
    opacity: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A filled circle, or a ring."""

    x: float
    y: float
    radius: float
    fill: str
    title: str = ""
    ring: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """`y` is the middle of the letters. `anchor`: start, middle or end."""

    x: float
    y: float
    text: str
    size: float = 12.0
    fill: str = "ink"
    anchor: str = "start"
    bold: bool = False


Item = Rect | Line | Dot | Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Items in the order in which they are painted.

    `title` says what the picture shows to who cannot see it.
    """

    width: float
    height: float
    title: str
    items: tuple[Item, ...] = ()

    def svg(self) -> str:
        """A self-contained SVG element that takes its text colour from the page around it."""
        name = "potluck-" + hashlib.sha256(repr(self).encode()).hexdigest()[:8]
        body = "\n".join(map(_svg, self.items))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" id="{name}" role="img" '
            f'aria-labelledby="{name}-title" '
            f'viewBox="0 0 {_n(self.width)} {_n(self.height)}" width="{_n(self.width)}" '
            f'height="{_n(self.height)}" '
            f'style="max-width:100%;height:auto" font-family="{FONT}" fill="currentColor">\n'
            f'<title id="{name}-title">{escaped(self.title)}</title>\n{body}\n</svg>'
        )

    def standalone(self) -> str:
        """The same as an image of its own, which no page lends its ink: on paper of its own, light
        or dark.
        """
        return on_paper(self.svg())

    def _repr_html_(self) -> str:
        # inside the page, where its ink is that of the page's theme
        return fragment("picture", self.title, self.svg())

    def _repr_svg_(self) -> str:
        return self.standalone()


def on_paper(svg: str) -> str:
    """An element that `Scene.svg` gave, as an image of its own."""
    light, dark = f"color:{INK};background:{PAPER}", f"color:{DARK_INK};background:{DARK_PAPER}"
    style = f"<style>svg{{{light}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"
    head, body = svg.split("\n", 1)
    return f"{head}\n{style}\n{body}\n"


def save_svg(scene: Scene, path: str | Path) -> Path:
    """Write the picture as a file of its own.

    Raises
    ------
    FileError
        It cannot be written; nothing is left behind.
    """
    return write_text(path, scene.standalone())


def text_width(text: str, size: float) -> float:
    """Roughly how many pixels the text takes (a mean letter is 0.56 of its size wide)."""
    return 0.56 * size * len(text)


def fitting(text: str, width: float, size: float) -> str:
    """The text, shortened with an ellipsis until it fits."""
    if text_width(text, size) <= width:
        return text
    letters = int(width / (0.56 * size)) - 1
    return f"{text[:letters]}…" if letters > 1 else ""


def paint(name: str) -> tuple[str, float]:
    """Colour and opacity of a palette name; the colour of ink is `currentColor`."""
    return ("currentColor", FADED[name]) if name in FADED else (PALETTE.get(name, name), 1.0)


def _svg(item: Item) -> str:
    if isinstance(item, Rect):
        return _rect(item)
    if isinstance(item, Line):
        return _polyline(item)
    return _circle(item) if isinstance(item, Dot) else _text(item)


def _rect(item: Rect) -> str:
    radius = f' rx="{_n(item.radius)}"' if item.radius else ""
    shape = (
        f'<rect x="{_n(item.x)}" y="{_n(item.y)}" width="{_n(item.width)}" '
        f'height="{_n(item.height)}"{radius}'
    )
    return f"{shape}{_painted('fill', item.fill, item.opacity)}{_close('rect', item.title)}"


def _polyline(item: Line) -> str:
    points = " ".join(f"{_n(x)},{_n(y)}" for x, y in item.points)
    shape = (
        f'<polyline points="{points}" fill="none" stroke-width="{_n(item.width)}" '
        'stroke-linejoin="round"'
    )
    dash = ' stroke-dasharray="4 3"' if item.dashed else ""
    return f"{shape}{dash}{_painted('stroke', item.stroke, item.opacity)}/>"


def _circle(item: Dot) -> str:
    shape = f'<circle cx="{_n(item.x)}" cy="{_n(item.y)}" r="{_n(item.radius)}"'
    ring = ' fill="none" stroke-width="2"' + _painted("stroke", item.fill)
    return (
        f"{shape}{ring if item.ring else _painted('fill', item.fill)}{_close('circle', item.title)}"
    )


def _text(item: Text) -> str:
    place = f'x="{_n(item.x)}" y="{_n(item.y + 0.35 * item.size)}" font-size="{_n(item.size)}"'
    weight = ' font-weight="600"' if item.bold else ""
    colour = _painted("fill", item.fill)
    return f'<text {place} text-anchor="{item.anchor}"{weight}{colour}>{escaped(item.text)}</text>'


def _painted(attribute: str, name: str, opacity: float = 1.0) -> str:
    colour, share = paint(name)
    faded = share * opacity
    return f' {attribute}="{escaped(colour)}"' + (
        f' {attribute}-opacity="{_n(faded)}"' if faded < 1 else ""
    )


def _close(tag: str, title: str) -> str:
    return f"><title>{escaped(title)}</title></{tag}>" if title else "/>"


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def legend(
    entries: Sequence[tuple[str, str]], x: float, y: float, size: float = 11.0
) -> tuple[Item, ...]:
    """Swatches (colour, word) in a row, from `x` on."""
    items: list[Item] = []
    for colour, word in entries:
        items.append(Rect(x=x, y=y - 5, width=10, height=10, fill=colour, radius=2))
        items.append(Text(x=x + 15, y=y, text=word, size=size, fill="muted"))
        x += 15 + text_width(word, size) + 16
    return tuple(items)
