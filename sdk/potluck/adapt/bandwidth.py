"""How many bytes per second a link carries now, by the transfers that it has carried. Pure.

The smaller of two medians, of the last transfer or few and of some more: a burst does not raise it, a drop is believed
at once. The windows are measured (`potluck/bench/estimators.py`: two made-up WiFis that drop to near zero, four seeds).
Requests take 19 % longer than those of whoever knows the bandwidth; 20 % with windows of 1 and 3, 23 % with 2 and 5,
25 % by the median of three, 27 to 38 % by moving averages, 29 to 37 % by harmonic means. The latest transfer alone
takes 18 %, but any burst misleads it.
"""

from collections import deque
from statistics import median

SHORT = 1  # with two it takes a second late request to believe a drop: regret 0.23, not 0.19
LONG = 5  # three transfers of five must have been faster before that is believed; 3 and 9 are within 1 %
LEAST_BYTES = 16 * 1024  # a smaller transfer shows the latency, not the bandwidth
STALE_S = 10.0  # older transfers say nothing of a link that fades within seconds; the latest is kept in any case
LEAST_S = 1e-6  # a clock's grain: no transfer is infinitely fast


class Estimator:
    """`bytes_per_s` by what was observed; `first_bytes_per_s` until then. Times are of any one clock."""

    def __init__(
        self, first_bytes_per_s: float, *, latency_s: float = 0.0, short: int = SHORT, long: int = LONG
    ) -> None:
        self._first, self._latency_s, self._short = first_bytes_per_s, latency_s, short
        self._seen: deque[tuple[float, float]] = deque(maxlen=max(short, long))

    def observe(self, nbytes: int, seconds: float, at_s: float) -> None:
        """A transfer that took `seconds`, the link's latency included, and ended at `at_s`."""
        if nbytes < LEAST_BYTES:
            return
        while self._seen and at_s - self._seen[0][0] > STALE_S:
            self._seen.popleft()
        self._seen.append((at_s, nbytes / max(seconds - self._latency_s, LEAST_S)))

    @property
    def bytes_per_s(self) -> float:
        """Of now, as far as the last transfers tell; without any, what was thought at first."""
        rates = [rate for _, rate in self._seen]
        return min(median(rates[-self._short :]), median(rates)) if rates else self._first
