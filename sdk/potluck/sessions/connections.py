"""The three connections to one agent: their sockets, what each may receive, and what waits to be
sent.
"""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import zmq

from potluck.sessions.events import Address, Connect
from potluck.sessions.socket_memory import ConnectionMemory
from potluck_wire.bounded_receive import MessageReader
from potluck_wire.dealer_sockets import set_up_dealer
from potluck_wire.limits import (
    CONTROL_OFFSET,
    DATA_OFFSET,
    KIB,
    MAX_CHUNK_BYTES,
    MAX_FRAME_BYTES,
    MAX_HEADER_BYTES,
    PULSE_OFFSET,
)
from potluck_wire.messages import Channel

_NO_WAIT = int(zmq.DONTWAIT)  # a plain number: zmq's own flags are slow
OFFSETS = {Channel.CONTROL: CONTROL_OFFSET, Channel.DATA: DATA_OFFSET, Channel.PULSE: PULSE_OFFSET}
WATCHED = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_DISCONNECTED
)
WATCHED |= zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_CLOSED
WATCHED |= zmq.EVENT_CONNECTED
AT_ONCE = 64  # messages of one socket before the others have their turn
# of one socket, likewise; what has begun to be read is read to its end
BYTES_AT_ONCE = MAX_FRAME_BYTES
# The longest frame of each channel (CURVE wraps it in 33 bytes more).
LONGEST_BYTES = {
    Channel.CONTROL: MAX_FRAME_BYTES,
    Channel.DATA: MAX_CHUNK_BYTES + KIB,
    Channel.PULSE: MAX_HEADER_BYTES + KIB,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """A CURVE key pair in Z85, 40 characters each."""

    public: str
    secret: str = field(repr=False)


@dataclass(slots=True)
class AgentConnection:
    """All three. Without sockets while the address is not known."""

    wanted: Connect
    sockets: dict[Channel, "zmq.Socket[bytes]"] = field(default_factory=dict)
    monitors: dict[Channel, "zmq.Socket[bytes]"] = field(default_factory=dict)
    backlog: dict[Channel, deque[list[Any]]] = field(default_factory=dict)
    trusted: bool = False  # a handshake has succeeded
    failed: Counter[Channel] = field(default_factory=Counter)  # handshakes before that
    readers: dict[Channel, MessageReader] = field(default_factory=dict)
    inflows: dict[Channel, ConnectionMemory] = field(default_factory=dict)

    def open(self, context: "zmq.Context[Any]", channel: Channel, host: str, keys: Keys) -> None:
        """Connect one channel to the agent at that address."""
        socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        set_up_dealer(socket, host, self.wanted.key, keys.public, keys.secret)
        socket.maxmsgsize = LONGEST_BYTES[channel]
        # a greeting, so that the agent can send values home
        socket.probe_router = channel is Channel.DATA
        self.readers[channel], self.inflows[channel] = MessageReader(channel), ConnectionMemory()
        self.sockets[channel], self.monitors[channel] = socket, socket.get_monitor_socket(WATCHED)
        place = Address(host=host, port=self.wanted.address.port + OFFSETS[channel])
        socket.connect(f"tcp://{place}")

    def read(self, channel: Channel) -> list[Any]:
        """The frames of the next message, those of values uncopied; zmq.Again where there is none.

        None while one that was too long is passed over.
        """
        frames = self.readers[channel].read(lambda: self.sockets[channel].recv(_NO_WAIT, False))
        self.inflows[channel].read(frames)
        return [frame.buffer if channel is Channel.DATA else frame.bytes for frame in frames]

    def messages(self, channel: Channel) -> Iterator[list[Any]]:
        """The next messages, as `read` gives them: as many as there are, and no more than one
        socket's share of a round.
        """
        n_messages = n_bytes = 0
        while n_messages < AT_ONCE and n_bytes < BYTES_AT_ONCE:
            try:
                frames = self.read(channel)
            except zmq.Again:
                return
            n_messages += 1
            n_bytes += sum(map(len, frames))
            yield frames

    def unread_bytes(self) -> int:
        """What came over the three and was not read yet."""
        return sum(
            inflow.left_bytes(is_empty=not self.sockets[channel].poll(0))
            for channel, inflow in self.inflows.items()
        )

    @property
    def n_unsent(self) -> int:
        """Messages that ZeroMQ does not take yet."""
        return sum(map(len, self.backlog.values()))

    def send(self, channel: Channel, frames: list[Any]) -> None:
        """Send a message now, or behind what waits already."""
        backlog = self.backlog.setdefault(channel, deque())
        backlog.append(frames)
        if len(backlog) == 1:
            self.flush(channel)

    def flush(self, channel: Channel) -> None:
        """Send what waits, as much of it as goes."""
        socket, backlog = self.sockets.get(channel), self.backlog.get(channel)
        while socket is not None and backlog:
            try:
                socket.send_multipart(backlog[0], zmq.DONTWAIT, copy=len(backlog[0]) == 1)
            except zmq.Again:
                return
            backlog.popleft()
