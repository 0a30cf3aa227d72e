"""What browsers get of the cockpit's page without Jupyter: its files, and what goes with them."""

import json
import struct
from collections.abc import Mapping
from importlib.resources import files
from typing import Final

LENGTH = struct.Struct("<I")  # before each frame of a stream
MOST_STREAMS = 16
MOST_WAITING = 64  # frames that a slow reader has not taken; then it waits for the next whole one
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>potluck</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<style>body{margin:0;padding:10px;background:#fff}
@media(prefers-color-scheme:dark){body{background:#0d1117}}</style></head>
<body><div id="cockpit"></div><script type="module" src="start.js"></script></body></html>
"""
READ_ONLY = "Live, to look at only: no click here changes the run."
START = """import {{ serve }} from "./page.js";
serve(document.getElementById("cockpit"), ".", {readonly});
"""


def page_files(*, may_act: bool) -> Mapping[str, tuple[str, str]]:
    """By name: the text of each file, and its type.

    Parameters
    ----------
    may_act
        Whether clicks may switch and pair.
    """
    start = START.format(readonly=json.dumps("" if may_act else READ_ONLY))
    return {
        "": (PAGE, "text/html"),
        "page.js": (script(), "text/javascript"),
        "start.js": (start, "text/javascript"),
    }


def script() -> str:
    """The page's module."""
    return files("potluck.display.cockpit").joinpath("page.js").read_text(encoding="utf-8")
