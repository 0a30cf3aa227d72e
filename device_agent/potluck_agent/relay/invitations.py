"""Whom a relay serves: its devices, each with a key of its own for this alone and a place among the
ports; and the invitation that tells a device where the relay is and who it is.

A device's own key stays with it. A relay never has it, and cannot pass for the device.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from potluck_agent import keys
from potluck_agent.core.members import read_address
from potluck_agent.errors import AgentError
from potluck_wire.errors import WireError
from potluck_wire.file_lock import alone
from potluck_wire.file_reading import is_there
from potluck_wire.limits import RELAY_DEVICES, RELAY_DEVICES_OFFSET, is_device_name, is_key

DEVICES = "devices.json"
_LOCK = "devices.lock"
LOCK_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayDevice:
    """A device that a relay serves: `place` decides its ports."""

    name: str
    key: str
    place: int

    def port(self, base: int) -> int:
        """The first of its four, at a relay of this base port."""
        return base + RELAY_DEVICES_OFFSET + 4 * self.place


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """What a device has to know: the relay's address and key, and a secret key that lets it in."""

    relay: str
    key: str
    secret: str = field(repr=False)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the relay."""
        return read_address(self.relay)


def default_state_dir() -> Path:
    """Where a relay keeps its key and its devices: beside an agent's."""
    return keys.default_state_dir().parent / "relay"


def devices(state: Path) -> tuple[RelayDevice, ...]:
    """Those that are invited; AgentError where the file does not hold."""
    path = state / DEVICES
    if not is_there(path):
        return ()
    document = keys.read_private(path)
    try:
        found = tuple(RelayDevice(**row) for row in document)
        sound = (
            all(
                is_device_name(one.name)
                and is_key(one.key)
                and type(one.place) is int
                and 0 <= one.place < RELAY_DEVICES
                for one in found
            )
            and len({one.key for one in found}) == len(found)
            and len({one.name for one in found}) == len(found)
            and len({one.place for one in found}) == len(found)
        )
    except TypeError:
        sound = False
    if not sound:
        raise AgentError(
            f"{path} is not a list of a relay's devices. Restore it; or delete it, and every "
            "device has to be invited again."
        )
    return found


def invite(
    state: Path, name: str, relay: str, write: Callable[[Invitation], None] = lambda _: None
) -> Invitation:
    """Let a device of this name in from now on; an invitation that it had before counts no more.

    `relay`: HOST:PORT under which others reach this relay. `write` puts the invitation where it is
    taken from; where that fails, all stays as it was.
    """
    import zmq

    _check_address(relay)
    if not is_device_name(name):
        raise AgentError(
            f"{name!r} cannot be a device's name. Use 1-40 lower-case letters, digits and hyphens."
        )
    public, secret = (part.decode() for part in zmq.curve_keypair())
    identity = keys.identity(state)
    with alone(state / _LOCK, LOCK_TIMEOUT_S):
        known = devices(state)
        others = tuple(one for one in known if one.name != name)
        taken = {one.place for one in others}
        places = [one.place for one in known if one.name == name]
        places += [place for place in range(RELAY_DEVICES) if place not in taken]
        if not places:
            raise AgentError(
                f"this relay serves {RELAY_DEVICES} devices already. Remove one: potluck agent "
                "relay remove NAME."
            )
        invitation = Invitation(relay=relay, key=identity.public, secret=secret)
        write(invitation)
        _write(state, (*others, RelayDevice(name=name, key=public, place=places[0])))
    return invitation


def remove(state: Path, name: str) -> None:
    """Serve this device no longer; AgentError where none is called so."""
    with alone(state / _LOCK, LOCK_TIMEOUT_S):
        known = devices(state)
        remaining = tuple(one for one in known if one.name != name)
        if len(remaining) == len(known):
            names = ", ".join(one.name for one in known) or "nobody"
            raise AgentError(f"no device is called {name}; this relay serves {names}.")
        _write(state, remaining)


def _write(state: Path, found: tuple[RelayDevice, ...]) -> None:
    rows = sorted(found, key=lambda one: one.place)
    keys.write_private(state / DEVICES, [asdict(one) for one in rows])


def write_invitation(path: Path, invitation: Invitation) -> None:
    """As a file that only its owner can read."""
    keys.write_private(path, asdict(invitation))


def read_invitation(path: Path) -> Invitation:
    """The invitation in this file; AgentError where it is none."""
    if not path.exists():
        raise AgentError(
            f"there is no {path}. `potluck agent relay invite NAME HOST` on the relay makes one."
        )
    document = keys.read_private(path)
    row: Mapping[str, Any] = document if isinstance(document, dict) else {}
    if row.keys() != {"relay", "key", "secret"} or not all(
        is_key(row[part]) for part in ("key", "secret")
    ):
        raise AgentError(
            f"{path} is no invitation to a relay. `potluck agent relay invite NAME HOST` on the "
            "relay makes one."
        )
    _check_address(row["relay"])
    return Invitation(**row)


def _check_address(relay: object) -> None:
    try:
        read_address(relay)
    except WireError as error:
        raise AgentError(f"where the relay is: {error.text}.") from error
