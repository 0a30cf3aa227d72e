"""What may cross a relay before the device has let somebody in."""

import pytest

from potluck_agent.relay.handshake import Handshake, NoGate, PairingExchange
from potluck_wire.errors import WireError
from potluck_wire.limits import RELAY_HANDSHAKE_BYTES, RELAY_PAIRING_BYTES

SIGNATURE = b"\xff" + bytes(7) + b"\x01\x7f"


def greeting(mechanism=b"CURVE", as_server=0):
    return SIGNATURE + b"\x03\x01" + mechanism.ljust(20, b"\0") + bytes([as_server]) + bytes(31)


def frame(name, nbytes):
    """A command with so many bytes behind its name, as ZMTP frames it."""
    body = bytes([len(name)]) + name + b"\x2a" * nbytes
    if len(body) < 256:
        return b"\x04" + bytes([len(body)]) + body
    return b"\x06" + len(body).to_bytes(8, "big") + body


VISITOR = greeting() + frame(b"HELLO", 194) + frame(b"INITIATE", 350)
DEVICE = greeting(as_server=1) + frame(b"WELCOME", 160)
READY = {"short": frame(b"READY", 60), "long": frame(b"READY", 300)}


@pytest.mark.parametrize("size", READY)
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_it_opens_with_the_devices_ready_and_not_before(size, step):
    gate, handshake = Handshake(), DEVICE + READY[size]
    for at in range(0, len(VISITOR), step):
        gate.visitor_said(VISITOR[at : at + step])
    for at in range(0, len(DEVICE), step):
        gate.device_said(DEVICE[at : at + step])
        assert not gate.admitted
    for at in range(len(DEVICE), len(handshake), step):
        gate.device_said(handshake[at : at + step])
    assert gate.admitted
    gate.visitor_said(b"\0" * 10**6)  # from here on it is theirs
    gate.device_said(b"\0" * 10**6)


def test_a_visitor_cannot_open_it_itself():
    gate = Handshake()
    gate.visitor_said(greeting() + READY["short"])
    assert not gate.admitted


NO_HANDSHAKES = {
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "no encryption": greeting(b"NULL"),
    "a password": greeting(b"PLAIN"),
    "nearly CURVE": greeting(b"CURVES"),
    "an older ZMTP": b"\x01\x00",
    "too long": greeting() + bytes(RELAY_HANDSHAKE_BYTES),
}


@pytest.mark.parametrize("data", NO_HANDSHAKES.values(), ids=NO_HANDSHAKES)
@pytest.mark.parametrize("side", ["visitor_said", "device_said"])
def test_nothing_else_crosses_in_either_direction(side, data):
    with pytest.raises(WireError):
        getattr(Handshake(), side)(data)


@pytest.mark.parametrize(
    "more", [frame(b"ERROR", 4), b"\x00\x05hello", b"\x02" + bytes(8)], ids=["ERROR", "one", "two"]
)
def test_whoever_the_device_refuses_is_cut_off(more):
    gate = Handshake()
    with pytest.raises(WireError):
        gate.device_said(DEVICE + more)
    assert not gate.admitted


def test_a_pairing_has_its_bytes_and_no_more():
    gate = PairingExchange()
    gate.visitor_said(bytes(RELAY_PAIRING_BYTES))
    gate.device_said(bytes(RELAY_PAIRING_BYTES))
    assert not gate.admitted
    for side in (gate.visitor_said, gate.device_said):
        with pytest.raises(WireError):
            side(b"x")


def test_on_the_devices_own_side_the_agent_decides():
    gate = NoGate()
    gate.visitor_said(b"anything")
    gate.device_said(b"anything")
    assert gate.admitted
