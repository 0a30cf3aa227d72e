"""Pools: the replicas of one service that a server has on one kind of processor, by one way."""

from collections.abc import Mapping
from dataclasses import dataclass

from potluck.serve.scheduling.placement import Allocations, Placement
from potluck.serve.scheduling.records import Allocation
from potluck_wire.request_handler import Way

PoolKey = tuple[str, str, Way]  # service, kind of processor, way


@dataclass(frozen=True, slots=True)
class Pool:
    """Replicas that a server has, on so many devices of their own."""

    allocation: Allocation
    n_replicas: int
    way: Way = Way.ALONE
    n_devices: int = 1

    @property
    def key(self) -> PoolKey:
        """By which it is named in events and actions."""
        return (self.allocation.service, self.allocation.variant.kind, self.way)


def pools_by_server(
    placement: Placement, allocations: Allocations, edge_devices: Mapping[str, str] | None = None
) -> dict[str, tuple[Pool, ...]]:
    """The pools that each server has by a placement.

    Parameters
    ----------
    placement
        Of the whole home.
    allocations
        Per service and kind of processor.
    edge_devices
        By the name of an edge device, the server that looks after it and has its pools.
    """
    counts: dict[str, dict[tuple[str, str, Way], int]] = {}
    for replica in placement.replicas:
        server, way = replica.server, Way.ACROSS if replica.is_across else Way.ALONE
        if edge_devices and server in edge_devices:
            server, way = edge_devices[server], Way.EDGE_DEVICE
        mine = counts.setdefault(server, {})
        key = (replica.service, replica.kind, way)
        mine[key] = mine.get(key, 0) + 1
    return {
        server: tuple(
            Pool(allocations[service, kind], n_replicas, way)
            for (service, kind, way), n_replicas in mine.items()
        )
        for server, mine in counts.items()
    }
