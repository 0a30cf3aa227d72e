"""Messages from the agent's sockets, in rounds: none takes more than its share, so that whoever
sends much keeps nobody else from being heard.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from potluck_agent.net.multipart import receive
from potluck_agent.net.socket_memory import SocketMemory
from potluck_wire.bounded_receive import MessageReader
from potluck_wire.messages import Channel

# of the control channel: a plan takes the core 0.2 s per MiB, and others want to be heard
BYTES_AT_ONCE = 512 * 1024
# no message begins later than so long into a round: a lease has to be on the disk first, which
# takes 10 ms here and 100 ms on an old card
ROUND_S = 0.02
# messages of one socket in one round
AT_ONCE = {Channel.PULSE: 64, Channel.CONTROL: 16, Channel.DATA: 32}


class Sources(Protocol):
    """Knows which socket has something to say."""

    def has_message(self, socket: Any) -> bool:
        """Whether a message waits in it."""


class FairReceiver:
    """Reads one ROUTER per channel; whoever sends what is too long to be a message is cut off."""

    def __init__(
        self,
        sources: Sources,
        inflow: SocketMemory,
        take: Callable[[Channel, bytes, list[Any]], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources = sources
        self._inflow = inflow
        self._take = take
        self._now_s = now_s
        self.begin()

    def begin(self) -> None:
        """The sockets are new ones: nothing of theirs is half read."""
        self._readers = {channel: MessageReader(channel, n_routes=1) for channel in AT_ONCE}

    def read(self, channel: Channel, routers: Mapping[Channel, Any]) -> None:
        """One round's share of a channel.

        Parameters
        ----------
        channel
            Which, and one that has something to say.
        routers
            The sockets of the moment: what is read may have them replaced, which ends the round.
        """
        router, reader = routers[channel], self._readers[channel]
        n_bytes, until_s = 0, self._now_s() + ROUND_S
        for _ in range(AT_ONCE[channel]):
            was_skipping = reader.skipping
            route, *frames = receive(router, reader) or [None]
            n_bytes += sum(map(len, frames))
            if frames:
                self._take(channel, route.bytes, frames)
                self._inflow.read(router, frames)
            if reader.skipping and not was_skipping:  # whoever sends so much is cut off
                self._inflow.cut(self._inflow.over(router, frames))
            if was_skipping or reader.skipping:
                return
            reopened = routers.get(channel) is not router
            is_enough = channel is Channel.CONTROL and (
                n_bytes > BYTES_AT_ONCE or self._now_s() >= until_s
            )
            if reopened or not self._sources.has_message(router) or is_enough:
                return
