"""Names of hosts to addresses, in threads of their own: a name server may take half a minute to say
nothing.

libzmq would ask it in the one thread that carries all of the agent's connections, and no pulse
would be answered meanwhile. So it is only ever given addresses.
"""

import socket
import threading
from collections.abc import Callable

from potluck_wire.addresses import is_address

AT_ONCE = 4  # names under way; one that hangs keeps its thread, the others wait for their turn

UNKNOWN = ""


def resolve(host: str) -> str:
    """The first address of a host; empty where nobody knows one. May take long."""
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError):
        return UNKNOWN


class Resolver:
    """Names under way and answers that wait to be fetched."""

    def __init__(self, resolve: Callable[[str], str] = resolve) -> None:
        self._resolve = resolve
        self._under_way: set[str] = set()
        self._answers: dict[str, str] = {}

    def address(self, host: str) -> str | None:
        """Its address, `UNKNOWN`, or None: not yet, ask again. Never waits.

        An answer is given once.
        """
        if is_address(host):
            return host
        if host in self._answers:
            return self._answers.pop(host)
        if host not in self._under_way and len(self._under_way) < AT_ONCE:
            self._under_way.add(host)
            threading.Thread(
                target=self._ask, args=(host,), name=f"resolve {host}", daemon=True
            ).start()
        return None

    def _ask(self, host: str) -> None:
        self._answers[host] = self._resolve(host)
        self._under_way.discard(host)
