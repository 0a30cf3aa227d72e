"""How many bytes per second a link carries now, by the transfers that it has carried. Pure.

The smaller of two medians, of the last transfer or few and of some more: a burst does not raise it,
a drop is believed at once. While the device answers alone nothing shows the bandwidth, so it is
asked for: at once, then less and less often, and at once again where it has risen. Windows and
waits are measured (`potluck/bench/estimators.py`: two made-up WiFis that drop to near zero, four
seeds). Requests take 13.6 % longer than those of whoever knows the bandwidth; 14.4 % with a window
of 5 instead of 3, 12.6 % where it is asked for before every request, 18 % where every three
seconds.
"""

from collections import deque
from statistics import median

# with two it takes a second late request to believe a drop: 19 % longer outdoors, not 17 %
SHORT = 1
LONG = 3  # two transfers of three must have been faster before that is believed
LEAST_BYTES = 16 * 1024  # a smaller transfer shows the latency, not the bandwidth
# older transfers say nothing of a link that fades within seconds; the latest is kept in any case
STALE_S = 10.0
# between two askings: half as many as one every 0.25 s
FIRST_WAIT_S = 0.25
GROWTH = 1.5
MOST_WAIT_S = 3.0
RISEN = 2.0  # times what was thought: soon asked again, whether that is so
LEAST_S = 1e-6  # a clock's grain: no transfer is infinitely fast


class Estimator:
    """`bytes_per_s` by what was observed; `first_bytes_per_s` until then.

    Times are of any one clock.

    Parameters
    ----------
    first_bytes_per_s
        Before anything was observed.
    latency_s
        Of the link.
    short, long
        Transfers of the two medians.
    """

    def __init__(
        self,
        first_bytes_per_s: float,
        *,
        latency_s: float = 0.0,
        short: int = SHORT,
        long: int = LONG,
    ) -> None:
        self._first = first_bytes_per_s
        self._latency_s = latency_s
        self._short = short
        self._seen: deque[tuple[float, float]] = deque(maxlen=max(short, long))

    def observe(self, nbytes: int, seconds: float, at_s: float) -> None:
        """A transfer that took `seconds`, the link's latency included, and ended at `at_s`.

        Parameters
        ----------
        nbytes
            That went over.
        seconds
            That it took, latency included.
        at_s
            When it ended, by any one clock.
        """
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


class ProbeTimer:
    """When to ask for the bandwidth, given when something has shown it."""

    def __init__(self, now_s: float) -> None:
        self._heard_s, self._wait_s = now_s, FIRST_WAIT_S

    def observe(
        self, at_s: float, bytes_per_s: float, thought_bytes_per_s: float, *, is_probe: bool
    ) -> None:
        """A request, or a transfer sent to find out, has shown this much where that much was
        thought.

        Parameters
        ----------
        at_s
            By any one clock.
        bytes_per_s
            That was shown.
        thought_bytes_per_s
            That was thought before.
        is_probe
            It was sent to find out.
        """
        rare = is_probe and bytes_per_s <= RISEN * thought_bytes_per_s
        self._wait_s = min(self._wait_s * GROWTH, MOST_WAIT_S) if rare else FIRST_WAIT_S
        self._heard_s = at_s

    def is_due(self, now_s: float, *, alone: bool) -> bool:
        """Whether to ask now. `alone`: requests show nothing, as the device answers them alone."""
        return now_s >= self._heard_s + (self._wait_s if alone else MOST_WAIT_S)
