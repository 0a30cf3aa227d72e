"""Waiting for lost devices, and for those that want to leave, where those that are left cannot go
on: a laptop that slept, a WiFi that was away for a minute, a device that cools down.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain, repeat

from potluck import units
from potluck.sessions.members import SEARCH_S, Member, Members

LOOK_S = 0.5  # how often whoever waits may change their mind
PATIENCE_S = 600.0  # of a training
ANSWER_PATIENCE_S = 30.0  # of whoever asks: an agent that restarts is found again within 15 s


def wait_for_one(
    members: Members, names: Collection[str], patience_s: float, say: Callable[[str], None]
) -> tuple[str, ...]:
    """Wait until one of these devices is back.

    Parameters
    ----------
    members
        Of the home.
    names
        Of devices that would do.
    patience_s
        Seconds to wait at most.
    say
        Told what is waited for, every `LOOK_S`; may raise, to end the waiting.

    Returns
    -------
    tuple of str
        Those that are back; none where nobody came, or nobody could.
    """
    waited_s, pauses = 0.0, _pauses()
    while lost := [name for name in names if name in members and _is_absent(members[name])]:
        if waited_s >= patience_s:
            return ()
        pause_s = min(next(pauses), patience_s - waited_s)
        waited_s += pause_s
        while pause_s > 0:
            left = units.duration(patience_s - waited_s + pause_s)
            say(f"waiting for {' or '.join(lost)} to come back, {left} more")
            members.pass_time(min(pause_s, LOOK_S))
            pause_s -= LOOK_S
        members.join(lost)
        if back := [name for name in lost if name in members.staying]:
            return tuple(back)
    return ()


def reasons_to_leave(members: Members, names: Iterable[str]) -> str:
    """Why these devices want to leave, in one sentence for each; nothing where none does.

    Parameters
    ----------
    members
        Of the home.
    names
        Of devices.
    """
    found = {name: members[name].leaving for name in names if name in members}
    return " ".join(f"{name} wants to leave: {why}." for name, why in found.items() if why)


def _is_absent(member: Member) -> bool:
    """Whether it may be back by and by: it was lost, or takes nothing new for now."""
    return member.is_lost or bool(member.leaving)


def _pauses() -> Iterator[float]:
    return chain(SEARCH_S, repeat(SEARCH_S[-1]))
