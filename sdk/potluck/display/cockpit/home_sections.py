"""The sections of the devices and the media that they share. Pure."""

from collections.abc import Mapping
from typing import Any

from potluck.display.cockpit.media import MediaWiring
from potluck.display.cockpit.observation import CockpitObservation, RunObservation
from potluck.records import Plan
from potluck.sanitized_text import harmless
from potluck.sessions.members import Member

LIT_S = 1.5  # after its last step a device is still seen at work, or as long as two steps take
LIT_FRAC = 0.05  # of its time that it computes, by its own word


def devices(
    observation: CockpitObservation, wires: MediaWiring, load: Mapping[str, float]
) -> dict[str, Any]:
    """By name: status, layers, memory, power, battery, and the load of its own port."""
    return {
        member.name: _device(member, place, observation, wires, load)
        for place, member in enumerate(observation.members)
    }


def _device(
    member: Member,
    place: int,
    observation: CockpitObservation,
    wires: MediaWiring,
    load: Mapping[str, float],
) -> dict[str, Any]:
    name = member.name
    run = observation.run
    reading = member.reading
    found: dict[str, Any] = {"at": place, "shown": harmless(name), "status": member.status}
    if member.leaving or member.error is not None:
        found["trouble"] = harmless(str(member.leaving or member.error))[:300]
    if not member.key and observation.can_pair:
        found["pairs"] = True
    allowed = member.capability.get("memory_bytes")
    if isinstance(allowed, int | float) and allowed > 0:
        found["allowed"] = int(allowed)
    if run is not None and name in run.plan.devices:
        found["layers"] = layers(run.plan, name)
        if name in run.used_bytes:
            found["used"] = run.used_bytes[name]
    if reading is not None and member.session is not None:
        found["watts"] = round(reading.watts, 1)
        found["estimated"] = reading.source != "measured"
        found["busy"] = round(min(1.0, max(0.0, reading.busy_frac)), 2)
        if 0 <= reading.battery_frac <= 1:
            found["battery"] = round(reading.battery_frac, 2)
    found["lit"] = member.session is not None and _is_lit(name, run, found.get("busy", 0.0))
    ports = {
        way: round(load.get(m, 0.0), 2) for m, (owner, way) in wires.ports.items() if owner == name
    }
    if ports:
        found["port"] = ports
    return found


def layers(plan: Plan, device: str) -> list[list[int]]:
    """The runs of layers that it holds."""
    return [[stage.start, stage.stop] for stage in plan.stages if device in stage.devices]


def _is_lit(name: str, run: RunObservation | None, busy_frac: float) -> bool:
    """Whether it is at work."""
    if run is not None and not run.ended and name in run.plan.devices:
        typical_s = max(run.step_s[-4:], default=0.0)
        if run.last_s < max(LIT_S, 2 * typical_s):
            return True
    return busy_frac >= LIT_FRAC


def media(
    observation: CockpitObservation, wires: MediaWiring, load: Mapping[str, float]
) -> dict[str, Any]:
    """By name: the capacity, the load and the devices of each shared medium."""
    if observation.network is None:
        return {}
    rates = {medium.name: medium.capacity_bytes_per_s for medium in observation.network.media}
    members = {member.name for member in observation.members}
    found = {}
    for place, (name, on_it) in enumerate(sorted(wires.shared.items(), key=_most_first)):
        found[name] = {
            "at": place,
            "shown": harmless(name),
            "rate": rates[name],
            "load": round(load.get(name, 0.0), 2),
            "devices": [device for device in on_it if device in members],
        }
    return found


def _most_first(item: tuple[str, tuple[str, ...]]) -> tuple[int, str]:
    return -len(item[1]), item[0]


def ports(observation: CockpitObservation, wires: MediaWiring) -> dict[str, Any]:
    """By name: whose port each other medium is, and its capacity."""
    if observation.network is None:
        return {}
    rates = {medium.name: medium.capacity_bytes_per_s for medium in observation.network.media}
    return {
        name: {"device": owner, "way": way, "rate": rates[name], "shown": harmless(name)}
        for name, (owner, way) in wires.ports.items()
    }
