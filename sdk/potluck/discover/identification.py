"""Who of those found is a device that was paired before, and who is a stranger: they become members
of a home.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from potluck.discover.addresses import as_name, parse_address
from potluck.discover.keyring import Keyring, KnownDevice, free_name
from potluck.discover.pairing import pair_and_remember, unreached
from potluck.errors import IdentityChanged, NotPaired, UserError
from potluck.sanitized_text import who_is_here
from potluck.sessions.events import Address
from potluck.sessions.members import Member, Members
from potluck_wire.limits import is_key

RECOGNIZE_S = 10.0  # in all, of those that were found; whoever is there answers at once
MAX_GUESSES = 8  # paired devices whose keys are tried at an address where none of them was before


def add_strangers(
    members: Members, ring: Keyring, found: Mapping[str, tuple[Address, ...]]
) -> None:
    """Who was found and is none of those paired; one of the same name as another gets a number.

    After `RECOGNIZE_S` the others are strangers unasked: anybody may announce many that do not
    answer.
    """
    until_s = time.monotonic() + RECOGNIZE_S
    met = {members[name].addresses[0] for name in members.ready}
    for name, addresses in found.items():
        if not met.isdisjoint(addresses) or (name in members and name not in members.ready):
            continue
        if time.monotonic() >= until_s or not _recognised(members, ring, addresses[0]):
            members.add(Member(name=free_name(name, members.__contains__), addresses=addresses))


def add_peers(members: Members, ring: Keyring, addresses: Sequence[Address]) -> None:
    """Whoever is at these addresses, with a session where it is paired: a device that is known to
    have been there, one that is known by its key, or a stranger. `Member.error` says where nobody
    is. Two may have changed places, or one been paired again under another key.
    """
    elsewhere, latest_first = [], ring.devices()[::-1]
    for address in addresses:
        known = next((known for known in latest_first if address in known.addresses), None)
        if known is None:
            elsewhere.append(address)
        else:
            members.add(Member(name=known.name, key=known.key, addresses=known.addresses))
    members.join()
    for address in [address for address in addresses if _is_another(members, address)]:
        _recognised(members, ring, address)
    with ThreadPoolExecutor(max(len(elsewhere), 1)) as pool:
        errors = [*pool.map(unreached, elsewhere)]
    for address, error in zip(elsewhere, errors, strict=True):
        if error is not None or not _recognised(members, ring, address):
            members.add(Member(name=str(address), addresses=(address,), error=error))


def _is_another(members: Members, address: Address) -> bool:
    """Whether someone else is where a paired device was."""
    return any(
        isinstance(member.error, IdentityChanged) and address in member.addresses
        for member in members.values()
    )


def _recognised(members: Members, ring: Keyring, address: Address) -> bool:
    """Whether a paired device that has no session yet is at this address: its key decides.

    Then it is a member.
    """
    guesses = [known for known in ring.devices() if known.name not in members.ready][-MAX_GUESSES:]
    before = {known.name: members[known.name] for known in guesses if known.name in members}
    for known in guesses:
        members.add(Member(name=known.name, key=known.key, addresses=(address,)))
    members.join([known.name for known in guesses])
    right = [known for known in guesses if _has_the_key(members[known.name])]
    for known in guesses:
        if known in right:
            members.add(replace(members[known.name], addresses=(address, *known.addresses)))
        elif known.name in before:
            members.add(before[known.name])
        else:
            members.remove(known.name)
    return bool(right)


def _has_the_key(member: Member) -> bool:
    """Whether whoever was asked has that key: it has a session with us, or knows us no more, or
    declined.
    """
    refused = member.error is not None and "code" in member.error.facts
    return member.session is not None or isinstance(member.error, NotPaired) or refused


def member_at(members: Members, device: str) -> tuple[Member | None, tuple[Address, ...]]:
    """The member of that name or at that address, if there is one, and where to talk to it."""
    member = members.get(device)
    if member is not None:
        return member, member.addresses
    try:
        address = parse_address(device)
    except UserError as error:
        raise UserError(
            f"{device!r} is neither a device ({who_is_here(members)}) nor an address."
        ) from error
    return next((m for m in members.values() if not m.key and address in m.addresses), None), (
        address,
    )


def paired(members: Members, ring: Keyring, device: str, code: str) -> str:
    """Pair with the device of that name or at that address; its name, as a member without a
    session.
    """
    member, addresses = member_at(members, device)
    return _in_place_of(member, members, pair_and_remember(ring, addresses, code, device=device))


def trusted(
    members: Members, ring_of: Callable[[], Keyring], device: str, key: str, name: str
) -> str:
    """Trust whoever has this key; its name, as a member without a session."""
    if not is_key(key):
        raise UserError("that is not a key: 40 characters of Z85 are expected.", device=device)
    member, addresses = member_at(members, device)
    known = KnownDevice(name=name or as_name(device), key=key, addresses=addresses)
    return _in_place_of(member, members, ring_of().remember(known))


def _in_place_of(member: Member | None, members: Members, known: KnownDevice) -> str:
    if member is not None:
        members.remove(member.name)
    members.add(Member(name=known.name, key=known.key, addresses=known.addresses))
    return known.name
