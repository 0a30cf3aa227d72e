"""An answer over HTTP that has to be there in time as a whole.

The timeout of a socket is of each read: whoever sends a byte a second is never late for it.
"""

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def within(peer: socket.socket, seconds: float) -> Iterator[None]:
    """What is sent and read while this lasts.

    Parameters
    ----------
    peer
        The open connection.
    seconds
        From now on.

    Raises
    ------
    TimeoutError
        It took longer; the connection is of no more use.
    """
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        with suppress(OSError):
            peer.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if not is_late.is_set():
            raise
    finally:
        timer.cancel()
    if is_late.is_set():
        raise TimeoutError(f"no whole answer in {seconds:g} s")
