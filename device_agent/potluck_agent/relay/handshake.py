"""What may cross a relay before the device has let somebody in, and when it has. Pure.

A relay cannot read what it passes on, and need not: the commands of a CURVE handshake (ZeroMQ RFCs
23 and 26) have their names in the clear. `READY` is said by the device alone, once it has checked
the visitor's key. Until then no more crosses than a handshake takes.
"""

from typing import Protocol

from potluck_wire.errors import WireCode, WireError
from potluck_wire.limits import RELAY_HANDSHAKE_BYTES, RELAY_PAIRING_BYTES

SIGNATURE_BYTES = 10  # of a greeting: a visitor says so much before the device has said anything
GREETING_BYTES = 64
_MECHANISM = b"CURVE".ljust(20, b"\0")
_SHORT, _LONG = 4, 6  # flags of a command: its length in one byte, or in eight
_MORE, _READY = b"WELCOME", b"READY"


class Gate(Protocol):
    """What is asked of everything that crosses; both methods raise WireError where it must not."""

    admitted: bool

    def visitor_said(self, data: bytes) -> None:
        """This came from the visitor."""

    def device_said(self, data: bytes) -> None:
        """This came from the device."""


class Handshake:
    """The gate of an encrypted channel; open once the device said READY."""

    def __init__(self) -> None:
        self.admitted = False
        self._visitor, self._device = b"", b""

    def visitor_said(self, data: bytes) -> None:
        """A greeting with CURVE, and no more than a handshake.

        Raises
        ------
        WireError
            It is something else.
        """
        if not self.admitted:
            self._visitor = _begun(self._visitor + data)

    def device_said(self, data: bytes) -> None:
        """The same of the device, up to its READY.

        Raises
        ------
        WireError
            It is something else: an ERROR, for one that it does not trust.
        """
        if not self.admitted:
            self._device = _begun(self._device + data)
            self.admitted = _is_ready(self._device)


class PairingExchange:
    """The gate of the pairing port: as many bytes as an exchange takes, and never open."""

    def __init__(self) -> None:
        self.admitted = False
        self._left_bytes = [RELAY_PAIRING_BYTES, RELAY_PAIRING_BYTES]

    def visitor_said(self, data: bytes) -> None:
        """So many bytes; WireError where they are too many."""
        self._take(0, len(data))

    def device_said(self, data: bytes) -> None:
        """So many bytes; WireError where they are too many."""
        self._take(1, len(data))

    def _take(self, side: int, nbytes: int) -> None:
        self._left_bytes[side] -= nbytes
        if self._left_bytes[side] < 0:
            text = f"more than the {RELAY_PAIRING_BYTES} bytes of a pairing"
            raise WireError(WireCode.SIZE, text)


class NoGate:
    """Everything crosses: of the device's own side, where the agent itself decides."""

    admitted = True

    def visitor_said(self, data: bytes) -> None:
        """As it likes."""

    def device_said(self, data: bytes) -> None:
        """As it likes."""


def _begun(data: bytes) -> bytes:
    """The beginning of a handshake; WireError where it is none, as far as it is there."""
    if len(data) > RELAY_HANDSHAKE_BYTES:
        text = f"more than {RELAY_HANDSHAKE_BYTES} bytes before the device has let anybody in"
        raise WireError(WireCode.SIZE, text)
    mechanism = data[12:32]
    sound = (
        data[:1] in (b"", b"\xff")
        and data[9:10] in (b"", b"\x7f")
        and _MECHANISM.startswith(mechanism)
    )
    if not sound:
        raise WireError(WireCode.HEADER, "no greeting of an encrypted ZeroMQ connection")
    return data


def _is_ready(data: bytes) -> bool:
    """Whether READY is among the commands behind the greeting.

    Raises
    ------
    WireError
        There is another one than a server says in a handshake.
    """
    at = GREETING_BYTES
    while at + 2 <= len(data):
        wide = data[at] == _LONG
        if data[at] not in (_SHORT, _LONG):
            raise WireError(WireCode.HEADER, "traffic before the device has let anybody in")
        begin = at + (9 if wide else 2)
        name = data[begin + 1 : begin + 1 + data[begin]] if begin < len(data) else b""
        if name == _READY:
            return True
        if len(name) >= len(_READY) and not _MORE.startswith(name):
            raise WireError(WireCode.STATE, "the device lets this visitor not in")
        at = begin + int.from_bytes(data[at + 1 : begin], "big")
    return False
