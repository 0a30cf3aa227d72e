"""Whether the load of services has moved away from what they are placed for. Pure."""

from collections import deque
from collections.abc import Mapping

from potluck.serve.scheduling.records import Allocation

WINDOW_S = 10.0  # over which requests are counted
SPARE_DEVIATIONS = 2.0  # of how many come in a second, beyond their mean
CLEARLY = 1.1  # times as many must be satisfied for models to be moved

Places = Mapping[tuple[str, str], tuple[Allocation, int]]  # by service and kind: how, how often


class LoadWatch:
    """How many requests of each service came lately.

    Parameters
    ----------
    window_s
        Over which they are counted.
    """

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._seen: deque[tuple[float, Mapping[str, int]]] = deque()

    def begin(self) -> None:
        """Models were moved: what came before is not counted again."""
        self._seen.clear()

    def look(self, counts: Mapping[str, int], now_s: float) -> Mapping[str, float] | None:
        """Requests per second of each service that was there all the time, with what more may come;
        None while they were not watched for long enough.

        Parameters
        ----------
        counts
            By service, how many came since it began.
        now_s
            By any clock that goes forward.
        """
        self._seen.append((now_s, dict(counts)))
        while len(self._seen) > 1 and self._seen[1][0] <= now_s - self._window_s:
            self._seen.popleft()
        then_s, before = self._seen[0]
        if now_s - then_s < self._window_s:
            return None
        means = {
            name: (count - before[name]) / (now_s - then_s)
            for name, count in counts.items()
            if name in before
        }
        return {name: mean + SPARE_DEVIATIONS * mean**0.5 for name, mean in means.items()}


def satisfied_per_s(places: Places, demand: Mapping[str, float]) -> float:
    """Requests per second of these demands that places can satisfy.

    Parameters
    ----------
    places
        What runs where.
    demand
        By service.
    """
    rates = dict.fromkeys(demand, 0.0)
    for (service, _), (allocation, n_replicas) in places.items():
        if service in rates:
            rates[service] += n_replicas * allocation.rate_per_s
    return sum(min(rates[name], wanted) for name, wanted in demand.items())


def should_move(now: Places, then: Places, demand: Mapping[str, float]) -> bool:
    """Whether other places satisfy so much more that models are worth moving.

    Parameters
    ----------
    now, then
        What runs where, and what would.
    demand
        Requests per second by service.
    """
    return satisfied_per_s(then, demand) > CLEARLY * satisfied_per_s(now, demand)
