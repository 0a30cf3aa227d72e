"""How much longer than was measured something takes, learned from how long it took."""

MOST = 2.0  # times the mean that one measurement may say: it may be an outlier
LEARN_FRAC = 0.25  # of what the latest one says
LEAST_DEVIATION = 0.02  # however alike the last ones were: the machine does other things, too
DEVIATIONS = 2.0  # beyond the mean, for what nearly all of them keep


class LearnedPace:
    """Measurements as multiples of what was expected: their mean, and how far they are from it.
    Each counts as 1 at least: what is quicker now, with nothing beside it, may not be so later.
    """

    def __init__(self) -> None:
        self._mean, self._deviation = 1.0, 0.0

    @property
    def mean(self) -> float:
        """Of the last ones."""
        return self._mean

    @property
    def safe(self) -> float:
        """What nearly all of them keep."""
        return self._mean + DEVIATIONS * self._deviation

    def learn(self, took_s: float, expected_s: float, weight: float = 1.0) -> None:
        """So long it took.

        Parameters
        ----------
        took_s
            Seconds.
        expected_s
            That were measured; where they are 0 nothing is learned.
        weight
            Of this one, from 0 to 1: what is short says little of what is long.
        """
        if not expected_s:
            return
        off = min(MOST * self._mean, max(1.0, took_s / expected_s)) - self._mean
        self._mean += weight * LEARN_FRAC * off
        self._deviation += weight * LEARN_FRAC * (abs(off) - self._deviation)
        self._deviation = max(LEAST_DEVIATION, self._deviation)
