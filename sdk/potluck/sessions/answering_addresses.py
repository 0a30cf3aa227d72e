"""At which of many addresses a device is: all are asked at once, since anybody may announce any,
and each that does not answer would be waited for.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from potluck.sessions.connections import OFFSETS, Keys
from potluck.sessions.events import Address
from potluck_wire.addresses import is_address
from potluck_wire.dealer_sockets import set_up_dealer
from potluck_wire.limits import HANDSHAKE_S
from potluck_wire.messages import Channel

AT_ONCE = 64  # each takes five descriptors

Place = tuple[str, Address]  # a device's key, and where it may be


def answering(places: Mapping[str, Sequence[Address]], keys: Keys) -> dict[str, list[Address]]:
    """Of the addresses of each device, by its key: those where whoever answers has that key; then
    those where this notebook is turned away, which anybody can say. Names of hosts come last, as
    they are: to look one up takes its time.
    """
    asked = [
        (key, address)
        for key, addresses in places.items()
        for address in addresses
        if is_address(address.host)
    ]
    proven: list[Place] = []
    turned_away: list[Place] = []
    for start in range(0, len(asked), AT_ONCE):
        for place, is_proven in _handshakes(asked[start : start + AT_ONCE], keys):
            (proven if is_proven else turned_away).append(place)
    return {
        key: [
            *(address for other, address in (*proven, *turned_away) if other == key),
            *(address for address in addresses if not is_address(address.host)),
        ]
        for key, addresses in places.items()
    }


def _handshakes(places: Sequence[Place], keys: Keys) -> Iterator[tuple[Place, bool]]:
    """Each place where somebody answers, and whether that was the device; until all devices have,
    or time is over.
    """
    context: Any = zmq.Context()
    context.set(zmq.BLOCKY, False)
    poller = zmq.Poller()
    place_of: dict[Any, Place] = {}
    dealers = []  # one that nobody refers to is closed
    try:
        for place in places:
            key, address = place
            dealers.append(dealer := context.socket(zmq.DEALER))
            set_up_dealer(dealer, address.host, key, keys.public, keys.secret)
            monitor = dealer.get_monitor_socket(
                zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            )
            control = replace(address, port=address.port + OFFSETS[Channel.CONTROL])
            dealer.connect(f"tcp://{control}")
            place_of[monitor] = place
            poller.register(monitor, zmq.POLLIN)
        missing = {key for key, _ in places}
        until_s = time.monotonic() + HANDSHAKE_S
        while missing and (left_s := until_s - time.monotonic()) > 0:
            for monitor, _ in poller.poll(int(left_s * 1000) + 1):
                seen: Any = recv_monitor_message(monitor)
                poller.unregister(monitor)
                is_proven = seen["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
                if is_proven:
                    missing.discard(place_of[monitor][0])
                yield place_of[monitor], is_proven
    finally:
        context.destroy(0)
