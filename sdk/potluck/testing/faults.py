"""What tests of faults need of a home: its devices, to end them, and the moment to do so."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from potluck.errors import HomeError
from potluck.home import Home
from potluck.lab.lab import Lab
from potluck.sessions.events import Action, Event, Received, Send
from potluck.sessions.local_agents import LocalAgents
from potluck.testing.internals import lab_of, link_of
from potluck.testing.memory import MemoryLab
from potluck_wire.messages import Message


@dataclass(frozen=True, slots=True)
class Moment:
    """When the notebook first sends such a message.

    `kind`: its type; `epoch` and `program`: those that it is about.
    """

    kind: type[Message]
    epoch: int
    program: str = ""

    def has_come(self, action: Action) -> bool:
        """Whether this action is that message."""
        if not isinstance(action, Send) or not isinstance(action.message, self.kind):
            return False
        about = getattr(action.message, "epoch", -1), getattr(action.message, "program", "")
        return about == (self.epoch, self.program)


def agents_of(home: Home) -> LocalAgents:
    """The processes of a home on this machine: `kill`, `restart`, `freeze`, `thaw`, `load`.

    Parameters
    ----------
    home
        From `Home.local` or `Home.lab`.

    Raises
    ------
    HomeError
        Its devices are no processes that this program has started.
    """
    lab = lab_of(home)
    if not isinstance(lab, Lab):
        raise HomeError("its devices are no processes of this program.")
    return lab.agents


def memory_of(home: Home) -> MemoryLab:
    """The devices of a home in memory: `kill`, `kill_worker`, `restart`, `pull`, `plug`, `delay`,
    `slow`, `take_over`.

    Parameters
    ----------
    home
        From `memory_home`.

    Raises
    ------
    HomeError
        It is not in memory.
    """
    lab = lab_of(home)
    if not isinstance(lab, MemoryLab):
        raise HomeError("it is not in memory.")
    return lab


@contextmanager
def at(home: Home, moment: Moment, fault: Callable[[], None], *, after: int = 0) -> Iterator[None]:
    """Call `fault()` once, when that moment comes while this block is open.

    It is called in the thread of the home's link, before the message leaves.

    Parameters
    ----------
    home
        Any.
    moment
        What the notebook is about to say.
    fault
        Kills, cancels, whatever: must be quick.
    after
        So many messages to the notebook later.
    """
    watch(home, moment, fault, after=after)
    try:
        yield
    finally:
        link_of(home).watch(None)


def watch(home: Home, moment: Moment, fault: Callable[[], None], *, after: int = 0) -> None:
    """As `at`, until the home is closed.

    Parameters
    ----------
    home
        Any.
    moment
        What the notebook is about to say.
    fault
        What is called.
    after
        So many messages to the notebook later.
    """
    left: int | None = None

    def observe(event: Event, actions: list[Action]) -> None:
        nonlocal left
        if left is None and any(moment.has_come(action) for action in actions):
            left = after
        elif left is not None and left > 0:
            left -= isinstance(event, Received)
        if left == 0:
            left = -1
            fault()

    link_of(home).watch(observe)


def end_watch(home: Home) -> None:
    """Nobody watches this home any more."""
    link_of(home).watch(None)
