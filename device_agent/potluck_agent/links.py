"""Our own connections to the data sockets of the other devices of the home. Credit comes back on them.

A connection that stood and broke has lost what was on it: it is made anew, and the core is told to begin anew.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from potluck_agent.core import read_address
from potluck_agent.door import Socket, endpoint
from potluck_agent.events import MEMBER, Event, FromPeer, LinkReset, Member, Sender
from potluck_agent.keys import Identity
from potluck_wire.errors import WireError
from potluck_wire.frames import decode
from potluck_wire.limits import DATA_OFFSET, HANDSHAKE_S, MAX_FRAME_BYTES
from potluck_wire.messages import Channel

AT_ONCE = 32  # messages of one link in one round
RECONNECT_MS, RECONNECT_MAX_MS = 100, 2000
_WATCHED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


@dataclass(slots=True)
class Link:
    """One connection. `stood`: it was encrypted once, so that it can break."""

    member: Member
    socket: Socket
    monitor: Socket
    stood: bool = False


class Links:
    """Links by the key of the member. `feed` takes events for the core."""

    def __init__(self, context: Any, poller: zmq.Poller, identity: Identity, feed: Callable[[Event], None]) -> None:
        self._context, self._poller, self._identity, self._feed = context, poller, identity, feed
        self._links: dict[str, Link] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._links

    def get(self, key: str) -> Link | None:
        """The link to this member."""
        return self._links.get(key)

    def set(self, members: tuple[Member, ...]) -> None:
        """These and no others; a member that moved to another address gets a new link."""
        wanted = {member.key: member for member in members}
        for key, link in tuple(self._links.items()):
            if wanted.get(key) != link.member:
                self._close(link)
                del self._links[key]
        for key, member in wanted.items():
            if key not in self._links:
                self._links[key] = self._open(member)

    def close(self) -> None:
        """All of them."""
        self.set(())

    def serve(self, ready: dict[Any, int]) -> None:
        """Look at those that have something to say."""
        for link in tuple(self._links.values()):
            if link.monitor in ready:
                self._watch(link)
            if link.socket in ready:
                self._read(link)

    def _open(self, member: Member) -> Link:
        host, port = read_address(member.address)
        dealer = self._context.socket(zmq.DEALER)
        dealer.linger = 0
        dealer.ipv6 = ":" in host
        dealer.maxmsgsize = MAX_FRAME_BYTES
        dealer.handshake_ivl = int(HANDSHAKE_S * 1000)
        dealer.sndhwm = 0  # bounded by the credit window, in bytes
        dealer.reconnect_ivl, dealer.reconnect_ivl_max = RECONNECT_MS, RECONNECT_MAX_MS
        dealer.curve_serverkey = member.key.encode()
        dealer.curve_publickey = self._identity.public.encode()
        dealer.curve_secretkey = self._identity.secret.encode()
        monitor = dealer.get_monitor_socket(_WATCHED)
        dealer.connect(endpoint(host, port + DATA_OFFSET))
        self._poller.register(dealer, zmq.POLLIN)
        self._poller.register(monitor, zmq.POLLIN)
        return Link(member, dealer, monitor)

    def _close(self, link: Link) -> None:
        self._poller.unregister(link.socket)
        self._poller.unregister(link.monitor)
        link.socket.disable_monitor()
        link.monitor.close(0)
        link.socket.close(0)

    def _watch(self, link: Link) -> None:
        event: dict[str, Any] = recv_monitor_message(link.monitor)  # type: ignore[assignment]
        if event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            link.stood = True
        elif link.stood and self._links.get(link.member.key) is link:
            self._close(link)
            self._links[link.member.key] = self._open(link.member)
            self._feed(LinkReset(link.member.key, incoming=False))

    def _read(self, link: Link) -> None:
        for _ in range(AT_ONCE):
            if self._links.get(link.member.key) is not link:  # closed by what it said
                return
            try:
                message, buffers = decode(link.socket.recv_multipart(zmq.DONTWAIT), Channel.DATA)
            except zmq.Again:
                return
            except WireError:
                continue
            self._feed(FromPeer(Sender(link.member.key, MEMBER, link.member.name), message, buffers))
