"""Paints a `Scene` through matplotlib, pixel for pixel.

The only file of the display that imports matplotlib.
"""

from pathlib import Path
from typing import Any

from potluck.display.palette import INK, PAPER
from potluck.display.scene import Dot, Item, Line, Rect, Scene, Text, paint
from potluck.documents import file_path, put_in_place
from potluck.errors import UserError
from potluck.sanitized_text import harmless

DPI = 100
POINTS_PER_PIXEL = 72 / DPI
FONTS = ["Inter", "Segoe UI", "Helvetica Neue", "Roboto", "Arial", "Liberation Sans", "DejaVu Sans"]


def save_png(scene: Scene, path: str | Path, scale: float = 2.0) -> Path:
    """Write the picture as a PNG on white, `scale` times its size in pixels.

    No display, no global matplotlib state.
    """
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.font_manager import fontManager
    except ImportError as error:
        raise UserError(
            "PNG pictures need matplotlib", next_step="pip install matplotlib, or write SVG."
        ) from error
    known = set(fontManager.get_font_names())
    with matplotlib.rc_context(
        {"font.family": next((name for name in FONTS if name in known), "sans-serif")}
    ):
        figure = Figure(figsize=(scene.width / DPI, scene.height / DPI), dpi=DPI, facecolor=PAPER)
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, scene.width), ylim=(scene.height, 0))
        axes.axis("off")
        for order, item in enumerate(scene.items):
            _paint(axes, item, order)
        with put_in_place(file_path(path)) as part:
            title = {"Title": harmless(scene.title)}
            figure.savefig(part, format="png", dpi=DPI * scale, metadata=title)
    return file_path(path)


def _colour(name: str, opacity: float = 1.0) -> tuple[str, float]:
    colour, share = paint(name)
    return (INK if colour == "currentColor" else colour), share * opacity


def _paint(axes: Any, item: Item, order: int) -> None:
    match item:
        case Rect():
            _paint_rect(axes, item, order)
        case Line():
            _paint_line(axes, item, order)
        case Dot():
            _paint_dot(axes, item, order)
        case _:
            _paint_text(axes, item, order)


def _paint_rect(axes: Any, rect: Rect, order: int) -> None:
    from matplotlib.patches import FancyBboxPatch, Rectangle

    colour, alpha = _colour(rect.fill, rect.opacity)
    style: dict[str, Any] = {"facecolor": colour, "alpha": alpha, "linewidth": 0, "zorder": order}
    radius = min(rect.radius, rect.width / 2, rect.height / 2)
    corner, size = (rect.x, rect.y), (rect.width, rect.height)
    if radius > 0:
        box = f"round,pad=0,rounding_size={radius}"
        axes.add_patch(FancyBboxPatch(corner, *size, boxstyle=box, **style))
    else:
        axes.add_patch(Rectangle(corner, *size, **style))


def _paint_line(axes: Any, line: Line, order: int) -> None:
    colour, alpha = _colour(line.stroke, line.opacity)
    xs, ys = zip(*line.points, strict=True) if line.points else ((), ())
    dash = {"dashes": (4 / line.width, 3 / line.width)} if line.dashed else {}
    axes.plot(
        xs,
        ys,
        color=colour,
        alpha=alpha,
        linewidth=line.width * POINTS_PER_PIXEL,
        zorder=order,
        solid_joinstyle="round",
        **dash,
    )


def _paint_dot(axes: Any, dot: Dot, order: int) -> None:
    from matplotlib.patches import Circle

    colour, alpha = _colour(dot.fill)
    face, edge = ("none", colour) if dot.ring else (colour, "none")
    style: dict[str, Any] = {
        "facecolor": face,
        "edgecolor": edge,
        "alpha": alpha,
        "linewidth": 2 * POINTS_PER_PIXEL if dot.ring else 0,
        "zorder": order,
    }
    axes.add_patch(Circle((dot.x, dot.y), dot.radius, **style))


def _paint_text(axes: Any, text: Text, order: int) -> None:
    colour, alpha = _colour(text.fill)
    axes.text(
        text.x,
        text.y + 0.35 * text.size,
        harmless(text.text).replace("$", r"\$"),
        color=colour,
        alpha=alpha,
        fontsize=text.size * POINTS_PER_PIXEL,
        fontweight="bold" if text.bold else "normal",
        ha={"start": "left", "middle": "center", "end": "right"}[text.anchor],
        va="baseline",
        zorder=order,
    )
