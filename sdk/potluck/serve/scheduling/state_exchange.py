"""State exchange: what every server knows of all others, told from neighbour to neighbour in a
ring. A pure machine: `handle(event, now_s) -> actions`.

EPARA, section 3.4. Every interval a server tells both neighbours its own state, and what it has
heard from the other side since. A neighbour that stays silent is skipped, and its next one is
talked to instead; it is a neighbour again as soon as it is heard. What is older than `most_age_s`
is not used. Every statement has a version, so wrong data about a server ends when its next
statement comes round: within one round of the ring. A version that its own server never reached is
outbid by it (as in link-state routing). Where we differ: the paper waits for a person before a
faulty server takes part again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from potluck.errors import UserError
from potluck.serve.scheduling.records import ServerState

SILENT_INTERVALS = 3  # without a word before a neighbour is skipped
LEFT, RIGHT = -1, 1


@dataclass(frozen=True, slots=True)
class NeighbourMessage:
    """A neighbour's message has come."""

    sender: str
    message: "StateMessage"


@dataclass(frozen=True, slots=True)
class IntervalOver:
    """An interval is over. `own`: this server's state now; its version is set here."""

    own: ServerState


@dataclass(frozen=True, slots=True)
class MembershipChanged:
    """The roster changed: these servers take part, in the ring's order."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StateMessage:
    """States on their way, each with the seconds since its server said so."""

    states: tuple[ServerState, ...] = ()
    ages_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class SendStates:
    """Send this to a neighbour."""

    server: str
    message: StateMessage


Event = NeighbourMessage | IntervalOver | MembershipChanged


@dataclass(slots=True)
class KnownState:
    """The last state of a server, when it was said (by this server's clock), and whence it came."""

    state: ServerState
    stated_s: float
    side: int


@dataclass(slots=True)
class _Side:
    """One direction of the ring: who is talked to, and since when an answer is expected."""

    step: int
    expected_s: dict[str, float] = field(default_factory=dict)
    sent: dict[str, dict[str, int]] = field(default_factory=dict)  # versions by neighbour, server


class Ring:
    """One server's part in the exchange.

    Parameters
    ----------
    me
        This server.
    names
        All that take part, in the ring's order.
    interval_s
        Between two statements.
    most_age_s
        From when on a state is too old to be used; by default forty intervals more than a round.
    """

    def __init__(
        self, me: str, names: Sequence[str], interval_s: float, most_age_s: float | None = None
    ) -> None:
        self.me = me
        self.interval_s = interval_s
        self._most_age_s = most_age_s
        self._sides = (_Side(LEFT), _Side(RIGHT))
        self._known: dict[str, KnownState] = {}
        self._claimed: dict[str, int] = {}  # the last version that a neighbour said of itself
        self._version = 0
        self._heard_s: dict[str, float] = {}
        # whom it talks to on the left and on the right, silent ones skipped; None: nobody answers
        self.neighbours: tuple[str | None, str | None] = (None, None)
        self._join(names)

    @property
    def most_age_s(self) -> float:
        """From when on a state is too old to be used."""
        if self._most_age_s is not None:
            return self._most_age_s
        return self.interval_s * (len(self.names) / 2 + 40)

    def _join(self, names: Iterable[str]) -> None:
        self.names = tuple(dict.fromkeys(names))
        if self.me not in self.names:
            raise UserError(f"{self.me} is not in its own ring: {', '.join(self.names)}.")
        self._place = self.names.index(self.me)
        self._known = {name: each for name, each in self._known.items() if name in self.names}
        for side in self._sides:
            side.sent.clear()
            side.expected_s.clear()

    def states(self, now_s: float) -> dict[str, tuple[ServerState, float]]:
        """Of the others: their last states that are young enough, and how old they are."""
        return {
            name: (each.state, now_s - each.stated_s)
            for name, each in self._known.items()
            if name != self.me and now_s - each.stated_s <= self.most_age_s
        }

    def handle(self, event: Event, now_s: float) -> list[SendStates]:
        """What is to be sent now."""
        match event:
            case MembershipChanged(names):
                self._join(names)
            case NeighbourMessage(sender, message):
                self._take(sender, message, now_s)
            case IntervalOver(own):
                return self._send_states(own, now_s)
        return []

    def _neighbour(self, side: _Side, now_s: float) -> str | None:
        """The first that is not silent: each has some intervals to be heard once it is its turn."""
        before, side.expected_s = side.expected_s, {}
        for distance in range(1, len(self.names)):
            name = self.names[(self._place + side.step * distance) % len(self.names)]
            side.expected_s[name] = before.get(name, now_s)
            last_s = max(side.expected_s[name], self._heard_s.get(name, 0.0))
            if now_s - last_s <= SILENT_INTERVALS * self.interval_s:
                return name
        return None

    def _send_states(self, own: ServerState, now_s: float) -> list[SendStates]:
        self._version += 1
        mine = ServerState(server=self.me, version=self._version, services=own.services)
        self._known[self.me] = KnownState(mine, now_s, 0)
        found = []
        left, right = (self._neighbour(side, now_s) for side in self._sides)
        self.neighbours = (left, right)
        for side, neighbour in zip(self._sides, self.neighbours, strict=True):
            # the first beyond the silent, and the silent nearest: it may be back
            nearest = self.names[(self._place + side.step) % len(self.names)]
            for name in dict.fromkeys((neighbour, nearest)):
                if name is not None and name != self.me:
                    found.append(SendStates(name, self._news(side, name, now_s)))
        return found

    def _news(self, side: _Side, name: str, now_s: float) -> StateMessage:
        """What this neighbour has not been told, and did not tell."""
        versions = side.sent.setdefault(name, {})
        states, ages_s = [], []
        for server, each in self._known.items():
            new = versions.get(server, -1) != each.state.version
            if server == name:  # only what it does not know of itself: it will outbid that
                wanted = each.state.version > self._claimed.get(name, each.state.version)
            else:
                wanted = each.side != side.step
            if wanted and new:
                versions[server] = each.state.version
                states.append(each.state)
                ages_s.append(now_s - each.stated_s)
        return StateMessage(tuple(states), tuple(ages_s))

    def _take(self, sender: str, message: StateMessage, now_s: float) -> None:
        if sender not in self.names or sender == self.me:
            return
        place = self.names.index(sender)
        distance = (place - self._place) % len(self.names)
        step = RIGHT if distance <= len(self.names) - distance else LEFT
        self._heard_s[sender] = now_s
        for state, age_s in zip(message.states, message.ages_s, strict=False):
            if state.server == sender:
                self._claimed[sender] = state.version
            self._learn(state, now_s - max(0.0, age_s), step)

    def _learn(self, state: ServerState, stated_s: float, step: int) -> None:
        if state.server == self.me:
            # somebody says what this server never said: the next statement outbids it
            self._version = max(self._version, state.version)
            return
        if state.server not in self.names:
            return
        known = self._known.get(state.server)
        if known is None or state.version > known.state.version:
            self._known[state.server] = KnownState(state, stated_s, step)
