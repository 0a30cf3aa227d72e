"""The sockets that open connections: encrypted, bounded, and closed to every server but the one of
a known key.
"""

from typing import Any

from potluck_wire.limits import HANDSHAKE_S, HIGH_WATER_MARK, LINGER_MS, MAX_FRAME_BYTES, MAX_QUEUED


def set_up_dealer(
    socket: Any, host: str, server_key: str, public_key: str, secret_key: str
) -> None:
    """Options of a ZeroMQ DEALER before it connects to `host`; keys as Z85 text.

    Parameters
    ----------
    socket
        A ZeroMQ DEALER that is not connected yet.
    host
        Where it will connect to: a name, or an IPv4 or IPv6 address.
    server_key
        The only server that it talks to.
    public_key, secret_key
        Of this side.
    """
    socket.linger = LINGER_MS
    socket.ipv6 = ":" in host
    socket.maxmsgsize = MAX_FRAME_BYTES
    socket.handshake_ivl = int(HANDSHAKE_S * 1000)
    socket.rcvhwm = HIGH_WATER_MARK
    socket.sndhwm = MAX_QUEUED
    socket.curve_serverkey = server_key.encode()
    socket.curve_publickey = public_key.encode()
    socket.curve_secretkey = secret_key.encode()
