"""Somebody else's traffic: one end takes whatever comes, the other gives as much as gets through. A process each.

Either ends when its standard input is closed, which is when whoever started it is gone. The standard library only.
"""

import os
import socket
import sys
import threading
import time

PART = bytes(1 << 16)


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
        while connection.recv(len(PART)):
            pass


def _give(address: str, port: int, lasts_s: float) -> None:
    until_s = time.monotonic() + lasts_s
    with socket.create_connection((address, port)) as connection:
        while time.monotonic() < until_s:
            connection.sendall(PART)


def _end_with_input() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
