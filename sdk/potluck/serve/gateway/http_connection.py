"""A connection over HTTP whose client may close its own side, and still gets its answers."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

SAYS_NO_MORE = "potluck.says_no_more"  # in the scope of a request whose client closed its side


class HttpConnection(H11Protocol):
    """As uvicorn has it; what was asked as a whole is answered where the client has closed its side
    since, as `nc -N` and some clients of HTTP/1.0 do. TLS knows no such thing in asyncio.

    One that is gone looks the same, until it is written to.
    """

    _says_no_more = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody is there. What the system does not take at once is waited for: TLS would keep
        512 KiB, which are lost if they are not read before the connection counts as silent.
        """
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=1, low=0)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client has closed its side; whether ours stays open."""
        cycle = self.cycle
        is_waiting = cycle is not None and not cycle.more_body and not cycle.response_complete
        self._says_no_more = is_waiting and self.scheme == "http"
        if self._says_no_more:
            cycle.scope[SAYS_NO_MORE] = True  # type: ignore[literal-required]
        return self._says_no_more

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing keeps it for the requests that might have followed, nor what TLS keeps of it."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def on_response_complete(self) -> None:
        """The last answer ends a connection that nothing more comes by, no rest of a request."""
        super().on_response_complete()
        if self._says_no_more and (self.cycle.response_complete or self.cycle.more_body):
            self.transport.close()
