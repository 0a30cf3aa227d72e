"""A straight line through probes: seconds = latency + bytes / rate. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from potluck.errors import UserError

MIN_S = 1e-6  # no probe is quicker
# nothing at home is faster; keeps noise on a fast link from giving a negative slope
MAX_BYTES_PER_S = 1e11


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLine:
    """One direction between two devices."""

    latency_s: float
    bytes_per_s: float


def fit_line(nbytes: Sequence[int], seconds: Sequence[float]) -> LinkLine:
    """Least squares of seconds over bytes, of the errors as parts of the seconds: a long probe is
    off by more.

    >>> fit_line([0, 1000], [0.5, 1.5])
    LinkLine(latency_s=0.5, bytes_per_s=1000.0)

    Raises
    ------
    UserError
        All probes have one size.
    """
    if len(nbytes) != len(seconds) or len(set(nbytes)) < 2:
        raise UserError("a line needs probes of two sizes at least.")
    weights = [1 / max(s, MIN_S) ** 2 for s in seconds]
    mean_n, mean_s = _mean(nbytes, weights), _mean(seconds, weights)
    spread = _mean([(n - mean_n) ** 2 for n in nbytes], weights)
    slope = (
        _mean([(n - mean_n) * (s - mean_s) for n, s in zip(nbytes, seconds, strict=True)], weights)
        / spread
    )
    slope = max(slope, 1 / MAX_BYTES_PER_S)
    return LinkLine(latency_s=max(mean_s - slope * mean_n, 0.0), bytes_per_s=1 / slope)


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)
