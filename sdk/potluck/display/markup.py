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
.potluck{{display:block!important;margin:4px 0 14px;overflow-x:auto;
  font:13px/1.45 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}}
.potluck.potluck table{{border-collapse:collapse;font-size:13px;margin:10px 0 6px;border:0;background:none}}
.potluck.potluck caption{{caption-side:top;text-align:left;font-weight:600;font-size:14px;padding:4px 0;
  color:inherit;white-space:nowrap}}
.potluck.potluck th,.potluck.potluck td{{padding:3px 14px 3px 0;text-align:left;border:0;background:none;
  font-variant-numeric:tabular-nums}}
.potluck.potluck th{{font-weight:500;color:color-mix(in srgb,currentColor 62%,transparent);
  border-bottom:1px solid color-mix(in srgb,currentColor 30%,transparent)}}
.potluck.potluck th button{{all:unset;cursor:pointer}}
.potluck.potluck th button:focus-visible{{outline:2px solid {PALETTE["blue"]};outline-offset:2px}}
.potluck.potluck th button::after{{content:" ↕";opacity:.35}}
.potluck.potluck th[aria-sort=ascending] button::after{{content:" ↑";opacity:1}}
.potluck.potluck th[aria-sort=descending] button::after{{content:" ↓";opacity:1}}
.potluck.potluck tfoot td{{border-top:1px solid color-mix(in srgb,currentColor 30%,transparent)}}
.potluck.potluck .headline{{font-size:15px;font-weight:600;margin:2px 0 8px}}
.potluck.potluck svg{{max-width:100%;height:auto}}
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
# A click on a heading sorts: columns of numbers by value and unit, words by the alphabet, names with
# numbers by these. Where scripts are stripped, tables are as they were made. It runs once for each
# fragment, and takes what is new in the page.
SORTED = """<script>(()=>{
const P={n:1e-9,"µ":1e-6,m:1e-3,"":1,k:1e3,K:1e3,M:1e6,G:1e9,T:1e12,Ki:2**10,Mi:2**20,Gi:2**30,Ti:2**40,Pi:2**50};
const value=text=>{const t=text.trim();
  const long=/^(-?)(?:(\\d+) h )?(?:(\\d+) min)?(?: (\\d+) s)?$/.exec(t);
  if(t&&long)return(long[1]?-1:1)*((long[2]||0)*3600+(long[3]||0)*60+ +(long[4]||0));
  const m=/^[→<+\\s]*(-?(?:\\d[\\d.]*(?:e[-+]?\\d+)?|∞))\\s?(?:([KMGTP]i|[nµmkKMGT])(?![\\w-])|(?:([KMGTP]i|[nµmkKMGT]?)(?:s|B|J|W|Wh|bit|%)(?![\\w-])))?/.exec(t);
  return m?(m[1].endsWith("∞")?parseFloat(m[1][0]==="-"?"-1e999":"1e999"):+m[1])*P[m[2]||m[3]||""]:NaN};
const none=t=>t.trim()===""||t.trim()==="–";
for(const table of document.querySelectorAll(".potluck table:not([data-sorts])")){
  const head=table.tHead&&table.tHead.rows[0],body=table.tBodies[0];
  table.dataset.sorts="";
  if(!head||body.rows.length<2)continue;
  head.dataset.lmSuppressShortcuts="true";
  [...head.cells].forEach((cell,index)=>{
    const button=document.createElement("button");
    button.type="button";button.append(...cell.childNodes);cell.append(button);
    if(!button.textContent)button.setAttribute("aria-label","number");
    button.addEventListener("click",()=>{
      const up=cell.getAttribute("aria-sort")!=="ascending",text=row=>row.cells[index]?.textContent??"";
      for(const other of head.cells)other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort",up?"ascending":"descending");
      const rows=[...body.rows],known=rows.filter(row=>!none(text(row)));
      const numbers=known.every(row=>!isNaN(value(text(row))));
      known.sort((a,b)=>{const x=text(a),y=text(b);
        return(numbers?value(x)-value(y)||0:x.localeCompare(y,undefined,{numeric:true}))*(up?1:-1)});
      body.append(...known,...rows.filter(row=>none(text(row))))})})}
})()</script>"""


def fragment(kind: str, plain: str, *parts: str) -> str:
    """Parts of HTML under one stable id, with a text for where styles are stripped."""
    body = "\n".join(parts)
    name = f"potluck-{kind}-{hashlib.sha256(body.encode()).hexdigest()[:8]}"
    fallback_text = "\n".join(map(escaped, plain.splitlines()))
    fallback = f'<pre class="potluck-plain">{fallback_text}</pre>'
    script = f"\n{SORTED}" if "<thead>" in body else ""
    return (
        f'{STYLE}\n{fallback}\n<div class="potluck" id="{name}" '
        f'style="display:none">\n{body}\n</div>{script}'
    )


def numbers(summary: str, *parts: str) -> str:
    """Tables below a picture, which show when somebody asks for them."""
    body = "\n".join(parts)
    return f"<details><summary>{escaped(summary)}</summary>\n{body}\n</details>"


def escaped(words: str) -> str:
    """A text of anybody, as HTML shows it."""
    return escape(harmless(words))


def heading(text: str, level: int = 2) -> str:
    """A heading between the fragments of a page."""
    return f"<h{level}>{escaped(text)}</h{level}>"


def words(sentence: str) -> str:
    """A sentence, such as how some work failed."""
    return fragment("words", sentence, f"<p>{escaped(sentence)}</p>")


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
    return write_text(path, page(title, *fragments))
