"""Records as HTML fragments for notebooks, and as whole pages: escaped, self-contained, readable on
light and dark.

Where styles are stripped (a notebook on GitHub, an untrusted one), a plain text shows instead. Ids
are made from the content, so that the same record gives the same HTML. Pure, but for `save`.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.display import chart, explanation_tables, tables, text, timeline
from potluck.display.png import save_png
from potluck.display.scene import PALETTE, Scene, save_svg
from potluck.display.tables import Bar, Cell, Heat, Table
from potluck.records import Device, Layer, Plan, Problem, Trace
from potluck.texts import harmless

if TYPE_CHECKING:
    from potluck.planning.explain import Explanation

MOST_PLANS = 10  # rows of a table; the picture shows all
MOST_STEPS = 3  # more of them in one timeline are too narrow to read

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
    fallback_text = "\n".join(map(_escaped, plain.splitlines()))
    fallback = f'<pre class="potluck-plain">{fallback_text}</pre>'
    return (
        f'{STYLE}\n{fallback}\n<div class="potluck" id="{name}" '
        f'style="display:none">\n{body}\n</div>'
    )


def table(content: Table) -> str:
    """One table."""
    right = [heading.startswith(">") for heading in content.columns]
    head = "".join(
        _cell("th", heading.removeprefix(">"), r)
        for heading, r in zip(content.columns, right, strict=True)
    )
    rows = "\n".join(
        "<tr>" + "".join(_cell("td", cell, r) for cell, r in zip(row, right, strict=True)) + "</tr>"
        for row in content.rows
    )
    notes = "".join(f'<p class="note">{_escaped(note)}</p>' for note in content.notes)
    caption = f"<caption>{_escaped(content.title)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>{notes}"


def _cell(tag: str, cell: Cell, right: bool) -> str:
    if isinstance(cell, Heat):
        strength = f"{min(max(cell.frac, 0.0), 1.0) * 72:.0f}%"
        colour = f"color-mix(in srgb,{PALETTE['orange']} {strength},transparent)"
        return f'<td class="heat" style="background:{colour}">{_escaped(cell.text)}</td>'
    number = ' class="number"' if right else ""
    if isinstance(cell, Bar):
        over = " over" if cell.frac > 1 else ""
        width = f"{min(max(cell.frac, 0.0), 1.0) * 100:.0f}%"
        return (
            f'<td><span class="bar{over}"><i '
            f'style="width:{width}"></i></span>{_escaped(cell.text)}</td>'
        )
    return f"<{tag}{number}>{_escaped(cell)}</{tag}>"


def _escaped(words: str) -> str:
    return escape(harmless(words))


def devices(found: Iterable[Device], title: str = "Devices") -> str:
    """Who takes part."""
    content = tables.devices(found, title)
    return fragment("devices", text.render(content), table(content))


def members(found: Iterable[Any], title: str = "Devices") -> str:
    """Devices found or known, with their status."""
    content = tables.members(found, title)
    return fragment("members", text.render(content), table(content))


def profile(problem: Problem, notes: Sequence[str] = ()) -> str:
    """Heat table of layer by device, and the links."""
    heat, links = tables.costs(problem), tables.links(problem.network)
    heat = replace(heat, notes=(*heat.notes, *notes))
    # n² rows
    folded = f"<details><summary>{_escaped(links.title)}</summary>{table(links)}</details>"
    return fragment("profile", text.profile(problem), table(heat), folded)


def plan(
    plan: Plan, problem: Problem | None = None, available_bytes: Mapping[str, int] | None = None
) -> str:
    """Stages, and memory needed and available on each device."""
    plain = text.plan(plan, problem, available_bytes)
    available = available_bytes or tables.available_bytes(problem)
    return fragment(
        "plan", plain, table(tables.stages(plan, problem)), table(tables.memory(plan, available))
    )


def plans(candidates: Sequence[Plan], best: Plan | None = None) -> str:
    """Plans side by side, and by time and energy."""
    content = tables.plans(candidates, best, MOST_PLANS)
    known = [
        plan for plan in candidates if plan.latency_s is not None and plan.energy_j is not None
    ]
    picture = [chart.pareto(candidates, best).svg()] if len(known) > 1 else []
    return fragment("plans", text.render(content), table(content), *picture)


def explanation(found: "Explanation") -> str:
    """Where a plan's time goes, and what would help."""
    parts = [table(explanation_tables.time_spent(found))] + (
        [table(explanation_tables.improvements(found))] if found.improvements else []
    )
    return fragment("explanation", text.explanation(found), *parts)


def trace(measured: Trace, predicted: Trace | None = None) -> str:
    """Timeline and table of a trace; with its prediction above a typical step of it, and the
    comparison below.
    """
    several = len(measured.step_s) > MOST_STEPS
    one = timeline.typical(measured) if predicted or several else measured
    both = [timeline.typical(predicted), one] if predicted else [one]
    contents = [tables.trace(measured)] + (
        [tables.comparison(predicted, measured)] if predicted else []
    )
    plain = "\n\n".join(map(text.render, contents))
    title = (
        ""
        if predicted or not several
        else f"A typical {tables.one_of(measured)} of {len(measured.step_s)}, {measured.source}"
    )
    return fragment("trace", plain, timeline.gantt(*both, title=title).svg(), *map(table, contents))


def layers(found: Sequence[Layer], title: str) -> str:
    """What a model is made of."""
    return _of_table("layers", tables.layers(found, title))


def history(
    losses: Sequence[float], step_s: Sequence[float] = (), notes: Sequence[str] = ()
) -> str:
    """The loss by step as a curve."""
    content = tables.history(losses, step_s, notes)
    picture = [chart.loss({"loss": losses}).svg()] if len(losses) > 1 else []
    return fragment("history", text.render(content), *picture, table(content))


def compared(found: Any) -> str:
    """A `run.comparison.Comparison`: a typical step of both sides above the table."""
    content = tables.compared(found)
    both = timeline.gantt(*(timeline.typical(trace) for trace in (found.predicted, found.measured)))
    return fragment("comparison", text.render(content), both.svg(), table(content))


def heading(said: str, level: int = 2) -> str:
    """A heading between the fragments of a page."""
    return f"<h{level}>{_escaped(said)}</h{level}>"


def words(said: str) -> str:
    """A sentence, such as how some work failed."""
    return fragment("words", said, f"<p>{_escaped(said)}</p>")


def _of_table(kind: str, content: Table) -> str:
    return fragment(kind, text.render(content), table(content))


def progress(title: str, done_frac: float, words: str = "") -> str:
    """How far some work is."""
    content = Bar(
        frac=min(max(done_frac, 0.0), 1.0), text=f"{100 * done_frac:.0f} %  {words}".rstrip()
    )
    body = f"<table><tr>{_cell('td', title, False)}{_cell('td', content, False)}</tr></table>"
    return fragment("progress", f"{title}: {content.text}", body)


def picture(scene: Scene) -> str:
    """One picture."""
    return fragment("picture", scene.title, scene.svg())


def page(title: str, *fragments: str) -> str:
    """A whole page of fragments; follows the reader's choice of light or dark, loads nothing."""
    body = "\n".join(fragments)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" '
        'content="light dark">\n'
        f"<title>{_escaped(title)}</title>\n"
        "<style>body{max-width:1000px;margin:32px auto;padding:0 "
        "16px;font-family:system-ui,sans-serif}</style>\n"
        f"</head><body>\n<h1>{_escaped(title)}</h1>\n{body}\n</body></html>\n"
    )


def save(path: str | Path, title: str, *fragments: str) -> Path:
    """Write a page as a file."""
    Path(path).write_text(page(title, *fragments), encoding="utf-8")
    return Path(path)


def save_picture(path: str | Path, scene: Scene, fragment: str) -> Path:
    """Write a picture as a file: .png, .svg, or anything else as a page with `fragment`, which
    shows it too.
    """
    match Path(path).suffix:
        case ".png":
            return save_png(scene, path)
        case ".svg":
            return save_svg(scene, path)
    return save(path, scene.title, fragment)
