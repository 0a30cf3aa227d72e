"""Stretches of time, from start to stop in seconds."""

from collections.abc import Iterable

Span = tuple[float, float]


def union_s(spans: Iterable[Span]) -> float:
    """Seconds covered by at least one of the spans."""
    covered, reached = 0.0, float("-inf")
    for start, stop in sorted(spans):
        covered += max(0.0, stop - max(start, reached))
        reached = max(reached, stop)
    return covered
