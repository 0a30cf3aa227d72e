"""What devices of one machine leave each other: cores to compute on, and the processor's time that
handing out their work takes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import mean, median
from typing import Any

from potluck.errors import PotluckError
from potluck.profile.device_bench import MAX_REPEATS, Bench
from potluck.profile.network import is_itself, stated_rate
from potluck.records import HOME, Device, LayerCost, Network

TOGETHER_S = 0.3  # devices do not begin at the same moment: long enough that this does not matter
# a value and its answer: each is an event that an agent handles
EVENTS_OF_A_WAIT = 2
PAIRS = 2  # agents are the same program: more than a few tell nothing new

# of the layers of a model, for training and for inference
Costs = Mapping[bool, tuple[LayerCost, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredHop:
    """From the end of a task on one device to the start of the next one on another that takes its
    value, of so many bytes.
    """

    seconds: float
    nbytes: int


HopBetween = Callable[[str, str], MeasuredHop]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMachine:
    """A machine that several devices compute on.

    `host_cores`: how many of them do so at full speed at once. `wait_s`: what a small value takes
    from one to another with its answer, while they are at work; `wait_frac`: the same by what it
    takes when nobody computes. `hop`: of a value from task to task, where that could be measured.
    """

    host: str
    host_cores: float
    wait_s: float
    wait_frac: float
    hop: MeasuredHop | None = None

    def device(self, device: Device) -> Device:
        """The device as one of this machine's: short programs take longer while others work."""
        return replace(
            device,
            host_cores=self.host_cores,
            handling_s=self.wait_s / EVENTS_OF_A_WAIT,
            overhead_s=device.overhead_s * self.wait_frac,
        )


def shared_machines(
    bench: Bench,
    model: Any,
    found: Mapping[str, Costs],
    capabilities: Mapping[str, Mapping[str, Any]],
    hop_between: HopBetween | None = None,
) -> dict[str, SharedMachine]:
    """Of every device that shares its machine with others, the machine, measured.

    Parameters
    ----------
    bench
        Asks the devices.
    model
        What they compute.
    found
        Per device, the times of its layers.
    capabilities
        Per device, its capability statement.
    hop_between
        Runs something on two devices of a machine; default: nothing can be run.
    """
    machines: dict[str, SharedMachine] = {}
    for sharing in sharing_hosts(capabilities):
        costs = {name: found[name] for name in sharing}
        machine = _measured(bench, model, _common_mode(found, sharing), costs, capabilities)
        if hop_between is not None:
            machine = replace(machine, hop=_hop(hop_between, _unpaced(sharing, capabilities)))
        machines |= dict.fromkeys(sharing, machine)
    return machines


def at_work(network: Network, machines: Iterable[SharedMachine]) -> Network:
    """The network while devices compute: what stays inside these machines takes longer.

    Parameters
    ----------
    network
        As it was measured when nobody computed.
    machines
        That devices share.
    """
    by_host = {machine.host: machine for machine in machines}
    paths = dict(network.paths)
    for pair, path in network.paths.items():
        if (machine := by_host.get(path.host)) is not None:
            hop = machine.hop if HOME not in pair else None
            beside_s = hop.seconds - hop.nbytes / network.bandwidth(*pair) if hop else 0.0
            latency_s = max(path.latency_s, machine.wait_s, beside_s)
            paths[pair] = replace(path, latency_s=latency_s)
    return replace(network, paths=paths)


def _measured(
    bench: Bench,
    model: Any,
    train: bool,
    found: Mapping[str, Costs],
    capabilities: Mapping[str, Mapping[str, Any]],
) -> SharedMachine:
    """The machine of these devices, by their heaviest layer: alone and all together, and with small
    values in between.
    """
    costs = [modes[train] for modes in found.values()]
    rows = costs[0][0].rows[-1]
    call_s = mean(bench.call_s(name, train) for name in found) * (2 if train else 1)
    alone_s = [
        call_s + mean(_heaviest_s(layer) for layer in layers) for layers in zip(*costs, strict=True)
    ]
    index = max(range(len(alone_s)), key=alone_s.__getitem__)
    repeats = min(max(3, int(TOGETHER_S / max(alone_s[index], 1e-9))), MAX_REPEATS)
    together_s = bench.together_s(found, model, index, train, rows, repeats)
    some = capabilities[next(iter(found))]
    cores = effective_cores(
        len(found),
        int(some.get("cores") or 1) / int(some.get("threads") or 1),
        alone_s[index] / max(together_s, 1e-9),
    )
    quick = _unpaced(found, capabilities)
    wait_s, wait_frac = _waits(bench, quick, model, index, train, rows)
    return SharedMachine(
        host=str(some["host"]), host_cores=cores, wait_s=wait_s, wait_frac=max(1.0, wait_frac)
    )


def _unpaced(names: Iterable[str], capabilities: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [name for name in names if stated_rate(capabilities[name]) is None]


def _hop(hop_between: HopBetween, names: Sequence[str]) -> MeasuredHop | None:
    try:
        return hop_between(names[0], names[1]) if len(names) > 1 else None
    except (PotluckError, ImportError):  # no room, or no torch: waits say something, too
        return None


def _waits(
    bench: Bench, names: Sequence[str], model: Any, index: int, train: bool, rows: int
) -> tuple[float, float]:
    """What small values take while these devices are at work, and how much longer that is. `names`:
    of devices whose uplink is not paced.
    """
    pairs = list(pairwise(names))[:PAIRS]
    if not pairs:
        return 0.0, 1.0
    idle_s = [wait_s for pair in pairs for wait_s in bench.waits_s(*pair)]
    busy_s = [
        wait_s
        for pair in pairs
        for wait_s in bench.waits_at_work_s(*pair, names, model, index, train, rows)
    ]
    return median(busy_s), median(busy_s) / max(median(idle_s), 1e-9)


def _heaviest_s(cost: LayerCost) -> float:
    return cost.forward_s[-1] + (cost.backward_s[-1] if cost.backward_s else 0.0)


def _common_mode(found: Mapping[str, Costs], names: Iterable[str]) -> bool:
    """Training, if all of these are measured for it."""
    return all(True in found[name] for name in names)


def sharing_hosts(capabilities: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The devices of every machine that several compute on as fast as they can."""
    hosts: dict[str, list[str]] = {}
    for name, capability in capabilities.items():
        if capability.get("host") and is_itself(capability):
            hosts.setdefault(str(capability["host"]), []).append(name)
    return [tuple(names) for names in hosts.values() if len(names) > 1]


def effective_cores(n_devices: int, room: float, speed_frac: float) -> float:
    """Devices at full speed at once, where `room` fit by the count of cores and `n_devices` at once
    each had `speed_frac` of the speed that they have alone: neighbours share caches and memory too.

    >>> effective_cores(4, 2.0, 0.45), effective_cores(2, 8.0, 1.0)
    (1.8, 8.0)

    Parameters
    ----------
    n_devices
        On one machine.
    room
        Devices that fit by the count of cores.
    speed_frac
        Of the speed alone, that each had beside the others.
    """
    expected = min(1.0, room / n_devices)
    return room * min(1.0, speed_frac / expected)
