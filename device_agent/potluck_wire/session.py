"""What may be said when: the states of a session between a controller and an agent, and of each
plan epoch in it.

Two tables, (state, message) -> state; whatever they lack is refused. Both sides ask `check` about
every control message that they hear. `SessionMachine` is the whole of it: told every message in
order, it knows what may come next, epochs included; the tests hold real conversations against it.
PROTOCOL.md draws the tables from here.
"""

from enum import Enum

from potluck_wire.errors import WireCode, WireError
from potluck_wire.messages import (
    MESSAGES,
    NUMBER_OF,
    Abort,
    Channel,
    Commit,
    Committed,
    Done,
    Drop,
    Dropped,
    Execute,
    Failed,
    Goodbye,
    Hello,
    Message,
    Prepare,
    Prepared,
    RefusalCode,
    Refused,
    Welcome,
)


class SessionState(Enum):
    """How far the session is."""

    CLOSED = "closed"
    OPENING = "opening"  # Hello was said
    OPEN = "open"


class EpochState(Enum):
    """How far one plan of one run is on this device."""

    ABSENT = "absent"
    PREPARING = "preparing"
    # loaded; its push and move programs may run, so that weights are there at the commit
    PREPARED = "prepared"
    COMMITTING = "committing"
    COMMITTED = "committed"  # in force
    DROPPING = "dropping"


CONTROLLER, AGENT = "controller", "agent"  # who speaks

_CONTROL = tuple(entry for entry in MESSAGES.values() if entry.channel is Channel.CONTROL)
_S, _E = SessionState, EpochState

SESSION: dict[tuple[SessionState, type[Message]], SessionState] = {
    (_S.CLOSED, Hello): _S.OPENING,
    (_S.CLOSED, Goodbye): _S.CLOSED,  # both said it at once
    (_S.CLOSED, Refused): _S.CLOSED,  # what was said before the Goodbye was heard
    (_S.OPENING, Hello): _S.OPENING,
    (_S.OPENING, Welcome): _S.OPEN,
    (_S.OPENING, Goodbye): _S.CLOSED,
    (_S.OPEN, Hello): _S.OPENING,  # the connection broke and came back
    (_S.OPEN, Goodbye): _S.CLOSED,
}
for _entry in _CONTROL:
    if _entry.type not in (Hello, Welcome, Goodbye):
        SESSION[_S.OPEN, _entry.type] = _S.OPEN
        if _entry.sender == "agent":  # said before the agent heard the new Hello
            SESSION[_S.OPENING, _entry.type] = _S.OPENING

EPOCH: dict[tuple[EpochState, type[Message]], EpochState] = {
    (_E.ABSENT, Prepare): _E.PREPARING,
    (_E.PREPARING, Prepare): _E.PREPARING,  # a repeat is answered again, and loads nothing twice
    (_E.PREPARING, Prepared): _E.PREPARED,
    (_E.PREPARED, Prepare): _E.PREPARED,
    (_E.PREPARED, Prepared): _E.PREPARED,
    (_E.PREPARED, Commit): _E.COMMITTING,
    (_E.COMMITTING, Commit): _E.COMMITTING,
    (_E.COMMITTING, Committed): _E.COMMITTED,
    (_E.COMMITTED, Prepare): _E.COMMITTED,
    (_E.COMMITTED, Prepared): _E.COMMITTED,
    (_E.COMMITTED, Commit): _E.COMMITTED,
    (_E.COMMITTED, Committed): _E.COMMITTED,
    (_E.DROPPING, Dropped): _E.ABSENT,
}
EPOCH |= {(state, Drop): _E.DROPPING for state in EpochState}  # from anywhere, and twice is fine
_RUNNING: tuple[type[Message], ...] = (Execute, Done, Failed, Abort)
_LATE: tuple[type[Message], ...] = (Prepared, Committed, Done, Failed)
EPOCH |= {
    (state, kind): state
    for state in (_E.PREPARED, _E.COMMITTING, _E.COMMITTED)
    for kind in _RUNNING
}
# said before the agent heard the Drop
EPOCH |= {(_E.DROPPING, kind): _E.DROPPING for kind in _LATE}
# it went with a newer commit, or the worker was lost
EPOCH |= {(_E.ABSENT, kind): _E.ABSENT for kind in _RUNNING}

# (state, the refused message) -> state. Any other refusal changes nothing.
REFUSED: dict[tuple[EpochState, type[Message]], EpochState] = {
    (_E.PREPARING, Prepare): _E.ABSENT,
    (_E.COMMITTING, Commit): _E.PREPARED,
}


def check(state: SessionState, message: Message, sender: str) -> SessionState:
    """The state of a session after `sender` (CONTROLLER or AGENT) has said this control message.

    Parameters
    ----------
    state
        Of the session, before.
    message
        A control message.
    sender
        CONTROLLER or AGENT.

    Raises
    ------
    WireError
        With code `state` where this side may not say it, or not now.
    """
    entry = MESSAGES[NUMBER_OF[type(message)]]
    if entry.channel is not Channel.CONTROL or entry.sender not in (sender, "either"):
        raise WireError(WireCode.STATE, f"{entry.type.__name__} is not for the {sender} to say")
    after = SESSION.get((state, entry.type))
    if after is None:
        raise WireError(WireCode.STATE, f"{entry.type.__name__} while the session is {state.value}")
    return after


class SessionMachine:
    """The state of one session, from either side.

    `epochs` lists the epochs that are not absent, by (run, epoch).
    """

    __slots__ = ("epochs", "state")

    def __init__(self) -> None:
        self.state = SessionState.CLOSED
        self.epochs: dict[tuple[str, int], EpochState] = {}

    def advance(self, message: Message, sender: str) -> None:
        """Take note of a control message that `sender` (CONTROLLER or AGENT) has said.

        Raises
        ------
        WireError
            With code `state`, and nothing changes, where this side may not say it, or not now.
        """
        after = check(self.state, message, sender)
        self._advance_epochs(message)
        self.state = after
        if isinstance(message, Refused) and message.about == NUMBER_OF[Hello]:
            self.state = SessionState.CLOSED
        if self.state is SessionState.CLOSED:
            self.epochs.clear()

    def _advance_epochs(self, message: Message) -> None:
        match message:
            case Refused():
                self._refused(message)
            case Drop(run=run, epoch=-1) | Dropped(run=run, epoch=-1):
                for known in [name for name in self.epochs if name[0] == run]:
                    self._advance_epoch(known, type(message))
            case (
                Prepare()
                | Prepared()
                | Commit()
                | Committed()
                | Execute()
                | Done()
                | Failed()
                | Abort()
                | Drop()
                | Dropped()
            ):
                self._advance_epoch((message.run, message.epoch), type(message))
        if isinstance(message, Committed):  # older epochs went with it
            for run, epoch in list(self.epochs):
                if run == message.run and epoch < message.epoch:
                    del self.epochs[run, epoch]

    def _advance_epoch(self, name: tuple[str, int], event: type[Message]) -> None:
        before = self.epochs.get(name, EpochState.ABSENT)
        after = EPOCH.get((before, event))
        if after is None:
            raise WireError(
                WireCode.STATE,
                f"{event.__name__} while epoch {name[1]} of run {name[0]:.64} is {before.value}",
            )
        self._set(name, after)

    def _refused(self, message: Refused) -> None:
        name = (message.run, message.epoch)
        before = self.epochs.get(name)
        refused = MESSAGES.get(message.about)
        if before is None or refused is None:
            return
        if message.code == RefusalCode.UNKNOWN_RUN:  # the agent does not have it (any more)
            self._set(name, EpochState.ABSENT)
        else:
            self._set(name, REFUSED.get((before, refused.type), before))

    def _set(self, name: tuple[str, int], state: EpochState) -> None:
        if state is EpochState.ABSENT:
            self.epochs.pop(name, None)
        else:
            self.epochs[name] = state
