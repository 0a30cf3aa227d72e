"""A real agent whose worker was taken over: whatever it says down the pipe ends it, and never the
agent.
"""

import pytest
import zmq
from tests.agent.agents import Keys, RawPeer, agent
from tests.agent.core.core_driver import add, cut, plan, recv, send, value
from tests.timeouts import TIMEOUT_S

from potluck.testing.hostile_worker import DOES, HONEST
from potluck_wire.messages import (
    Channel,
    Commit,
    Committed,
    Credit,
    Done,
    Execute,
    Goodbye,
    Hello,
    Measure,
    Measured,
    Ping,
    Pong,
    Prepare,
    Prepared,
    Value,
    Welcome,
)

ADA = Keys()
TRUST = ("--trust", f"{ADA.public}:ada")
EIGHT = bytes(8)
PLAN = plan(recv("x"), add("x", "x", "a"), cut("a", "b"), send("b"), segments=("s",))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Where the next worker reads what it does."""
    return tmp_path_factory.mktemp("row") / "row"


@pytest.fixture(scope="module")
def jetson(tmp_path_factory, file):
    """One agent for all rows: it has to outlive them all, without a fault."""
    file.write_text(HONEST)
    program = ("potluck.testing.hostile_worker", str(file))
    with agent(
        tmp_path_factory.mktemp("jetson"), *TRUST, "--hang", "1", program=program
    ) as running:
        yield running


def work_through(ada):
    """A session as far as it goes: a plan, a step, a measurement; what was answered to each."""
    heard = [ada.ask(Hello(major=1, name="ada"))]
    if isinstance(heard[-1], Welcome):
        heard.append(ada.ask(Measure(task="t", rows=(1,)), b"{}"))
        heard.append(ada.ask(Prepare(run="r", epoch=1), *PLAN))
    if isinstance(heard[-1], Prepared):
        heard.append(ada.ask(Commit(run="r", epoch=1)))
        ada.say(value(), EIGHT)
        ada.say(Execute(run="r", epoch=1, program="p"))
        heard.append(outcome(ada))
    return [type(message) for message in heard]


def outcome(ada):
    """The end of the step; its values are acknowledged meanwhile."""
    poller = zmq.Poller()
    for channel in (Channel.CONTROL, Channel.DATA):
        poller.register(ada.sockets[channel], zmq.POLLIN)
    while True:
        ready = dict(poller.poll(TIMEOUT_S * 1000))
        if ada.sockets[Channel.CONTROL] in ready:
            return ada.receive()[0]
        assert ready, "the step does not end"
        message, _ = ada.receive(Channel.DATA)
        if isinstance(message, Value):
            ada.say(Credit(transfer=message.transfer, received_bytes=message.nbytes, done=True))


@pytest.mark.few(4)
@pytest.mark.parametrize("row", DOES)
def test_the_agent_outlives_its_worker(jetson, file, row):
    file.write_text(row)
    with RawPeer(jetson.port, jetson.key, ADA) as ada:
        work_through(ada)
        assert isinstance(ada.ask(Ping(seq=1)), Pong)
        ada.say(Goodbye())
    file.write_text(HONEST)
    with RawPeer(jetson.port, jetson.key, ADA) as ada:  # and works on with another
        assert isinstance(ada.ask(Hello(major=1, name="ada")), Welcome)
        assert isinstance(ada.ask(Measure(task="t", rows=(1,)), b"{}"), Measured)
        ada.say(Goodbye())
    assert jetson.alive


@pytest.mark.long
def test_a_worker_that_was_not_taken_over_does_all_of_it(jetson, file):
    file.write_text(HONEST)
    with RawPeer(jetson.port, jetson.key, ADA) as ada:
        assert work_through(ada) == [Welcome, Measured, Prepared, Committed, Done]
        ada.say(Goodbye())
