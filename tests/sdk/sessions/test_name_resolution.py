"""Names of hosts are resolved away from the link: who is slow to answer for one keeps nobody else
waiting.
"""

import threading
from dataclasses import replace

import pytest
import zmq
from tests.timeouts import TIMEOUT_S

from potluck.errors import DeviceGone, ProtocolError
from potluck.sessions import controller
from potluck.sessions.connections import Keys
from potluck.sessions.curve_link import CurveLink
from potluck.sessions.events import CloseSession, OpenSession, RequestAll
from potluck.testing.hostile_agent import HONEST, TakenOver
from potluck_wire.messages import Measure
from potluck_wire.name_resolution import UNKNOWN, Resolver

MEASURE = (Measure(task="t", rows=(1, 2)), (b"{}",))


class Names:
    """A name server that answers when it is told to, and writes down who asked, and in which
    thread.
    """

    def __init__(self, **known):
        self.known, self.may_answer = known, threading.Event()
        self.asked, self.threads = [], []

    def __call__(self, host):
        self.asked.append(host)
        self.threads.append(threading.current_thread())
        assert self.may_answer.wait(TIMEOUT_S)
        return self.known.get(host, UNKNOWN)

    def answer(self):
        self.may_answer.set()
        for thread in self.threads:
            thread.join(TIMEOUT_S)


@pytest.fixture
def names():
    server = Names(**{"jetson.local": "127.0.0.1"})
    yield server
    server.answer()


@pytest.fixture
def link(names):
    public, secret = (part.decode() for part in zmq.curve_keypair())
    made = CurveLink(Keys(public=public, secret=secret), resolver=Resolver(names, threading.Thread))
    yield made
    made.close()


def join(link, agent, device, **where):
    return link.ask(
        OpenSession(device=device, address=replace(agent.address, **where), key=agent.key)
    )


def test_a_name_that_takes_long_keeps_nobody_waiting_and_is_connected_then(
    link, names, monkeypatch
):
    monkeypatch.setattr(controller, "JOIN_S", TIMEOUT_S)
    with TakenOver(HONEST) as slow, TakenOver(HONEST) as friend:
        joining = join(link, slow, "slow", host="jetson.local")
        join(link, friend, "friend").result(TIMEOUT_S)
        link.ask(RequestAll(requests={"friend": MEASURE})).result(TIMEOUT_S)
        assert not joining.done()
        assert names.asked == ["jetson.local"]
        names.answer()
        joining.result(TIMEOUT_S)
        link.ask(RequestAll(requests={"slow": MEASURE})).result(TIMEOUT_S)


def test_a_name_that_never_gets_an_answer_is_given_up_in_time(link, monkeypatch):
    monkeypatch.setattr(controller, "JOIN_S", 0.3)
    with TakenOver(HONEST) as slow:
        error = join(link, slow, "slow", host="silent.local").exception(TIMEOUT_S)
    assert (type(error), error.device) == (DeviceGone, "slow")
    assert "silent.local" in str(error)


def test_a_name_that_nobody_knows_is_told_at_once(link, names, monkeypatch):
    monkeypatch.setattr(controller, "JOIN_S", 10 * TIMEOUT_S)
    names.may_answer.set()
    with TakenOver(HONEST) as agent:
        error = join(link, agent, "a", host="nobody.local").exception(TIMEOUT_S)
    assert (type(error), error.device) == (DeviceGone, "a")
    assert "nobody.local" in str(error)


@pytest.mark.faults
@pytest.mark.parametrize("host", ["jetson.local", "127.0.0.1"])
def test_a_key_that_cannot_be_costs_that_device_and_never_the_link(link, names, host):
    with TakenOver(HONEST) as agent:
        joining = link.ask(
            OpenSession(device="a", address=replace(agent.address, host=host), key="x")
        )
        join(link, agent, "b").result(TIMEOUT_S)
        names.answer()
        error = joining.exception(TIMEOUT_S)
        assert (type(error), error.device) == (ProtocolError, "a")
        link.ask(RequestAll(requests={"b": MEASURE})).result(TIMEOUT_S)


def test_who_left_before_its_name_was_known_is_not_connected(link, names):
    with TakenOver(HONEST) as agent:
        joining = join(link, agent, "a", host="jetson.local")
        link.notify(CloseSession(device="a"))
        assert isinstance(joining.exception(TIMEOUT_S), DeviceGone)
        names.answer()
        join(link, agent, "a").result(TIMEOUT_S)  # and later it is
