"""What a person reads of an agent: at its start, in its log, and from another terminal."""

import json
import os
import subprocess
import sys

import psutil
import pytest
from tests.agent.agents import Keys, RawPeer, agent, command, pair
from tests.agent.core.core_driver import plan, recv

from potluck_agent import control_files, fault_log, keys
from potluck_agent.cli import status, status_lines
from potluck_agent.errors import AgentError
from potluck_agent.log_file import FILE, STRANGERS_LINES
from potluck_wire.fingerprint import fingerprint
from potluck_wire.messages import (
    Commit,
    Committed,
    FailureCause,
    Goodbye,
    Hello,
    Ping,
    Prepare,
    Welcome,
)
from potluck_wire.pairing import PairingFailed

ADA = Keys()
TRUST = ("--trust", f"{ADA.public}:ada")
DOCUMENT = {
    "name": "jetson",
    "fingerprint": "aaaaa-bbbbb",
    "addresses": ["192.168.1.7"],
    "port": 47600,
    "backends": {"torch": "2.13.0", "onnxruntime": "1.31.1"},
    "notebooks": [{"name": "ada", "fingerprint": "ccccc", "connected": True}],
    "log": "/home/ada/agent.log",
    "statement": {"memory_bytes": 2**31, "threads": 4, "cores": 8},
}


# --- facts ----------------------------------------------------------------------------------------


def fact(label, **changes):
    """The lines of one label, as they are told."""
    rows = status_lines.facts_of({**DOCUMENT, **changes})
    assert rows[0] == "potluck agent jetson"
    found = [row[2 + status_lines.WIDTH :] for row in rows[1:] if row[2:].startswith(label)]
    assert all(row.startswith("  ") for row in rows[1:])
    return found


def test_the_facts_are_told_with_their_units():
    assert fact("listens on") == ["192.168.1.7, ports 47600 to 47603"]
    assert fact("computes with") == ["torch 2.13.0, onnxruntime 1.31.1"]
    assert fact("threads") == ["4 (this machine has 8 cores)"]
    assert fact("memory") == ["2.0 GiB for tensors"]
    assert fact("paired with") == ["ada (ccccc), connected"]
    assert fact("paired with", notebooks=[]) == ["nobody yet"]
    assert fact("lacks") == []


@pytest.mark.parametrize(
    ("backends", "parts"),
    [
        ({}, ["torch or onnxruntime", "pip install"]),
        ({"onnxruntime": "1"}, ["no torch", 'pip install ".[torch]"']),
        ({"torch": "2"}, ["no onnxruntime", 'pip install ".[onnx]"']),
    ],
)
def test_what_is_missing_is_said_with_the_command_that_brings_it(backends, parts):
    (text,) = fact("lacks", backends=backends)
    assert all(part in text for part in parts)


def test_what_the_owner_left_out_is_not_missing():
    assert fact("lacks", backends={"torch": "2"}, chosen_backends=True) == []


def test_meters_connection_and_processors_are_told_where_they_are_known():
    meters = [{"name": "rapl", "source": "measured"}, {"name": "nvml", "source": ""}]
    connection = {"kind": "wifi", "bytes_per_s": 1.25e7, "frequency_hz": 5.18e9}
    processors = [
        {"name": "GPU 0", "kind": "cuda", "used": True, "reason": ""},
        {"name": "GPU 1", "kind": "cuda", "used": False, "reason": "its driver is too old\x1b[2J"},
    ]
    statement = {
        **DOCUMENT["statement"],
        "meters": meters,
        "connection": connection,
        "processors": processors,
    }
    assert fact("power", statement=statement) == ["measured by rapl"]
    assert fact("connection", statement=statement) == ["WiFi, 100 Mbit/s, 5.18 GHz"]
    text = "\n".join(status_lines.facts_of({**DOCUMENT, "statement": statement}))
    assert "GPU 0" in text
    assert "its driver is too old\\x1b[2J" in text


def test_the_next_step_is_pairing():
    assert "Now run `potluck agent pair`" in status_lines.next_step({**DOCUMENT, "notebooks": []})
    assert "Another notebook?" in status_lines.next_step(DOCUMENT)


@pytest.mark.long
def test_a_person_is_told_all_that_at_the_start(tmp_path):
    line = [sys.executable, "-m", "potluck_agent", "start", "--no-mdns", "--port", "0"]
    line += ["--state", str(tmp_path), "--die-with-parent", "--name", "jetson", "--memory", "1GiB"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    try:
        lines = [process.stdout.readline() for _ in range(8)]
        while not lines[-1].startswith("Now run"):
            assert lines[-1]
            lines.append(process.stdout.readline())
    finally:
        process.terminate()
        process.communicate()
    text = "".join(lines)
    assert lines[0].startswith("trying which processors")  # before the trials, which take seconds
    assert lines[1] == "potluck agent jetson\n"
    for part in ("listens on", "computes with  torch", "1.0 GiB", "nobody yet", str(tmp_path)):
        assert part in text
    assert "127.0.0.1" not in text or psutil.net_if_addrs().keys() == {"lo"}


# --- status ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_status_is_that_of_the_moment(tmp_path):
    with agent(tmp_path, *TRUST, "--memory", "1GiB") as running:
        output = running.command("status")
        assert output.returncode == 0, output.stderr
        for part in ("jetson", f"ports {running.port}", "1.0 GiB", "none: one starts", "run "):
            assert part in output.stdout
        with RawPeer(running.port, running.key, ADA) as peer:
            assert isinstance(peer.ask(Hello(major=1)), Welcome)
            assert peer.ask(Prepare(run="r", epoch=1), *plan(recv("x")))
            assert isinstance(peer.ask(Commit(run="r", epoch=1)), Committed)
            answer = json.loads(running.command("status", "--json").stdout)
            assert answer["running"]
            assert [
                (worker["notebook"], worker["state"], worker["limit_bytes"])
                for worker in answer["workers"]
            ] == [("ada", "ready", 1024**3)]
            assert answer["notebooks"] == [
                {"name": "ada", "fingerprint": fingerprint(ADA.public), "connected": True}
            ]
            assert [(run["name"], run["notebook"]) for run in answer["runs"]] == [("r", "ada")]
            assert "ada" in running.command("status").stdout
            peer.say(Goodbye())
            assert peer.ask(Ping(seq=1))
        assert (answer["pid"], answer["port"]) == (running.process.pid, running.port)
    assert not {control_files.ASK, control_files.STATUS} & {
        each.name for each in tmp_path.iterdir()
    }


@pytest.mark.long
def test_where_none_runs_that_is_said_and_nothing_is_made(tmp_path):
    answer = command("status", "--state", str(tmp_path / "none"))
    assert answer.returncode == status.NOT_RUNNING
    assert "no agent runs" in answer.stdout
    assert "potluck agent start" in answer.stdout
    assert not (tmp_path / "none").exists()
    answer = command("status", "--json", "--state", str(tmp_path / "none"))
    assert json.loads(answer.stdout)["running"] is False


@pytest.mark.skipif(os.name == "nt", reason="pipes with names")
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_faults_in_what_is_no_file_are_waited_for_by_nobody(tmp_path, make):
    make(tmp_path / fault_log.FILE)
    fault_log.keep(tmp_path, "a fault")
    assert fault_log.latest(tmp_path, 5) == []


def test_faults_of_an_agent_that_is_gone_are_told(tmp_path):
    fault_log.keep(tmp_path, "a fault in the agent while handling Hello\nTypeError: x")
    answer = command("status", "--json", "--state", str(tmp_path))
    (fault,) = json.loads(answer.stdout)["last_faults"]
    assert "while handling Hello" in fault


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives away")
def test_a_state_directory_of_another_user_is_named(tmp_path):
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(AgentError, match="belongs to the user #12345"):
        status.refuse_foreign(tmp_path)


@pytest.mark.skipif(not hasattr(os, "fork") or os.geteuid() != 0, reason="only root becomes others")
def test_a_state_directory_that_is_closed_to_this_user_is_named(tmp_path):
    state = tmp_path / "closed" / "state"
    state.mkdir(parents=True)
    state.parent.chmod(0o700)
    child = os.fork()
    if child == 0:
        os.setuid(12345)
        try:
            status.refuse_foreign(state)
        except AgentError as error:
            os._exit(0 if "closed to this user" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_an_agent_that_stands_still_is_no_running_one_without_words(tmp_path, monkeypatch):
    keys.open_state_dir(tmp_path)
    control_files.claim(tmp_path, {"name": "x", "port": 1})
    monkeypatch.setattr(status, "ANSWER_S", 0.1)
    with pytest.raises(AgentError, match="does not answer"):
        status.run(tmp_path, False, pytest.fail)


# --- the log --------------------------------------------------------------------------------------


def logged(directory):
    return (directory / FILE).read_text(encoding="utf-8")


@pytest.mark.long
def test_the_log_says_who_came_what_failed_and_nothing_secret(tmp_path):
    bob = Keys()
    with agent(tmp_path, "--pair", *TRUST) as running:
        wrong = "00000000" if running.code != "00000000" else "11111111"
        with pytest.raises(PairingFailed):
            pair(running.port, wrong, bob)
        pair(running.port, running.code, bob, "bob")
        with RawPeer(running.port, running.key, bob) as peer:
            assert isinstance(peer.ask(Hello(major=1)), Welcome)
            (worker,) = psutil.Process(running.process.pid).children()
            worker.kill()
            while "the worker is gone" not in logged(tmp_path):
                assert peer.ask(Ping(seq=1))
            peer.say(Goodbye(reason="done\nfor today"))
            while "said goodbye" not in logged(tmp_path):
                assert peer.ask(Ping(seq=2))
        token = running.command("token").stdout.strip()
    text = logged(tmp_path)
    bob_s = f"bob ({fingerprint(bob.public)})"
    for part in (
        "started: jetson",
        "a wrong pairing code was typed; 2 tries are left",
        f"paired with {bob_s}",
        f"{bob_s} is connected",
        "a worker starts",
        f"the worker is gone ({FailureCause.CRASHED}): the worker was killed from outside",
        f"{bob_s} is gone: it said goodbye, done\\nfor today",
        "open for pairing until it is used",
        "stopped, as it was told",
    ):
        assert part in text, part
    secret = json.loads((tmp_path / keys.IDENTITY).read_text())["secret"]
    assert not any(each in text for each in (secret, running.code, token, bob.secret, wrong))


@pytest.mark.long
def test_strangers_are_named_and_fill_no_disk(tmp_path):
    with agent(tmp_path, *TRUST) as running:
        for _ in range(2 * STRANGERS_LINES):
            with RawPeer(running.port, running.key, stranger := Keys()) as peer:
                peer.say(Ping(seq=1))
                assert peer.hears_nothing(50)
        with pytest.raises(PairingFailed):
            pair(running.port, "12345678", stranger)
        with RawPeer(running.port, running.key, ADA) as peer:
            assert peer.ask(Ping(seq=1))
    lines = [line for line in logged(tmp_path).splitlines() if "refused a stranger" in line]
    assert len(lines) == STRANGERS_LINES
    assert "127.0.0.1" in lines[0]
    assert "more lines about stranger were left out" in logged(tmp_path)
    assert "turned 127.0.0.1 away from the pairing port" in logged(tmp_path)


@pytest.mark.long
def test_the_log_goes_where_its_owner_says_at_the_level_that_they_say(tmp_path):
    path = tmp_path / "elsewhere.txt"
    with agent(tmp_path / "state", "--log-file", str(path), "--log-level", "error"):
        pass
    assert path.read_text() == ""
    assert not (tmp_path / "state" / FILE).exists()


@pytest.mark.long
def test_an_agent_that_cannot_start_says_why_in_its_log(tmp_path):
    with agent(tmp_path / "a") as running:
        answer = command("start", "--port", str(running.port), "--state", str(tmp_path / "b"))
    assert answer.returncode == 1
    assert "cannot listen" in logged(tmp_path / "b")
