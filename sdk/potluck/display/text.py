"""Tables as aligned plain text for terminals. Pure."""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from potluck.display import explanation_tables, tables
from potluck.display.tables import Bar, Cell, Heat, Table
from potluck.records import Device, Plan, Problem, Trace
from potluck.sanitized_text import harmless

if TYPE_CHECKING:
    from potluck.planning.explain import Explanation

BAR_CELLS = 12


def render(table: Table) -> str:
    """The table with its title above and its notes below; no line ends in blanks."""
    below = [table.total] if table.total else []
    body = [[_plain(cell) for cell in row] for row in (*table.rows, *below)]
    headings = [harmless(heading.removeprefix(">")) for heading in table.columns]
    right = [heading.startswith(">") for heading in table.columns]
    widths = [max(map(_width, column)) for column in zip(headings, *body, strict=True)]
    lines = [harmless(table.title)]
    lines.append(_line(headings, widths, right))
    lines.append("  ".join("─" * width for width in widths))
    lines += [_line(row, widths, right) for row in body]
    lines += [f"  {harmless(note)}" for note in table.notes]
    return "\n".join(line.rstrip() for line in lines)


def bar(frac: float, cells: int = BAR_CELLS) -> str:
    """A bar in eighths of a cell; a full one with `▶` at its end overflows."""
    if frac > 1:
        return "█" * (cells - 1) + "▶"
    eighths = round(max(0.0, frac) * cells * 8)
    full, part = divmod(eighths, 8)
    drawn = "█" * full + (" ▏▎▍▌▋▊▉"[part] if part else "")
    return drawn.ljust(cells, "·")


def _plain(cell: Cell) -> str:
    if isinstance(cell, Bar):
        return f"{bar(cell.frac)} {harmless(cell.text)}"
    return harmless(cell.text if isinstance(cell, Heat) else cell)


def _width(text: str) -> int:
    return sum(
        0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = []
    for cell, width, to_right in zip(cells, widths, right, strict=True):
        blanks = " " * (width - _width(cell))
        padded.append(blanks + cell if to_right else cell + blanks)
    return "  ".join(padded)


def devices(found: Iterable[Device], title: str = "Devices") -> str:
    """Who takes part."""
    return render(tables.devices(found, title))


def profile(problem: Problem) -> str:
    """Time of each layer on each device, and the links."""
    return "\n\n".join((render(tables.costs(problem)), render(tables.links(problem.network))))


def plan(
    plan: Plan, problem: Problem | None = None, available_bytes: Mapping[str, int] | None = None
) -> str:
    """The stages, then memory needed and available on each device."""
    available = available_bytes or tables.available_bytes(problem)
    return "\n\n".join(
        (render(tables.stages(plan, problem)), render(tables.memory(plan, available)))
    )


def plans(candidates: Sequence[Plan], best: Plan | None = None, max_rows: int | None = None) -> str:
    """Plans side by side; at most so many rows."""
    return render(tables.plans(candidates, best, max_rows))


def explanation(found: "Explanation") -> str:
    """Where a plan's time goes, and what would help."""
    parts = [render(explanation_tables.time_spent(found))] + (
        [render(explanation_tables.improvements(found))] if found.improvements else []
    )
    return "\n\n".join(parts)


def trace(trace: Trace) -> str:
    """One row per device."""
    return render(tables.trace(trace))


def compared(found: Any) -> str:
    """A `run.comparison.Comparison`."""
    return render(tables.compared(found))


def comparison(predicted: Trace, measured: Trace) -> str:
    """Predicted against measured, per step."""
    return render(tables.comparison(predicted, measured))
