"""Strangers at the sockets of a real agent: what they may say, and how many of them, without
anybody else noticing.
"""

import json
import socket
import struct
import threading
import time
from contextlib import ExitStack, suppress
from random import Random

import psutil
import pytest
import zmq
from tests.agent.agents import OFFSETS, Keys, RawPeer, agent
from tests.timeouts import TIMEOUT_S

from potluck_agent.core.members import MAX_MEMBERS
from potluck_wire.frames import decode, encode
from potluck_wire.limits import (
    DATA_OFFSET,
    HANDSHAKE_S,
    LINGER_MS,
    MAX_BUFFER_BYTES,
    MAX_UNREAD_BYTES,
    PROBE,
)
from potluck_wire.messages import Channel, Hello, Ping, Pong, Roster, RosterSet, Value

ADA = Keys()
TRUST = (f"--trust={ADA.public}:ada",)  # a key may begin with a hyphen
MIB = 1 << 20
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01"


@pytest.fixture(scope="module")
def jetson(tmp_path_factory):
    with agent(tmp_path_factory.mktemp("jetson"), *TRUST, "--memory", "64Mi") as running:
        yield running


def ports(running):
    return [running.port + offset for offset in OFFSETS.values()]


def rss_bytes(running):
    return psutil.Process(running.process.pid).memory_info().rss


def check_served(running):
    """One who is paired comes in anew and is answered."""
    with RawPeer(running.port, running.key, ADA) as ada:
        for seq in range(20):
            assert ada.ask(Ping(seq=seq)).seq == seq


def test_s1_a_name_and_a_password_are_no_key(jetson):
    context = zmq.Context()
    try:
        for port in ports(jetson):
            dealer = context.socket(zmq.DEALER)
            dealer.linger = LINGER_MS
            dealer.plain_username, dealer.plain_password = b"ada", b"ada"
            dealer.connect(f"tcp://127.0.0.1:{port}")
            dealer.send_multipart(encode(Ping(seq=1)))
            assert not dealer.poll(300)
    finally:
        context.destroy(LINGER_MS)
    check_served(jetson)


def test_devices_that_were_named_once_take_no_connection(tmp_path):
    """A notebook may name others as often as it likes: each connection takes a descriptor."""
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 4096)
    dealers, n_rosters = [], 4
    with agent(tmp_path / "jetson", *TRUST) as jetson, RawPeer(jetson.port, jetson.key, ADA) as ada:
        process = psutil.Process(jetson.process.pid)
        ada.ask(Hello(major=1, name="ada"))
        n_before = process.num_fds()
        for number in range(n_rosters + 1):
            members = [Keys() for _ in range(MAX_MEMBERS if number < n_rosters else 0)]
            rows = [
                {"name": f"m{index}", "key": each.public, "address": f"127.0.0.1:{index + 1}"}
                for index, each in enumerate(members)
            ]
            ada.say(Roster(home="h"), json.dumps(rows).encode())
            while not isinstance(ada.receive()[0], RosterSet):
                pass
            for each in members:
                dealer = context.socket(zmq.DEALER)
                dealer.linger, dealer.reconnect_ivl = 0, -1
                dealer.curve_serverkey = jetson.key.encode()
                dealer.curve_publickey = each.public.encode()
                dealer.curve_secretkey = each.secret.encode()
                dealer.connect(f"tcp://127.0.0.1:{jetson.port + DATA_OFFSET}")
                probe = {"program": PROBE, "dtype": "uint8", "shape": (1,), "nbytes": 1}
                value = Value(transfer=1, name="x", chunk_bytes=1, **probe)
                dealer.send_multipart(encode(value, (b"1",)))
                dealers.append(dealer)
            for dealer in dealers[number * MAX_MEMBERS :]:
                assert dealer.poll(1000 * TIMEOUT_S)
        until_s = time.monotonic() + TIMEOUT_S
        while process.num_fds() > n_before + MAX_MEMBERS and time.monotonic() < until_s:
            time.sleep(0.05)
        n_after = process.num_fds()
    context.destroy(0)
    assert n_after <= n_before + MAX_MEMBERS


def test_s3_silent_connections_are_cut_off(jetson, record_property):
    """Each is hung up on from the other side; those who are paired are answered meanwhile."""
    process, n_before = psutil.Process(jetson.process.pid), rss_bytes(jetson)
    with ExitStack() as stack, RawPeer(jetson.port, jetson.key, ADA) as ada:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            for port in ports(jetson) * 30
        ]
        assert isinstance(ada.ask(Ping(seq=1)), Pong)
        for one in silent:
            one.settimeout(max(TIMEOUT_S, 5 * HANDSHAKE_S))
            with suppress(ConnectionError):
                while one.recv(4096):
                    pass
        assert isinstance(ada.ask(Ping(seq=2)), Pong)
    assert process.is_running()
    assert rss_bytes(jetson) < n_before + 32 * MIB
    record_property("inputs", len(silent))


def garbage(rng):
    """What a connection sends: noise, half a handshake, a huge frame, a byte."""
    start = rng.choice(
        (b"", GREETING, GREETING + b"CURVE" + bytes(15) + bytes(32), GREETING + b"NULL" + bytes(48))
    )
    rest = rng.choice(
        (
            b"\x00",
            rng.randbytes(200),
            b"\x06" + struct.pack(">Q", 2**62),
            b"\x02" + b"\xff" * 8,
            b"\x04\x29\x05HELLO" + rng.randbytes(194),
        )
    )
    return start + rest


def knock(running, seed, count):
    rng = Random(seed)
    for _ in range(count):
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", rng.choice(ports(running)))) as one,
        ):
            one.sendall(garbage(rng))


@pytest.mark.parametrize("count", [1_500, pytest.param(100_000, marks=pytest.mark.long)])
def test_s3_garbage_takes_nothing_from_those_who_are_paired(jetson, count, record_property):
    before = rss_bytes(jetson)
    knocking = threading.Thread(target=knock, args=(jetson, 3, count))
    answered = 0
    with RawPeer(jetson.port, jetson.key, ADA) as ada:
        knocking.start()
        while knocking.is_alive():
            assert ada.ask(Ping(seq=answered)).seq == answered
            answered += 1
        knocking.join()
    assert answered
    assert rss_bytes(jetson) < before + 32 * MIB
    check_served(jetson)
    record_property("inputs", count)


def test_s3_a_frame_of_a_gibibyte_takes_no_memory(jetson):
    """As a client without encryption, who is believed to be in its handshake while it sends."""
    before = rss_bytes(jetson)
    for port in ports(jetson):
        with socket.create_connection(("127.0.0.1", port)) as one:
            one.settimeout(TIMEOUT_S)
            one.sendall(
                GREETING + b"CURVE" + bytes(15) + bytes(32) + b"\x06" + struct.pack(">Q", 1 << 30)
            )
            with suppress(ConnectionError):
                for _ in range(64):
                    one.sendall(bytes(MIB))
    assert rss_bytes(jetson) < before + 32 * MIB
    check_served(jetson)


# --- one who is paired (S12) ----------------------------------------------------------------------

BOB = Keys()
PART = bytes(MAX_BUFFER_BYTES)
ENDLESS = {  # frames of one message, and what comes of it at most
    "large": ([PART] * 150, MAX_UNREAD_BYTES + 192 * MIB),  # and what comes between two looks
    "empty": ([b""] * 500_000, 500_000 * 160),  # of which each takes 140 bytes
}


@pytest.mark.few(3)
@pytest.mark.parametrize("channel", OFFSETS)
@pytest.mark.parametrize("what", ENDLESS)
def test_s12_a_message_of_very_many_frames_takes_bounded_memory_and_nobodys_time(
    tmp_path, what, channel, record_property
):
    """ZeroMQ has no bound on it: of the large one 1.2 GiB were held."""
    frames, most_bytes = ENDLESS[what]
    with (
        agent(tmp_path, *TRUST, f"--trust={BOB.public}:bob", "--memory", "64Mi") as running,
        RawPeer(running.port, running.key, ADA) as ada,
        RawPeer(running.port, running.key, BOB) as bob,
    ):
        ada.ask(Ping(seq=1))
        before, answered = rss_bytes(running), 0
        monitor = ada.sockets[channel].get_monitor_socket(zmq.EVENT_DISCONNECTED)
        for frame in frames[:-1]:
            ada.sockets[channel].send(frame, zmq.SNDMORE, copy=not frame)
        ada.sockets[channel].send(frames[-1])
        while not monitor.poll(0):  # until it is cut off
            assert bob.ask(Ping(seq=answered)).seq == answered
            answered += 1
            assert rss_bytes(running) < before + most_bytes
        ada.sockets[channel].disable_monitor()
        monitor.close(0)
        with RawPeer(running.port, running.key, ADA) as again:
            assert again.ask(Ping(seq=2)).seq == 2
    record_property("inputs", len(frames))


# --- between the two (S10) ------------------------------------------------------------------------


class Between:
    """Somebody on the way from a notebook to one port of an agent: notes what goes there, and
    spoils some of it.
    """

    def __init__(self, port, spoil):
        self.sent = bytearray()
        self._spoil = spoil
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with suppress(OSError):
            while True:
                ours, _ = self._server.accept()
                theirs = socket.create_connection(("127.0.0.1", self._port))
                for source, target, note in ((ours, theirs, True), (theirs, ours, False)):
                    threading.Thread(
                        target=self._copy, args=(source, target, note), daemon=True
                    ).start()

    def _copy(self, source, target, note):
        with suppress(OSError):
            while data := source.recv(65536):
                if note:
                    self.sent += data
                target.sendall(self._spoil(data))
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._server.close()


def dealer_over(context, running, port):
    dealer = context.socket(zmq.DEALER)
    dealer.linger = LINGER_MS
    dealer.curve_serverkey = running.key.encode()
    dealer.curve_publickey, dealer.curve_secretkey = ADA.public.encode(), ADA.secret.encode()
    dealer.reconnect_ivl = 1
    dealer.connect(f"tcp://127.0.0.1:{port}")
    return dealer


def pulse_port(running):
    return running.port + OFFSETS[Channel.PULSE]


def test_s10_a_recorded_session_played_again_says_nothing(jetson):
    between, context = Between(pulse_port(jetson), bytes), zmq.Context()
    try:
        dealer = dealer_over(context, jetson, between.port)
        dealer.send_multipart(encode(Ping(seq=5)))
        assert dealer.poll(TIMEOUT_S * 1000)
        recorded = bytes(between.sent)
    finally:
        context.destroy(LINGER_MS)
        between.close()
    assert len(recorded) > 300
    with socket.create_connection(("127.0.0.1", pulse_port(jetson))) as again:
        again.settimeout(max(TIMEOUT_S, 5 * HANDSHAKE_S))
        again.sendall(recorded)
        heard = b""
        with suppress(ConnectionError):
            while data := again.recv(4096):
                heard += data
    assert b"READY" not in heard  # the handshake never ends well
    check_served(jetson)


@pytest.mark.parametrize("n_connections", [40, pytest.param(3_000, marks=pytest.mark.long)])
def test_s10_flipped_bits_lose_messages_and_never_change_one(
    jetson, n_connections, record_property
):
    """A connection that meets one is over (libzmq does not come back by itself then): each gets its
    own.
    """
    rng = Random(10)
    flips = [0]
    answered = 0

    def spoil(data):
        if rng.random() < 0.9:
            return data
        flips[0] += 1
        spoiled = bytearray(data)
        spoiled[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(spoiled)

    between, context = Between(pulse_port(jetson), spoil), zmq.Context()
    try:
        for number in range(n_connections):
            dealer = dealer_over(context, jetson, between.port)
            for i in range(8):
                seq = 8 * number + i
                with suppress(zmq.Again):
                    dealer.send_multipart(encode(Ping(seq=seq)), zmq.DONTWAIT)
                if not dealer.poll(50):
                    break  # lost
                message, _ = decode(dealer.recv_multipart(), Channel.PULSE)
                assert isinstance(message, Pong)
                assert 8 * number <= message.seq <= seq
                answered += 1
            dealer.close()
    finally:
        context.destroy(LINGER_MS)
        between.close()
    assert flips[0] > n_connections // 8
    assert answered > n_connections
    check_served(jetson)
    record_property("inputs", flips[0])
