"""Who of those found is a device that was paired before, and who is a stranger: they become members of a home."""

from collections.abc import Mapping

from potluck.discover.addresses import parse_address
from potluck.discover.keyring import Keyring, free_name
from potluck.errors import UserError
from potluck.sessions.events import Address
from potluck.sessions.members import Member, Members


def add_strangers(members: Members, found: Mapping[str, tuple[Address, ...]]) -> None:
    """Who was found and is none of those paired; one of the same name as another gets a number."""
    met = {members[name].addresses[0] for name in members.ready}
    for name, addresses in found.items():
        if met.isdisjoint(addresses) and (name not in members or name in members.ready):
            members.add(Member(name=free_name(name, members.__contains__), addresses=addresses))


def add_peer(members: Members, ring: Keyring, address: Address) -> None:
    """Whoever is at that address: a device that is known to have been there, or a stranger."""
    for known in ring.devices():
        if address in known.addresses:
            members.add(Member(name=known.name, key=known.key, addresses=known.addresses))
            return
    members.add(Member(name=str(address), addresses=(address,)))


def whom(members: Members, device: str) -> tuple[Member | None, tuple[Address, ...]]:
    """The member of that name or at that address, if there is one, and where to talk to it."""
    member = members.get(device)
    if member is not None:
        return member, member.addresses
    try:
        address = parse_address(device)
    except UserError as error:
        known = ", ".join(members) or "nobody"
        raise UserError(f"{device!r} is neither a device here ({known}) nor an address.") from error
    return next((m for m in members.values() if not m.key and address in m.addresses), None), (address,)
