"""Server sockets: who is admitted, and that an agent whose sockets are open does not start."""

import socket

import pytest
import zmq
from tests.timeouts import TIMEOUT_S
from zmq.utils import z85

from potluck_agent.errors import AgentError
from potluck_agent.keys import Identity
from potluck_agent.net import server_sockets
from potluck_wire.limits import LINGER_MS, ZAP_DOMAIN

PUBLIC, SECRET = zmq.curve_keypair()
KEY = PUBLIC.decode()
REQUEST = [b"1.0", b"7", ZAP_DOMAIN.encode(), b"127.0.0.1", b"", b"CURVE", z85.decode(KEY)]


def changed(index, value):
    return [*REQUEST[:index], value, *REQUEST[index + 1 :]]


def test_admits_a_trusted_key_and_hangs_it_on_every_message():
    assert server_sockets.zap_reply(REQUEST, {KEY}.__contains__) == [
        b"1.0",
        b"7",
        b"200",
        b"",
        KEY.encode(),
        b"",
    ]


@pytest.mark.parametrize(
    ("request_", "admits"),
    [
        (REQUEST, lambda key: False),
        (changed(0, b"2.0"), lambda key: True),
        (changed(2, b""), lambda key: True),
        (changed(2, b"other"), lambda key: True),
        (changed(5, b"NULL"), lambda key: True),
        (changed(5, b"PLAIN"), lambda key: True),
        (changed(6, b"short"), lambda key: True),
    ],
)
def test_refuses_everybody_else(request_, admits):
    assert server_sockets.zap_reply(request_, admits)[2:] in (
        [b"400", b"this key is not trusted", b"", b""],
        [b"400", b"not CURVE, or another domain", b"", b""],
    )


@pytest.mark.parametrize("request_", [[], [b"1.0"], REQUEST[:-1], [*REQUEST, b"more"]])
def test_a_request_that_does_not_hold_is_refused_not_raised(request_):
    assert server_sockets.zap_reply(request_, lambda key: True)[2] == b"500"


def test_an_authenticator_that_fails_lets_nobody_in():
    def broken(key):
        raise RuntimeError("disk full")

    assert server_sockets.zap_reply(REQUEST, broken)[2] == b"500"


def test_strangers_who_come_while_nobody_looks_hold_nobody_up():
    """ZeroMQ's one thread tells each connection, and waits where too many were told and not heard
    of. Then closing would wait for ever, too.
    """
    context = zmq.Context()
    identity = Identity(public=KEY, secret=SECRET.decode())
    made = server_sockets.ServerSockets(context, identity, lambda key: True, "127.0.0.1", 0)
    try:
        for _ in range(1_300):
            socket.create_connection(("127.0.0.1", made.port), TIMEOUT_S).close()
        with socket.create_connection(("127.0.0.1", made.port), TIMEOUT_S) as last:
            assert last.recv(1)  # a greeting
    finally:
        for monitor in made.monitors.values():  # so that a failure ends
            while monitor.poll(0):
                monitor.recv_multipart()
        made.close()
        context.destroy(LINGER_MS)


@pytest.mark.parametrize("channel", server_sockets.OFFSETS)
def test_without_any_authenticator_nobody_comes_in(channel):
    """Otherwise libzmq lets everybody in where none answers."""
    context = zmq.Context()
    identity = Identity(public=KEY, secret=SECRET.decode())
    made = server_sockets.ServerSockets(context, identity, lambda key: True, "127.0.0.1", 0)
    made.zap.unbind("inproc://zeromq.zap.01")
    keys = tuple(part.decode() for part in zmq.curve_keypair())
    probe = server_sockets.SelfTestClient(context, made, identity, channel, "stranger", keys)
    try:
        assert probe.monitor.poll(TIMEOUT_S * 1000)
        probe.watch()
        assert probe.turned_away
        assert not probe.let_in
    finally:
        probe.close()
        made.close()
        context.destroy(LINGER_MS)


# --- the self-test --------------------------------------------------------------------------------


def knock(context=None):
    """Open the sockets and test them as at the start of an agent."""
    context = context or zmq.Context()
    identity = Identity(public=KEY, secret=SECRET.decode())
    made = None
    try:
        made = server_sockets.ServerSockets(context, identity, lambda key: False, "127.0.0.1", 0)
        server_sockets.self_test(context, made, identity)
    finally:
        if made is not None:
            made.close()
        context.destroy(LINGER_MS)


def test_a_sound_door_passes():
    knock()


def without(option, value):
    """A context whose ROUTERs have this value for this option (None: they lack it)."""

    class Weak(zmq.Socket):
        def __setattr__(self, name, given):
            set_to = value if name == option else given
            if set_to is not None:
                super().__setattr__(name, set_to)

    class Context(zmq.Context):
        def socket(self, kind, **more):
            return super().socket(kind, **({"socket_class": Weak} if kind == zmq.ROUTER else more))

    return Context()


@pytest.mark.parametrize(("option", "value"), [("curve_server", False), ("zap_domain", None)])
def test_a_weakened_socket_keeps_the_agent_from_starting(option, value):
    with pytest.raises(AgentError, match="self-test failed"):
        knock(without(option, value))


def test_an_authenticator_that_says_yes_keeps_the_agent_from_starting(monkeypatch):
    sound = server_sockets.zap_reply
    monkeypatch.setattr(
        server_sockets, "zap_reply", lambda frames, admits: sound(frames, lambda key: True)
    )
    with pytest.raises(AgentError, match="a stranger came in"):
        knock()


def test_an_authenticator_that_is_dead_keeps_the_agent_from_starting(monkeypatch):
    monkeypatch.setattr(server_sockets, "TEST_S", 0.5)
    monkeypatch.setattr(server_sockets.ServerSockets, "answer_zap", lambda self: None)
    with pytest.raises(AgentError, match="self-test failed"):
        knock()


def test_without_encryption_or_with_an_old_library_it_says_so(monkeypatch):
    monkeypatch.setattr(server_sockets.zmq, "has", lambda what: False)
    with pytest.raises(AgentError, match="libsodium"):
        server_sockets.check_library()
    monkeypatch.undo()
    monkeypatch.setattr(server_sockets.zmq, "zmq_version_info", lambda: (4, 3, 1))
    with pytest.raises(AgentError, match="known holes"):
        server_sockets.check_library()
