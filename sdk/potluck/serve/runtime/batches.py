"""Batches on their way, and the pools of loaded models that they go to."""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from potluck.serve.runtime.device_turns import Backlog
from potluck.serve.runtime.loaded_model import Loaded
from potluck.serve.runtime.pending_requests import ComputedBatch, RequestRow
from potluck.serve.scheduling.records import BatchTimes
from potluck.serve.scheduling.replica_pools import Pool, PoolKey


@dataclass(slots=True, eq=False)
class Batch:
    """Rows that the node has started together, on their way through one loaded model. `begun_s`,
    `called_s`: when it had its turn there, and when the latest of its calls was made. `backlog`: of
    the device. `times`: of batches by themselves. `took_s`: of its calls that have ended,
    without what they waited for others there; `expected_s`: as they were measured.
    """

    pool: PoolKey
    replica: int
    loaded: Loaded
    calls: deque[list[RequestRow]]
    backlog: Backlog
    begun_s: float = 0.0
    called_s: float = 0.0
    rows: list[RequestRow] = field(default_factory=list)
    times: BatchTimes | None = None
    took_s: float = 0.0
    expected_s: float = 0.0

    def alone_s(self, n_rows: int) -> float:
        """Seconds of so many rows, with nothing beside them."""
        return self.times.at(min(n_rows, self.times.largest)) if self.times else 0.0

    @property
    def seconds(self) -> float:
        """That its calls are expected to take."""
        return self.backlog.pace * sum(self.alone_s(len(rows)) for rows in self.calls)

    def call_ended(self, n_rows: int, now_s: float) -> None:
        """Its call of so many rows has ended.

        Parameters
        ----------
        n_rows
            Of the call.
        now_s
            The time.
        """
        if took_s := self.backlog.ended(self, now_s):
            self.took_s += took_s
            self.expected_s += self.alone_s(n_rows)

    def turn_s(self, now_s: float) -> float:
        """Seconds that the device computed for it; where that is not known, since its turn began.

        Parameters
        ----------
        now_s
            The time.
        """
        return self.took_s or now_s - self.begun_s

    def too_late(self, rows: Sequence[RequestRow], now_s: float) -> list[RequestRow]:
        """Of rows whose turn it is, those that cannot be in time any more: without them the others
        are. An idle device is given one all the same, since it may do better than was learned.

        Parameters
        ----------
        rows
            Of one call.
        now_s
            The time.
        """
        start_s, pace = self.backlog.until_s(now_s), self.backlog.pace
        left = sorted(rows, key=lambda row: -row.pending.deadline_s)
        late = []
        while len(left) > self.backlog.is_empty:
            if start_s + pace * self.alone_s(len(left)) <= left[-1].pending.deadline_s:
                break
            late.append(left.pop())
        return late

    def computed(
        self, devices: tuple[str, ...], rows: Collection[RequestRow], now_s: float
    ) -> ComputedBatch:
        """The latest call, which these devices have answered now.

        Parameters
        ----------
        devices
            Who computed.
        rows
            Of the call.
        now_s
            The time.
        """
        return ComputedBatch(self.called_s, now_s, devices, len(rows))


@dataclass(slots=True, eq=False)
class LoadedPool:
    """A pool with the devices that it is loaded on."""

    pool: Pool
    loaded: tuple[Loaded, ...]


def pools_alive(pools: Iterable[LoadedPool]) -> Iterator[LoadedPool]:
    """These without what is lost, or leaves; as many batches at once as there are devices left for.

    Parameters
    ----------
    pools
        As they were placed.
    """
    for held in pools:
        alive = tuple(x for x in held.loaded if not x.is_lost and not x.is_leaving)
        if alive:
            n_replicas = -(-held.pool.n_replicas * len(alive) // len(held.loaded))
            yield LoadedPool(Pool(held.pool.allocation, n_replicas, held.pool.way), alive)


def least_busy(
    pools: Iterable[LoadedPool], key: PoolKey, refused_by: Collection[str]
) -> Loaded | None:
    """Where a batch goes: within its pool; where all of that have refused some of its rows, to
    another one of the service.

    Parameters
    ----------
    pools
        All that are loaded.
    key
        Of the pool that the batch was started for.
    refused_by
        The devices that refused some of its rows.
    """
    found = [
        (each.devices[0] in refused_by, held.pool.key != key, each.n_under_way, each)
        for held in pools
        for each in held.loaded
        if held.pool.allocation.service == key[0] and not each.is_lost
    ]
    return min(found, key=lambda one: one[:3])[3] if found else None
