"""The links of a home in memory: frames in order, after a latency, unless a cable is pulled."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Protocol

from potluck.testing.memory.clock import VirtualClock
from potluck_wire.frames import decode, encode
from potluck_wire.messages import MESSAGES, NUMBER_OF, Channel, Message

HOME = "home"  # the notebook
LATENCY_S = 1e-4
BYTES_PER_S = 1e9

Frames = list[bytes]
# what a device says to home -> what home hears: any number of messages with their buffers
Says = Callable[[Message, tuple[bytes, ...]], list[tuple[Message, tuple[bytes, ...]]]]


class NetworkEnd(Protocol):
    """Who sends and receives."""

    def receive(self, sender: str, channel: Channel, frames: Frames) -> None:
        """Take a message in.

        Parameters
        ----------
        sender
            Who sent it.
        channel
            On which it comes.
        frames
            As on the wire.
        """


class MemoryNetwork:
    """Sites by name. Frames of one connection (sender, receiver, channel) stay in order."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.passes: Callable[[str, str], None] = lambda sender, receiver: None
        self.sites: dict[str, NetworkEnd] = {}
        self.latency_s: dict[str, float] = {}
        self.bytes_per_s: dict[str, float] = {}  # of each of its connections
        self.taken_over: dict[str, Says] = {}  # devices that say what somebody else wants
        self.pulled: set[str] = set()  # devices whose cable is out: nothing passes, nobody is told
        # (sender, receiver) between whom nothing passes for now, and what waits to be sent again
        self._parted: dict[tuple[str, str], list[Callable[[], None]]] = {}
        self._sent_s: dict[tuple[str, str, Channel, bool], float] = defaultdict(float)
        self._there_s: dict[tuple[str, str, Channel, bool], float] = defaultdict(float)
        self._sessions: dict[tuple[str, str], int] = defaultdict(int)

    def cut(self, one: str, other: str) -> None:
        """What is on its way between them is lost; what is sent from now on is not."""
        self._sessions[_pair(one, other)] += 1

    def part(self, sender: str, receiver: str) -> None:
        """Nothing gets from one to the other; TCP sends it again and again until `mend`."""
        self._parted.setdefault((sender, receiver), [])

    def mend(self, sender: str, receiver: str) -> None:
        """What has waited gets there, in its order."""
        for arrive in self._parted.pop((sender, receiver), []):
            self._clock.after(LATENCY_S, arrive)

    def is_parted(self, one: str, other: str) -> bool:
        """Whether nothing passes in one direction at least."""
        return (one, other) in self._parted or (other, one) in self._parted

    def send(
        self, sender: str, receiver: str, channel: Channel, frames: Frames, *, back: bool = False
    ) -> None:
        """Send a message.

        Parameters
        ----------
        sender, receiver
            Sites.
        channel
            On which it goes.
        frames
            As on the wire.
        back
            Along the connection that the other one has made.
        """
        if sender in self.taken_over and receiver == HOME:
            for other, instead in self._instead(sender, channel, frames):
                self._carry(sender, receiver, other, instead, back=back)
            return
        self._carry(sender, receiver, channel, frames, back=back)

    def _instead(
        self, sender: str, channel: Channel, frames: Frames
    ) -> Iterator[tuple[Channel, Frames]]:
        message, buffers = decode(frames, channel)
        for other, more in self.taken_over[sender](message, tuple(map(bytes, buffers))):
            own = MESSAGES[NUMBER_OF[type(other)]].channel
            yield own, [bytes(frame) for frame in encode(other, more)]

    def _carry(
        self, sender: str, receiver: str, channel: Channel, frames: Frames, *, back: bool
    ) -> None:
        self.passes(sender, receiver)
        if self.pulled & {sender, receiver}:
            return
        pair, connection = _pair(sender, receiver), (sender, receiver, channel, back)
        late_s = self.latency_s.get(sender, 0.0) + self.latency_s.get(receiver, 0.0)
        rate = min(self.bytes_per_s.get(site, BYTES_PER_S) for site in (sender, receiver))
        sent_s = max(self._clock.now_s, self._sent_s[connection])
        self._sent_s[connection] = sent_s = sent_s + sum(map(len, frames)) / rate
        there_s = sent_s + LATENCY_S + late_s
        self._there_s[connection] = there_s = max(there_s, self._there_s[connection])
        session = self._sessions[pair]

        def arrive() -> None:
            if (held := self._parted.get((sender, receiver))) is not None:
                held.append(arrive)
                return
            site = self.sites.get(receiver)
            is_whole = self._sessions[pair] == session and receiver not in self.pulled
            if site is not None and is_whole:
                site.receive(sender, channel, frames)

        self._clock.after(there_s - self._clock.now_s, arrive)


def _pair(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one < other else (other, one)
