"""A real link with an agent that was taken over and one that was not: whatever the one says, the
other works on.
"""

import pytest
import zmq
from tests.timeouts import TIMEOUT_S

from potluck.errors import PotluckError
from potluck.sanitized_text import harmless
from potluck.sessions.connections import Keys
from potluck.sessions.curve_link import CurveLink
from potluck.sessions.events import CloseSession, OpenSession, RequestAll, StartExecution
from potluck.sessions.traffic import Raw
from potluck.testing.hostile_agent import DOES, HONEST, TakenOver
from potluck_wire.messages import Measure, Prepare, Probe

FEED = Raw(dtype="float32", shape=(2,), data=bytes(8))


@pytest.fixture(scope="module")
def link():
    """One link for all rows: it has to outlive them all, without a fault."""
    public, secret = (part.decode() for part in zmq.curve_keypair())
    made = CurveLink(Keys(public=public, secret=secret))
    yield made
    made.close()


@pytest.fixture(scope="module")
def friend(link):
    with TakenOver(HONEST) as agent:
        link.ask(OpenSession(device="friend", address=agent.address, key=agent.key)).result(
            TIMEOUT_S
        )
        yield "friend"


def ask_all(link, device):
    """All that a notebook asks of a device, at once."""
    launch = StartExecution(
        run=device,
        epoch=1,
        program="p",
        step=0,
        devices=(device,),
        feeds={device: {"x": FEED}},
        expects={device: {"y": 8}},
    )
    questions = (
        RequestAll(requests={device: (Prepare(run=device, epoch=1), (b"{}",))}),
        RequestAll(requests={device: (Measure(task="t", rows=(1, 2)), (b"{}",))}),
        RequestAll(requests={device: (Probe(task="t", peer="home", repeats=2), ())}),
        launch,
    )
    return [link.ask(question) for question in questions]


def errors_of(futures):
    return [future.exception(TIMEOUT_S) for future in futures]


@pytest.mark.few(13)
@pytest.mark.parametrize("row", DOES)
def test_the_link_outlives_an_agent(link, friend, row):
    with TakenOver(row) as agent:
        futures = [link.ask(OpenSession(device="foe", address=agent.address, key=agent.key))]
        if futures[0].exception(TIMEOUT_S) is None:
            futures += ask_all(link, "foe")
        assert agent.did.wait(TIMEOUT_S)
        assert errors_of(ask_all(link, friend)) == [None] * 4
        link.notify(CloseSession(device="foe"))
        errors = [error for error in errors_of(futures) if error is not None]
    assert all(isinstance(error, PotluckError) for error in errors)
    assert all(harmless(str(error)) == str(error) for error in errors)
    assert link.connected(friend)
