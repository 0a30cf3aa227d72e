"""Somebody else's traffic: one end takes whatever comes, the other gives as much as gets through. A
process each.

Either ends when its standard input is closed, which is when whoever started it is gone. The
standard library only.
"""

import os
import socket
import struct
import sys
import threading
import time
from contextlib import suppress

PART = bytes(1 << 14)
# in the system's buffer: what is in there on a slow link keeps it busy when all is over
WAITING_BYTES = 1 << 15
CONNECT_S = 10.0  # a first packet that is lost is sent again after a second, then after two


def main(role: str, address: str, *more: str) -> None:
    """`take ADDRESS` prints its port; `give ADDRESS PORT SECONDS`."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    if role == "take":
        _take(address)
    else:
        _give(address, int(more[0]), float(more[1]))


def _take(address: str) -> None:
    with socket.create_server((address, 0)) as server:
        sys.stdout.write(f"{server.getsockname()[1]}\n")
        sys.stdout.flush()
        connection, _ = server.accept()
        with suppress(ConnectionError):
            while connection.recv(len(PART)):
                pass


def _give(address: str, port: int, lasts_s: float) -> None:
    until_s = time.monotonic() + lasts_s
    connection = socket.create_connection((address, port), timeout=max(lasts_s, CONNECT_S))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, WAITING_BYTES)
    # the end is the end
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with connection, suppress(TimeoutError):
        while (left_s := until_s - time.monotonic()) > 0:
            connection.settimeout(left_s)
            connection.sendall(PART)


def _end_with_input() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
