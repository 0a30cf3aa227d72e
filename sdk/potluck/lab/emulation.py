"""A home of the library as this machine plays it: its devices and its network, all slower by one
factor. Pure.

Everything takes `time_scale` times as long as in the home: layers, copies, and bytes on every
medium. So which plan is the best one does not change, and a time of the home is a time of the lab
divided by the factor; `in_home_time` does so.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, isfinite, log10
from pathlib import Path as FilePath
from typing import TypeVar

from potluck.errors import UserError
from potluck.profile.library import HomeSpec, load_home
from potluck.provenance import SIMULATED
from potluck.records import Device, LayerCost, Network, Path, Plan, Trace
from potluck.sessions.agent_specs import Spec
from potluck_wire.limits import HANDSHAKE_S

# One encrypted stream between two agents that share two x86 cores with others carries some 150
# MB/s.
MAX_LINK_BYTES_PER_S = 60e6
# of a core, that real work may fill; the rest is for agents, encryption and shaping
FULL_FRAC = 0.8
ROUND_TRIPS = 4  # until a connection stands: of TCP one, of CURVE three
MAX_LATENCY_S = HANDSHAKE_S / ROUND_TRIPS / 2
DISPATCH_S = 2e-3  # an optimizer step that takes less is dispatch, once a step, whatever the device
# of a pass through the model: a layer that is played to take less may take as much, which no step
# shows
SMALL_FRAC = 0.02
# small layers, measured anew, take up to so many times longer: who does as told is not refused
# again
UNSTEADY = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """A home and how many times slower than it the lab is."""

    home: HomeSpec
    time_scale: float = 1.0

    def __post_init__(self) -> None:
        if not isfinite(self.time_scale) or not 1 <= self.time_scale <= 1e6:
            raise UserError(
                f"a time scale of {self.time_scale!r} is not possible; 1 to 1,000,000 is."
            )
        self._check_links(self.home.network)

    def check_rate(self, medium: str, bytes_per_s: float) -> None:
        """UserError where this machine cannot carry what goes over the home's links once a medium
        has this rate.
        """
        media = self.home.network.media
        changed = (
            replace(m, capacity_bytes_per_s=bytes_per_s) if m.name == medium else m for m in media
        )
        self._check_links(replace(self.home.network, media=tuple(changed)))

    def _check_links(self, network: Network) -> None:
        waits_s = {pair: self.time_scale * path.latency_s for pair, path in network.paths.items()}
        longest = max(waits_s, key=waits_s.__getitem__, default=None)
        if longest is not None and waits_s[longest] > MAX_LATENCY_S:
            most = floor(self.time_scale * MAX_LATENCY_S / waits_s[longest])
            raise UserError(
                f"{self.home.name}: what {longest[0]} sends to {longest[1]} would be under way for "
                f"{waits_s[longest]:.2g} s, and agents give a connection {HANDSHAKE_S:g} s to be "
                f"made, which are {ROUND_TRIPS} round trips.",
                next_step=f"Take a time_scale of {most} or less, or a home with shorter paths.",
            )
        rates = {
            pair: network.bandwidth(*pair) for pair, path in network.paths.items() if path.media
        }
        fastest = max(rates, key=rates.__getitem__, default=None)
        if fastest is not None and rates[fastest] > self.time_scale * MAX_LINK_BYTES_PER_S:
            rate = rates[fastest]
            raise UserError(
                f"{self.home.name}: {fastest[0]} sends {rate / 1e6:.0f} MB/s to {fastest[1]}; a "
                f"lab on one machine carries {MAX_LINK_BYTES_PER_S / 1e6:.0f} MB/s.",
                next_step=_slower(rate / MAX_LINK_BYTES_PER_S),
                time_scale=_round_up(rate / MAX_LINK_BYTES_PER_S),
            )

    @property
    def network(self) -> Network:
        """The network of the lab."""
        media = self.home.network.media
        paths = self.home.network.paths.items()
        return Network(
            media=tuple(
                replace(m, capacity_bytes_per_s=m.capacity_bytes_per_s / self.time_scale)
                for m in media
            ),
            paths={
                pair: Path(media=p.media, latency_s=p.latency_s * self.time_scale)
                for pair, p in paths
            },
        )

    def device(self, name: str) -> Device:
        """A device as planners of the lab see it."""
        (device,) = (device for device in self.home.devices if device.name == name)
        return replace(
            device,
            copy_bytes_per_s=device.copy_bytes_per_s / self.time_scale,
            power_source=SIMULATED,
        )

    def specs(self) -> tuple[Spec, ...]:
        """What each agent is told to be."""
        return tuple(
            Spec(name=device.name, memory=device.memory_bytes, power=_power(device), emulated=True)
            for device in self.home.devices
        )

    def slowed(self, costs: Sequence[LayerCost]) -> tuple[LayerCost, ...]:
        """Times of the home as times of the lab."""
        return tuple(_slowed(cost, self.time_scale) for cost in costs)

    def fits(self, works: "Sequence[LayerWork]", cores: int) -> bool:
        """Whether this machine is quick enough to play these devices."""
        return _too_slow(works, cores) is None

    def check_fit(self, works: "Sequence[LayerWork]", cores: int) -> None:
        """Refuse where this machine is too slow to play these devices, with one time scale at which
        all of it fits.

        All devices may be busy at once, and share the cores.

        Raises
        ------
        UserError
            Which device, which layer, by how much; and the time scale at which it fits.
        """
        worst = _too_slow(works, cores)
        if worst is None:
            return
        needed = self.time_scale * worst.slowness / FULL_FRAC * UNSTEADY
        raise UserError(
            f"{self.home.name} is too fast for this machine: of {worst.layer}, {worst.device} "
            f"would need {1 / worst.alone:.2g} of the time that it really takes here, and "
            f"{worst.n_devices} devices share {cores} cores.",
            next_step=_slower(needed),
            time_scale=_round_up(needed),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWork:
    """Layers as this machine really computes them, and as each device is played: one cost per layer
    and name.
    """

    layers: Sequence[str]
    real: Sequence[LayerCost]
    played: Mapping[str, Sequence[LayerCost]]

    def looked_at_again(self, real: Sequence[LayerCost]) -> "LayerWork":
        """With the shorter of the times it has and of these: whatever else this machine did
        meanwhile is no work of the layers.
        """
        return replace(self, real=[_shorter(*both) for both in zip(self.real, real, strict=True)])

    def demands(self, cores: int) -> "list[_Demand]":
        """What each device asks of this machine by its worst layer, alone and together with the
        others.
        """
        worst = {
            name: max(_slowness(self.real, costs), default=(0.0, 0))
            for name, costs in self.played.items()
        }
        together = sum(slowness for slowness, _ in worst.values()) / cores
        return [
            _Demand(
                device=name,
                layer=self.layers[index],
                alone=alone,
                slowness=max(alone, together),
                n_devices=len(worst),
            )
            for name, (alone, index) in worst.items()
            if alone > 0
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Demand:
    """How many times longer this machine takes for a layer than a device is played to take."""

    device: str
    layer: str
    alone: float
    slowness: float  # the same, or that of all devices at once where that is more
    n_devices: int


def _too_slow(works: Sequence[LayerWork], cores: int) -> _Demand | None:
    """The worst of what this machine is too slow for; None: it is quick enough."""
    demands = [demand for work in works for demand in work.demands(cores)]
    too_slow = (demand for demand in demands if demand.slowness > FULL_FRAC)
    return max(too_slow, key=lambda demand: demand.slowness, default=None)


def _shorter(cost: LayerCost, other: LayerCost) -> LayerCost:
    updates_s = [s for s in (cost.update_s, other.update_s) if s is not None]
    return replace(
        cost,
        forward_s=tuple(map(min, cost.forward_s, other.forward_s)),
        backward_s=tuple(map(min, cost.backward_s, other.backward_s)),
        update_s=min(updates_s, default=None),
    )


def emulation(name: str | FilePath, time_scale: float = 1.0) -> Emulation:
    """The home of that name, or of that TOML file."""
    return Emulation(home=load_home(name), time_scale=time_scale)


Item = TypeVar("Item", Plan, Trace)


def in_home_time(item: Item, time_scale: float) -> Item:
    """A plan or trace of the lab as it would be at home.

    Energy is watts times time, and shrinks with it.
    """
    if isinstance(item, Plan):
        return replace(
            item,
            latency_s=None if item.latency_s is None else item.latency_s / time_scale,
            energy_j=None if item.energy_j is None else item.energy_j / time_scale,
            device_energy_j=_divided(item.device_energy_j, time_scale),
        )
    events = (
        replace(e, start_s=e.start_s / time_scale, stop_s=e.stop_s / time_scale)
        for e in item.events
    )
    return replace(
        item,
        events=tuple(events),
        step_s=tuple(step_s / time_scale for step_s in item.step_s),
        busy_s=_divided(item.busy_s, time_scale),
        energy_j=_divided(item.energy_j, time_scale),
    )


def _divided(values: Mapping[str, float], by: float) -> dict[str, float]:
    return {name: value / by for name, value in values.items()}


def _slowed(cost: LayerCost, by: float) -> LayerCost:
    return replace(
        cost,
        forward_s=tuple(s * by for s in cost.forward_s),
        backward_s=tuple(s * by for s in cost.backward_s),
        update_s=None if cost.update_s is None else cost.update_s * by,
        sgd_s=tuple(s * by for s in cost.sgd_s),
    )


def _slowness(real: Sequence[LayerCost], played: Sequence[LayerCost]) -> list[tuple[float, int]]:
    """By layer: how many times longer it really takes than it may, at worst, and its number; and
    the same of all layers together, with the number of the longest.
    """
    forward, backward = _whole(played, "forward_s"), _whole(played, "backward_s")
    found = []
    for index, (cost, played_cost) in enumerate(zip(real, played, strict=True)):
        pairs = [*_allowed(cost.forward_s, played_cost.forward_s, forward)]
        pairs += _allowed(cost.backward_s, played_cost.backward_s, backward)
        if cost.update_s and played_cost.update_s and cost.update_s > DISPATCH_S:
            pairs.append((cost.update_s, played_cost.update_s))
        found.append((max(a / max(b, 1e-12) for a, b in pairs), index))
    longest = max(range(len(real)), key=lambda index: max(real[index].forward_s), default=0)
    for kind, totals in (("forward_s", forward), ("backward_s", backward)):
        pairs = [*zip(_whole(real, kind), totals, strict=True)]
        found += [(a / max(b, 1e-12), longest) for a, b in pairs]
    return found


def _whole(costs: Sequence[LayerCost], kind: str) -> list[float]:
    """Seconds of all layers together, for each number of rows."""
    return [sum(times) for times in zip(*(getattr(cost, kind) for cost in costs), strict=True)]


def _allowed(
    real: Sequence[float], played: Sequence[float], totals: Sequence[float]
) -> Iterator[tuple[float, float]]:
    """Of each number of rows: seconds it really takes, and those that it may take."""
    for real_s, played_s, of_all in zip(real, played, totals, strict=True):
        yield real_s, max(played_s, SMALL_FRAC * of_all)


def _power(device: Device) -> tuple[float, float, float] | None:
    if device.idle_w is None or device.busy_w is None:
        return None
    return device.idle_w, max(device.busy_w, device.idle_w), device.radio_w or 0.0


def _slower(time_scale: float) -> str:
    scale = f"{_round_up(time_scale):g}"
    return (
        f"Let all be slower by one factor: time_scale={scale} (potluck lab up --time-scale "
        f"{scale})."
    )


def _round_up(value: float) -> float:
    """To two digits, with a tenth of room: measured times differ from time to time."""
    value *= 1.1
    digit = 10.0 ** (floor(log10(value)) - 1)
    return max(1.0, ceil(value / digit) * digit)
