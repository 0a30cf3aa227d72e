"""The devices of a home as a notebook tells them: names, keys and addresses, each checked."""

from collections.abc import Container, Iterable

from potluck_agent.core.events import Buffer, PeerDevice
from potluck_wire.checks import record, rows, shown, which
from potluck_wire.documents import parse
from potluck_wire.errors import WireCode, WireError
from potluck_wire.limits import MAX_WORKERS, is_device_name, is_key
from potluck_wire.messages import HOME

MAX_MEMBERS = 64
# devices that all notebooks together name and that have a connection: as many as those that compute
# here may name, where there are descriptors for them
MAX_LINKS = MAX_WORKERS * MAX_MEMBERS


def read_roster(document: Buffer, notebooks: Container[str] = ()) -> tuple[PeerDevice, ...]:
    """The members of a home; WireError where names, keys or addresses do not hold, two have one
    name or key, or one has a key of these notebooks.
    """
    members = tuple(PeerDevice(**row) for row in parse(document, "the roster", _ROSTER))
    _refuse_twins("name", (member.name for member in members))
    _refuse_twins("key", (member.key for member in members))
    if name := next((member.name for member in members if member.key in notebooks), ""):
        text = f"{name} has the key of a notebook, and is no device"
        raise WireError(WireCode.DOCUMENT, text)
    return members


def _refuse_twins(what: str, values: Iterable[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise WireError(WireCode.DOCUMENT, f"two members have the {what} {value}")
        seen.add(value)


def _is_address(text: object) -> bool:
    try:
        read_address(text)
    except WireError:
        return False
    return True


def read_address(text: object) -> tuple[str, int]:
    """HOST and base port of `HOST:PORT` (IPv6 hosts in brackets); WireError where it is none."""
    if type(text) is str and len(text) <= 255:
        host, _, port = text.rpartition(":")
        plain = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        sound = plain and all(c.isalnum() or c in ".-:%_" for c in plain) and plain.isascii()
        if sound and port.isdecimal() and port.isascii() and 0 < int(port) <= 65532:
            return plain, int(port)
    raise WireError(WireCode.DOCUMENT, f"an address is HOST:PORT, got {shown(text)}")


_ROSTER = rows(
    record(
        name=which(lambda name: is_device_name(name) and name != HOME, "a device's name"),
        key=which(is_key, "a key"),
        address=which(_is_address, "HOST:PORT"),
    ),
    max_entries=MAX_MEMBERS,
)
