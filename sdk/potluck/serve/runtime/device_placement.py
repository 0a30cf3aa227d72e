"""Which device has which service, with how many batches at once: from what was measured on the
devices, by the allocator and the greedy placement of `serve/scheduling`. Pure.

Devices of about the same speed are of one kind, so that they share a queue and a stream may use
all of them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from potluck.errors import Infeasible
from potluck.serve.runtime.measure import MeasuredService
from potluck.serve.scheduling.allocate import allocate, allocate_all
from potluck.serve.scheduling.placement import place_best
from potluck.serve.scheduling.records import (
    Allocation,
    BatchTimes,
    Frequency,
    Processor,
    Replica,
    Server,
    ServiceSpec,
    Slo,
    Variant,
)

ALIKE = 1.5  # devices whose times differ by less are of one kind
ENTRANCE = "home"  # where requests arrive; it computes nothing itself
MOST_DEGREE = 16  # section 4.1: of batches side by side
MOST_DIVIDED = 2  # batches at once on devices that share a model, so that they overlap
ROUNDED = 1e-9
ANY_BYTES = 2**62  # whether there is room was tried


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceDemand:
    """What is asked of a service: its model, limit, order of importance and queue; `per_s`:
    requests (or frames) expected per second, 0 where that is not known.
    """

    name: str
    model: Any = None
    slo: Slo
    priority: int = 0
    max_queue: int = 1024
    per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePlace:
    """One service on devices of one kind: how it runs there, and how often on each device."""

    allocation: Allocation
    n_replicas: Mapping[str, int]


Measurements = Mapping[str, Mapping[str, MeasuredService]]  # service -> device -> times


def kinds_of(measured: Measurements, memory_bytes: Mapping[str, int]) -> dict[str, str]:
    """Of every device its kind: the name of the first device that is about as fast for all, and has
    room for the same services.

    Parameters
    ----------
    measured
        Times by service and device.
    memory_bytes
        What each device may use.
    """
    devices = dict.fromkeys(device for rows in measured.values() for device in rows)
    found: dict[str, str] = {}
    for device in devices:
        kinds = found.values()
        alike = (other for other in kinds if _are_alike(device, other, measured, memory_bytes))
        found[device] = next(alike, device)
    return found


def _are_alike(
    one: str, other: str, measured: Measurements, memory_bytes: Mapping[str, int]
) -> bool:
    for rows in measured.values():
        fits = [
            name in rows and rows[name].memory_bytes + rows[name].item_bytes <= memory_bytes[name]
            for name in (one, other)
        ]
        if fits[0] != fits[1] or (one in rows) != (other in rows):
            return False
        if one in rows:
            pair = sorted((rows[one].alone.at(1), rows[other].alone.at(1)))
            if pair[1] > ALIKE * pair[0]:
                return False
    return True


def record(
    wanted: ServiceDemand,
    measured: Mapping[str, MeasuredService],
    kinds: Mapping[str, str],
    most_degree: int,
) -> ServiceSpec:
    """The service as the allocator takes it; of the devices of one kind the slowest counts.

    Parameters
    ----------
    wanted
        Its limit, priority and queue.
    measured
        Times by device.
    kinds
        Of every device.
    most_degree
        Batches side by side on one device, at most.
    """
    by_kind: dict[str, list[MeasuredService]] = {}
    for device, times in measured.items():
        by_kind.setdefault(kinds[device], []).append(times)
    variants = tuple(
        Variant(
            kind=kind,
            memory_bytes=max(each.memory_bytes for each in rows),
            item_bytes=max(each.item_bytes for each in rows),
            times=_slowest([each.degrees(most_degree) for each in rows]),
            n_processors=max(each.n_devices for each in rows),
            across=any(each.n_devices > 1 for each in rows),
            beyond_s=max(each.beyond_s for each in rows),
        )
        for kind, rows in by_kind.items()
    )
    return ServiceSpec(
        name=wanted.name,
        slo=wanted.slo,
        variants=variants,
        priority=wanted.priority,
        max_queue=wanted.max_queue,
    )


def _slowest(rows: Sequence[Mapping[int, BatchTimes]]) -> dict[int, BatchTimes]:
    found = {}
    for degree in rows[0]:
        items = rows[0][degree].items
        for row in rows:
            items = tuple(n for n in items if n in row[degree].items)
        seconds = tuple(max(row[degree].at(n) for row in rows) for n in items)
        found[degree] = BatchTimes(items=items, seconds=seconds)
    return found


def place_all(
    wanted: Sequence[ServiceDemand],
    measured: Measurements,
    memory_bytes: Mapping[str, int],
    without: Collection[tuple[str, str]] = (),
    measured_per_s: Mapping[str, float] = MappingProxyType({}),
) -> dict[tuple[str, str], ServicePlace]:
    """By service and kind of device, where it runs: as many services as can be, then as many
    requests within their limits.

    Parameters
    ----------
    wanted
        All services.
    measured
        Times by service and device.
    memory_bytes
        What each device that is there may use.
    without
        (service, device) that have no room for each other.
    measured_per_s
        Requests per second that come, of services that were watched.

    Raises
    ------
    Infeasible
        A service holds its limit nowhere; says the best possible.
    """
    available = {
        each.name: {
            device: times
            for device, times in measured.get(each.name, {}).items()
            if device in memory_bytes and (each.name, device) not in without
        }
        for each in wanted
    }
    wanted = [each for each in wanted if available[each.name]]
    if not wanted:
        return {}
    kinds = kinds_of({name: rows for name, rows in available.items() if rows}, memory_bytes)
    most_degree = 1  # rows that wait join one batch; two smaller ones beside each other take longer
    while most_degree < min(MOST_DEGREE, len(wanted)):
        most_degree *= 2
    records = [record(each, available[each.name], kinds, most_degree) for each in wanted]
    servers = [
        Server(
            name=name, processors=(Processor(kind=kinds[name], memory_bytes=memory_bytes[name]),)
        )
        for name in kinds
    ]
    allocations = allocate_all(records, servers)
    servers.append(Server(name=ENTRANCE, processors=()))
    demand = {
        (each.name, ENTRANCE): _demand(each, allocations, kinds, len(wanted), measured_per_s)
        for each in wanted
    }
    placement = place_best(servers, allocations, demand, remote_frac=1.0)
    if {each.service for each in placement.replicas} < {each.name for each in wanted}:
        kept = one_of_each(wanted, servers, allocations, available)
        placement = place_best(servers, allocations, demand, pinned=kept, remote_frac=1.0)
    found: dict[tuple[str, str], dict[str, int]] = {}
    for replica in placement.replicas:
        if (replica.service, replica.server) in without or not available[replica.service].get(
            replica.server
        ):
            continue
        counts = found.setdefault((replica.service, replica.kind), {})
        counts[replica.server] = counts.get(replica.server, 0) + 1
    return {
        key: ServicePlace(allocation=allocations[key], n_replicas=counts)
        for key, counts in found.items()
    }


def one_of_each(
    wanted: Sequence[ServiceDemand],
    servers: Sequence[Server],
    allocations: Mapping[tuple[str, str], Allocation],
    available: Measurements,
) -> tuple[Replica, ...]:
    """A replica of each service that there is room for, so that none is left out because others are
    asked for more: the more important first, each where most room is left.

    Parameters
    ----------
    wanted
        All services.
    servers
        The devices, of one processor each, and entrances without.
    allocations
        By service and kind.
    available
        Times by service and device that may have it.
    """
    free = {
        each.name: (1.0, each.processors[0].memory_bytes) for each in servers if each.processors
    }
    kinds = {each.name: each.processors[0].kind for each in servers if each.processors}
    found = []
    for each in sorted(wanted, key=lambda one: (-one.priority, len(available[one.name]))):
        fitting: dict[str, tuple[float, int]] = {}
        for device in (name for name in available[each.name] if name in free):
            how = allocations.get((each.name, kinds[device]))
            share_frac, nbytes = free[device]
            if how and how.share_frac <= share_frac + ROUNDED and how.memory_bytes <= nbytes:
                fitting[device] = (share_frac - how.share_frac, nbytes - how.memory_bytes)
        if fitting:
            device = max(fitting, key=lambda name: fitting[name])
            free[device] = fitting[device]
            found.append(Replica(service=each.name, kind=kinds[device], processors=((device, 0),)))
    return tuple(found)


def place_divided(
    wanted: ServiceDemand, where: str, measured: MeasuredService
) -> dict[tuple[str, str], ServicePlace]:
    """Where a service runs that no device holds alone: on all of these, which are of a kind of
    their own.

    Parameters
    ----------
    wanted
        The service.
    where
        The devices as one place.
    measured
        Times there.

    Raises
    ------
    Infeasible
        They do not hold its limit; says the best possible.
    """
    made = record(wanted, {where: measured}, {where: where}, MOST_DIVIDED)
    allocation = allocate(made, Processor(kind=where, memory_bytes=ANY_BYTES))
    return {
        (wanted.name, where): ServicePlace(
            allocation=allocation, n_replicas={where: allocation.replicas}
        )
    }


def _demand(
    wanted: ServiceDemand,
    allocations: Mapping[tuple[str, str], Allocation],
    kinds: Mapping[str, str],
    n_services: int,
    measured_per_s: Mapping[str, float],
) -> float:
    """What comes or is expected of it, and where nothing is known its part of what all devices
    could do.
    """
    rates = [
        allocations[wanted.name, kind].rate_per_s * allocations[wanted.name, kind].replicas
        for kind in kinds.values()
        if (wanted.name, kind) in allocations
    ]
    part = sum(rates) / n_services
    expected = max(wanted.per_s, measured_per_s.get(wanted.name, part))
    return max(wanted.slo.fps, expected) if isinstance(wanted.slo, Frequency) else expected


def check_placed(wanted: ServiceDemand, places: Mapping[tuple[str, str], ServicePlace]) -> None:
    """Raise unless it was placed somewhere.

    Parameters
    ----------
    wanted
        The service.
    places
        As `place_all` gave them.

    Raises
    ------
    Infeasible
        Other services take all of the devices that could hold it.
    """
    if not any(service == wanted.name for service, _ in places):
        raise Infeasible(
            f"service {wanted.name}: the other services take all time and memory of the devices "
            "that could hold it.",
            next_step="Close one of them, allow more time, or add a device.",
        )
