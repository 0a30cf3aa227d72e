"""What raises in the loop beside the core's events costs nobody the agent."""

import socket
import threading
import time
from unittest.mock import Mock

import pytest
import zmq
from tests.agent.agents import Keys, RawPeer, pair
from tests.agent.core.core_driver import settings
from tests.timeouts import TIMEOUT_S

from potluck_agent import keys, lease_file
from potluck_agent.core.events import FromPeer, KeepLeases, PeerRevoked, ToPeer, Undone
from potluck_agent.core.machine import Core
from potluck_agent.errors import AgentError
from potluck_agent.keys import Identity
from potluck_agent.log_file import LogFile
from potluck_agent.net import event_loop
from potluck_agent.net.event_log import EventLog
from potluck_agent.net.event_loop import EventLoop
from potluck_agent.net.meter_reader import KeptMeter
from potluck_agent.net.pairing_listener import PairingListener
from potluck_agent.net.peer_connections import PeerConnections
from potluck_agent.net.server_sockets import ServerSockets
from potluck_agent.net.socket_memory import SocketMemory
from potluck_agent.net.worker_pool import WorkerPool
from potluck_wire.limits import PULSE_OFFSET
from potluck_wire.messages import Channel, Lease, Leased, Ping, Pong
from potluck_wire.pairing import new_code

STEPS = {
    PairingListener: "tick",
    PeerConnections: "tick",
    SocketMemory: "check",
    WorkerPool: "listen",
    Core: "handle",
}
BREAKABLE = [part for part in STEPS if part is not Core]  # which has a defence of its own


@pytest.fixture
def done(monkeypatch):
    """Whose steps the loop has begun."""
    begun = []
    for part, name in STEPS.items():
        step = getattr(part, name)

        def noted(self, *given, part=part, step=step):
            begun.append(part)
            return step(self, *given)

        monkeypatch.setattr(part, name, noted)
    return begun


@pytest.fixture
def noted():
    return []


@pytest.fixture
def identity():
    public, secret = (part.decode() for part in zmq.curve_keypair())
    return Identity(public=public, secret=secret)


@pytest.fixture
def loop(tmp_path, noted, identity):
    made = EventLoop(
        core=Core(settings()),
        identity=identity,
        state_dir=tmp_path,
        name="jetson",
        host="127.0.0.1",
        port=0,
        trusted=(),
        start_worker=lambda: pytest.fail("nobody needs one"),
        meter=None,
        journal=EventLog(LogFile(tmp_path / "log", "info", pytest.fail), noted.append),
    )
    yield made
    made.close()


@pytest.mark.parametrize("broken", [(WorkerPool, "supply"), (Core, "wake_s")])
def test_what_raises_between_the_events_ends_no_agent(loop, noted, monkeypatch, broken):
    step, faults = getattr(*broken), [KeyError("no lane")]

    def fail_once(self, *given):
        if faults:
            raise faults.pop()
        return step(self, *given)

    monkeypatch.setattr(*broken, fail_once)
    ticks = iter(range(3))
    loop.run(lambda: setattr(loop, "stopping", next(ticks) == 2))
    (text,) = {text for text in noted if "nobody is to blame" not in text}
    assert "KeyError: 'no lane'" in text


@pytest.mark.parametrize("broken", BREAKABLE)
def test_a_part_that_cannot_do_its_tick_keeps_no_other_from_it(
    loop, noted, done, monkeypatch, broken
):
    def fail(self, *given):
        done.append(broken)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(broken, STEPS[broken], fail)
    loop.run(lambda: setattr(loop, "stopping", True))  # after the first tick
    assert sorted(map(str, done)) == sorted(map(str, STEPS))
    (text,) = noted
    assert "a fault in the agent" in text
    assert "Too many open files" in text


def test_who_was_forgotten_while_the_file_could_not_be_read_is_cut_off_once_it_can(
    loop, noted, tmp_path, monkeypatch
):
    """A lack of descriptors passes; the file does not change again after that."""
    ada, bob = (
        keys.TrustedPeer(name=name, key=name[0] * 40, role="owner") for name in ("ada", "bob")
    )
    for peer in (ada, bob):
        keys.add_peer(tmp_path, peer)
    revoked = []
    read = keys.load_peers
    handle = Core.handle
    monkeypatch.setattr(
        Core,
        "handle",
        lambda core, event, now_s: [revoked.append(event)] and handle(core, event, now_s),
    )

    def fail(state):
        raise AgentError("cannot read peers.json: Too many open files.")

    ticks = iter(range(5))

    def each_tick():
        tick = next(ticks)
        if tick == 0:
            keys.forget_peer(tmp_path, "bob")
            monkeypatch.setattr(keys, "load_peers", fail)
        elif tick == 2:
            monkeypatch.setattr(keys, "load_peers", read)
        loop.stopping = tick == 4

    loop.run(each_tick)
    assert [event.key for event in revoked if isinstance(event, PeerRevoked)] == [bob.key]
    (text,) = noted  # once
    assert "cannot read peers.json: Too many open files." in text


def test_who_is_forgotten_and_pairs_again_at_once_begins_anew(
    loop, noted, tmp_path, monkeypatch, identity
):
    """Both before the file is looked at: its session ends all the same, and what it had here."""
    bob, code = Keys(), new_code()
    revoked = []
    keys.add_peer(tmp_path, keys.TrustedPeer(name="bob", key=bob.public))
    handle = Core.handle

    def noting(core, event, now_s):
        revoked.extend([event.key] if isinstance(event, PeerRevoked) else [])
        return handle(core, event, now_s)

    monkeypatch.setattr(Core, "handle", noting)
    monkeypatch.setattr(event_loop, "TICK_S", 2.0)
    loop.pairing.open(code, time.monotonic())
    pairing = threading.Thread(target=pair, args=(loop.port, code, bob, "bob"))

    def each_tick():
        if pairing.ident is None:
            keys.forget_peer(tmp_path, "bob")
            pairing.start()
        else:
            loop.stopping = not pairing.is_alive()

    loop.run(each_tick)
    assert revoked == [bob.public]
    assert [peer.key for peer in keys.load_peers(tmp_path)] == [bob.public]


def test_a_port_that_somebody_took_while_connections_were_cut_is_tried_on(
    loop, noted, tmp_path, monkeypatch, identity
):
    ada, bob = Keys(), Keys()
    for name, key in (("ada", ada.public), ("bob", bob.public)):
        keys.add_peer(tmp_path, keys.TrustedPeer(name=name, key=key))
    again, fails = ServerSockets.reopen, iter(range(3))

    def reopen(sockets):
        if next(fails, None) is not None:
            raise AgentError("cannot listen on port 1234 again.")
        again(sockets)

    def talk():
        with RawPeer(loop.port, public, ada) as stays, RawPeer(loop.port, public, bob) as goes:
            assert isinstance(stays.ask(Ping(seq=1)), Pong)
            assert isinstance(goes.ask(Ping(seq=1)), Pong)
            monkeypatch.setattr(ServerSockets, "reopen", reopen)
            monkeypatch.setattr(ServerSockets, "listen_again", reopen)
            keys.forget_peer(tmp_path, "bob")
            while not (noted and stays.sockets[Channel.PULSE].poll(100)):
                stays.say(Ping(seq=2))  # what is said to the old connection is lost
            heard.append(stays.receive(Channel.PULSE)[0].seq)

    heard, public = [], identity.public
    talking = threading.Thread(target=talk)
    talking.start()
    loop.run(lambda: setattr(loop, "stopping", not talking.is_alive()))
    talking.join()
    assert heard == [2]
    assert noted == ["cannot listen on port 1234 again."]


def test_a_connection_is_known_before_what_came_over_it_however_many_strangers_come_and_go(
    loop, tmp_path, monkeypatch, identity
):
    """Else what it does not read is never counted, and it stays when its key comes over another."""
    ada, closed = Keys(), zmq.EVENT_DISCONNECTED
    keys.add_peer(tmp_path, keys.TrustedPeer(name="ada", key=ada.public))
    monkeypatch.setattr(event_loop, "EVENTS_AT_ONCE", 1)
    for _ in range(1500):
        socket.create_connection(("127.0.0.1", loop.port + PULSE_OFFSET)).close()

    def talk():
        with RawPeer(loop.port, identity.public, ada) as older:
            monitor = older.sockets[Channel.PULSE].get_monitor_socket(closed)
            assert isinstance(older.ask(Ping(seq=1)), Pong)
            with RawPeer(loop.port, identity.public, ada) as newer:
                assert isinstance(newer.ask(Ping(seq=2)), Pong)
                cut.append(monitor.poll(TIMEOUT_S * 1000))

    cut = []
    talking = threading.Thread(target=talk)
    talking.start()
    loop.run(lambda: setattr(loop, "stopping", not talking.is_alive()))
    talking.join()
    assert cut == [zmq.POLLIN]


def test_the_meter_is_looked_at_though_nobody_asks_for_it():
    """Else its counter would wrap twice between two readings."""
    meter = Mock()
    kept = KeptMeter(meter, 100.0)
    for now_s in range(101, 221):
        kept.tick(float(now_s), 1.0, 2.0)
        if now_s == 200:
            kept.read(200.0, 1.0, 2.0)
    assert [call.args for call in meter.read.call_args_list] == [
        (now_s, 1.0, 2.0) for now_s in (130.0, 160.0, 190.0, 200.0)
    ]


def test_the_loop_looks_at_its_meter(loop, monkeypatch):
    ticks = []
    monkeypatch.setattr(KeptMeter, "tick", lambda self, *given: ticks.append(given))
    loop.run(lambda: setattr(loop, "stopping", True))
    assert len(ticks) == 1


@pytest.mark.parametrize("is_full", [False, True])
def test_what_is_promised_in_one_round_takes_one_write_and_is_said_after_it(
    loop, tmp_path, monkeypatch, identity, is_full
):
    """Whoever asks for leases without end would have the disk alone; what cannot be written is not
    said, and the core hears of each.
    """
    ada, n_leases = Keys(), 16
    keys.add_peer(tmp_path, keys.TrustedPeer(name="ada", key=ada.public))
    written, undone = [], []
    handle = Core.handle

    def promise(core, event, now_s):
        match event:
            case Undone():
                undone.append(event.action.answer.message.task)
                return []
            case FromPeer(message=Lease() as lease):
                answer = ToPeer(key=ada.public, message=Leased(task=lease.task))
                return [KeepLeases(({"name": lease.name},), answer)]
        return handle(core, event, now_s)

    def keep(state, rows):
        time.sleep(0.05)  # an old card; the others come meanwhile
        written.append([row["name"] for row in rows])
        if is_full:
            raise AgentError("the disk is full")

    monkeypatch.setattr(Core, "handle", promise)
    monkeypatch.setattr(lease_file, "keep", keep)
    names = [f"lease-{number}" for number in range(n_leases)]
    with RawPeer(loop.port, identity.public, ada) as peer:
        for name in names:
            peer.say(Lease(task=name, name=name, term=1, lasts_s=1.0))
        loop.run(lambda: setattr(loop, "stopping", names[-1:] in written))
        heard = [] if is_full else [peer.receive()[0].task for _ in names]
    assert (heard, undone) == (([], names) if is_full else (names, []))
    assert len(written) <= n_leases // 2
