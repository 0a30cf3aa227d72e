"""A real agent from start to end: pairing and forgetting, ports, state directories, signals, its
parent's death.
"""

import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress

import psutil
import pytest
import zmq
from tests.agent.agents import Keys, RawPeer, agent, command, pair
from tests.timeouts import TIMEOUT_S

from potluck_agent import keys
from potluck_agent.cli import arguments, main
from potluck_wire import limits
from potluck_wire.messages import (
    Channel,
    Hello,
    Ping,
    Pong,
    Rejected,
    Roster,
    RosterSet,
    Value,
    Welcome,
)
from potluck_wire.pairing import PairingFailed

ADA, STRANGER = Keys(), Keys()
TRUST = ("--trust", f"{ADA.public}:ada")


# --- pairing --------------------------------------------------------------------------------------


def test_pairing_over_the_wire_lets_exactly_that_key_in(tmp_path):
    bob = Keys()
    with agent(tmp_path, "--pair") as running:
        with pytest.raises(PairingFailed) as failure:
            pair(running.port, "00000000" if running.code != "00000000" else "11111111", bob)
        assert (failure.value.code, failure.value.tries_left) == ("wrong-code", 2)
        with RawPeer(running.port, running.key, bob) as early:
            early.say(Ping(seq=1))
            assert early.hears_nothing()
        assert pair(running.port, running.code, bob, "bob").paired.key == running.key
        with RawPeer(running.port, running.key, bob) as peer:
            assert isinstance(peer.ask(Ping(seq=1)), Pong)
        with pytest.raises(PairingFailed) as failure:
            pair(running.port, running.code, STRANGER)
        assert failure.value.code == "closed"
        assert "bob" in running.command("peers").stdout


def test_a_forgotten_notebook_is_cut_off_at_once(tmp_path):
    bob = Keys()
    with agent(tmp_path, "--pair", *TRUST) as running:
        pair(running.port, running.code, bob, "bob")
        with (
            RawPeer(running.port, running.key, bob) as peer,
            RawPeer(running.port, running.key, ADA) as other,
        ):
            assert isinstance(peer.ask(Ping(seq=1)), Pong)
            assert isinstance(other.ask(Ping(seq=1)), Pong)
            monitor = peer.sockets[Channel.PULSE].get_monitor_socket(zmq.EVENT_DISCONNECTED)
            assert running.command("forget", "bob").returncode == 0
            assert monitor.poll(TIMEOUT_S * 1000)  # the connection itself is cut
            peer.say(Ping(seq=2))
            assert peer.hears_nothing()
            while not other.sockets[Channel.PULSE].poll(100):
                other.say(
                    Ping(seq=3)
                )  # it comes back by itself; what the old connection had is lost
            assert other.receive(Channel.PULSE)[0].seq == 3
        assert running.command("forget", "bob").returncode == 1


def test_with_a_forgotten_notebook_the_members_of_its_home_are_cut_off(tmp_path):
    """They were let in by its roster alone."""
    phone = Keys()
    roster = [{"name": "phone", "key": phone.public, "address": "127.0.0.1:1"}]
    value = Value(transfer=1, run="none", name="x", shape=(2,), nbytes=8, chunk_bytes=8)
    with agent(tmp_path, "--pair") as running, ExitStack() as stack:
        pair(running.port, running.code, ADA, "ada")
        ada = stack.enter_context(RawPeer(running.port, running.key, ADA))
        assert isinstance(ada.ask(Hello(major=1, name="ada")), Welcome)
        assert isinstance(ada.ask(Roster(home="h"), json.dumps(roster).encode()), RosterSet)
        with RawPeer(running.port, running.key, phone) as member:
            member.say(value, bytes(8))
            assert isinstance(member.receive(Channel.DATA)[0], Rejected)  # it is heard
            monitor = member.sockets[Channel.DATA].get_monitor_socket(zmq.EVENT_DISCONNECTED)
            assert running.command("forget", "ada").returncode == 0
            assert monitor.poll(TIMEOUT_S * 1000)
            member.say(value, bytes(8))
            assert member.hears_nothing()
            member.sockets[Channel.DATA].disable_monitor()
            monitor.close(0)


@pytest.mark.long
def test_a_code_that_strangers_guessed_at_is_shown_no_longer(tmp_path):
    wrong = "00000000"
    with agent(tmp_path) as running:
        with shower(tmp_path) as (process, code):
            assert code != wrong
            for _ in range(limits.PAIRING_TRIES):
                with pytest.raises(PairingFailed, match="wrong"):
                    pair(running.port, wrong, STRANGER)
            _, error = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 1
        assert "the code is dead" in error
        assert "Was it you?" in error
        assert running.command("token").returncode == 0  # the next one is not dead


@contextmanager
def shower(directory):
    """`potluck agent pair` in a terminal of its own, and the code that it shows."""
    line = [sys.executable, "-m", "potluck_agent", "pair", "--state", str(directory)]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process, "".join(process.stdout.readline().split("code ")[1].split()[:2])
    finally:
        process.kill()
        process.communicate()


@pytest.mark.few(1)
@pytest.mark.parametrize("n_times", [1, 2, 3])
def test_whoever_shows_a_code_learns_that_it_was_used_also_by_a_notebook_known_before(
    tmp_path, n_times
):
    bob = Keys()
    with agent(tmp_path) as running:
        for _ in range(n_times):
            with shower(tmp_path) as (process, code):
                pair(running.port, code, bob, "bob")
                output, error = process.communicate(timeout=TIMEOUT_S)
                assert (process.returncode, error) == (0, "")
                assert "paired with bob" in output


def test_whoever_shows_a_code_learns_that_the_device_could_not_keep_who_typed_it(tmp_path):
    """Here since it trusts as many as it can; as on a disk that is full at that moment."""
    for number in range(keys.MAX_PEERS):
        keys.add_peer(tmp_path, keys.TrustedPeer(name=f"n-{number}", key=f"{number:0>40}"))
    with agent(tmp_path) as running, shower(tmp_path) as (process, code):
        with pytest.raises(AssertionError, match="hung up"):
            pair(running.port, code, Keys(), "bob")
        _, error = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert "the code is over" in error
    assert str(tmp_path) in error


def test_whoever_shows_a_code_learns_that_the_agent_has_ended(tmp_path):
    with agent(tmp_path) as running, shower(tmp_path) as (process, _):
        running.process.kill()
        _, error = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert "the agent has ended" in error


@pytest.mark.parametrize("later", ["pair", "token"])
def test_of_two_that_ask_for_a_window_the_later_one_has_it(tmp_path, later):
    bob = Keys()
    with agent(tmp_path) as running, shower(tmp_path) as (first, _), ExitStack() as stack:
        if later == "pair":
            second, code = stack.enter_context(shower(tmp_path))
        else:
            code = running.command("token").stdout.strip()
        _, error = first.communicate(timeout=TIMEOUT_S)
        assert first.returncode == 1
        assert "another code or token was asked for" in error
        pair(running.port, code, bob, "bob")
        if later == "pair":
            output, error = second.communicate(timeout=TIMEOUT_S)
            assert (second.returncode, error) == (0, "")
            assert "paired with bob" in output


@pytest.mark.long
@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid"])
@pytest.mark.parametrize("port", ["0", "28000"])
def test_an_address_that_is_not_this_device_s_is_named(tmp_path, host, port):
    answer = command("--port", port, "--bind", host, "--state", str(tmp_path), "--no-mdns")
    assert answer.returncode == 1
    assert host in answer.stderr
    assert "--bind" in answer.stderr


def test_a_token_works_once(tmp_path):
    with agent(tmp_path) as running:
        token = running.command("token").stdout.strip()
        assert pair(running.port, token, ADA).paired.key == running.key
        with pytest.raises(PairingFailed) as failure:
            pair(running.port, token, STRANGER)
        assert failure.value.code == "closed"


def test_commands_to_an_agent_that_does_not_run_say_so(tmp_path):
    answer = command("token", "--state", str(tmp_path))
    assert (answer.returncode, answer.stdout) == (1, "")
    assert "no agent runs" in answer.stderr


@pytest.mark.long
def test_a_device_that_changed_its_identity_is_not_talked_to(tmp_path):
    with agent(tmp_path / "a", *TRUST) as first:
        port, key = first.port, first.key
    with agent(tmp_path / "b", *TRUST, port=port), RawPeer(port, key, ADA) as peer:
        peer.say(Ping(seq=1))
        assert peer.hears_nothing()


# --- starting and ending --------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    "offset",
    [limits.CONTROL_OFFSET, limits.PAIRING_OFFSET, limits.DATA_OFFSET, limits.PULSE_OFFSET],
)
def test_each_of_the_four_ports_is_needed_and_one_in_use_is_named(tmp_path, offset):
    with ExitStack() as stack:
        base, sockets = four_free_ports(stack)
        for other in set(range(4)) - {offset}:
            sockets[other].close()
        answer = command(
            "--port", str(base), "--bind", "127.0.0.1", "--state", str(tmp_path), "--no-mdns"
        )
    assert answer.returncode == 1
    assert f"port {base + offset}" in answer.stderr
    assert "--port" in answer.stderr


def four_free_ports(stack):
    """The first of four ports in a row, where neither connections nor agents get theirs, and
    sockets that hold them.
    """
    for base in random.SystemRandom().sample(range(10_000, 20_000, 4), 100):
        sockets = [stack.enter_context(socket.socket()) for _ in range(4)]
        with suppress(OSError):
            for offset, taken in enumerate(sockets):
                taken.bind(("127.0.0.1", base + offset))
                taken.listen()
            return base, sockets
    raise AssertionError("no four free ports in a row")


@pytest.mark.long
def test_two_agents_cannot_share_a_state_directory(tmp_path):
    with agent(tmp_path):
        answer = command(
            "--port", "0", "--bind", "127.0.0.1", "--state", str(tmp_path), "--no-mdns"
        )
    assert answer.returncode == 1
    assert "--state" in answer.stderr


@pytest.mark.long
@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_may_be_started_again_in_the_instant_in_which_it_ends(tmp_path, number):
    with agent(tmp_path) as running:
        # its parent has not looked yet: it is ending, or a zombie
        running.process.send_signal(number)
        with agent(tmp_path, port=running.port) as successor:
            assert successor.key == running.key


@pytest.fixture
def heard():
    """Signals have their usual meaning, under `nohup` too: whoever is started has that of ours."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.long
@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_in_good_order(tmp_path, number, heard):
    with agent(tmp_path) as running:
        running.process.send_signal(number)
        assert running.process.wait(TIMEOUT_S) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["agent.log", "identity.json"]


@pytest.mark.long
@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_it_dies_with_whoever_started_it_even_by_kill_9(tmp_path):
    line = [
        "--name",
        "x",
        "--port",
        "0",
        "--bind",
        "127.0.0.1",
        "--state",
        str(tmp_path),
        "--no-mdns",
        "--json",
    ]
    script = (
        "import subprocess, sys, time\n"
        f"p = subprocess.Popen([sys.executable, '-m', 'potluck_agent', *{line!r}, "
        "'--die-with-parent'])\n"
        "print(p.pid, flush=True)\ntime.sleep(1000)\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        pid = int(starter.stdout.readline())
        assert json.loads(starter.stdout.readline())["name"] == "x"
        orphan = psutil.Process(pid)
    finally:
        starter.kill()
        starter.wait()
        starter.stdout.close()
    gone, _ = psutil.wait_procs([orphan], TIMEOUT_S)
    assert gone == [orphan]


@pytest.mark.long
@pytest.mark.slow
def test_two_devices_of_one_name_are_both_announced(tmp_path):
    from potluck.discover.mdns import browse

    def ports(found):
        return sorted(address.port for addresses in found.values() for address in addresses)

    def announced(*agents):
        """What is found once these are; names are told apart by who was first, so each is waited
        for.
        """
        wanted = {agent.port for agent in agents}
        found = browse(TIMEOUT_S, enough=lambda found: wanted <= set(ports(found)))
        return {
            name: tuple(a for a in places if a.port in wanted) for name, places in found.items()
        }

    twin = f"twin-{secrets.token_hex(4)}"  # others on this network may test the same
    with agent(tmp_path / "a", "--mdns", name=twin) as first:
        assert ports(announced(first)) == [first.port]
        with agent(tmp_path / "b", "--mdns", name=twin) as second:
            found = announced(first, second)
            assert ports(found) == sorted((first.port, second.port))
            assert max(len(places) for places in found.values()) == 1


@pytest.mark.long
def test_the_key_stays_the_same_over_a_restart(tmp_path):
    with agent(tmp_path) as first:
        key = first.key
    with agent(tmp_path) as second:
        assert second.key == key


def test_importing_the_agent_loads_nothing_heavy():
    script = (
        "import sys, potluck_agent.cli.main, potluck_agent.net.event_loop, "
        "potluck_agent.core.machine\n"
        "heavy = ('torch', 'numpy', 'scipy', 'onnx', 'onnxruntime', 'zeroconf', 'spake2')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"


@pytest.mark.skipif(os.name == "nt", reason="there is no such limit")
def test_too_few_descriptors_are_said_in_one_sentence(tmp_path):
    started = subprocess.run(
        [
            "sh",
            "-c",
            f"ulimit -n 60; exec {sys.executable} -m potluck_agent start --state {tmp_path}",
        ],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert started.returncode != 0
    assert "may have 60 files and connections open, and needs" in started.stderr
    assert "Traceback" not in started.stderr


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_too_little_memory_and_too_few_threads_are_said_in_one_sentence(
    tmp_path, monkeypatch, capsys, error
):
    def fail(*_):
        raise error

    monkeypatch.setattr("potluck_agent.cli.main.check_descriptors", fail)
    given = arguments.parser().parse_args(["start", "--state", str(tmp_path)])
    assert main.run(given) == 1
    assert "no more memory or threads" in capsys.readouterr().err
