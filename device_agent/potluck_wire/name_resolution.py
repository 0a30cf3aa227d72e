"""Names of hosts to addresses, in threads of their own: a name server may take half a minute to say
nothing.

libzmq would ask it in the one thread that carries all connections of a program, and no ping would
be answered meanwhile. So it is only ever given addresses. What asks the network, and the threads,
are handed in: this package does neither.
"""

from collections.abc import Callable
from math import inf
from typing import Any

from potluck_wire.addresses import is_address

UNKNOWN = ""
MOST_KEPT = 256  # answers that nobody has fetched: whoever asked may have no use for them any more


def resolve(getaddrinfo: Callable[..., Any], host: str) -> str:
    """An address of a host, of IPv4 where it has one: devices listen there unless told otherwise.
    Empty where nobody knows any. May take long.

    Parameters
    ----------
    getaddrinfo
        That of `socket`.
    host
        Its name.
    """
    try:
        addresses = [str(entry[4][0]) for entry in getaddrinfo(host, None)]
    except (OSError, ValueError):
        return UNKNOWN
    return min(addresses, key=lambda address: ":" in address, default=UNKNOWN)


class Resolver:
    """Names under way and answers that wait to be fetched.

    Parameters
    ----------
    ask
        From a host to its address, or `UNKNOWN`; may take long.
    thread
        `threading.Thread`.
    at_once
        Names under way: one that hangs keeps its thread, the others wait for their turn.
    """

    def __init__(
        self, ask: Callable[[str], str], thread: Callable[..., Any], at_once: float = inf
    ) -> None:
        self._ask, self._thread = ask, thread
        self._at_once = at_once
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
        for oldest in [*self._answers][:-MOST_KEPT]:
            self._answers.pop(oldest, None)
        if host not in self._under_way and len(self._under_way) < self._at_once:
            self._under_way.add(host)
            name = f"resolve {host}"
            self._thread(target=self._look_up, args=(host,), name=name, daemon=True).start()
        return None

    def _look_up(self, host: str) -> None:
        self._answers[host] = self._ask(host)  # first, so that nobody asks again in between
        self._under_way.discard(host)
