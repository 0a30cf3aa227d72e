"""How much longer than was measured something takes, learned from how long it took."""

MOST = 16.0  # that one measurement may say: it may be an outlier
LEARN_FRAC = 0.25  # of what the latest one says
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

    def learn(self, times_longer: float) -> None:
        """So much longer it took than was measured.

        Parameters
        ----------
        times_longer
            What it took, divided by what was expected.
        """
        off = min(MOST, max(1.0, times_longer)) - self._mean
        self._mean += LEARN_FRAC * off
        self._deviation += LEARN_FRAC * (abs(off) - self._deviation)
