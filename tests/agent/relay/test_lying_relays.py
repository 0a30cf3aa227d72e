"""A relay that lies: to the device that it serves, or about what it passes on. It can end
connections, and nothing else.
"""

import socket
import threading
from contextlib import contextmanager, suppress
from itertools import count
from queue import Queue
from random import Random

import psutil
import pytest
import zmq
from tests.agent.agents import Keys, RawPeer, agent
from tests.agent.relay.relays import HOST, free_ports
from tests.timeouts import TIMEOUT_S

from potluck_agent.relay.invitations import Invitation, read_invitation, write_invitation
from potluck_agent.relay.tunnel import MAX_JOINED, Tunnel
from potluck_wire.frames import decode, encode
from potluck_wire.limits import LINGER_MS, PULSE_OFFSET, RELAY_DIAL_OFFSET, TICKET_BYTES
from potluck_wire.messages import Channel, Dial, Ping, Pong, Registered
from potluck_wire.version import VERSION

ADA = Keys()
TRUST = (f"--trust={ADA.public}:ada",)
READ_BYTES = 65536
SILENCE_S = 2.0  # then no more connections come


class LyingRelay:
    """Says to the device that registers whatever the test wants, and takes what it dials."""

    def __init__(self, folder):
        self.keys, self.port = Keys(), free_ports(2)
        self.invitation = folder / "lies.json"
        guest = Keys()
        invitation = Invitation(
            relay=f"{HOST}:{self.port}", key=self.keys.public, secret=guest.secret
        )
        write_invitation(self.invitation, invitation)
        self.context = zmq.Context()
        self.router = self.context.socket(zmq.ROUTER)
        self.router.curve_server = True
        self.router.curve_publickey = self.keys.public.encode()
        self.router.curve_secretkey = self.keys.secret.encode()
        self.router.bind(f"tcp://{HOST}:{self.port}")
        self.dials = socket.create_server((HOST, self.port + RELAY_DIAL_OFFSET), backlog=512)
        self.dials.settimeout(TIMEOUT_S)

    def registered(self):
        """The route to the device, which has asked to be taken."""
        assert self.router.poll(TIMEOUT_S * 1000)
        route, header = self.router.recv_multipart()
        message, _ = decode([header], Channel.RELAY)
        assert (message.major, message.minor) == VERSION
        return route

    def say(self, route, *frames):
        self.router.send_multipart([route, *frames])

    def dialled(self):
        """A connection of the device, and the ticket that it says."""
        one, _ = self.dials.accept()
        one.settimeout(TIMEOUT_S)
        return one, one.recv(TICKET_BYTES, socket.MSG_WAITALL)

    def close(self):
        self.dials.close()
        self.context.destroy(LINGER_MS)


@contextmanager
def deceived(folder, *arguments):
    """A relay that lies, a device that believes it, and the way to that one."""
    lying = LyingRelay(folder)
    try:
        given = ("--relay", str(lying.invitation), "--memory", "64Mi", *arguments)
        with agent(folder / "jetson", *TRUST, *given) as jetson:
            yield lying, jetson, lying.registered()
    finally:
        lying.close()


def check_near(jetson):
    """Nothing of it is noticed over the agent's own ports."""
    with RawPeer(jetson.port, jetson.key, ADA) as near:
        for seq in range(10):
            assert near.ask(Ping(seq=seq)).seq == seq


@pytest.mark.long
def test_it_gets_to_the_agents_four_ports_and_no_further(tmp_path):
    with deceived(tmp_path) as (lying, jetson, route):
        ticket = b"t" * TICKET_BYTES
        for offset in (4, 5, 22, 2**53):
            lying.say(route, *encode(Dial(ticket=ticket, offset=offset)))
        for odd in (b"", b"short", b"l" * 64):
            lying.say(route, *encode(Dial(ticket=odd, offset=0)))
        # in order: had the device dialled for one of those, it would come first
        lying.say(route, *encode(Dial(ticket=b"u" * TICKET_BYTES, offset=PULSE_OFFSET)))
        one, data = lying.dialled()
        with one:
            assert data == b"u" * TICKET_BYTES
            assert one.recv(10).startswith(b"\xff")  # a greeting: the agent's own socket
        check_near(jetson)


@pytest.mark.long
def test_nonsense_is_passed_over(tmp_path, record_property):
    rng = Random(5)
    with deceived(tmp_path) as (lying, jetson, route):
        odd = [
            [],
            [b""],
            [b"\xc1"],
            [b"x", b"y"],
            list(encode(Ping(seq=1))),
            list(encode(Registered(major=9, port=2**53, text="\x1b[2J" * 50))),
            *([rng.randbytes(rng.randrange(200))] for _ in range(500)),
        ]
        for frames in odd:
            lying.say(route, *frames)
        lying.say(route, *encode(Dial(ticket=bytes(TICKET_BYTES), offset=0)))
        one, _ = lying.dialled()
        one.close()
        check_near(jetson)
    record_property("inputs", len(odd))


def test_what_it_asks_for_is_bounded(tmp_path, record_property):
    """Of an agent that ends no connection: so nothing but the bound keeps them few."""
    n_asked = 3 * MAX_JOINED
    lying = LyingRelay(tmp_path)
    held = []
    with socket.create_server((HOST, 0), backlog=512) as agents_port:
        port = agents_port.getsockname()[1] - PULSE_OFFSET
        tunnel = Tunnel(read_invitation(lying.invitation), HOST, port, lambda about, text: None)
        try:
            route = lying.registered()
            for number in range(n_asked):
                ticket = number.to_bytes(TICKET_BYTES, "big")
                lying.say(route, *encode(Dial(ticket=ticket, offset=PULSE_OFFSET)))
            lying.dials.settimeout(SILENCE_S)
            with suppress(TimeoutError):
                while True:
                    held.append(lying.dials.accept()[0])
            assert len(held) == MAX_JOINED
        finally:
            tunnel.close()
            lying.close()
            for one in held:
                one.close()
    record_property("inputs", n_asked)


class Told:
    """What a tunnel notes, one after the other."""

    def __init__(self):
        self.texts = Queue()

    def __call__(self, about, text):
        self.texts.put(text)


@pytest.mark.parametrize("port", [65533, 65536, 2**53])
def test_it_names_no_port_that_is_none(tmp_path, port):
    lying, told = LyingRelay(tmp_path), Told()
    tunnel = Tunnel(read_invitation(lying.invitation), HOST, 1, told)
    try:
        lying.say(lying.registered(), *encode(Registered(port=port)))
        assert told.texts.get(timeout=TIMEOUT_S).endswith(f"it names port {port}, which is none")
        assert not tunnel.address
    finally:
        tunnel.close()
        lying.close()


@pytest.mark.parametrize("host", ["relay..net", ".", "a" * 64 + ".net"])
def test_a_relay_whose_name_no_host_can_have_is_told_as_one_that_is_not_found(host):
    """Its tunnel ended with an error in a thread, and nobody was told."""
    keys, told = Keys(), Told()
    tunnel = Tunnel(
        Invitation(relay=f"{host}:1", key=keys.public, secret=keys.secret), HOST, 1, told
    )
    try:
        assert told.texts.get(timeout=TIMEOUT_S).startswith(f"not reached through the relay {host}")
    finally:
        tunnel.close()


@pytest.mark.long
@pytest.mark.parametrize("n_bytes", [4000, 2**20])
def test_a_message_of_very_many_frames_takes_bounded_memory(tmp_path, n_bytes, record_property):
    """Of 400 MiB, 280 stayed in the agent's memory."""
    n_frames, part = 400 * 2**20 // n_bytes, bytes(n_bytes)
    with deceived(tmp_path) as (lying, jetson, route):
        process = psutil.Process(jetson.process.pid)
        before = process.memory_info().rss
        monitor = lying.router.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        lying.router.send(route, zmq.SNDMORE)
        for _ in range(n_frames):
            lying.router.send(part, zmq.SNDMORE)
        lying.router.send(part)
        while not monitor.poll(0):  # until it is cut off
            assert process.memory_info().rss < before + 192 * 2**20
            check_near(jetson)
        lying.router.disable_monitor()
        monitor.close(0)
        route = lying.registered()
        lying.say(route, *encode(Dial(ticket=bytes(TICKET_BYTES), offset=0)))
        lying.dialled()[0].close()
    record_property("inputs", n_frames)


@pytest.mark.long
def test_one_of_another_key_is_not_talked_to(tmp_path):
    """Whoever took the relay's address has not its secret key."""
    lying = LyingRelay(tmp_path)
    other = Keys()
    invitation = Invitation(relay=f"{HOST}:{lying.port}", key=other.public, secret=Keys().secret)
    write_invitation(lying.invitation, invitation)
    try:
        given = ("--relay", str(lying.invitation), "--memory", "64Mi")
        with agent(tmp_path / "jetson", *TRUST, *given) as jetson:
            check_near(jetson)
            assert not lying.router.poll(1000)
    finally:
        lying.close()


# --- what it passes on ----------------------------------------------------------------------------


def flipped(data, number):
    """One bit of every third piece."""
    spoiled = bytearray(data)
    if number % 3 == 2:
        spoiled[len(data) // 2] ^= 0x10
    return bytes(spoiled)


def repeated(data, number):
    return data * 2 if number % 3 == 2 else data


def dropped(data, number):
    return b"" if number % 3 == 2 else data


def shuffled(data, number):
    """The halves in the other order."""
    half = len(data) // 2
    return data[half:] + data[:half] if number % 3 == 2 else data


ROUNDS, PINGS = 5, 30


def spoken_over(jetson, port, begin):
    """The pings that are answered over one connection, until it ends or all are said."""
    context, heard = zmq.Context(), []
    try:
        dealer = context.socket(zmq.DEALER)
        dealer.linger = LINGER_MS
        dealer.curve_serverkey = jetson.key.encode()
        dealer.curve_publickey, dealer.curve_secretkey = ADA.public.encode(), ADA.secret.encode()
        dealer.connect(f"tcp://{HOST}:{port}")
        monitor = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        for seq in range(begin, begin + PINGS):
            dealer.send_multipart(encode(Ping(seq=seq)))
            while dealer.poll(50):
                message, _ = decode(dealer.recv_multipart(), Channel.PULSE)
                assert isinstance(message, Pong)
                assert begin <= message.seq <= seq
                heard.append(message.seq)
            if monitor.poll(0):
                break
        dealer.disable_monitor()
        monitor.close(0)
    finally:
        context.destroy(LINGER_MS)
    return heard


SPOILING = (flipped, repeated, dropped, shuffled)


@pytest.mark.long
@pytest.mark.parametrize("spoil", SPOILING, ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("way", ["to the agent", "to the notebook"])
def test_what_it_spoils_ends_a_connection_and_changes_no_message(
    tmp_path, spoil, way, record_property
):
    """After the handshake: so it is a connection that is trusted which is spoiled."""
    with deceived(tmp_path) as (lying, jetson, route):
        visitors = socket.create_server((HOST, 0))
        numbers, n_spoiled = count(), [0]

        def pass_on(source, target, spoils):
            n_passed = 0
            with suppress(OSError):
                while data := source.recv(READ_BYTES):
                    n_passed += 1
                    if spoils and n_passed > 6:  # greetings and handshake
                        n_spoiled[0] += spoil(data, n_passed) != data
                        data = spoil(data, n_passed)
                    target.sendall(data)
            for end in (source, target):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

        def serve():
            with suppress(OSError):
                while True:
                    visitor, _ = visitors.accept()
                    ticket = next(numbers).to_bytes(TICKET_BYTES, "big")
                    lying.say(route, *encode(Dial(ticket=ticket, offset=PULSE_OFFSET)))
                    device, _ = lying.dialled()
                    for ends in (
                        (visitor, device, way == "to the agent"),
                        (device, visitor, way != "to the agent"),
                    ):
                        threading.Thread(target=pass_on, args=ends, daemon=True).start()

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        heard = []
        try:
            for begin in range(0, ROUNDS * PINGS, PINGS):
                heard += spoken_over(jetson, visitors.getsockname()[1], begin)
            assert n_spoiled[0] >= 3
            assert len(heard) >= 10
            assert heard == sorted(set(heard))  # none twice, none out of order
        finally:
            visitors.close()
        check_near(jetson)
    record_property("inputs", n_spoiled[0])
