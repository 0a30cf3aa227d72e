"""What an agent keeps for a peer that does not read it: so much, and then they are parted."""

import psutil
import pytest
import zmq
from tests.agent.agents import Keys, RawPeer, agent
from tests.agent.core.core_driver import plan, recv, send
from tests.agent.test_agent_process import value

from potluck_wire.frames import encode
from potluck_wire.limits import DATA_OFFSET, MAX_QUEUED, MIB
from potluck_wire.messages import Channel, Execute, Hello, Ping, Prepare, Prepared, Value

pytest.importorskip("torch")
ADA = Keys()
CUT_MS = 1000


@pytest.fixture
def jetson(tmp_path):
    with agent(tmp_path / "jetson", "--trust", f"{ADA.public}:ada", "--memory", "64Mi") as started:
        yield started


def deaf(peer, jetson):
    """A data connection of this peer that takes next to nothing in."""
    socket = peer.context.socket(zmq.DEALER)
    socket.rcvhwm, socket.rcvbuf = 1, 64 * 1024
    socket.curve_serverkey = jetson.key.encode()
    socket.curve_publickey, socket.curve_secretkey = ADA.public.encode(), ADA.secret.encode()
    socket.connect(f"tcp://127.0.0.1:{jetson.port + DATA_OFFSET}")
    peer.sockets[Channel.DATA].close()
    peer.sockets[Channel.DATA] = socket
    return socket


def resident_bytes(jetson):
    return psutil.Process(jetson.process.pid).memory_info().rss


def is_heard(peer):
    peer.say(Ping(seq=1))
    peer.receive(Channel.PULSE)


def test_two_connections_of_one_key_that_take_turns_get_the_window_once(jetson):
    """Each was taken for a new one, and everything under way was sent again into it."""
    n_values = 250
    nbytes = 30_000
    n_turns = 60
    with RawPeer(jetson.port, jetson.key, ADA) as one, RawPeer(jetson.port, jetson.key, ADA) as two:
        sockets = deaf(one, jetson), deaf(two, jetson)
        one.ask(Hello(major=1, name="ada"))
        rows = [recv("x")] + [send("x", name=f"n{i}") for i in range(n_values)]
        assert isinstance(one.ask(Prepare(run="r", epoch=1), *plan(*rows)), Prepared)
        one.say(Execute(run="r", epoch=1, program="p", step=0))
        data = bytes(nbytes)
        one.say(value("x", data, transfer=1, step=0), data)
        before_bytes = resident_bytes(jetson)
        for turn in range(n_turns):
            sockets[turn % 2].send(b"")
            is_heard(one)
        for _ in range(20):  # the last of it
            is_heard(one)
        grown_bytes = resident_bytes(jetson) - before_bytes
    assert grown_bytes < 8 * n_values * nbytes  # of some sixty times


def test_answers_that_nobody_reads_are_so_many(jetson):
    refused = Value(
        transfer=1, run="r" * 480, epoch=1, program="p", name="x", shape=(0,), chunk_bytes=1
    )
    frames = encode(refused, (b"",))
    with RawPeer(jetson.port, jetson.key, ADA) as ada:
        socket = deaf(ada, jetson)
        socket.sndhwm = 100
        ada.ask(Hello(major=1, name="ada"))
        before_bytes, n_sent = resident_bytes(jetson), 0
        # parted from, it cannot even say more, as it does not read
        while n_sent < 4 * MAX_QUEUED and socket.poll(CUT_MS, zmq.POLLOUT):
            socket.send_multipart(frames)
            n_sent += 1
        is_heard(ada)
        grown_bytes = resident_bytes(jetson) - before_bytes
    assert n_sent > MAX_QUEUED
    assert grown_bytes < 40 * MIB
