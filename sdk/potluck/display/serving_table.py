"""The table of `potluck serve top`: services, who has them, requests per second, misses."""

import re
from collections.abc import Mapping
from typing import Any

from potluck.sanitized_text import harmless

_LINE = re.compile(r'potluck_(\w+)\{service="([^"]*)"(?:,(\w+)="([^"]*)")?\} ([-+.\de]+)$')
Metrics = Mapping[str, Mapping[str, float]]  # by service: count by name; labels are after a colon


def read_metrics(page: str) -> dict[str, dict[str, float]]:
    """The counts of our own page of metrics, by service."""
    found: dict[str, dict[str, float]] = {}
    for line in page.split("\n"):
        if match := _LINE.match(line):
            name, service, _, label, value = match.groups()
            row = found.setdefault(harmless(service), {})
            row[f"{name}:{harmless(label)}" if label else name] = float(value)
    return found


def serving_table(now: Metrics, before: Metrics, seconds: float) -> Any:
    """A rich table of what services do: counts, and rates since the look before."""
    from rich.table import Table

    columns = ("service", "devices", "answers/s", "late", "refused", "failed", "under way", "mean")
    table = Table(*columns, title="services")
    for name, row in now.items():
        answers = row.get("answers_total", 0.0)
        rate = (answers - before.get(name, {}).get("answers_total", answers)) / seconds
        mean_s = row.get("latency_seconds_sum", 0.0) / answers if answers else 0.0
        refused = sum(n for key, n in row.items() if key.startswith("refused_total:"))
        table.add_row(
            name,
            ", ".join(key.partition(":")[2] for key in row if key.startswith("rows_total:")),
            f"{rate:.1f}",
            f"{row.get('late_total', 0.0):.0f}",
            f"{refused:.0f}",
            f"{row.get('failed_total', 0.0):.0f}",
            f"{row.get('under_way', 0.0):.0f}",
            f"{1000 * mean_s:.1f} ms",
        )
    return table
