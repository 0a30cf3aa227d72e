"""A straight line through probes: seconds = latency + bytes / rate. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from potluck.errors import UserError

MAX_BYTES_PER_S = 1e11  # nothing at home is faster; keeps noise on a fast link from giving a negative slope


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One direction between two devices."""

    latency_s: float
    bytes_per_s: float


def fit_line(nbytes: Sequence[int], seconds: Sequence[float]) -> Line:
    """Least squares of seconds over bytes.

    >>> fit_line([0, 1000], [0.5, 1.5])
    Line(latency_s=0.5, bytes_per_s=1000.0)
    """
    if len(nbytes) != len(seconds) or len(set(nbytes)) < 2:
        raise UserError("a line needs probes of two sizes at least.")
    mean_n, mean_s = sum(nbytes) / len(nbytes), sum(seconds) / len(seconds)
    spread = sum((n - mean_n) ** 2 for n in nbytes)
    slope = sum((n - mean_n) * (s - mean_s) for n, s in zip(nbytes, seconds, strict=True)) / spread
    slope = max(slope, 1 / MAX_BYTES_PER_S)
    return Line(latency_s=max(mean_s - slope * mean_n, 0.0), bytes_per_s=1 / slope)
