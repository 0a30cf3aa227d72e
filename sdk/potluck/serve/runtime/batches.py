"""Batches on their way, and the pools of loaded models that they go to."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from potluck.serve.runtime.device_turns import Backlog, DeviceTurns
from potluck.serve.runtime.loaded_model import Loaded
from potluck.serve.runtime.pending_requests import ComputedBatch, RequestRow
from potluck.serve.scheduling.fair_queueing import AT_ONCE, WaitingBatch
from potluck.serve.scheduling.node import ServerNode
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
        """Of the rows of its next call, those that the calls before have made too late.

        Parameters
        ----------
        rows
            Of the call.
        now_s
            The time.
        """
        end_s = now_s + self.alone_s(len(rows))
        return [row for row in rows if self.took_s and row.pending.deadline_s < end_s]

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

    @property
    def n_at_once(self) -> int:
        """Batches of it that a device may have, or devices that share its layers."""
        return -(-self.pool.n_replicas // len(self.loaded))

    @property
    def n_full_at_once(self) -> int:
        """As many, where those that follow others are full."""
        return max(AT_ONCE, self.n_at_once)

    @property
    def is_idle(self) -> bool:
        """Whether one more batch may be computed somewhere."""
        return any(each.n_under_way < self.n_full_at_once for each in self.loaded)

    def is_on(self, device: str) -> bool:
        """Whether its batches begin there, too.

        Parameters
        ----------
        device
            That computes.
        """
        return any(each.devices[0] == device for each in self.loaded)

    def n_sharing(self, begins: Loaded, n_under_way: Callable[[str], int]) -> int:
        """Of what waits, so many batches begin now that one does: of devices that are idle.

        Parameters
        ----------
        begins
            Where.
        n_under_way
            Batches on a device, of all services.
        """
        if len(begins.devices) > 1:
            return max(1, self.n_at_once - begins.n_under_way)  # one that follows begins alone
        idle = [each for each in self.loaded if not n_under_way(each.devices[0])]
        return len(idle) if begins in idle else 1


Begins = tuple[Loaded, WaitingBatch]  # where, and what was offered there


def offers(
    pools: Mapping[PoolKey, LoadedPool], turns: DeviceTurns, node: ServerNode, now_s: float
) -> Iterator[tuple[PoolKey, Loaded, WaitingBatch]]:
    """The batches that would be made up now, and where: each on one of several devices.

    Parameters
    ----------
    pools
        All that are loaded.
    turns
        Of the devices.
    node
        Knows what each pool would compute next.
    now_s
        The time.
    """
    if not turns.is_asked and not any(held.is_idle for held in pools.values()):
        return  # as mostly when a request comes: nobody could begin
    for key, held in pools.items():
        places = [each for each in held.loaded if turns.has_room(each.devices[0])]
        if not places or (batch := node.waiting(key, now_s)) is None:
            continue
        for loaded in places:
            device = loaded.devices[0]
            others = (each for each in pools if each != key and pools[each].is_on(device))
            others_s = (node.latest_s(other, now_s) for other in others)
            can_follow = batch.can_follow(turns.start_s(device), others_s)
            most = held.n_full_at_once if can_follow else held.n_at_once
            may_begin = batch.may_begin and loaded.n_under_way < most
            if may_begin or loaded.n_under_way:
                yield key, loaded, replace(batch, may_begin=may_begin)


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
            pool = replace(held.pool, n_replicas=n_replicas, n_devices=len(alive))
            yield LoadedPool(pool, alive)


def least_busy(
    pools: Iterable[LoadedPool], key: PoolKey, turn_at: Loaded, rows: Iterable[RequestRow]
) -> Loaded | None:
    """Where a batch goes: where its turn has come; where some of its rows were refused there, to
    another one of its pool; where all of that have refused some, to another one of the service.

    Parameters
    ----------
    pools
        All that are loaded.
    key
        Of the pool that the batch was started for.
    turn_at
        Where its turn has come.
    rows
        Of the batch.
    """
    refused_by = {row.refused_by for row in rows}
    found = [
        (
            each.devices[0] in refused_by,
            held.pool.key != key,
            each is not turn_at,
            each.n_under_way,
            each,
        )
        for held in pools
        for each in held.loaded
        if held.pool.allocation.service == key[0] and not each.is_lost
    ]
    return min(found, key=lambda one: one[:4])[4] if found else None
