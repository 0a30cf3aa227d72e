"""Records as HTML fragments. Pure, but for `save_picture`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.display import (
    chart,
    explanation_tables,
    headline,
    record_pictures,
    tables,
    text,
    timeline,
)
from potluck.display.markup import escaped, fragment, numbers, save
from potluck.display.palette import PALETTE
from potluck.display.png import save_png
from potluck.display.scene import Scene, save_svg
from potluck.display.tables import Bar, Cell, Heat, Table
from potluck.documents import file_path
from potluck.records import Device, Layer, Plan, Problem, Trace

if TYPE_CHECKING:
    from potluck.planning.explain import Explanation

MOST_PLANS = 10  # rows of a table; the picture shows all
MOST_STEPS = 3  # more of them in one timeline are too narrow to read


def table(content: Table) -> str:
    """One table."""
    right = [heading.startswith(">") for heading in content.columns]
    head = "".join(
        _cell("th", heading.removeprefix(">"), r)
        for heading, r in zip(content.columns, right, strict=True)
    )
    rows, below = (
        "\n".join(
            "<tr>"
            + "".join(_cell("td", cell, r) for cell, r in zip(row, right, strict=True))
            + "</tr>"
            for row in some
        )
        for some in (content.rows, [content.total] if content.total else [])
    )
    foot = f"<tfoot>{below}</tfoot>" if below else ""
    notes = "".join(f'<p class="note">{escaped(note)}</p>' for note in content.notes)
    caption = f"<caption>{escaped(content.title)}</caption>"
    body = f"<tbody>\n{rows}\n</tbody>{foot}"
    return f"<table>{caption}<thead><tr>{head}</tr></thead>{body}</table>{notes}"


def _cell(tag: str, cell: Cell, right: bool) -> str:
    if isinstance(cell, Heat):
        strength = f"{min(max(cell.frac, 0.0), 1.0) * 72:.0f}%"
        colour = f"color-mix(in srgb,{PALETTE['orange']} {strength},transparent)"
        return f'<td class="heat" style="background:{colour}">{escaped(cell.text)}</td>'
    number = ' class="number"' if right else ""
    number += ' scope="col"' if tag == "th" else ""
    if isinstance(cell, Bar):
        over = " over" if cell.frac > 1 else ""
        width = f"{min(max(cell.frac, 0.0), 1.0) * 100:.0f}%"
        return (
            f'<td><span class="bar{over}"><i '
            f'style="width:{width}"></i></span>{escaped(cell.text)}</td>'
        )
    return f"<{tag}{number}>{escaped(cell)}</{tag}>"


def devices(found: Iterable[Device], title: str = "Devices") -> str:
    """Who takes part."""
    content = tables.devices(found, title)
    picture = record_pictures.devices(found, title)
    return fragment("devices", text.render(content), picture.svg(), shown_on_demand(content))


def members(found: Iterable[Any], title: str = "Devices") -> str:
    """Devices found or known, with their status."""
    content = tables.members(found, title)
    picture = record_pictures.members(found, title)
    return fragment("members", text.render(content), picture.svg(), shown_on_demand(content))


def profile(problem: Problem, notes: Sequence[str] = ()) -> str:
    """Heat table of layer by device, and the links."""
    heat, links = tables.costs(problem), tables.links(problem.network)
    heat = replace(heat, notes=(*heat.notes, *notes))
    return fragment(
        "profile",
        text.profile(problem),
        record_pictures.profile(problem).svg(),
        shown_on_demand(heat),
        record_pictures.network(problem.network).svg(),
        shown_on_demand(links),  # n² rows
    )


def plan(
    plan: Plan, problem: Problem | None = None, available_bytes: Mapping[str, int] | None = None
) -> str:
    """Stages, and memory needed and available on each device."""
    plain = text.plan(plan, problem, available_bytes)
    available = available_bytes or tables.available_bytes(problem)
    return fragment(
        "plan",
        "\n\n".join(filter(None, (headline.of_plan(plan, problem), plain))),
        first_line(headline.of_plan(plan, problem)),
        record_pictures.plan(plan, problem, available).svg(),
        shown_on_demand(tables.stages(plan, problem), tables.memory(plan, available)),
    )


def plans(candidates: Sequence[Plan], best: Plan | None = None) -> str:
    """Plans side by side, and by time and energy."""
    content = tables.plans(candidates, best, MOST_PLANS)
    known = [
        plan for plan in candidates if plan.latency_s is not None and plan.energy_j is not None
    ]
    first = headline.of_plan(best or candidates[0]) if candidates else ""
    picture = (
        [chart.pareto(candidates, best).svg()]
        if len(known) > 1
        else [record_pictures.plan(plan, plan.problem, {}).svg() for plan in candidates[:1]]
    )
    return fragment(
        "plans",
        "\n\n".join(filter(None, (first, text.render(content)))),
        first_line(first),
        *picture,
        shown_on_demand(content),
    )


def explanation(found: "Explanation") -> str:
    """Where a plan's time goes, and what would help."""
    contents = [explanation_tables.time_spent(found)] + (
        [explanation_tables.improvements(found)] if found.improvements else []
    )
    picture = record_pictures.explanation(found)
    return fragment(
        "explanation", text.explanation(found), picture.svg(), shown_on_demand(*contents)
    )


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
    picture = timeline.gantt(*both, title=title)
    return fragment("trace", plain, picture.svg(), shown_on_demand(*contents))


def layers(found: Sequence[Layer], title: str) -> str:
    """What a model is made of."""
    content = tables.layers(found, title)
    picture = record_pictures.layers(found, title)
    return fragment("layers", text.render(content), picture.svg(), shown_on_demand(content))


def history(
    losses: Sequence[float], step_s: Sequence[float] = (), notes: Sequence[str] = ()
) -> str:
    """The loss by step as a curve."""
    content = tables.history(losses, step_s, notes)
    if len(losses) < 2:
        return fragment("history", text.render(content), table(content))
    picture = chart.loss({"loss": losses})
    return fragment("history", text.render(content), picture.svg(), shown_on_demand(content))


def compared(found: Any) -> str:
    """A `run.comparison.Comparison`: a typical step of both sides above the table."""
    content = tables.compared(found)
    both = timeline.gantt(*(timeline.typical(trace) for trace in (found.predicted, found.measured)))
    return fragment("comparison", text.render(content), both.svg(), shown_on_demand(content))


def shown_on_demand(*contents: Table) -> str:
    """Tables below a picture, folded away; a click shows them."""
    titles = ", ".join(content.title for content in contents)
    return numbers(f"{titles}: numbers", *map(table, contents))


def below(kind: str, picture: Scene, *contents: Table) -> str:
    """A picture, and its numbers on demand."""
    plain = "\n\n".join(map(text.render, contents))
    return fragment(kind, plain, picture.svg(), shown_on_demand(*contents))


def first_line(headline: str) -> str:
    """What one reads first."""
    return f'<p class="headline">{escaped(headline)}</p>' if headline else ""


def of_table(kind: str, content: Table) -> str:
    """One table by itself."""
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


def save_picture(path: str | Path, scene: Scene, fragment: str) -> Path:
    """Write a picture as a file: .png, .svg, or anything else as a page with `fragment`, which
    shows it too.
    """
    match file_path(path).suffix:
        case ".png":
            return save_png(scene, path)
        case ".svg":
            return save_svg(scene, path)
    return save(path, scene.title, fragment)
