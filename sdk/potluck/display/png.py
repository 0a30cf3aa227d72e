"""Paints a `Scene` through matplotlib, pixel for pixel.

The only file of the display that imports matplotlib.
"""

from pathlib import Path
from typing import Any

from potluck.display.palette import INK, PAPER
from potluck.display.scene import Dot, Item, Line, Rect, Scene, paint
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
        figure.savefig(path, dpi=DPI * scale, metadata={"Title": harmless(scene.title)})
    return Path(path)


def _colour(name: str, opacity: float = 1.0) -> tuple[str, float]:
    colour, share = paint(name)
    return (INK if colour == "currentColor" else colour), share * opacity


def _paint(axes: Any, item: Item, order: int) -> None:
    from matplotlib.patches import Circle, FancyBboxPatch, Rectangle

    if isinstance(item, Rect):
        colour, alpha = _colour(item.fill, item.opacity)
        style: dict[str, Any] = {
            "facecolor": colour,
            "alpha": alpha,
            "linewidth": 0,
            "zorder": order,
        }
        radius = min(item.radius, item.width / 2, item.height / 2)
        if radius > 0:
            box = f"round,pad=0,rounding_size={radius}"
            axes.add_patch(
                FancyBboxPatch((item.x, item.y), item.width, item.height, boxstyle=box, **style)
            )
        else:
            axes.add_patch(Rectangle((item.x, item.y), item.width, item.height, **style))
    elif isinstance(item, Line):
        colour, alpha = _colour(item.stroke, item.opacity)
        xs, ys = zip(*item.points, strict=True) if item.points else ((), ())
        width = item.width * POINTS_PER_PIXEL
        dash = {"dashes": (4 / item.width, 3 / item.width)} if item.dashed else {}
        axes.plot(
            xs,
            ys,
            color=colour,
            alpha=alpha,
            linewidth=width,
            zorder=order,
            solid_joinstyle="round",
            **dash,
        )
    elif isinstance(item, Dot):
        colour, alpha = _colour(item.fill)
        face, edge = ("none", colour) if item.ring else (colour, "none")
        width = 2 * POINTS_PER_PIXEL if item.ring else 0
        look: dict[str, Any] = {
            "facecolor": face,
            "edgecolor": edge,
            "alpha": alpha,
            "linewidth": width,
        }
        axes.add_patch(Circle((item.x, item.y), item.radius, zorder=order, **look))
    else:
        colour, alpha = _colour(item.fill)
        across = {"start": "left", "middle": "center", "end": "right"}[item.anchor]
        axes.text(
            item.x,
            item.y + 0.35 * item.size,
            harmless(item.text).replace("$", r"\$"),
            color=colour,
            alpha=alpha,
            fontsize=item.size * POINTS_PER_PIXEL,
            fontweight="bold" if item.bold else "normal",
            ha=across,
            va="baseline",
            zorder=order,
        )
