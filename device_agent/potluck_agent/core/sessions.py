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
) -> dict[str, PeerDevice]:
    """By key. A notebook is none, whoever says so.

    Where a device is, says the notebook whose run is on (one of `owners`), then who measures (one
    of `askers`), then anybody; of equals, whose word is `in_force`: nobody moves a device that
    another notebook uses. Of more than `MAX_LINKS`, the first in this order are.
    """
    candidates = [
        ((key in owners, key in askers, in_force.get(m.key) == m), m)
        for key, session in sessions.items()
        for m in session.members.values()
        if m.key not in sessions
    ]
    known: dict[str, PeerDevice] = {}
    for _, member in sorted(candidates, key=lambda one: one[0], reverse=True):
        if len(known) < MAX_LINKS:
            known.setdefault(member.key, member)
    return known
