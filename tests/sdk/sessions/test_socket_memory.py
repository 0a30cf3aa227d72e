"""What ZeroMQ holds of a device at the notebook: seen while no message is whole."""

import os
import sys

import pytest
import zmq
from tests.timeouts import TIMEOUT_S
from zmq.utils.monitor import recv_monitor_message

from potluck.sessions.connections import AgentConnection, Keys
from potluck.sessions.events import Address, Connect
from potluck.sessions.socket_memory import ConnectionMemory
from potluck_wire.frames import encode
from potluck_wire.limits import DATA_OFFSET, LINGER_MS, MAX_QUEUED, MIB
from potluck_wire.messages import Channel, Credit

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="Linux alone counts the bytes of a connection"
)
DATA, PART = Channel.DATA, bytes(MIB)


@pytest.fixture
def context():
    made = zmq.Context()
    yield made
    made.destroy(LINGER_MS)


def connected(context):
    """(an agent's data socket, our connection to it, the route back)."""
    agent, (key, secret) = context.socket(zmq.ROUTER), zmq.curve_keypair()
    agent.linger, agent.curve_server = LINGER_MS, True
    agent.curve_secretkey = secret
    address = Address(host="h", port=agent.bind_to_random_port("tcp://127.0.0.1") - DATA_OFFSET)
    public, secret = (part.decode() for part in zmq.curve_keypair())
    connection = AgentConnection(Connect(device="d", address=address, key=key.decode()))
    connection.open(context, DATA, "127.0.0.1", Keys(public=public, secret=secret))
    assert agent.poll(TIMEOUT_S * 1000)
    route, _ = agent.recv_multipart()  # the greeting
    while connection.monitors[DATA].poll(0):
        seen = recv_monitor_message(connection.monitors[DATA])
        if seen["event"] == zmq.EVENT_CONNECTED:
            connection.inflows[DATA].opened(seen["value"])
    return agent, connection, route


def test_what_a_device_does_not_read_waits_and_is_counted(context):
    connection = AgentConnection(
        Connect(device="d", address=Address(host="h", port=1), key="k" * 40)
    )
    public, secret = (part.decode() for part in zmq.curve_keypair())
    connection.open(context, DATA, "127.0.0.1", Keys(public=public, secret=secret))  # nobody there
    frames = encode(Credit(transfer=1))
    n_taken = MAX_QUEUED - 1  # and the greeting
    for n_sent in range(MAX_QUEUED + 100):
        assert connection.n_unsent == max(0, n_sent - n_taken)
        connection.send(DATA, frames)
    connection.sockets[DATA].disable_monitor()
    connection.monitors[DATA].close(0)


def test_a_message_that_is_not_whole_is_counted(context):
    agent, connection, route = connected(context)
    credit = encode(Credit(transfer=1))[0]
    for _ in range(2):
        agent.send_multipart([route, credit])
        assert connection.sockets[DATA].poll(TIMEOUT_S * 1000)
        assert connection.read(DATA) == [credit]
        assert connection.unread_bytes() < MIB  # the handshake at most
    agent.send(route, zmq.SNDMORE)
    for _ in range(64):
        agent.send(PART, zmq.SNDMORE)
    agent.send(PART)
    while connection.unread_bytes() < 8 * MIB:  # it grows, whether the whole is there or not
        connection.monitors[DATA].poll(1)
    connection.sockets[DATA].disable_monitor()
    connection.monitors[DATA].close(0)


def test_a_number_that_is_no_connection_any_more_keeps_no_descriptor():
    inflow, (read, write) = ConnectionMemory(), os.pipe()
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(5):
        inflow.opened(read)
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert inflow.left_bytes(is_empty=True) == 0
    os.close(read)
    os.close(write)
