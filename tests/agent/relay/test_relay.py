"""Real agents behind real relays: they are reached, by those alone whom they trust, and only as
long as their relay's owner wants it.
"""

import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from subprocess import PIPE

import psutil
import pytest
import zmq
from tests.agent.agents import OFFSETS, Keys, RawPeer, pair
from tests.agent.relay.relays import HOST, behind, free_ports, relay
from tests.timeouts import TIMEOUT_S

from potluck_agent.log_file import LINES
from potluck_agent.relay.invitations import read_invitation
from potluck_agent.relay.server import MAX_DIALS
from potluck_wire.frames import decode, encode
from potluck_wire.limits import (
    LINGER_MS,
    RELAY_DIAL_OFFSET,
    RELAY_MAX_ADMITTED_EACH,
    RELAY_MAX_PENDING,
    TICKET_BYTES,
)
from potluck_wire.messages import Channel, Dial, Hello, Ping, Register, Value, Welcome
from potluck_wire.version import VERSION

ADA, EVE = Keys(), Keys()
TRUST = (f"--trust={ADA.public}:ada",)


@pytest.fixture(scope="module")
def way(tmp_path_factory):
    """A relay, and a device behind it."""
    folder = tmp_path_factory.mktemp("way")
    with (
        relay(folder / "relay") as passing,
        behind(passing, folder / "jetson", *TRUST, "--memory", "64Mi") as jetson,
    ):
        yield passing, jetson


def check_served(passing, jetson):
    with RawPeer(passing.first_port(), jetson.key, ADA) as ada:
        for seq in range(20):
            assert ada.ask(Ping(seq=seq)).seq == seq


@pytest.mark.long
def test_a_notebook_is_answered_on_every_channel(way):
    passing, jetson = way
    with RawPeer(passing.first_port(), jetson.key, ADA) as ada:
        assert isinstance(ada.ask(Hello(major=VERSION[0], minor=VERSION[1], name="ada")), Welcome)
        assert ada.ask(Ping(seq=7)).seq == 7
        # a value of no run is refused, by the agent: the data channel is there
        ada.say(Value(transfer=1, run="none", name="x", dtype="float32"), b"")
        assert ada.receive(Channel.DATA)[0].transfer == 1


def test_a_notebook_pairs_through_it(tmp_path):
    bob = Keys()
    with (
        relay(tmp_path / "relay") as passing,
        behind(passing, tmp_path / "jetson", "--pair", "--memory", "64Mi") as jetson,
    ):
        side = pair(passing.first_port(), jetson.code, bob, "bob")
        assert side.paired.key == jetson.key
        with RawPeer(passing.first_port(), jetson.key, bob) as peer:
            assert peer.ask(Ping(seq=1)).seq == 1


@pytest.mark.long
def test_the_agent_says_where_it_is_reached(way):
    passing, jetson = way
    assert f"{HOST}:{passing.first_port()}" in jetson.command("status").stdout


# --- strangers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [EVE, None], ids=["another key", "no key"])
def test_a_stranger_hears_nothing(way, keys):
    passing, jetson = way
    with RawPeer(passing.first_port(), jetson.key, keys) as eve:
        for seq in range(3):
            eve.say(Ping(seq=seq))
        eve.say(Hello(major=VERSION[0], minor=VERSION[1], name="eve"))
        assert eve.hears_nothing()
    check_served(passing, jetson)


def hung_up(one):
    """What comes until the other side ends it."""
    one.settimeout(TIMEOUT_S)
    heard = b""
    with suppress(ConnectionError):
        while data := one.recv(4096):
            heard += data
    return heard


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0-x\r\n", b"\xff" + bytes(8) + b"\x7f\x03\x01NULL"],
    ids=["HTTP", "SSH", "ZeroMQ without encryption"],
)
def test_it_is_no_way_for_anything_else(way, data):
    passing, jetson = way
    for offset in OFFSETS.values():
        with socket.create_connection((HOST, passing.first_port() + offset)) as one:
            one.sendall(data)
            assert len(hung_up(one)) <= 64  # the greeting that every visitor gets
    check_served(passing, jetson)


def test_strangers_that_say_nothing_hold_no_descriptors(way, record_property):
    """They come in greater numbers than there are places; who is paired is answered meanwhile."""
    passing, jetson = way
    of_relay, of_jetson = (psutil.Process(p.process.pid) for p in (passing, jetson))
    before, before_there = of_relay.num_fds(), of_jetson.num_fds()
    ports = [passing.port, passing.port + RELAY_DIAL_OFFSET]
    ports += [passing.first_port() + offset for offset in range(4)]
    most = 0
    with ExitStack() as stack, RawPeer(passing.first_port(), jetson.key, ADA) as ada:
        assert ada.ask(Ping(seq=1)).seq == 1
        silent = []
        for number in range(900):
            with suppress(OSError):
                one = socket.create_connection((HOST, ports[number % len(ports)]))
                silent.append(stack.enter_context(one))
            if not number % 50:
                assert ada.ask(Ping(seq=number)).seq == number
                most = max(most, of_relay.num_fds())
        # none of them got as far as the device
        assert of_jetson.num_fds() < before_there + 32
        for one in silent:
            hung_up(one)
        assert ada.ask(Ping(seq=2)).seq == 2
    assert most < before + 4 * RELAY_MAX_PENDING + 256 + 64
    check_served(passing, jetson)
    record_property("inputs", len(silent))


@pytest.mark.long
def test_a_key_that_was_not_invited_registers_nothing(way, tmp_path):
    passing, jetson = way
    invitation = read_invitation(passing.invite("bob"))
    passing.command("remove", "bob")
    time.sleep(0.5)  # it looks at its devices five times a second
    context = zmq.Context()
    try:
        for public, secret in (
            (EVE.public, EVE.secret),
            (jetson.key, EVE.secret),
            (zmq.curve_public(invitation.secret.encode()).decode(), invitation.secret),
        ):
            dealer = context.socket(zmq.DEALER)
            dealer.linger = LINGER_MS
            dealer.curve_serverkey = invitation.key.encode()
            dealer.curve_publickey, dealer.curve_secretkey = public.encode(), secret.encode()
            let_in = dealer.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
            dealer.connect(f"tcp://{HOST}:{passing.port}")
            dealer.send_multipart(encode(Register(major=VERSION[0])))
            assert not dealer.poll(300)
            assert not let_in.poll(0)
            dealer.disable_monitor()
            let_in.close(0)
    finally:
        context.destroy(LINGER_MS)
    for port in range(passing.first_port(1), passing.first_port(2)):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, port))
    check_served(passing, jetson)


def test_a_ticket_that_was_guessed_leads_nowhere(way):
    passing, jetson = way
    for ticket in (bytes(TICKET_BYTES), b"x" * TICKET_BYTES, b"short"):
        with socket.create_connection((HOST, passing.port + RELAY_DIAL_OFFSET)) as one:
            one.sendall(ticket + b"\xff" * (1000 if len(ticket) == TICKET_BYTES else 0))
            assert hung_up(one) == b""
    check_served(passing, jetson)


@pytest.mark.long
def test_who_is_paired_takes_no_more_places_than_there_are(way):
    passing, jetson = way
    with ExitStack() as stack:
        first = stack.enter_context(RawPeer(passing.first_port(), jetson.key, ADA))
        assert first.ask(Ping(seq=1)).seq == 1  # it has its places before the others come
        for seq in range(RELAY_MAX_ADMITTED_EACH // 3 + 9):
            peer = stack.enter_context(RawPeer(passing.first_port(), jetson.key, ADA))
            peer.say(Ping(seq=seq))
        assert first.ask(Ping(seq=2)).seq == 2
        assert psutil.Process(passing.process.pid).num_fds() < 4 * RELAY_MAX_ADMITTED_EACH + 100
    check_served(passing, jetson)


def test_strangers_where_devices_dial_take_nobodys_place_but_their_own(tmp_path, record_property):
    """More than there are places for, all from one address, before the device says its ticket."""
    n_strangers = 3 * MAX_DIALS
    with relay(tmp_path / "relay") as passing, ExitStack() as stack:
        invitation = read_invitation(passing.invite("jetson"))
        time.sleep(0.5)  # it looks at its devices five times a second
        dealer = stack.enter_context(guest(invitation))
        dealer.send_multipart(encode(Register(major=VERSION[0], minor=VERSION[1])))
        passing.line_with("jetson is reached")
        visitor = stack.enter_context(socket.create_connection((HOST, passing.first_port())))
        visitor.sendall(b"\xff" + bytes(8) + b"\x7f")
        message = None
        while not isinstance(message, Dial):
            assert dealer.poll(TIMEOUT_S * 1000)
            message, _ = decode(dealer.recv_multipart(), Channel.RELAY)
        place = HOST, passing.port + RELAY_DIAL_OFFSET
        device = stack.enter_context(socket.create_connection(place))
        strangers = []
        for _ in range(n_strangers):
            one = socket.create_connection(place, source_address=("127.0.0.2", 0))
            strangers.append(stack.enter_context(one))
        for one in strangers[: n_strangers - MAX_DIALS]:
            hung_up(one)
        device.sendall(message.ticket)
        device.settimeout(TIMEOUT_S)
        assert device.recv(1) == b"\xff"  # it is joined to its visitor
    record_property("inputs", n_strangers)


def test_a_relay_that_ends_has_nothing_to_say_about_its_visitors(tmp_path):
    """Python 3.11 prints tasks of connections that are cancelled."""
    line = [sys.executable, "-m", "potluck_agent", "relay", "start", "--bind", HOST]
    port = free_ports(8)
    line += ["--port", str(port), "--state", str(tmp_path)]
    with (
        subprocess.Popen(line, stdout=PIPE, stderr=PIPE, text=True) as process,
        ExitStack() as stack,
    ):
        assert "relay on" in process.stdout.readline()
        for _ in range(5):  # accepted, and waited for
            place = HOST, port + RELAY_DIAL_OFFSET
            stack.enter_context(socket.create_connection(place)).sendall(b"half")
        while len(psutil.Process(process.pid).net_connections("tcp")) < 2 + 5:
            time.sleep(0.02)
        process.terminate()
        assert process.communicate(timeout=TIMEOUT_S)[1] == ""


@contextmanager
def guest(invitation):
    """A raw connection to the relay of this invitation, as its device makes it."""
    context = zmq.Context()
    try:
        dealer = context.socket(zmq.DEALER)
        dealer.linger = LINGER_MS
        dealer.curve_serverkey = invitation.key.encode()
        dealer.curve_publickey = zmq.curve_public(invitation.secret.encode())
        dealer.curve_secretkey = invitation.secret.encode()
        dealer.connect(f"tcp://{HOST}:{invitation.address[1]}")
        yield dealer
    finally:
        context.destroy(LINGER_MS)


def test_a_device_that_comes_anew_for_ever_does_not_fill_its_owners_disk(tmp_path):
    """The system keeps what a relay prints; of one device it is so many lines, then a count."""
    with relay(tmp_path / "relay") as passing:
        invitation = read_invitation(passing.invite("jetson"))
        time.sleep(0.5)  # it looks at its devices five times a second
        for _ in range(LINES):  # each time it is dropped and reached anew: two lines
            with guest(invitation) as dealer:
                dealer.send_multipart(encode(Register(major=VERSION[0], minor=VERSION[1])))
                assert dealer.poll(TIMEOUT_S * 1000)
        passing.process.terminate()
        printed, _ = passing.process.communicate(timeout=TIMEOUT_S)
    assert printed.count("jetson") == LINES


# --- its owner ------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_device_that_is_removed_is_cut_off_at_once(tmp_path):
    with (
        relay(tmp_path / "relay") as passing,
        behind(passing, tmp_path / "jetson", *TRUST, "--memory", "64Mi") as jetson,
        RawPeer(passing.first_port(), jetson.key, ADA) as ada,
    ):
        assert ada.ask(Ping(seq=1)).seq == 1
        monitor = ada.sockets[Channel.PULSE].get_monitor_socket(zmq.EVENT_DISCONNECTED)
        assert passing.command("remove", "jetson").returncode == 0
        assert monitor.poll(TIMEOUT_S * 1000)
        ada.sockets[Channel.PULSE].disable_monitor()
        monitor.close(0)
        passing.line_with("jetson is removed")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, passing.first_port()))
        with RawPeer(jetson.port, jetson.key, ADA) as near:  # it is there for all that
            assert near.ask(Ping(seq=2)).seq == 2


@pytest.mark.long
def test_a_list_of_devices_that_breaks_takes_nobodys_place(tmp_path):
    with (
        relay(tmp_path / "relay") as passing,
        behind(passing, tmp_path / "jetson", *TRUST, "--memory", "64Mi") as jetson,
    ):
        (tmp_path / "relay" / "devices.json").write_text("{")
        passing.line_with("cannot be read")
        check_served(passing, jetson)


@pytest.mark.long
def test_a_relay_that_was_killed_is_used_again_when_it_is_back(tmp_path):
    with (
        relay(tmp_path / "relay") as passing,
        behind(passing, tmp_path / "jetson", *TRUST, "--memory", "64Mi") as jetson,
        RawPeer(passing.first_port(), jetson.key, ADA) as ada,
    ):
        assert ada.ask(Ping(seq=1)).seq == 1
        passing.kill()
        with RawPeer(jetson.port, jetson.key, ADA) as near:  # nothing else is the matter
            assert near.ask(Ping(seq=2)).seq == 2
        passing.again()
        passing.line_with("jetson is reached")
        assert ada.ask(Ping(seq=3)).seq == 3  # over the socket that it had


@pytest.mark.long
def test_two_relays_on_one_port_and_a_port_that_is_taken(tmp_path):
    with relay(tmp_path / "relay") as passing:
        done = passing.command("start", "--port", str(passing.port), "--bind", HOST)
        assert done.returncode == 1
        assert "cannot listen" in done.stderr
        taken = socket.create_server((HOST, passing.first_port() + 2))
        invitation = passing.invite("jetson")
        dealer_heard = []

        def ask():
            with guest(read_invitation(invitation)) as dealer:
                dealer.send_multipart(encode(Register(major=VERSION[0])))
                if dealer.poll(TIMEOUT_S * 1000):
                    dealer_heard.append(dealer.recv_multipart()[0])

        time.sleep(0.5)  # it looks at its devices five times a second
        asking = threading.Thread(target=ask)
        asking.start()
        passing.line_with("jetson cannot be reached")
        asking.join()
        taken.close()
        assert b"cannot listen" in dealer_heard[0]
