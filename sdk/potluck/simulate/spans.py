"""Stretches of time, from start to stop in seconds, and the steady rate of a row of ends."""

from collections.abc import Iterable, Sequence

Span = tuple[float, float]


def union_s(spans: Iterable[Span]) -> float:
    """Seconds covered by at least one of the spans."""
    covered, reached = 0.0, float("-inf")
    for start, stop in sorted(spans):
        covered += max(0.0, stop - max(start, reached))
        reached = max(reached, stop)
    return covered


def middle_s(ends_s: Sequence[float], in_flight: int) -> float:
    """Seconds per answer without the first and the last `in_flight` answers: these fill the pipeline and drain it.

    >>> middle_s([1.0, 2.0, 4.0, 6.0, 6.5, 7.0], 2)
    2.0
    """
    ordered = sorted(ends_s)
    first = min(in_flight, len(ordered)) - 1
    last = max(len(ordered) - in_flight - 1, first)
    return (ordered[last] - ordered[first]) / (last - first) if last > first else ordered[last] / len(ordered)
