"""Stretches of time, from start to stop in seconds: of steps, of requests, of work."""

from collections.abc import Iterable, Sequence
from statistics import linear_regression, mean, median

from potluck.records import Trace

Span = tuple[float, float]
FILLING = 5  # one of so many answers comes while the pipeline is still filling up


def union_s(spans: Iterable[Span]) -> float:
    """Seconds covered by at least one of the spans."""
    covered, reached = 0.0, float("-inf")
    for start, stop in sorted(spans):
        covered += max(0.0, stop - max(start, reached))
        reached = max(reached, stop)
    return covered


def middle_s(ends_s: Sequence[float], in_flight: int) -> float:
    """Seconds per answer without the first and the last `in_flight` answers, and without the first
    fifth: these fill the pipeline and drain it.

    >>> middle_s([1.0, 2.0, 4.0, 6.0, 6.5, 7.0], 2)
    2.0
    """
    ordered = sorted(ends_s)
    first = min(max(in_flight, len(ordered) // FILLING), len(ordered)) - 1
    last = max(len(ordered) - in_flight - 1, first)
    return (
        (ordered[last] - ordered[first]) / (last - first)
        if last > first
        else ordered[last] / len(ordered)
    )


def pace_s(trace: Trace) -> float:
    """Seconds per step: the median. Of many requests that overlap, the slope of the line through
    the ends of those in the middle, as several may be answered together.

    Parameters
    ----------
    trace
        Of one step at least.
    """
    spans = trace.spans
    at_once = 1 if trace.trains else most_at_once(spans)
    if not 1 < at_once < len(spans) / 2:
        return median(trace.step_s)
    middle = sorted(stop_s for _, stop_s in spans)[at_once - 1 : len(spans) - at_once]
    return linear_regression(range(len(middle)), middle).slope


def usual_s(step_s: Sequence[float], *, trains: bool) -> float:
    """What one of some steps takes: the median. Of requests the mean, as several may be answered
    together.

    Parameters
    ----------
    step_s
        As in a trace; one at least.
    trains
        Whether they are steps of training.
    """
    return median(step_s) if trains else mean(step_s)


def in_turn_s(spans: Sequence[Span]) -> tuple[float, ...]:
    """Seconds of each step (start, stop): from its start, or from the end of the one before if that
    was later.
    """
    seconds, before_s = [], float("-inf")
    for start_s, stop_s in spans:
        seconds.append(stop_s - max(start_s, before_s))
        before_s = stop_s
    return tuple(seconds)


def most_at_once(spans: Sequence[Span]) -> int:
    """How many of these (start, stop), the oldest first, were under way at once at most; 1 of none.

    >>> most_at_once([(0.0, 2.0), (1.0, 3.0), (2.5, 4.0)])
    2
    """
    return max(
        (
            sum(stop_s > start_s for _, stop_s in spans[: i + 1])
            for i, (start_s, _) in enumerate(spans)
        ),
        default=1,
    )
