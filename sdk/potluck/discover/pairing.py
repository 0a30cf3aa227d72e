"""Pair with a device over TCP: type the code that it shows, and each side learns the other's
key.
"""

import socket
import time
from collections.abc import Sequence

from potluck.discover.keyring import Keyring, KnownDevice, controller_name
from potluck.discover.reaching import connect
from potluck.errors import DeviceGone, PairingError, ProtocolError, UserError
from potluck.sessions.events import Address
from potluck.sessions.failures import clean, unreachable, unresolved
from potluck_wire.errors import WireError
from potluck_wire.limits import PAIRING_OFFSET, PAIRING_STEP_S
from potluck_wire.messages import Channel
from potluck_wire.pairing import (
    BUSY,
    CLOSED,
    EXPIRED,
    WRONG_CODE,
    WRONG_VERSION,
    ControllerSide,
    Paired,
    PairingFailed,
    read_secret,
)
from potluck_wire.stream import StreamReader, pack

CONNECT_S = 5.0
LEAST_S = 0.001  # a wait of nothing would be no wait at all
_NEXT_STEP = {
    CLOSED: "Run `potluck agent pair` on it and type the code that it shows.",
    EXPIRED: "Run `potluck agent pair` on it again: a code lives for three minutes.",
    BUSY: "Try again in a moment.",
    WRONG_CODE: "Look at the code again.",
}
_WHAT = {
    CLOSED: "it is not open for pairing",
    EXPIRED: "its code has expired",
    BUSY: "another notebook is pairing with it right now",
}


def pair(address: Address, code: str, *, name: str, key: str, device: str = "") -> Paired:
    """Prove to the agent at `address` that we know its code, and learn its name and key.

    Parameters
    ----------
    name, key
        What this notebook will be known by.
    device
        What the device is called here, for errors.

    Raises
    ------
    UserError
        The text cannot be a code.
    PairingError
        Wrong code, closed or expired window. Facts: `code`, `tries_left`.
    DeviceGone
        Nobody answers there.
    """
    label = device or str(address)
    try:
        side = ControllerSide(secret=read_secret(code), name=name, key=key)
    except ValueError as error:
        raise UserError(f"{error}.", device=label) from error
    try:
        with connect(address.host, address.port + PAIRING_OFFSET, CONNECT_S) as connection:
            return _converse(connection, side, label)
    except OSError as error:
        raise _nobody(device, address, error) from error
    except WireError as error:
        raise ProtocolError(
            f"what answers at {address} is not a potluck agent ({error}).", device=label
        ) from error
    except PairingFailed as failure:
        raise refusal_of(failure, label) from failure


def pair_and_remember(
    ring: Keyring, addresses: Sequence[Address], code: str, *, device: str = ""
) -> KnownDevice:
    """Pair with the device at the first of these addresses, and keep it in `ring`.

    Errors are those of `pair`.
    """
    public, _ = ring.identity()
    try:
        paired = pair(addresses[0], code, name=controller_name(), key=public, device=device)
    except PairingError as error:
        known = next(
            (k for k in ring.devices() if k.name == device or set(k.addresses) & set(addresses)),
            None,
        )
        if known is not None and error.facts.get("code") in (CLOSED, EXPIRED):
            raise _paired_before(known, device or str(addresses[0]), error) from error
        raise
    return ring.remember(KnownDevice(name=paired.name, key=paired.key, addresses=tuple(addresses)))


def unreached(address: Address) -> DeviceGone | None:
    """Why nobody can be paired with at this address; None: somebody listens there.

    It says nothing of who that is.
    """
    try:
        connect(address.host, address.port + PAIRING_OFFSET, CONNECT_S).close()
    except socket.gaierror:
        return unresolved(str(address), address.host)
    except OSError:
        return unreachable(str(address), str(address))
    return None


def _nobody(device: str, address: Address, error: OSError) -> DeviceGone:
    if isinstance(error, socket.gaierror):
        return unresolved(device, address.host)
    return DeviceGone(
        f"nobody pairs at {address} ({error.strerror or error}).",
        device="" if device in (address.host, str(address)) else device,
        next_step="Is its agent running? `potluck doctor` looks closer.",
    )


def _paired_before(known: KnownDevice, label: str, error: PairingError) -> PairingError:
    name = "" if known.name == label else f" as {known.name}"
    return PairingError(
        f"it has been paired with this computer{name}, and is not open to be paired again "
        f"({error.facts['code']}).",
        device=label,
        next_step="`potluck devices` shows whether it still knows this computer; if not: `potluck "
        "agent pair` on it.",
        **error.facts,
    )


def _converse(connection: socket.socket, side: ControllerSide, label: str) -> Paired:
    reader = StreamReader(Channel.PAIRING)
    connection.settimeout(PAIRING_STEP_S)
    connection.sendall(pack(side.first()))
    until_s = time.monotonic() + PAIRING_STEP_S  # for a whole message, however its bytes come
    while side.paired is None:
        connection.settimeout(max(until_s - time.monotonic(), LEAST_S))
        data = connection.recv(4096)
        if not data:
            raise PairingError(
                "it hung up during pairing.", device=label, next_step=_NEXT_STEP[CLOSED]
            )
        if not (messages := reader.feed(data)) and time.monotonic() > until_s:
            raise TimeoutError("it says nothing whole")
        for message, _ in messages:
            until_s = time.monotonic() + PAIRING_STEP_S
            answer = side.receive(message)
            if answer is not None:
                connection.sendall(pack(answer))
    return side.paired


def refusal_of(failure: PairingFailed, label: str) -> PairingError | ProtocolError:
    """The error for a person; `label` is how the device is called."""
    if failure.code == WRONG_VERSION:
        return ProtocolError(clean(failure.text) + ".", device=label)
    left = "1 try is" if failure.tries_left == 1 else f"{failure.tries_left} tries are"
    tries = f" {left} left." if failure.tries_left > 0 else ""
    if failure.tries_left == 0 and failure.code == WRONG_CODE:
        tries = " The window is closed now."
    return PairingError(
        f"pairing failed ({clean(failure.code)}): "
        f"{_WHAT.get(failure.code, clean(failure.text))}.{tries}",
        device=label,
        next_step=_NEXT_STEP.get(failure.code, ""),
        code=clean(failure.code),
        tries_left=failure.tries_left,
    )
