"""A real agent over real sockets: what strangers get (nothing), what bad input does (nothing), how
it ends.
"""

import json
import os
import signal
import socket
import struct
import sys
from contextlib import ExitStack, suppress

import msgpack
import psutil
import pytest
from tests.agent.agents import Keys, RawPeer, agent
from tests.agent.core.core_driver import add, cut, plan, recv, send
from tests.timeouts import TIMEOUT_S

from potluck_wire import limits, statement
from potluck_wire.frames import encode
from potluck_wire.messages import (
    MESSAGES,
    Channel,
    Chunk,
    Commit,
    Committed,
    Credit,
    Done,
    Execute,
    Failed,
    FailureCause,
    Goodbye,
    Hello,
    Meter,
    Ping,
    Pong,
    Prepare,
    Prepared,
    Probe,
    Probed,
    Reading,
    RefusalCode,
    Refused,
    Roster,
    RosterSet,
    Value,
    Welcome,
)

ADA, STRANGER = Keys(), Keys()
EIGHT = b"12345678"
TRUST = ("--trust", f"{ADA.public}:ada")


@pytest.fixture(scope="module")
def jetson(tmp_path_factory):
    """One agent for all tests that leave it as it was."""
    with agent(tmp_path_factory.mktemp("jetson"), *TRUST, "--memory", "64Mi") as running:
        yield running


@pytest.fixture
def ada(jetson):
    with RawPeer(jetson.port, jetson.key, ADA) as peer:
        yield peer
        peer.say(Goodbye())


# --- strangers ------------------------------------------------------------------------------------

OUTSIDERS = {"unknown key": STRANGER, "no encryption": None}
NETWORK = [
    e for e in MESSAGES.values() if e.channel in (Channel.CONTROL, Channel.DATA, Channel.PULSE)
]


@pytest.mark.long
@pytest.mark.parametrize("who", OUTSIDERS)
def test_a_stranger_gets_nothing_whatever_it_says(jetson, who):
    with ExitStack() as stack:
        outsiders = []
        # each over a connection of its own: one that was refused takes no more
        for entry in NETWORK:
            outsider = stack.enter_context(RawPeer(jetson.port, jetson.key, OUTSIDERS[who]))
            outsider.say(entry.type(), *[b"{}"] * entry.buffers[0])
            outsiders.append(outsider)
        assert outsiders[-1].hears_nothing()
        assert all(outsider.hears_nothing(wait_ms=0) for outsider in outsiders)
    assert jetson.alive


def test_a_client_that_expects_another_device_gets_nothing(jetson):
    with RawPeer(jetson.port, Keys().public, ADA) as misled:
        misled.say(Ping(seq=1))
        assert misled.hears_nothing()


def test_a_pickle_on_any_socket_is_no_message(jetson, ada):
    bomb = b"cos\nsystem\n(S'touch /tmp/potluck-was-here'\ntR."
    for dealer in ada.sockets.values():
        dealer.send_multipart([bomb, bomb])
    assert isinstance(ada.receive()[0], Refused)
    assert isinstance(ada.ask(Ping(seq=3)), Pong)
    assert not os.path.exists("/tmp/potluck-was-here")


# --- what a paired peer may get wrong -------------------------------------------------------------

PING = encode(Ping(seq=1))[0]
BROKEN = [
    [b""],
    [b"\x00"],
    [b"\xff" * 50],
    [PING[:-1]],
    [PING + b"\x00"],
    [PING, b"more"],
    [msgpack.packb([9999, {}])],
    [msgpack.packb([1, {"nonsense": 1}])],
    [msgpack.packb([1, {"major": -1}])],
    [msgpack.packb([1, {"major": 2**60}])],
    [msgpack.packb([1, {"major": "1"}])],
    [msgpack.packb([24, {"period_s": float("nan")}])],
    [msgpack.packb([1, {"name": "x" * 20_000}])],
    [b"\x92\x01" + b"\x81" * 10_000],
    [msgpack.packb([4, {}])],
    [msgpack.packb([10, {}]), *[b"{}"] * 300],
    encode(Value(transfer=1, nbytes=4, chunk_bytes=4), [b"1234"]),
]


@pytest.mark.parametrize("frames", BROKEN, ids=range(len(BROKEN)))
def test_broken_frames_of_a_paired_peer_are_answered_or_dropped(jetson, ada, frames):
    for dealer in ada.sockets.values():
        dealer.send_multipart(frames)
    assert ada.ask(Ping(seq=77)).seq == 77 or ada.receive(Channel.PULSE)[0].seq == 77
    if frames != [b""]:
        assert isinstance(ada.receive()[0], Refused)


def test_an_oversize_frame_cuts_its_connection_and_nothing_else(jetson, ada):
    with RawPeer(jetson.port, jetson.key, ADA) as heavy:
        heavy.sockets[Channel.DATA].send_multipart([PING, bytes(limits.MAX_FRAME_BYTES + 1)])
        assert isinstance(ada.ask(Ping(seq=1)), Pong)
    assert psutil.Process(jetson.process.pid).memory_info().rss < 100 * 2**20


def test_a_huge_frame_before_the_handshake_takes_no_memory(jetson, ada):
    before = psutil.Process(jetson.process.pid).memory_info().rss
    with socket.create_connection(("127.0.0.1", jetson.port)) as raw:
        raw.sendall(
            b"\xff"
            + bytes(8)
            + b"\x7f\x03\x01CURVE"
            + bytes(47)
            + b"\x06"
            + struct.pack(">Q", 2**62)
        )
        raw.settimeout(TIMEOUT_S)
        wait_until_hung_up(raw)
    assert isinstance(ada.ask(Ping(seq=1)), Pong)
    assert psutil.Process(jetson.process.pid).memory_info().rss < before + 32 * 2**20


def wait_until_hung_up(raw):
    with suppress(ConnectionError):
        while raw.recv(4096):
            pass


def test_another_major_version_is_refused(ada):
    answer = ada.ask(Hello(major=2, name="ada"))
    assert (answer.code, answer.about) == (RefusalCode.VERSION, 1)


# --- real work ------------------------------------------------------------------------------------


def floats(*numbers):
    return struct.pack(f"<{len(numbers)}f", *numbers)


def value(name, data, *, transfer=1, step=0, chunk_bytes=limits.CHUNK_BYTES):
    return Value(
        transfer=transfer,
        run="r",
        epoch=1,
        program="p",
        step=step,
        name=name,
        shape=(len(data) // 4,),
        nbytes=len(data),
        chunk_bytes=chunk_bytes,
    )


def take(peer):
    """The next whole value that comes home, acknowledged."""
    head, buffers = peer.receive(Channel.DATA)
    while not isinstance(head, Value):  # credit for what we sent
        head, buffers = peer.receive(Channel.DATA)
    data = bytes(buffers[0])
    while len(data) < head.nbytes:
        message, buffers = peer.receive(Channel.DATA)
        if isinstance(message, Chunk):
            data += buffers[0]
            peer.say(Credit(transfer=head.transfer, received_bytes=len(data), done=False))
    peer.say(Credit(transfer=head.transfer, received_bytes=len(data), done=True))
    return head.name, data


@pytest.mark.slow
def test_a_program_runs_on_a_real_worker_and_its_values_come_home(ada):
    ada.say(Hello(major=1, name="ada"))
    welcome, (document,) = ada.receive()
    assert isinstance(welcome, Welcome)
    facts = statement.read(document)
    assert (facts["name"], facts["memory_bytes"]) == ("jetson", 64 * 2**20)
    assert "onnxruntime" in facts["backends"]
    rows = [
        recv("x"),
        cut("x", "a", 0, 2),
        cut("x", "b", 2, 4),
        add("a", "b", "c"),
        send("c"),
        send("x", name="echo"),
    ]
    assert ada.ask(Prepare(run="r", epoch=1), *plan(*rows)) == Prepared(run="r", epoch=1)
    assert ada.ask(Commit(run="r", epoch=1)) == Committed(run="r", epoch=1)
    data = floats(1, 2, 3, 4)
    for step in range(3):
        ada.say(value("x", data, transfer=step + 1, step=step), data)
        ada.say(Execute(run="r", epoch=1, program="p", step=step))
        message, _ = ada.receive(Channel.DATA)
        assert message == Credit(transfer=step + 1, received_bytes=16, done=True)
        assert dict(take(ada) for _ in range(2)) == {"echo": data, "c": floats(4, 6)}
        done, (events,) = ada.receive()
        assert (type(done), done.step, done.busy_s > 0) == (Done, step, True)
        times = {index: (start_s, stop_s) for index, start_s, stop_s in json.loads(bytes(events))}
        assert sorted(times) == list(range(6))
        assert times[3][0] >= times[2][1] >= times[2][0] >= times[1][1]


@pytest.mark.slow
def test_failures_in_the_worker_are_named_and_the_agent_lives(jetson, ada):
    assert isinstance(ada.ask(Hello(major=1, name="ada")), Welcome)
    rows = [recv("x"), cut("x", "a", 0, 9), send("a")]
    assert isinstance(ada.ask(Prepare(run="f", epoch=1), *plan(*rows)), Prepared)
    ada.say(Execute(run="f", epoch=1, program="p"))
    data = floats(1, 2)
    ada.say(
        Value(
            transfer=1,
            run="f",
            epoch=1,
            program="p",
            name="x",
            shape=(2,),
            nbytes=8,
            chunk_bytes=64,
        ),
        data,
    )
    failed, _ = ada.receive()
    assert (type(failed), failed.instruction, failed.cause) == (Failed, 1, FailureCause.INPUT)
    (worker,) = psutil.Process(jetson.process.pid).children()
    ada.say(Execute(run="f", epoch=1, program="p", step=1))
    # so the execution has begun
    assert isinstance(ada.ask(Prepare(run="f", epoch=1), *plan(*rows)), Prepared)
    worker.kill()
    failed, _ = ada.receive()
    assert (type(failed), failed.step, failed.cause) == (Failed, 1, FailureCause.CRASHED)
    # and there is a new one
    assert isinstance(ada.ask(Prepare(run="g", epoch=1), *plan(recv("x"))), Prepared)


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL])
def test_native_code_that_crashes_ends_the_step_by_name_and_the_worker_starts_again(
    jetson, ada, number
):
    assert isinstance(ada.ask(Hello(major=1, name="ada")), Welcome)
    rows = [recv("x"), cut("x", "a", 0, 1)]
    assert isinstance(ada.ask(Prepare(run="c", epoch=1), *plan(*rows)), Prepared)
    ada.say(Execute(run="c", epoch=1, program="p"))
    # so the execution has begun
    assert isinstance(ada.ask(Prepare(run="c", epoch=1), *plan(*rows)), Prepared)
    (worker,) = psutil.Process(jetson.process.pid).children()
    worker.send_signal(number)
    failed, _ = ada.receive()
    assert (type(failed), failed.cause) == (Failed, FailureCause.CRASHED)
    assert number.name in failed.text
    assert isinstance(ada.ask(Prepare(run="d", epoch=1), *plan(recv("x"))), Prepared)
    (other,) = psutil.Process(jetson.process.pid).children()
    assert other.pid != worker.pid


@pytest.mark.slow
def test_large_values_go_out_and_come_back_in_chunks_under_credit(ada):
    assert isinstance(ada.ask(Hello(major=1, name="ada")), Welcome)
    assert isinstance(ada.ask(Prepare(run="r", epoch=1), *plan(recv("x"), send("x"))), Prepared)
    data = os.urandom(3 * 2**20 + 4)
    ada.say(Execute(run="r", epoch=1, program="p"))
    ada.say(value("x", data, chunk_bytes=2**20), data[: 2**20])
    for index in (1, 2, 3):
        ada.say(Chunk(transfer=1, index=index), data[index * 2**20 : (index + 1) * 2**20])
    assert take(ada) == ("x", data)


@pytest.mark.slow
def test_readings_stream_until_they_are_stopped(ada):
    assert isinstance(ada.ask(Hello(major=1, name="ada")), Welcome)
    first, second = ada.ask(Meter(period_s=0.05)), ada.receive()[0]
    assert (type(first), type(second)) == (Reading, Reading)
    assert second.at_s > first.at_s
    assert second.joules >= first.joules


@pytest.mark.long
@pytest.mark.slow
def test_two_devices_stream_to_each_other(tmp_path):
    with (
        agent(tmp_path / "a", *TRUST, name="left") as left,
        agent(tmp_path / "b", *TRUST, name="right") as right,
        RawPeer(left.port, left.key, ADA) as to_left,
        RawPeer(right.port, right.key, ADA) as to_right,
    ):
        members = [
            {"name": name, "key": one.key, "address": f"127.0.0.1:{one.port}"}
            for name, one in (("left", left), ("right", right))
        ]
        for peer in (to_left, to_right):
            peer.say(Hello(major=1, name="ada"))
        for peer in (to_left, to_right):
            assert isinstance(peer.receive()[0], Welcome)
            assert peer.ask(Roster(home="h"), json.dumps(members).encode()) == RosterSet(home="h")
        assert isinstance(
            to_left.ask(Prepare(run="r", epoch=1), *plan(recv("x"), send("x", "right"))), Prepared
        )
        rows = [recv("x", "left"), add("x", "x", "y"), send("y")]
        assert isinstance(to_right.ask(Prepare(run="r", epoch=1), *plan(*rows)), Prepared)
        for peer in (to_left, to_right):
            peer.say(Execute(run="r", epoch=1, program="p"))
        data = floats(*range(100_000))
        to_left.say(value("x", data, chunk_bytes=2**20), data)
        assert take(to_right) == ("y", floats(*range(0, 200_000, 2)))
        assert isinstance(to_left.receive()[0], Done)
        assert isinstance(to_right.receive()[0], Done)
        probed = to_left.ask(Probe(task="t", peer="right", nbytes=2**20, repeats=3))
        assert (type(probed), len(probed.seconds)) == (Probed, 3)
        to_right.say(Goodbye())  # right knows left no more: what comes from there is not even heard
        assert to_left.ask(Ping(seq=1)).seq == 1


@pytest.mark.slow
def test_a_device_that_was_refused_gets_through_as_soon_as_it_is_known(tmp_path):
    with (
        agent(tmp_path / "a", *TRUST, name="left") as left,
        agent(tmp_path / "b", *TRUST, name="right") as right,
        RawPeer(left.port, left.key, ADA) as to_left,
        RawPeer(right.port, right.key, ADA) as to_right,
    ):
        row = {"name": "right", "key": right.key, "address": f"127.0.0.1:{right.port}"}
        for peer in (to_left, to_right):
            assert isinstance(peer.ask(Hello(major=1, name="ada")), Welcome)
        to_left.ask(Roster(home="h"), json.dumps([row]).encode())
        to_left.say(Probe(task="t", peer="right", nbytes=2**20, repeats=2))
        assert to_left.hears_nothing()  # right does not know left
        row = {"name": "left", "key": left.key, "address": f"127.0.0.1:{left.port}"}
        to_right.ask(Roster(home="h"), json.dumps([row]).encode())
        probed, _ = to_left.receive()
        assert (type(probed), len(probed.seconds)) == (Probed, 2)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it takes 30 s")
def test_a_worker_that_hangs_is_killed_and_named(tmp_path):
    with agent(tmp_path, *TRUST) as running, RawPeer(running.port, running.key, ADA) as peer:
        assert isinstance(peer.ask(Hello(major=1, name="ada")), Welcome)
        assert isinstance(
            peer.ask(Prepare(run="r", epoch=1), *plan(recv("x"), cut("x", "a"))), Prepared
        )
        (worker,) = psutil.Process(running.process.pid).children()
        worker.suspend()
        peer.say(Execute(run="r", epoch=1, program="p"))
        peer.say(value("x", EIGHT), EIGHT)
        failed, _ = peer.receive()
        assert (type(failed), failed.cause) == (Failed, FailureCause.HUNG)
        assert not psutil.pid_exists(worker.pid) or worker.status() == psutil.STATUS_ZOMBIE
        assert "stopped, or hung" in peer.ask(Prepare(run="r", epoch=2), *plan(recv("x"))).text
        assert isinstance(peer.ask(Prepare(run="another", epoch=1), *plan(recv("x"))), Prepared)
