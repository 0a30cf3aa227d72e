"""Waiting for lost devices where those that are left cannot go on: a laptop that slept, a WiFi that
was away for a minute.
"""

from collections.abc import Callable, Collection, Iterator
from itertools import chain, repeat

from potluck import units
from potluck.sessions.members import SEARCH_S, Members

LOOK_S = 0.5  # how often whoever waits may change their mind
PATIENCE_S = 600.0


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
    while lost := [name for name in names if name in members and members[name].is_lost]:
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
        if back := [name for name in lost if members[name].session is not None]:
            return tuple(back)
    return ()


def _pauses() -> Iterator[float]:
    return chain(SEARCH_S, repeat(SEARCH_S[-1]))
