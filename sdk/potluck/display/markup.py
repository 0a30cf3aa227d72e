"""HTML in parts: fragments for notebooks, whole pages for files; escaped, self-contained, readable
on light and dark.

Where styles are stripped (a notebook on GitHub, an untrusted one), a plain text shows instead. Ids
are made from the content, so that the same record gives the same HTML. Pure, but for `save`.
"""

import hashlib
from html import escape
from pathlib import Path

from potluck.display.palette import PALETTE
from potluck.documents import write_text
from potluck.sanitized_text import harmless

# Everything is scoped under .potluck, named twice to outweigh what notebooks say of tables; colours
# come from the page (ink) or work on white and on black (the palette).
STYLE = f"""<style>
.potluck-plain{{display:none!important}}
.potluck{{display:block!important;margin:4px 0 14px;
  font:13px/1.45 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}}
.potluck.potluck table{{border-collapse:collapse;font-size:13px;margin:10px 0 6px;border:0;background:none}}
.potluck.potluck caption{{caption-side:top;text-align:left;font-weight:600;font-size:14px;padding:4px 0;
  color:inherit;white-space:nowrap}}
.potluck.potluck th,.potluck.potluck td{{padding:3px 14px 3px 0;text-align:left;border:0;background:none;
  font-variant-numeric:tabular-nums}}
.potluck.potluck th{{font-weight:500;opacity:.62;
  border-bottom:1px solid color-mix(in srgb,currentColor 30%,transparent)}}
.potluck.potluck tr{{background:none!important}}
.potluck.potluck .number{{text-align:right}}
.potluck.potluck summary{{font-weight:600;font-size:14px;cursor:pointer;padding:4px 0}}
.potluck.potluck details caption{{display:none}}
.potluck.potluck .note{{opacity:.62;margin:0 0 2px}}
.potluck.potluck .bar{{display:inline-block;width:110px;height:9px;border-radius:5px;vertical-align:middle;
  margin-right:8px;overflow:hidden;background:color-mix(in srgb,currentColor 12%,transparent)}}
.potluck.potluck .bar>i{{display:block;height:100%;border-radius:5px;background:{PALETTE["blue"]}}}
.potluck.potluck .bar.over>i{{background:{PALETTE["vermilion"]}}}
.potluck.potluck .heat{{padding:3px 14px 3px 10px!important;text-align:right}}
</style>"""


def fragment(kind: str, plain: str, *parts: str) -> str:
    """Parts of HTML under one stable id, with a text for where styles are stripped."""
    body = "\n".join(parts)
    name = f"potluck-{kind}-{hashlib.sha256(body.encode()).hexdigest()[:8]}"
    fallback_text = "\n".join(map(escaped, plain.splitlines()))
    fallback = f'<pre class="potluck-plain">{fallback_text}</pre>'
    return (
        f'{STYLE}\n{fallback}\n<div class="potluck" id="{name}" '
        f'style="display:none">\n{body}\n</div>'
    )


def escaped(words: str) -> str:
    """A text of anybody, as HTML shows it."""
    return escape(harmless(words))


def heading(said: str, level: int = 2) -> str:
    """A heading between the fragments of a page."""
    return f"<h{level}>{escaped(said)}</h{level}>"


def words(said: str) -> str:
    """A sentence, such as how some work failed."""
    return fragment("words", said, f"<p>{escaped(said)}</p>")


def page(title: str, *fragments: str) -> str:
    """A whole page of fragments; follows the reader's choice of light or dark, loads nothing."""
    body = "\n".join(fragments)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" '
        'content="light dark">\n'
        f"<title>{escaped(title)}</title>\n"
        "<style>body{max-width:1000px;margin:32px auto;padding:0 "
        "16px;font-family:system-ui,sans-serif}</style>\n"
        f"</head><body>\n<h1>{escaped(title)}</h1>\n{body}\n</body></html>\n"
    )


def save(path: str | Path, title: str, *fragments: str) -> Path:
    """Write a page as a file.

    Raises
    ------
    FileError
        It cannot be written; nothing is left behind.
    """
    write_text(Path(path), page(title, *fragments))
    return Path(path)
