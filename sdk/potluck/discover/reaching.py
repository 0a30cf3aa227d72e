"""A plain connection to a device, before any key is trusted."""

import socket


def connect(host: str, port: int, within_s: float) -> socket.socket:
    """A connection to that place.

    Parameters
    ----------
    host
        A name or an address, whatever anybody wrote.
    port
        Where it listens.
    within_s
        For so long each of its addresses is waited for.

    Raises
    ------
    OSError
        Nobody answers; `socket.gaierror` where no such host is known, or none can have that name.
    """
    try:
        return socket.create_connection((host, port), within_s)
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, "no host can have this name") from error
