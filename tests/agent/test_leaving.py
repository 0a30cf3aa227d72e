"""A real agent whose readings break its owner's rules, and one that is told to end: notebooks hear
of it first, and what is under way has its time.
"""

import json
import signal
import sys

import pytest
from tests.agent.agents import Keys, RawPeer, agent, command
from tests.agent.core.core_driver import plan, recv
from tests.agent.meters.test_conditions import battery
from tests.agent.meters.test_meters import plant
from tests.timeouts import TIMEOUT_S

from potluck_wire import statement
from potluck_wire.messages import (
    Commit,
    Committed,
    Drop,
    Dropped,
    Goodbye,
    Hello,
    Leaving,
    Prepare,
    Prepared,
    RefusalCode,
    Refused,
    Staying,
    Welcome,
)
from potluck_wire.version import VERSION

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /sys")
ADA = Keys()
TRUST = ("--trust", f"{ADA.public}:ada")
HELLO = Hello(major=VERSION[0], minor=VERSION[1])


def begun(peer):
    """A session, and a run that is loaded."""
    assert isinstance(peer.ask(HELLO), Welcome)
    assert isinstance(peer.ask(Prepare(run="r", epoch=1), *plan(recv("x"))), Prepared)
    assert isinstance(peer.ask(Commit(run="r", epoch=1)), Committed)


@pytest.mark.long
def test_rules_are_looked_at_while_it_runs(tmp_path):
    root, state = tmp_path / "root", tmp_path / "state"
    plant(root, battery("Discharging", 50))
    rules = ("--min-battery", "30%", "--drain", "300", "--system-root", str(root))
    with agent(state, *TRUST, *rules) as running:
        with RawPeer(running.port, running.key, ADA) as peer:
            begun(peer)
            plant(root, battery("Discharging", 29))
            (message, _) = peer.receive()
            assert isinstance(message, Leaving)
            assert message.within_s == pytest.approx(300)
            assert "29%" in message.reason
            refusal = peer.ask(Prepare(run="s", epoch=1), *plan(recv("x")))
            assert (type(refusal), refusal.code) == (Refused, RefusalCode.LEAVING)
            second = running.command("status").stdout
            assert "battery at 30% or more" in second
            assert f"not now: {message.reason}" in second
            answer = json.loads(running.command("status", "--json").stdout)
            assert [run["name"] for run in answer["runs"]] == ["r"]  # it may move yet
            plant(root, battery("Charging", 36))
            assert isinstance(peer.receive()[0], Staying)
            assert isinstance(peer.ask(Prepare(run="s", epoch=1), *plan(recv("x"))), Prepared)
            peer.say(Goodbye())  # else it would be waited for
        log = (state / "agent.log").read_text()
        assert "wants to leave: its battery is at 29%" in log
        assert "takes part again" in log


@pytest.mark.long
def test_one_that_starts_against_a_rule_says_so_at_once(tmp_path):
    plant(tmp_path / "root", battery("Discharging", 50))
    with (
        agent(
            tmp_path / "state", *TRUST, "--only-on-mains", "--system-root", str(tmp_path / "root")
        ) as running,
        RawPeer(running.port, running.key, ADA) as peer,
    ):
        peer.say(HELLO)
        welcome, buffers = peer.receive()
        assert isinstance(welcome, Welcome)
        facts = statement.read(bytes(buffers[0]))
        assert facts["leaving"] == "it runs on its battery"
        assert facts["rules"] == ["only on mains"]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_end_it_waits_for_what_is_under_way_to_move(tmp_path, number):
    with agent(tmp_path, *TRUST) as running, RawPeer(running.port, running.key, ADA) as peer:
        begun(peer)
        running.process.send_signal(number)
        (message, _) = peer.receive()
        assert (type(message), message.within_s) == (Leaving, 60)
        assert running.alive
        assert isinstance(peer.ask(Drop(run="r")), Dropped)
        assert isinstance(peer.receive()[0], Goodbye)
        assert running.process.wait(TIMEOUT_S) == 0


@pytest.mark.long
@pytest.mark.parametrize("again", [True, False])
def test_told_twice_or_too_late_it_ends_all_the_same(tmp_path, again):
    drain = "300" if again else "0.5"
    with (
        agent(tmp_path, *TRUST, "--drain", drain) as running,
        RawPeer(running.port, running.key, ADA) as peer,
    ):
        begun(peer)
        running.process.send_signal(signal.SIGINT)
        assert isinstance(peer.receive()[0], Leaving)
        if again:
            running.process.send_signal(signal.SIGINT)
        assert running.process.wait(TIMEOUT_S) == 0


def test_a_rule_that_cannot_be_kept_here_is_refused_at_the_start(tmp_path):
    (tmp_path / "root").mkdir()
    answer = command(
        "--state", str(tmp_path), "--max-temp", "80", "--system-root", str(tmp_path / "root")
    )
    assert answer.returncode == 1
    assert "--max-temp: this machine tells no temperature" in answer.stderr
