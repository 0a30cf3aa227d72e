"""Two notebooks on one real agent: a worker process each, whose memory the agent divides."""

import json
import sys

import psutil
import pytest
from tests.agent.agents import Keys, RawPeer, agent
from tests.agent.core.core_driver import EIGHT, add, credit, plan, recv, send, value

from potluck_wire.fingerprint import fingerprint
from potluck_wire.messages import (
    Channel,
    Commit,
    Committed,
    Done,
    Drop,
    Dropped,
    Execute,
    Failed,
    Goodbye,
    Hello,
    Ping,
    Pong,
    Prepare,
    Prepared,
    RefusalCode,
    Refused,
    Value,
    Welcome,
)

ADA, BOB = Keys(), Keys()
TRUST = ("--trust", f"{ADA.public}:ada", "--trust", f"{BOB.public}:bob")
ROWS = (recv("x"), add("x", "x", "y"), send("y"))
MIB = 1 << 20


def load(peer, run, memory_bytes):
    assert isinstance(peer.ask(Hello(major=1)), Welcome)
    prepare = Prepare(run=run, epoch=1, memory_bytes=memory_bytes)
    assert isinstance(peer.ask(prepare, *plan(*ROWS)), Prepared)
    assert isinstance(peer.ask(Commit(run=run, epoch=1)), Committed)


def step(peer, run, number):
    """Bytes of the answer to one step."""
    peer.say(Execute(run=run, epoch=1, program="p", step=number))
    peer.say(value(run=run, step=number, transfer=number + 1, chunk_bytes=MIB), EIGHT)
    while not isinstance((heard := peer.receive(Channel.DATA))[0], Value):
        pass
    sent, (data,) = heard
    peer.say(credit(sent.transfer))
    return sent.run, bytes(data)


def soft_limits(workers):
    import resource

    return [resource.prlimit(worker.pid, resource.RLIMIT_DATA)[0] for worker in workers]


def until(peer, holds):
    """Ask for a sign of life until that holds."""
    for _ in range(10_000):
        if holds():
            return
        assert isinstance(peer.ask(Ping(seq=1)), Pong)
    raise AssertionError("it never came")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux limits the memory of workers")
def test_two_notebooks_compute_side_by_side_each_within_its_memory(tmp_path):
    with (
        agent(tmp_path, *TRUST, "--memory", "256MiB") as running,
        RawPeer(running.port, running.key, ADA) as ada,
        RawPeer(running.port, running.key, BOB) as bob,
    ):
        process = psutil.Process(running.process.pid)
        load(ada, "a", 100 * MIB)
        (first,) = process.children()
        (alone,) = soft_limits([first])
        load(bob, "b", 60 * MIB)
        assert len(process.children()) == 2
        (second,) = [child for child in process.children() if child != first]
        # 96 MiB are claimed by nobody: each may take 48 of them
        until(bob, lambda: alone - soft_limits([first])[0] == (256 - 148) * MIB)
        doubled = step(ada, "a", 0)[1]
        assert step(bob, "b", 0) == ("b", doubled)
        assert step(ada, "a", 1) == ("a", doubled)
        refused = ada.ask(Prepare(run="c", epoch=1, memory_bytes=97 * MIB), *plan(*ROWS))
        assert isinstance(refused, Done)  # of its steps; the answer comes behind them
        answers = [ada.receive()[0] for _ in range(2)]
        (refused,) = [answer for answer in answers if isinstance(answer, Refused)]
        assert (refused.code, refused.run) == (RefusalCode.MEMORY, "c")
        status = json.loads(running.command("status", "--json").stdout)
        assert [
            (row["notebook"], row["fingerprint"], row["limit_bytes"]) for row in status["workers"]
        ] == [
            ("ada", fingerprint(ADA.public), 148 * MIB),
            ("bob", fingerprint(BOB.public), 108 * MIB),
        ]
        assert [(row["name"], row["notebook"]) for row in status["runs"]] == [
            ("a", "ada"),
            ("b", "bob"),
        ]
        assert "a of ada" in running.command("status").stdout
        second.kill()
        assert isinstance(bob.receive()[0], Done)
        until(bob, lambda: second.pid not in [child.pid for child in process.children()])
        bob.say(Execute(run="b", epoch=1, program="p", step=1))
        failed, _ = bob.receive()
        assert isinstance(failed, Failed)
        assert step(ada, "a", 2) == ("a", doubled)  # it went on
        assert isinstance(bob.ask(Drop(run="b", epoch=-1)), Dropped)
        load(bob, "d", 60 * MIB)  # on a new one
        assert step(bob, "d", 0) == ("d", doubled)
        bob.say(Goodbye())
        until(ada, lambda: process.children() == [first])
        until(ada, lambda: soft_limits([first]) == [alone])
        assert step(ada, "a", 3) == ("a", doubled)
