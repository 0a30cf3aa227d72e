"""Names of hosts to addresses, in threads of their own: a name server may take half a minute to say
nothing.

libzmq would ask it in the one thread that carries all connections of this notebook, and no pulse
would be answered meanwhile. So it is only ever given addresses.
"""

import socket
import threading
from collections.abc import Callable

from potluck_wire.addresses import is_address

UNKNOWN = ""


def resolve(host: str) -> str:
    """An address of a host, of IPv4 where it has one; empty where nobody knows any.

    May take long.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return UNKNOWN
    return str(min(found, key=lambda entry: entry[0] != socket.AF_INET)[4][0])


class Resolver:
    """Names that were asked for, a thread each, and answers that wait to be fetched."""

    def __init__(self, resolve: Callable[[str], str] = resolve) -> None:
        self._resolve = resolve
        self._answers: dict[str, str | None] = {}  # None: under way

    def address(self, host: str) -> str | None:
        """Its address, `UNKNOWN`, or None: not yet, ask again. Never waits.

        An answer is given once.
        """
        if is_address(host):
            return host
        if host not in self._answers:
            self._answers[host] = None
            threading.Thread(
                target=self._ask, args=(host,), name=f"resolve {host}", daemon=True
            ).start()
        answer = self._answers[host]
        if answer is not None:
            del self._answers[host]
        return answer

    def _ask(self, host: str) -> None:
        self._answers[host] = self._resolve(host)
