"""The notebooks that have a session, and which devices they name as members of their home. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from potluck_agent.core.events import PeerDevice
from potluck_agent.core.members import MAX_LINKS
from potluck_wire.messages import Available, Hello
from potluck_wire.session import SessionState


@dataclass(slots=True)
class NotebookSession:
    """One notebook. `hello` is its greeting while it waits for its welcome."""

    heard_s: float
    hello: Hello | None
    members: dict[str, PeerDevice] = field(default_factory=dict)
    available: Available | None = None  # what others leave, as it heard last


def state_of(session: NotebookSession | None) -> SessionState:
    """How far a session is."""
    if session is None:
        return SessionState.CLOSED
    return SessionState.OPENING if session.hello is not None else SessionState.OPEN


def welcomed(sessions: Mapping[str, NotebookSession]) -> list[str]:
    """The keys of those that have been welcomed."""
    return [key for key, session in sessions.items() if session.hello is None]


def known_members(
    sessions: Mapping[str, NotebookSession],
    owners: Collection[str],
    askers: Collection[str],
    in_force: Mapping[str, PeerDevice],
    most: int = MAX_LINKS,
) -> dict[str, PeerDevice]:
    """By key. A notebook is none, whoever says so.

    Where a device is, say those notebooks whose run is on (of `owners`) or that measure (of
    `askers`), else the others; of several of them, first whose word is `in_force`. Of more than
    `most`, the first in this order are.
    """
    candidates = [
        ((key in owners or key in askers, _is_told(in_force, m), key in owners), m)
        for key, session in sessions.items()
        for m in session.members.values()
        if m.key not in sessions
    ]
    known: dict[str, list[PeerDevice]] = {}
    used: set[str] = set()
    for (is_used, *_), member in sorted(candidates, key=lambda one: one[0], reverse=True):
        used |= {member.key} if is_used else set()
        is_new = member.key not in known and len(known) < most
        if is_new or (member.key in known and is_used == (member.key in used)):
            known.setdefault(member.key, []).append(member)
    return {key: _together(*told) for key, told in known.items()}


def _is_told(in_force: Mapping[str, PeerDevice], member: PeerDevice) -> bool:
    known = in_force.get(member.key)
    return known is not None and (known.name, known.address) == (member.name, member.address)


def _together(first: PeerDevice, *rest: PeerDevice) -> PeerDevice:
    """One device, as several notebooks tell of it."""
    addresses = dict.fromkeys(member.address for member in (first, *rest))
    return replace(first, others=tuple(addresses)[1:])


def crowded_out(
    sessions: Mapping[str, NotebookSession],
    key: str,
    owners: Collection[str],
    askers: Collection[str],
    in_force: Mapping[str, PeerDevice],
    most: int,
) -> str:
    """Why some of the devices that this notebook names would be no members, though its run were on;
    empty: all would be. The rest as for `known_members`.
    """
    known = {*sessions, *known_members(sessions, {*owners, key}, askers, in_force, most)}
    names = [each.name for each in sessions[key].members.values() if each.key not in known]
    if not names:
        return ""
    others = f" and {len(names) - 1} others" if len(names) > 1 else ""
    few = ", for the system permits few descriptors (ulimit -Hn)" if most < MAX_LINKS else ""
    return (
        f"no connection is left here for {names[0]}{others}: of all devices that notebooks use "
        f"here, {most} have one at most{few}"
    )
