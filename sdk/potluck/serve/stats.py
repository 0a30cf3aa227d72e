"""What a service has done so far: answered, refused and why, late, and how long it took."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# reasons of refusals; the first two hold at any time
CLOSED = "this service is closed"
TOO_MANY_ROWS = "more rows than its queue takes"
NOBODY = "no device that has it is left"
LATEST = 1024  # answers whose seconds are remembered
# upper bounds, in seconds, of the buckets that a Prometheus histogram counts answers in
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStats:
    """Of one service, since it began.

    `n_late`: answered, but after the limit. `refused`: by reason. `by_device`: rows that each
    computed. `latency_s`: of the latest answers, the shortest first. `n_rows` were computed in
    `n_batches`, `mean_batch` of them together. `queue_s`: the part of `total_s`, that all answers
    took, before their first batch.
    """

    n_asked: int = 0
    n_answered: int = 0
    n_late: int = 0
    n_failed: int = 0
    n_again: int = 0
    n_under_way: int = 0
    refused: Mapping[str, int]
    by_device: Mapping[str, int]
    latency_s: tuple[float, ...] = ()
    total_s: float = 0.0
    queue_s: float = 0.0
    buckets: tuple[int, ...] = ()
    n_rows: int = 0
    n_batches: int = 0

    @property
    def mean_batch(self) -> float:
        """Rows that were computed together, in the mean."""
        return self.n_rows / self.n_batches if self.n_batches else 0.0

    @property
    def n_refused(self) -> int:
        """Refused for whatever reason."""
        return sum(self.refused.values())

    @property
    def n_in_time(self) -> int:
        """Answered within the limit: the goodput."""
        return self.n_answered - self.n_late

    def quantile_s(self, frac: float) -> float:
        """Seconds within which this part of the latest answers came; 0 where none did.

        Parameters
        ----------
        frac
            From 0 to 1.
        """
        if not self.latency_s:
            return 0.0
        return self.latency_s[min(len(self.latency_s) - 1, int(frac * len(self.latency_s)))]

    def __str__(self) -> str:
        return (
            f"{self.n_asked} asked, {self.n_answered} answered ({self.n_late} late), "
            f"{self.n_refused} refused, p50 {self.quantile_s(0.5):.3g} s, "
            f"p99 {self.quantile_s(0.99):.3g} s"
        )


class Counts:
    """Counts for `ServiceStats`; for who holds the lock of the serving."""

    def __init__(self) -> None:
        self.n_asked = 0
        self.n_answered = 0
        self.n_late = 0
        self.n_failed = 0
        self.n_again = 0
        self.refused: Counter[str] = Counter()
        self.by_device: Counter[str] = Counter()
        self.n_batches = self.n_rows = 0
        self.total_s = self.queue_s = 0.0
        self.buckets = [0] * len(BUCKETS_S)
        self._latest_s: deque[float] = deque(maxlen=LATEST)

    def answered(self, seconds: float, queue_s: float, *, late: bool) -> None:
        """One request was answered.

        Parameters
        ----------
        seconds
            That it took.
        queue_s
            Of them, those before its first batch.
        late
            Whether its limit was over.
        """
        self.n_answered += 1
        self.n_late += late
        self.total_s += seconds
        self.queue_s += queue_s
        self._latest_s.append(seconds)
        for place, bound_s in enumerate(BUCKETS_S):
            self.buckets[place] += seconds <= bound_s

    def computed(self, devices: Sequence[str], rows: int) -> None:
        """Some rows were computed together: by one device, or by several that share the model."""
        for device in devices:
            self.by_device[device] += rows
        self.n_batches += 1
        self.n_rows += rows

    def stats(self) -> ServiceStats:
        """As a record."""
        over = self.n_answered + self.n_failed + sum(self.refused.values())
        return ServiceStats(
            n_asked=self.n_asked,
            n_answered=self.n_answered,
            n_late=self.n_late,
            n_failed=self.n_failed,
            n_again=self.n_again,
            n_under_way=self.n_asked - over,
            refused=dict(self.refused),
            by_device=dict(self.by_device),
            latency_s=tuple(sorted(self._latest_s)),
            total_s=self.total_s,
            buckets=tuple(self.buckets),
            queue_s=self.queue_s,
            n_rows=self.n_rows,
            n_batches=self.n_batches,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStats:
    """What a service has written: texts that were asked for, refused at once, could not be written
    to their end, and are under way; tokens, and the seconds that all of them took.
    """

    n_asked: int = 0
    n_refused: int = 0
    n_failed: int = 0
    n_under_way: int = 0
    n_tokens: int = 0
    total_s: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.n_asked} asked, {self.n_refused} refused, {self.n_under_way} under way, "
            f"{self.n_tokens} tokens"
        )
