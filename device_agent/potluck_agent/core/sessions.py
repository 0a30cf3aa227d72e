"""The notebooks that have a session, and which devices they name as members of their home. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

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

    Where a device is, says a notebook whose run is on (one of `owners`) or that measures (one of
    `askers`), then anybody; of these, whose word is `in_force`, for nobody moves a device that
    another notebook uses; then whose run is on. Of more than `most`, the first in this order are.
    """
    candidates = [
        ((key in owners or key in askers, in_force.get(m.key) == m, key in owners), m)
        for key, session in sessions.items()
        for m in session.members.values()
        if m.key not in sessions
    ]
    known: dict[str, PeerDevice] = {}
    for _, member in sorted(candidates, key=lambda one: one[0], reverse=True):
        if len(known) < most:
            known.setdefault(member.key, member)
    return known


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
    return (
        f"no connection is left here for {names[0]}{others}: {most} devices have one at most, and "
        "other notebooks use them; ask again when one of them is through"
    )
