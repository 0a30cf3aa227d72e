"""How far a screenshot is from the one that is kept: both as coarse grids of mean colours, and of
how much is drawn.

Letters of another font change a grid little. What has moved, gone or taken another colour changes
it much. Pages of one content may differ in height by a few lines.
"""

import io
import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "references"
CELL = 20  # pixels
TILE = 4  # cells: what is drawn is compared over so many, as letters of another font are wider
HEIGHT_FRAC = 0.08  # that the pages may differ in height
MOST_FRAC = 0.02  # of cells, whose colour is off by more than OFF
OFF = 24
MOST_TILES_FRAC = 0.012  # of tiles, in which less than a third, or more than three times, is drawn
LITTLE = 10  # of 255: so much ink is nothing


def grid(png):
    """The mean colours of a screenshot, and as opacity how much of each cell is edges."""
    image = pytest.importorskip("PIL.Image")
    from PIL import ImageFilter

    picture = image.open(io.BytesIO(png)).convert("RGB")
    size = max(1, picture.width // CELL), max(1, picture.height // CELL)
    edges = picture.convert("L").filter(ImageFilter.FIND_EDGES).point(lambda v: 255 * (v > 24))
    small = picture.resize(size, image.Resampling.BOX)
    small.putalpha(edges.resize(size, image.Resampling.BOX))
    return small


def unlike(png, name):
    """The shares of cells and of tiles that are not as in the reference; 1 where the sizes are."""
    image = pytest.importorskip("PIL.Image")
    seen, kept = grid(png), image.open(FOLDER / f"{name}.png")
    if seen.width != kept.width or abs(seen.height / kept.height - 1) > HEIGHT_FRAC:
        return 1.0, 1.0
    both = [seen.resize(kept.size, image.Resampling.BOX), kept]
    cells = zip(*(each.convert("RGB").get_flattened_data() for each in both), strict=True)
    off = [max(abs(a - b) for a, b in zip(x, y, strict=True)) > OFF for x, y in cells]
    tiles = max(1, kept.width // TILE), max(1, kept.height // TILE)
    ink = [each.getchannel("A").resize(tiles, image.Resampling.BOX) for each in both]
    pairs = [*zip(*(each.get_flattened_data() for each in ink), strict=True)]
    other = [max(a, b, LITTLE) > 3 * max(min(a, b), LITTLE / 3) for a, b in pairs]
    return sum(off) / len(off), sum(other) / len(other)


def is_alike(png, name):
    """Whether a screenshot is like its reference."""
    cells, tiles = unlike(png, name)
    return cells <= MOST_FRAC and tiles <= MOST_TILES_FRAC


def check(png, name, shots):
    """Fail where a screenshot is not like its reference; it is kept among the test's output.

    With POTLUCK_REFERENCES set, the reference is written anew.
    """
    (shots / f"{name}.png").write_bytes(png)
    if os.environ.get("POTLUCK_REFERENCES"):
        FOLDER.mkdir(exist_ok=True)
        grid(png).save(FOLDER / f"{name}.png", optimize=True)
    cells, tiles = unlike(png, name)
    assert is_alike(png, name), (
        f"{cells:.1%} of the colours and {tiles:.1%} of the drawing in {shots / name}.png are "
        f"unlike {FOLDER / name}.png"
    )
