"""A Chrome trace in a viewer of its own: one page that needs no network and no other program, and
opens other traces too.
"""

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from potluck.display import chrome_trace
from potluck.display.chrome_trace import Watts
from potluck.display.markup import escaped
from potluck.documents import write_text
from potluck.records import Trace

STYLE = """body{margin:16px;font:13px/1.4 system-ui,sans-serif;background:#fff;color:#1f2328}
canvas{display:block;width:100%;cursor:grab}canvas:focus-visible{outline:2px solid #0072b2}
h1{font-size:18px;margin:0 0 8px}nav{display:flex;flex-wrap:wrap;gap:8px;margin-bottom:8px}
button{font:inherit}#told{min-height:20px;margin:8px 0}
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}}"""
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


def save(path: str | Path, title: str, *traces: Trace, watts: Sequence[Watts] = ()) -> Path:
    """Write the viewer with these traces in it.

    Parameters
    ----------
    path
        Of the page.
    title
        Its heading.
    traces
        What it shows first, as `chrome_trace.save` writes them.
    watts
        As for `chrome_trace.document`.

    Raises
    ------
    FileError
        It cannot be written; nothing is left behind.
    """
    return write_text(path, page(title, chrome_trace.document(traces, watts)))


def page(title: str, document: object) -> str:
    """The viewer with a Chrome trace.

    Parameters
    ----------
    title
        Its heading.
    document
        The trace, as JSON has it.
    """
    script = files("potluck.display").joinpath("trace_viewer.js").read_text(encoding="utf-8")
    # in no text of a script may an end of it stand
    data = json.dumps(document, allow_nan=False).replace("<", "\\u003c")
    name = escaped(title)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" '
        f'content="light dark">\n<title>{name}</title>\n<style>{STYLE}</style></head>\n'
        f'<body><h1>{name}</h1>\n<nav aria-label="view"><button id="out">−</button>'
        '<button id="in">+</button><button id="all">all</button>\n'
        '<label>another trace: <input id="file" type="file" accept=".json"></label></nav>\n'
        '<canvas id="trace" tabindex="0" role="img" aria-label="timeline; arrow keys walk over '
        'the slices, plus and minus zoom"></canvas>\n<p id="told" role="status"></p>\n'
        f'<script type="application/json" id="data">{data}</script>\n'
        f'<script type="module">\n{script}</script></body></html>\n'
    )
