"""Times between the batch sizes that were measured. Pure."""

from bisect import bisect_left
from collections.abc import Sequence


def interpolate(rows: Sequence[int], seconds: Sequence[float], at: int) -> float:
    """Seconds at batch size `at`, linear between the measured sizes (time is not linear in the
    batch: Asteroid Fig. 6).

    Outside the measured range: the line through the two nearest points, though never below what a
    time proportional to rows would be under the smallest size; in proportion to rows where one size
    alone was measured.

    Parameters
    ----------
    rows
        Measured batch sizes, ascending.
    seconds
        One time for each.
    at
        The batch size asked for.
    """
    return interpolated(rows, [seconds], at)[0]


def interpolated(
    rows: Sequence[int], columns: Sequence[Sequence[float]], at: int
) -> Sequence[float]:
    """`interpolate` of many times that were measured at the same batch sizes.

    Parameters
    ----------
    rows
        Measured batch sizes, ascending.
    columns
        Of each, one time for each size.
    at
        The batch size asked for.
    """
    if at <= 0:
        return [0.0] * len(columns)
    if len(rows) == 1:
        return [seconds[0] * at / rows[0] for seconds in columns]
    i = min(max(bisect_left(rows, at), 1), len(rows) - 1)
    width, beyond = rows[i] - rows[i - 1], at - rows[i - 1]
    values = [s[i - 1] + (s[i] - s[i - 1]) / width * beyond for s in columns]
    if at < rows[0]:
        return [max(value, s[0] * at / rows[0]) for value, s in zip(values, columns, strict=True)]
    if at > rows[-1]:
        return [max(value, s[-1]) for value, s in zip(values, columns, strict=True)]
    return values
