"""The link's one thread: what a socket may take of it in a round, and that events which follow from
others wait.
"""

import threading

import pytest
import zmq
from tests.sdk.sessions.controller_driver import Play, place
from tests.timeouts import TIMEOUT_S

from potluck.errors import DeviceGone, HomeError, ProtocolError
from potluck.sessions import pending_records
from potluck.sessions.connections import (
    AT_ONCE,
    BYTES_AT_ONCE,
    LONGEST_BYTES,
    AgentConnection,
    Keys,
)
from potluck.sessions.curve_link import CurveLink
from potluck.sessions.events import (
    Address,
    Connect,
    ConnectionLost,
    Disconnect,
    Notification,
    OpenSession,
    Send,
)
from potluck.sessions.socket_memory import ConnectionMemory
from potluck_wire import messages as m
from potluck_wire import statement
from potluck_wire.bounded_receive import SKIPPED_AT_ONCE, MessageReader, most_frames
from potluck_wire.errors import WireError
from potluck_wire.frames import decode, encode
from potluck_wire.limits import (
    HIGH_WATER_MARK,
    MAX_BUFFER_BYTES,
    MAX_CHUNK_BYTES,
    MAX_FRAME_BYTES,
    MAX_HEADER_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_STATEMENT_BYTES,
    MAX_UNREAD_BYTES,
    WINDOW_BYTES,
)
from potluck_wire.name_resolution import UNKNOWN

DEVICES = 3_000  # more than Python calls within one another


class Resolver:
    """Gives every host the same address."""

    def __init__(self, address):
        self._address = address

    def address(self, host):
        return self._address


@pytest.fixture
def link_of(monkeypatch):
    """Makes links with a controller and a resolver of the test's."""
    made = []

    def make(controller, address):
        public, secret = (part.decode() for part in zmq.curve_keypair())
        monkeypatch.setattr("potluck.sessions.link.Controller", lambda name: controller)
        made.append(CurveLink(Keys(public=public, secret=secret), resolver=Resolver(address)))
        return made[-1]

    yield make
    for link in made:
        link.close()


class Chain:
    """A controller that answers each lost device with an order to the next, which cannot be carried
    out.
    """

    def __init__(self, order):
        self.order = order
        self.seen = []
        self.over = threading.Event()

    def handle(self, event, now_s):
        if not isinstance(event, ConnectionLost):
            return []
        number = int(event.device)
        self.seen.append(number)
        is_last = number + 1 == DEVICES
        if is_last:
            self.over.set()
        following = [] if is_last else [self.order(str(number + 1))]
        return [*following, Disconnect(device=event.device)]


ORDERS = {
    "where nobody knows the host": lambda to: Connect(
        device=to, address=Address(host="h", port=1), key="k"
    ),
    "where a message cannot be made": lambda to: Send(
        device=to, channel=m.Channel.CONTROL, message=m.Drop(epoch=-5)
    ),
}


@pytest.mark.parametrize("order", ORDERS)
def test_events_that_follow_from_one_another_are_handled_one_after_the_other(link_of, order):
    chain = Chain(ORDERS[order])
    link_of(chain, UNKNOWN).notify(ConnectionLost(device="0", error=DeviceGone("why", device="0")))
    assert chain.over.wait(TIMEOUT_S)
    assert chain.seen == list(range(DEVICES))


class Frame(bytes):
    """A frame as ZeroMQ gives it."""

    more = False
    bytes = property(bytes)
    buffer = property(memoryview)


class Flood:
    """A socket that always has one more of the same message."""

    def __init__(self, message, *buffers):
        self.frames, self.n_messages = list(map(Frame, encode(message, buffers))), 0
        for frame in self.frames[:-1]:
            frame.more = True
        self._left = []

    def recv(self, flags, copy):
        if not self._left:
            self._left = self.frames[::-1]
            self.n_messages += 1
        return self._left.pop()


class Endless:
    """A socket with a message that has no end."""

    n_frames = 0

    def recv(self, flags, copy):
        self.n_frames += 1
        frame = Frame()
        frame.more = True
        return frame


WANTED = Connect(device="foe", address=Address(host="h", port=1), key="k")


def connection_of(channel, socket):
    """A connection with this socket."""
    return AgentConnection(
        WANTED,
        sockets={channel: socket},
        readers={channel: MessageReader(channel)},
        inflows={channel: ConnectionMemory()},
    )


FLOODS = {
    "small": (m.Channel.CONTROL, Flood(m.Reading(at_s=1.0))),
    "chunks": (m.Channel.DATA, Flood(m.Chunk(index=1), bytes(MAX_CHUNK_BYTES))),
    "frames as large as can be": (m.Channel.CONTROL, Flood(m.Done(), bytes(MAX_BUFFER_BYTES))),
}


@pytest.mark.parametrize("what", FLOODS)
def test_one_socket_takes_no_more_of_a_round_than_its_share(what):
    channel, flood = FLOODS[what]
    n_messages = len(list(connection_of(channel, flood).messages(channel)))
    one_bytes = sum(map(len, flood.frames))
    assert n_messages == flood.n_messages
    assert 1 <= n_messages <= AT_ONCE
    assert (n_messages - 1) * one_bytes < BYTES_AT_ONCE
    assert n_messages == AT_ONCE or n_messages * one_bytes >= BYTES_AT_ONCE


@pytest.mark.parametrize("channel", LONGEST_BYTES)
def test_of_a_message_without_an_end_only_the_beginning_is_read_and_that_is_no_message(channel):
    endless = Endless()
    frames = next(connection_of(channel, endless).messages(channel))
    assert endless.n_frames <= SKIPPED_AT_ONCE + most_frames(channel) + 1
    with pytest.raises(WireError):
        decode(frames, channel)


class Parting:
    """A controller that connects to a device, and parts from it when it is lost."""

    def __init__(self):
        self.lost = []
        self.is_joined = False
        self.ticked = threading.Event()

    def handle(self, event, now_s):
        if isinstance(event, OpenSession):
            self.is_joined = True
            return [WANTED]
        if isinstance(event, ConnectionLost):
            self.lost.append((event.device, type(event.error)))
            return [Disconnect(device=event.device)]
        if self.is_joined:
            self.ticked.set()
        return []


@pytest.mark.parametrize("over_bytes", [0, 1])
def test_a_device_of_whom_too_much_is_unread_is_disconnected(link_of, monkeypatch, over_bytes):
    monkeypatch.setattr(AgentConnection, "unread_bytes", lambda self: MAX_UNREAD_BYTES + over_bytes)
    controller = Parting()
    link_of(controller, None).notify(OpenSession(device="foe", address=WANTED.address, key="k"))
    assert controller.ticked.wait(TIMEOUT_S)
    assert controller.lost == [("foe", ProtocolError)] * over_bytes


def test_what_zeromq_holds_of_a_device_is_bounded_and_a_window_fits_in():
    assert HIGH_WATER_MARK * MAX_CHUNK_BYTES >= WINDOW_BYTES
    assert MAX_UNREAD_BYTES >= MAX_MESSAGE_BYTES + WINDOW_BYTES
    assert LONGEST_BYTES[m.Channel.DATA] > MAX_CHUNK_BYTES + 33  # what CURVE adds
    assert LONGEST_BYTES[m.Channel.PULSE] > MAX_HEADER_BYTES + 33
    assert max(LONGEST_BYTES.values()) <= MAX_FRAME_BYTES


# --- one message ----------------------------------------------------------------------------------


@pytest.fixture
def read(monkeypatch):
    """Bytes of all timelines that are read in full."""
    read_bytes, read_timeline = [], pending_records.replies.read_timeline

    def noted(document):
        read_bytes.append(len(document))
        return read_timeline(document)

    monkeypatch.setattr(pending_records.replies, "read_timeline", noted)
    return read_bytes


LISTS, FLOATS = b"[" + b"[]," * 2_000_000 + b"[]]", b"[" + b"1.5," * 1_500_000 + b"1]"


@pytest.mark.parametrize(
    "document", [LISTS, FLOATS, b"[" + b"[]," * 50 + b"[]]"], ids=["lists", "floats", "few"]
)
def test_no_more_of_a_timeline_is_read_than_there_was_to_do(read, document):
    play = Play("a")
    play.launch(ticket=1, devices=("a",), instructions={"a": 3})
    play.receive("a", m.Done(**place()), document)
    assert isinstance(play.ended()[1].error, ProtocolError)
    assert read == []


@pytest.mark.parametrize("n_rows", [0, 1, 3])
def test_every_timeline_of_what_there_was_to_do_is_read(read, n_rows):
    play = Play("a")
    play.launch(ticket=1, devices=("a",), instructions={"a": 3})
    row = b"[2, 1234567890.1234567, -9007199254740992.0]"
    play.receive("a", m.Done(**place()), b"[" + b", ".join([row] * n_rows) + b"]")
    assert len(play.ended()[1].result.timelines["a"].rows) == n_rows
    assert len(read) == 1


def test_a_statement_that_would_take_long_to_read_is_not(monkeypatch):
    read = []
    monkeypatch.setattr(statement, "read", read.append)
    play = Play()
    play.do(OpenSession(ticket=1, device="a", address=Address(host="h", port=1), key="k"))
    play.receive("a", m.Welcome(major=1), b'{"x":[' + b"[]," * (MAX_STATEMENT_BYTES // 3) + b"[]]}")
    assert isinstance(play.ended()[1].error, ProtocolError)
    assert read == []


class Telling:
    """A controller that tells of each lost device, in the link's thread."""

    def __init__(self):
        self.order = []

    def handle(self, event, now_s):
        if not isinstance(event, ConnectionLost):
            return []
        self.order.append(event.device)
        return [Notification(device=event.device, message=event.error)]


def gone(device):
    return ConnectionLost(device=device, error=DeviceGone("why", device=device))


@pytest.mark.faults
def test_what_is_left_for_later_comes_after_what_was_submitted_meanwhile(link_of):
    controller, is_over = Telling(), threading.Event()
    link, order = link_of(controller, UNKNOWN), controller.order

    def heard(device, news):
        if device == "a":
            link.later(lambda: order.append("later"))
            link.later(lambda: 1 / 0)  # the link goes on
            link.later(lambda: link.notify(gone("c")))
            link.notify(gone("b"))
        if device == "c":
            is_over.set()

    link.listen(heard)
    link.notify(gone("a"))
    assert is_over.wait(TIMEOUT_S)
    assert order == ["a", "b", "later", "c"]
    link.later(lambda: order.append("at once"))
    assert order[-1] == "at once"


def test_what_is_left_for_later_is_not_lost_when_a_link_is_closed(link_of):
    link, is_over = link_of(Telling(), UNKNOWN), threading.Event()

    def heard(device, news):
        link.later(is_over.set)
        link.close()

    link.listen(heard)
    link.notify(gone("a"))
    assert is_over.wait(TIMEOUT_S)


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "while it closes"])
def test_nobody_waits_for_an_answer_of_a_link_that_is_closed(monkeypatch, is_late):
    public, secret = zmq.curve_keypair()
    link = CurveLink(Keys(public=public.decode(), secret=secret.decode()))
    is_alive, n_looks = threading.Thread.is_alive, []

    def looked_at(thread):
        found = is_alive(thread)
        if not n_looks:
            n_looks.append(1)
            link.close()
        return found

    if is_late:  # by another thread, at the worst moment: it has just been looked at
        monkeypatch.setattr(threading.Thread, "is_alive", looked_at)
    begin = OpenSession(device="a", address=Address(host="127.0.0.1", port=9), key=public.decode())

    def answered():
        try:
            answer = link.ask(begin)
        finally:
            link.close()
        return answer.result(TIMEOUT_S)

    with pytest.raises(HomeError, match=r"this home is closed|nobody answers"):
        answered()
    assert link.n_unanswered == 0
