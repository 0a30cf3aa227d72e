"""The connections of a page's server, within bounds: whoever has not shown the token takes no more
of this process than a few of them, and not for long.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from potluck.serve.gateway.connection_limit import ConnectionLimit, Who
from potluck.serve.gateway.limited_connections import LimitedConnections

LOG = logging.getLogger(__name__)
MOST_CONNECTIONS = 64  # a browser opens 6; each takes a descriptor and a thread
MOST_WAITING = 64  # to be let in


class BoundedPageServer(ThreadingHTTPServer):
    """Serves each connection in a thread of its own, of a few at once.

    Parameters
    ----------
    address
        Where it listens: host and port.
    handler
        What answers; it says by `answering` which requests may take their time.
    limit
        Who is let in, and who has to leave.

    Raises
    ------
    OSError
        It cannot listen there.
    """

    daemon_threads = True
    request_queue_size = MOST_WAITING

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        limit: ConnectionLimit | None = None,
    ) -> None:
        most = ConnectionLimit(MOST_CONNECTIONS, MOST_CONNECTIONS)
        self._connections = LimitedConnections(most if limit is None else limit)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Let somebody in; for it whoever has asked nothing for the longest may have to leave."""
        if self._connections.come(client_address[:2], request):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer somebody, until they leave."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.leave(client_address[:2], request)

    def service_actions(self) -> None:
        """Disconnect those that ask nothing; several times a second."""
        super().service_actions()
        self._connections.sweep()

    @contextmanager
    def answering(self, who: Who) -> Iterator[None]:
        """Somebody has shown the token: what they asked for may take its time.

        Parameters
        ----------
        who
            Address and port of the other end.
        """
        self._connections.ask(who)
        try:
            yield
        finally:
            self._connections.answer(who)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections break as they like: nobody's screen is filled because of it."""
        LOG.debug("a connection of %s broke", client_address[0], exc_info=True)
