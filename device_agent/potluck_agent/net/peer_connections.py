"""Our own connections to the data sockets of the other devices of the home.

Credit comes back on them. Where notebooks do not agree at which address a device is, these are
tried in turn until its key answers at one: nobody's word takes a device from others.

A connection that broke has lost what was on it: it is made anew, and the core is told to begin
anew. One that was refused is tried again (libzmq itself never does): the other device may hear of
this one a moment later.
"""

import socket
import threading
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from potluck_agent.core.events import (
    MEMBER,
    Event,
    FromPeer,
    LinkReset,
    MemberLost,
    PeerDevice,
    Sender,
)
from potluck_agent.core.members import MAX_LINKS, read_address
from potluck_agent.keys import Identity
from potluck_agent.net.multipart import receive
from potluck_agent.net.poller import Poller
from potluck_agent.net.server_sockets import Socket, endpoint
from potluck_agent.net.socket_memory import WATCHED, SocketMemory
from potluck_wire.bounded_receive import MessageReader
from potluck_wire.dealer_sockets import set_up_dealer
from potluck_wire.errors import WireError
from potluck_wire.frames import decode
from potluck_wire.limits import DATA_OFFSET
from potluck_wire.messages import Channel
from potluck_wire.name_resolution import UNKNOWN, Resolver, resolve

AT_ONCE = 32  # messages of one link in one round
# new connections: rosters may follow each other faster than ZeroMQ gives old descriptors back
NEW_AT_ONCE, NEW_PER_S = 64, 32
SOCKETS_EACH = 3  # of ZeroMQ: its own, and both ends of its monitor
DESCRIPTORS_EACH = 1 + SOCKETS_EACH  # one for each of them, and the connection
# allowed (its default is 1,023): a link to every member, and the agent's own, at its self-test
MAX_SOCKETS = MAX_LINKS * SOCKETS_EACH + 64
NAMES_AT_ONCE = 4  # they come from others, and each takes a thread until it is answered
RECONNECT_MS, RECONNECT_MAX_MS = 100, 2000
HEARTBEAT_MS, DEAD_MS = 1000, 5000  # a cable that was pulled says nothing
ASK_AGAIN_S = 5.0  # for the address of a host that nobody knew
NEXT_S = 3.0  # without a connection at an address: another one is tried, where one is told
LOST_S = 10.0  # without a connection for so long: what waits for that device will not get there
_BROKEN = (
    zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_BROKEN |= zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_WATCHED = zmq.EVENT_HANDSHAKE_SUCCEEDED | _BROKEN | WATCHED


@dataclass(slots=True)
class PeerConnection:
    """One connection. It `stands` once it is encrypted.

    `down_s` is since when this device could not be reached, `since_s` since when it is tried at
    this address, the one of number `turn` of those that are told.

    `socket` and `monitor` are None until the address of the member is known; `ask_s`: when to ask
    for it again.
    """

    member: PeerDevice
    address: str
    turn: int
    down_s: float
    since_s: float
    socket: Socket = None
    monitor: Socket = None
    ask_s: float = 0.0
    reader: MessageReader = field(default_factory=lambda: MessageReader(Channel.DATA))
    stands: bool = False
    has_stood: bool = False
    broken: bool = False


class PeerConnections:
    """Links by the key of the member. `feed` takes events for the core, `blame` the key of whose
    frames raised what.
    """

    def __init__(
        self,
        context: Any,
        sources: Poller,
        inflow: SocketMemory,
        identity: Identity,
        feed: Callable[[Event], None],
        blame: Callable[[str, Exception], None],
        resolver: Resolver | None = None,
    ) -> None:
        self._context = context
        context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)  # it has none yet
        self._sources = sources
        self._inflow = inflow
        self._identity = identity
        self._feed = feed
        self._blame = blame
        self._resolver = resolver or Resolver(
            partial(resolve, socket.getaddrinfo), threading.Thread, NAMES_AT_ONCE
        )
        self._links: dict[str, PeerConnection] = {}
        self._n_allowed, self._allowed_s = float(NEW_AT_ONCE), 0.0  # new ones, as of then

    def __contains__(self, key: str) -> bool:
        return key in self._links

    def __len__(self) -> int:
        return len(self._links)

    def get(self, key: str) -> PeerConnection | None:
        """The link to this member."""
        return self._links.get(key)

    def set(self, members: tuple[PeerDevice, ...]) -> None:
        """These and no others; one that nobody tells of at its address any more gets a new link
        with the next `tick`.
        """
        wanted, now_s = {member.key: member for member in members}, time.monotonic()
        for key, link in tuple(self._links.items()):
            if key not in wanted:
                self._close(link)
                del self._links[key]
                continue
            link.member = wanted[key]
            if link.address not in _addresses(link.member):
                link.down_s = now_s if link.stands else link.down_s
                link.stands, link.broken = False, True
        for key, member in wanted.items():
            if key not in self._links:
                self._links[key] = self._open(member, 0, now_s, now_s)

    def tick(self, now_s: float) -> None:
        """Make broken connections anew, and give up those that do not come back."""
        more = max(now_s - self._allowed_s, 0.0) * NEW_PER_S
        self._n_allowed, self._allowed_s = min(self._n_allowed + more, NEW_AT_ONCE), now_s
        for key, link in tuple(self._links.items()):
            is_late = not link.stands and now_s - link.since_s > NEXT_S
            if link.broken or (is_late and link.member.others):
                # where it stood and broke, who told of that place may be in the way
                is_over = is_late or link.has_stood
                is_over |= link.address not in _addresses(link.member)
                self._renew(link, now_s, link.turn + is_over)
            elif link.socket is None and self._connect(link, now_s):
                self._feed(
                    LinkReset(key=key, incoming=False)
                )  # what was for it meanwhile went nowhere
            if not link.stands and now_s - link.down_s > LOST_S:
                self._links[key].down_s = now_s
                self._feed(MemberLost(key))

    def close(self) -> None:
        """All of them."""
        self.set(())

    def serve(self, ready: Container[Any]) -> None:
        """Look at those that have something to say."""
        for link in tuple(self._links.values()):
            if link.monitor in ready:
                self._watch(link)
            if link.socket in ready:
                self._read(link)

    def _renew(self, link: PeerConnection, now_s: float, turn: int) -> None:
        self._close(link)
        since_s = link.since_s if turn == link.turn else now_s
        self._links[link.member.key] = self._open(link.member, turn, link.down_s, since_s)
        self._feed(LinkReset(key=link.member.key, incoming=False))

    def _open(self, member: PeerDevice, turn: int, down_s: float, since_s: float) -> PeerConnection:
        addresses = _addresses(member)
        link = PeerConnection(member, addresses[turn % len(addresses)], turn, down_s, since_s)
        self._connect(link, since_s)
        return link

    def _connect(self, link: PeerConnection, now_s: float) -> bool:
        """Connect, if its address is known by now, and not too many others are new."""
        name, port = read_address(link.address)
        if self._n_allowed < 1:
            return False
        if now_s < link.ask_s or (host := self._resolver.address(name)) is None:
            return False
        if host == UNKNOWN:
            link.ask_s = now_s + ASK_AGAIN_S
            return False
        self._n_allowed -= 1
        dealer: Socket = None
        try:
            dealer = self._context.socket(zmq.DEALER)
            set_up_dealer(
                dealer, host, link.member.key, self._identity.public, self._identity.secret
            )
            dealer.heartbeat_ivl, dealer.heartbeat_timeout = HEARTBEAT_MS, DEAD_MS
            dealer.reconnect_ivl, dealer.reconnect_ivl_max = RECONNECT_MS, RECONNECT_MAX_MS
            monitor = dealer.get_monitor_socket(_WATCHED)
            dealer.connect(endpoint(host, port + DATA_OFFSET))
        except zmq.ZMQError:  # no descriptor is left, or ZeroMQ has no more sockets
            link.ask_s = now_s + ASK_AGAIN_S
            if dealer is not None:
                dealer.close()
            return False
        self._sources.register(dealer)
        self._sources.register(monitor)
        link.socket, link.monitor = dealer, monitor
        return True

    def _close(self, link: PeerConnection) -> None:
        if link.socket is None:
            return
        self._sources.unregister(link.socket)
        self._sources.unregister(link.monitor)
        self._inflow.forget(link.socket)
        link.socket.disable_monitor()
        link.monitor.close(0)
        link.socket.close()

    def _watch(self, link: PeerConnection) -> None:
        event: dict[str, Any] = recv_monitor_message(link.monitor)  # type: ignore[assignment]
        self._inflow.watch(link.socket, event)
        if event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            link.stands = link.has_stood = True
        elif event["event"] & _BROKEN:
            if link.stands:
                link.down_s = time.monotonic()
            link.stands, link.broken = False, True

    def _read(self, link: PeerConnection) -> None:
        for _ in range(AT_ONCE):
            try:
                frames = receive(link.socket, link.reader)
                self._inflow.read(link.socket, frames)
                message, buffers = decode([frame.bytes for frame in frames], Channel.DATA)
            except WireError:
                pass
            except Exception as error:
                self._blame(link.member.key, error)
            else:
                self._feed(
                    FromPeer(
                        sender=Sender(key=link.member.key, role=MEMBER, name=link.member.name),
                        message=message,
                        buffers=buffers,
                    )
                )
            closed = self._links.get(link.member.key) is not link
            if link.reader.skipping and not closed:  # the rest of it goes with the connection
                self._renew(link, time.monotonic(), link.turn + 1)
                return
            if closed or not self._sources.has_message(link.socket):
                return


def _addresses(member: PeerDevice) -> tuple[str, ...]:
    return (member.address, *member.others)
