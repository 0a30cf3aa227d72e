"""What ZeroMQ holds of a connection, as the agent sees it: exact, and with an end."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from random import Random
from typing import Any

import pytest
import zmq
from tests.timeouts import TIMEOUT_S
from zmq.utils.monitor import recv_monitor_message

from potluck_agent.net import socket_memory
from potluck_agent.net.socket_memory import MAX_STRANGERS, InboundConnection, SocketMemory
from potluck_wire.limits import LINGER_MS, MIB
from potluck_wire.messages import Channel

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="Linux alone counts the bytes of a connection"
)
MOST_BYTES = 8 * MIB
PART = bytes(MIB)


class Served:
    """A ROUTER with encryption, its clients, and what flows in."""

    def __init__(self) -> None:
        self.context, self.inflow = zmq.Context(), SocketMemory()
        self.key, secret = zmq.curve_keypair()
        self.router: Any = self.context.socket(zmq.ROUTER)
        self.router.linger, self.router.curve_server = LINGER_MS, True
        self.router.curve_secretkey = secret
        self.monitor = self.router.get_monitor_socket(socket_memory.WATCHED)
        self.port = self.router.bind_to_random_port("tcp://127.0.0.1")

    def client(self) -> Any:
        dealer = self.context.socket(zmq.DEALER)
        dealer.linger, dealer.sndhwm = LINGER_MS, 0
        dealer.curve_serverkey = self.key
        dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
        dealer.connect(f"tcp://127.0.0.1:{self.port}")
        return dealer

    def watch(self, timeout_s: float = 0.0) -> list[int]:
        """Kinds of events that the monitor has, and waited so long for the first."""
        seen = []
        while self.monitor.poll(0 if seen else timeout_s * 1000):
            event = recv_monitor_message(self.monitor)
            self.inflow.watch(self.router, event)
            seen.append(int(event["event"]))
        return seen

    def read(self) -> list[Any]:
        assert self.router.poll(TIMEOUT_S * 1000)
        self.watch()
        _, *frames = self.router.recv_multipart(copy=False)
        self.inflow.read(self.router, frames)
        return frames

    def check(self) -> int:
        return self.inflow.check(MOST_BYTES, lambda socket: not socket.poll(0))

    def until_cut(self) -> None:
        """Watch and check until a connection is gone."""
        kinds: set[int] = set()
        for _ in range(int(TIMEOUT_S / 0.01)):
            kinds.update(self.watch(0.01))
            self.check()
            if zmq.EVENT_DISCONNECTED in kinds:
                return
        pytest.fail("no connection was cut")


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.router.disable_monitor()
    made.monitor.close(0)
    made.context.destroy(LINGER_MS)


def test_what_is_read_is_counted_to_the_byte(served):
    """Else an honest connection would look full after some days."""
    client, rng = served.client(), Random(1)
    client.send(b"hello")
    served.read()
    served.check()  # the handshake is forgiven
    n_bytes = 0
    for _ in range(300):
        sizes = [rng.choice((0, 1, 221, 222, 223, 255, 256, 70_000)) for _ in range(3)]
        client.send_multipart([bytes(size) for size in sizes])
        served.read()
        n_bytes += sum(sizes)
    served.check()
    assert n_bytes > MIB
    assert served.inflow.unread_bytes == 0


@pytest.mark.long
def test_a_message_without_an_end_ends_with_its_connection_and_the_others_stay(served):
    honest, foe = served.client(), served.client()
    honest.send(b"hello")
    served.read()
    for _ in range(2048):  # 2 GiB; they take no memory before they are sent
        foe.send(PART, zmq.SNDMORE)
    foe.send(PART)
    served.until_cut()
    for number in range(3):
        honest.send(b"%d" % number)
        assert served.read()[0].bytes == b"%d" % number


def test_whole_messages_that_nobody_reads_count_too(served):
    foe = served.client()
    for _ in range(512):  # of 1000 ZeroMQ would read no more, nor see that it was cut
        foe.send(PART)
    served.until_cut()


def test_strangers_in_their_handshakes_are_cut_before_those_who_are_known(served):
    """However little each of them holds."""
    honest = served.client()
    honest.send(b"hello")
    served.read()
    for _ in range(6):
        honest.send(PART)
    # a client's greeting, and the beginning of a frame of its handshake
    half = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(47) + b"\x06" + (7 * MIB).to_bytes(8)
    with ExitStack() as stack:
        for _ in range(6):
            stranger = stack.enter_context(
                socket.create_connection(("127.0.0.1", served.port), TIMEOUT_S)
            )
            stranger.sendall(half + PART)
        served.until_cut()
        for _ in range(6):
            assert served.read()[0].bytes == PART  # nobody known was cut
        honest.send(b"again")
        assert served.read()[0].bytes == b"again"


def test_who_has_little_unread_is_not_cut(served):
    clients = [served.client() for _ in range(3)]
    for client in clients:
        client.send_multipart([PART] * 2)
    for _ in clients:
        assert served.router.poll(TIMEOUT_S * 1000)
        assert served.check() == 0
        assert len(served.read()) == 2


def test_a_connection_is_cut_by_where_a_frame_came_from(served):
    honest, foe = served.client(), served.client()
    foe.send(b"foe")
    inlet = served.inflow.over(served.router, served.read())
    honest.send(b"honest")
    served.read()
    served.inflow.cut(inlet)
    assert served.watch(TIMEOUT_S)
    honest.send(b"again")
    while served.read()[0].bytes != b"again":
        pass


def test_a_descriptor_that_is_something_else_by_now_is_left_alone(served, tmp_path):
    with open(tmp_path / "file", "w") as file:
        opened = {"event": zmq.EVENT_ACCEPTED, "value": file.fileno()}
        served.inflow.watch(served.router, opened)
        served.inflow.cut(InboundConnection(served.router, file.fileno(), None))
        assert served.check() == 0
        file.write("still open")


def test_strangers_are_so_many_and_the_oldest_goes_first(served):
    """Each takes a descriptor, and whoever says something is none."""
    honest = served.client()
    honest.send(b"honest")
    served.read()
    with ExitStack() as stack:
        strangers = []
        for _ in range(MAX_STRANGERS + 3):
            strangers.append(
                stack.enter_context(socket.create_connection(("127.0.0.1", served.port), TIMEOUT_S))
            )
            assert served.watch(TIMEOUT_S)
        for stranger in strangers[:3]:
            while stranger.recv(100):  # our side of the handshake, then the end
                pass
        honest.send(b"again")
        assert served.read()[0].bytes == b"again"


def test_a_number_that_is_no_connection_any_more_keeps_no_descriptor():
    """Another thread of ZeroMQ may have closed it meanwhile, and opened something else."""
    kept, (read, write) = SocketMemory(), os.pipe()
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(5):
        kept.watch(object(), {"event": zmq.EVENT_CONNECTED, "value": read})
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert kept.unread_bytes == 0
    os.close(read)
    os.close(write)


def test_what_the_other_side_does_not_take_counts_too_and_ends_with_its_connection(served):
    """The system's own buffers of it take some MiB; all the rest is held by ZeroMQ."""
    honest, foe = served.client(), served.client()
    inlets = {}
    for client, word in ((honest, b"honest"), (foe, b"foe")):
        client.rcvhwm = 1
        client.send(word)
        assert served.router.poll(TIMEOUT_S * 1000)
        served.watch()
        route, *frames = served.router.recv_multipart(copy=False)
        served.inflow.read(served.router, frames)
        inlets[word] = route.bytes, served.inflow.over(served.router, frames)
    served.router.sndhwm = 0
    for n_sent in range(64):
        for word, client in ((b"honest", honest), (b"foe", foe)):
            route, inlet = inlets[word]
            served.router.send_multipart([route, PART])
            served.inflow.sent(inlet, Channel.CONTROL, [PART])
            if client is honest:
                assert client.poll(TIMEOUT_S * 1000)
                assert client.recv() == PART
        served.check()
        assert served.inflow.unread_bytes <= MOST_BYTES + 2 * MIB, n_sent
    kinds = served.watch(TIMEOUT_S)
    assert kinds.count(zmq.EVENT_DISCONNECTED) == 1
    route, inlet = inlets[b"honest"]
    served.router.send_multipart([route, b"again"])
    assert honest.poll(TIMEOUT_S * 1000)
    assert honest.recv() == b"again"


def test_what_the_other_side_has_taken_is_not_counted(served):
    client, rng = served.client(), Random(2)
    client.send(b"hello")
    assert served.router.poll(TIMEOUT_S * 1000)
    served.watch()
    route, *frames = served.router.recv_multipart(copy=False)
    served.inflow.read(served.router, frames)
    inlet = served.inflow.over(served.router, frames)
    for _ in range(300):
        frames = [bytes(rng.choice((0, 1, 221, 222, 223, 70_000))) for _ in range(3)]
        served.router.send_multipart([route, *frames])
        served.inflow.sent(inlet, Channel.CONTROL, frames)
        assert client.poll(TIMEOUT_S * 1000)
        client.recv_multipart()
    while served.inflow.unread_bytes or not inlet.is_known:  # it is acknowledged in a moment
        served.check()
    served.inflow.sent(inlet, Channel.CONTROL, [PART])
    served.check()
    assert served.inflow.unread_bytes >= MIB
