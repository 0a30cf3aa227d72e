"""Pairing over TCP with something that is not as it should be. (With a real agent:
tests/sdk/home.)
"""

import socket
import struct
import threading
from contextlib import suppress

import pytest

from potluck.commands.doctor import HINT, reach
from potluck.discover import pairing
from potluck.discover.pairing import pair
from potluck.errors import DeviceGone, PairingError, ProtocolError, UserError
from potluck.sessions.events import Address
from potluck_wire.limits import PAIRING_OFFSET
from potluck_wire.messages import PairHello, PairRefused
from potluck_wire.stream import pack

KEY = "a" * 40


@pytest.fixture
def answering():
    """answering(data): an address whose pairing port says `data` to the first visitor and hangs
    up.
    """
    opened = []

    def start(data):
        server = socket.create_server(("127.0.0.1", 0))
        opened.append(server)

        def serve():
            visitor, _ = server.accept()
            with visitor:
                visitor.recv(1024)
                visitor.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        return Address(host="127.0.0.1", port=server.getsockname()[1] - PAIRING_OFFSET)

    yield start
    for server in opened:
        server.close()


@pytest.mark.parametrize(
    ("data", "error", "match"),
    [
        (pack(PairRefused(code="closed", text="not open")), PairingError, "potluck agent pair"),
        (pack(PairRefused(code="expired", text="too late")), PairingError, "three minutes"),
        (
            pack(PairRefused(code="wrong-code", text="wrong", tries_left=1)),
            PairingError,
            "1 try is left",
        ),
        (pack(PairRefused(code="version", text="speaks 2.0")), ProtocolError, "2.0"),
        (pack(PairHello(major=9, name="x", key="b" * 40)), ProtocolError, "9.0"),
        (pack(PairHello(major=1, name="x", key=KEY)), PairingError, "claims to be this one"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ProtocolError, "not a potluck agent"),
        (b"", PairingError, "hung up"),
    ],
    ids=[
        "closed",
        "expired",
        "wrong code",
        "version",
        "other major",
        "reflected",
        "not an agent",
        "hangs up",
    ],
)
def test_says_what_is_wrong(answering, data, error, match):
    with pytest.raises(error, match=match):
        pair(answering(data), "1234 5678", name="notebook", key=KEY, device="phone")


def test_one_that_says_a_message_byte_by_byte_is_not_waited_for_longer(monkeypatch):
    """Else each byte would have as long as a whole message."""
    monkeypatch.setattr(pairing, "PAIRING_STEP_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip():
            visitor, _ = server.accept()
            with visitor, suppress(OSError):  # until the notebook leaves
                visitor.recv(1024)
                for byte in struct.pack(">II", 1, 500) + bytes(150):
                    visitor.sendall(bytes((byte,)))
                    threading.Event().wait(0.02)

        dripping = threading.Thread(target=drip)
        dripping.start()
        place = Address(host="127.0.0.1", port=server.getsockname()[1] - PAIRING_OFFSET)
        with pytest.raises(DeviceGone, match="nobody pairs at"):
            pair(place, "12345678", name="ada", key=KEY)
        dripping.join()


def test_nobody_there():
    with pytest.raises(DeviceGone, match="nobody pairs"):
        pair(Address(host="127.0.0.1", port=1), "12345678", name="notebook", key=KEY)


@pytest.mark.parametrize("code", ["", "123", "12345678x", "abcdefgh"])
def test_what_cannot_be_a_code_is_not_tried(code):
    with pytest.raises(UserError, match="digits"):
        pair(Address(host="127.0.0.1", port=1), code, name="notebook", key=KEY)


@pytest.mark.parametrize("host", ["jetson..local", ".", "a" * 64, "\ud800"])
def test_a_name_that_no_host_can_have_is_not_known(host):
    """It ended with an UnicodeError."""
    address = Address(host=host, port=47600)
    with pytest.raises(DeviceGone, match="is not known in this network"):
        pair(address, "12345678", name="x", key=KEY)
    assert "is not known in this network" in str(pairing.unreached(address))
    assert reach("jetson", ((host, 47600),), announced=False).level == HINT
