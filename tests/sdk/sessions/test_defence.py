"""The notebook's last line of defence: what raises that nothing may raise costs one device or one
ticket.
"""

import pytest
import zmq
from tests.sdk.sessions.controller_driver import Play
from tests.timeouts import TIMEOUT_S

from potluck.errors import ProtocolError
from potluck.sessions.connections import AgentConnection, Keys
from potluck.sessions.controller import Controller
from potluck.sessions.curve_link import CurveLink
from potluck.sessions.events import OpenSession, Received, Reject, RequestAll, Tick
from potluck.testing.hostile_agent import HONEST, TakenOver
from potluck_wire import messages as m

FAULT = TypeError("unhashable")
ASKED = RequestAll(requests={"a": (m.Commit(run="r"), ())})


def survive(play, event):
    play.actions = play.controller.survive(event, FAULT, play.now_s)
    return play.ended()


def test_a_device_that_caused_it_loses_its_session_and_the_other_stays():
    play = Play("a", "b")
    play.launch(ticket=1, devices=("a",))
    play.launch(ticket=2, devices=("b",), step=1)
    ended = survive(play, Received(device="a", message=m.Prepared()))
    assert isinstance(ended[1].error, ProtocolError)
    assert ended[1].error.device == "a"
    assert play.controller.session("a") is None
    assert play.controller.session("b") is not None


def test_a_ticket_that_caused_it_is_rejected_and_the_devices_stay():
    play = Play("a", "b")
    ended = survive(play, RequestAll(ticket=7, requests=ASKED.requests))
    assert list(ended) == [7]
    assert play.controller.session("a") is not None


def test_where_nobody_is_to_blame_every_session_ends():
    play = Play("a", "b")
    survive(play, Tick())
    assert [play.controller.session(device) for device in "ab"] == [None, None]


@pytest.fixture
def link():
    public, secret = (part.decode() for part in zmq.curve_keypair())
    made = CurveLink(Keys(public=public, secret=secret))
    yield made
    made.close()


def join(link, agent, device="a"):
    return link.ask(OpenSession(device=device, address=agent.address, key=agent.key))


def raises(*_):
    raise FAULT


@pytest.mark.faults
@pytest.mark.parametrize("what", ["the event", "the way out, too"])
def test_a_real_link_lives_on(link, monkeypatch, what):
    with TakenOver(HONEST) as agent:
        join(link, agent).result(TIMEOUT_S)
        handle = Controller.handle

        def raises_once(controller, event, now_s):
            return raises() if isinstance(event, RequestAll) else handle(controller, event, now_s)

        with monkeypatch.context() as broken:
            broken.setattr(Controller, "handle", raises_once)
            if what == "the way out, too":
                broken.setattr(Controller, "survive", raises)
            assert isinstance(link.ask(ASKED).exception(TIMEOUT_S), ProtocolError)
        join(link, agent).result(TIMEOUT_S)
        assert link.ask(ASKED).result(TIMEOUT_S)


@pytest.mark.faults
def test_an_action_that_cannot_be_done_costs_its_device(link, monkeypatch):
    with TakenOver(HONEST) as agent:
        with monkeypatch.context() as broken:
            broken.setattr(AgentConnection, "open", raises)
            error = join(link, agent).exception(TIMEOUT_S)
        assert isinstance(error, ProtocolError)
        assert "could not be told or reached" in str(error)
        join(link, agent).result(TIMEOUT_S)


def test_rejects_are_told_with_a_reason():
    play = Play("a")
    (reject,) = [
        a
        for a in play.controller.survive(RequestAll(ticket=1, requests={}), FAULT, 0.0)
        if isinstance(a, Reject)
    ]
    assert "TypeError" in str(reject.error)
