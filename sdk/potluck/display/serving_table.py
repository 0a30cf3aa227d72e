"""The table of `potluck serve top`: services, who has them, requests per second, misses."""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from potluck.sanitized_text import harmless

_TEXT = r'"((?:[^"\\]|\\.)*)"'
_LINE = re.compile(rf"potluck_(\w+)\{{service={_TEXT}(?:,(\w+)={_TEXT})?\}} ([-+.\de]+)$")
_ESCAPED = re.compile(r"\\(.)")
MAX_SERVICES = 256
Metrics = Mapping[str, Mapping[str, float]]  # by service: count by name; labels are after a colon


def read_metrics(page: str) -> dict[str, dict[str, float]]:
    """The counts of our own page of metrics, by service; of another page what is like them."""
    found: dict[str, dict[str, float]] = {}
    for line in page.split("\n"):
        match = _LINE.match(line)
        if match is None:
            continue
        name, service, _, label, value = match.groups()
        if len(found) == MAX_SERVICES and _shown(service) not in found:
            continue
        with suppress(ValueError):  # no number
            count = float(value)
            row = found.setdefault(_shown(service), {})
            row[f"{name}:{_shown(label)}" if label else name] = count
    return found


def _shown(text: str) -> str:
    return harmless(_ESCAPED.sub(lambda match: match[1].replace("n", "\n"), text))


def serving_table(now: Metrics, before: Metrics, seconds: float) -> Any:
    """A rich table of what services do: counts, and rates since the look before."""
    from rich.table import Table
    from rich.text import Text

    columns = ("service", "devices", "answers/s", "late", "refused", "failed", "under way", "mean")
    table = Table(*columns, title="services")
    for name, row in now.items():
        answers = row.get("answers_total", 0.0)
        rate = (answers - before.get(name, {}).get("answers_total", answers)) / seconds
        mean_s = row.get("latency_seconds_sum", 0.0) / answers if answers else 0.0
        refused = sum(n for key, n in row.items() if key.startswith("refused_total:"))
        table.add_row(
            Text(name),  # not as rich's own marks
            Text(_devices(row)),
            f"{rate:.1f}",
            f"{row.get('late_total', 0.0):.0f}",
            f"{refused:.0f}",
            f"{row.get('failed_total', 0.0):.0f}",
            f"{row.get('under_way', 0.0):.0f}",
            f"{1000 * mean_s:.1f} ms",
        )
    return table


def _devices(row: Mapping[str, float]) -> str:
    """Those that have it now, with the rows that each takes at once."""
    devices = {
        key.partition(":")[2]: rows for key, rows in row.items() if key.startswith("batch_rows:")
    }
    return ", ".join(f"{name} ({rows:.0f})" for name, rows in devices.items()) or "none"
