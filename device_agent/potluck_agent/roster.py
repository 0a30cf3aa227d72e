"""The devices of a home as a notebook tells them: names, keys and addresses, each checked."""

from collections.abc import Iterable
from typing import Any

from potluck_agent.events import Member
from potluck_wire.errors import WireCode, WireError
from potluck_wire.limits import is_device_name, is_key
from potluck_wire.messages import HOME

MAX_MEMBERS = 64


def read_roster(document: Any) -> tuple[Member, ...]:
    """The members of a home; WireError where names, keys or addresses do not hold, or two have one name or key."""
    if not isinstance(document, list) or len(document) > MAX_MEMBERS:
        raise WireError(WireCode.DOCUMENT, f"a roster is a list of at most {MAX_MEMBERS} members")
    members = []
    for row in document:
        if not isinstance(row, dict) or set(row) != {"name", "key", "address"}:
            raise WireError(WireCode.DOCUMENT, "a member is an object with name, key and address")
        if not is_device_name(row["name"]) or row["name"] == HOME or not is_key(row["key"]):
            raise WireError(WireCode.DOCUMENT, f"no valid name or key: {row['name']!r:.60}")
        read_address(row["address"])
        members.append(Member(row["name"], row["key"], row["address"]))
    _refuse_twins("name", (member.name for member in members))
    _refuse_twins("key", (member.key for member in members))
    return tuple(members)


def _refuse_twins(what: str, values: Iterable[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise WireError(WireCode.DOCUMENT, f"two members have the {what} {value}")
        seen.add(value)


def read_address(text: object) -> tuple[str, int]:
    """HOST and base port of `HOST:PORT` (IPv6 hosts in brackets); WireError where it is none."""
    if type(text) is str and len(text) <= 255:
        host, _, port = text.rpartition(":")
        plain = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        sound = plain and all(c.isalnum() or c in ".-:%_" for c in plain) and plain.isascii()
        if sound and port.isdecimal() and port.isascii() and 0 < int(port) <= 65532:
            return plain, int(port)
    raise WireError(WireCode.DOCUMENT, f"an address is HOST:PORT, got {text!r:.60}")
