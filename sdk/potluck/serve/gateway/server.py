"""The server in a thread of this process: uvicorn, on the loopback unless told otherwise."""

import asyncio
import ipaddress
import logging
import re
import ssl
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.errors import FileError, HomeError, UserError
from potluck.optional_packages import needed
from potluck.serve import resident_objects
from potluck.serve.gateway.connection_limit import ConnectionLimit, Who
from potluck.serve.gateway.listener import Listener
from potluck_wire.descriptors import allow_connections

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from potluck.serve.gateway.traces import Traces
    from potluck.serve.runtime.service import Service

with needed():
    import uvicorn

    from potluck.serve.gateway.app import MAX_BODY_BYTES, Services, application
    from potluck.serve.gateway.http_connection import HttpConnection
    from potluck.serve.gateway.middleware import OWN_NAMES, BodyBudget, RequestGuard
    from potluck.serve.gateway.page import HomePage, PageRoutes
    from potluck.serve.gateway.text import Texts

LOG = logging.getLogger(__name__)
START_S = 30.0
CLOSE_S = 5.0
IDLE_S = 5.0  # then a connection is closed that has its answer, and asks nothing more
N_BODIES = 4  # of the largest size, that may be there at once
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # RFC 6750, section 2.1: what a client can send


class Gateway:
    """An HTTP entrance that is open.

    Until it is closed, Python's collector of cycles leaves out what was there before: to look at
    all of it takes 0.2 s, and every request would wait.

    Parameters
    ----------
    services, texts
        Give the services of the home, and those that write.
    host, port
        Where it listens; port 0 is a free one.
    token
        What clients have to show.
    certificate, key
        Files in PEM form, for HTTPS.
    max_body_bytes
        Of one request.
    page
        Of the home, to look at; closed with the entrance.
    limit
        Bounds how many come in, and how long they may be silent.
    tracer_provider
        Gets a span of each request; None: there are none.

    Raises
    ------
    UserError
        It would listen beyond this computer without a token, or no client can send the token.
    FileError
        A file of the certificate cannot be used.
    HomeError
        It cannot listen there.
    """

    def __init__(
        self,
        services: Services,
        *,
        texts: "Texts" = dict,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str = "",
        certificate: str | Path | None = None,
        key: str | Path | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
        page: "HomePage | None" = None,
        limit: ConnectionLimit | None = None,
        tracer_provider: "TracerProvider | None" = None,
    ) -> None:
        check_entrance(host, token)
        check_certificate(certificate, key)
        self._services = services
        self.token, self._is_tls = token, certificate is not None
        limit = ConnectionLimit() if limit is None else limit
        limit.max_open = min(limit.max_open, allow_connections() // 2)
        names = None if token else (host, *OWN_NAMES)
        self._reader = ThreadPoolExecutor(1, "potluck gateway reader")
        self._page = PageRoutes(page) if page is not None else None
        more = self._page.routes if self._page is not None else ()
        served = application(
            services,
            texts,
            self._reader,
            token=token,
            max_body_bytes=max_body_bytes,
            more=more,
            traces=_traces(tracer_provider),
        )
        within = RequestGuard(served, self, BodyBudget(N_BODIES * max_body_bytes), names)
        config = uvicorn.Config(
            within,
            host=host,
            port=port,
            http=HttpConnection,
            ws="none",
            log_level="critical",
            access_log=False,
            lifespan="off",
            timeout_keep_alive=int(IDLE_S),
            timeout_graceful_shutdown=int(CLOSE_S),
            ssl_certfile=certificate,
            ssl_keyfile=key,
            server_header=False,
            proxy_headers=False,  # else whoever asks would say which connection it comes by
        )
        config.load()
        try:
            sock = config.bind_socket()
        except SystemExit:
            raise HomeError(
                f"nothing can listen at {host}:{port}: is something else there?",
                next_step="Choose another port; 0 is a free one.",
            ) from None
        self.host, self.port = host, int(sock.getsockname()[1])
        self._listener = Listener(sock, limit, is_tls=self._is_tls)
        self._server = _GatewayServer(config, self._listener)
        self._thread = threading.Thread(target=self._serve, name="potluck gateway", daemon=True)
        self._thread.start()
        self._await()
        resident_objects.leave_out(self)

    def _await(self) -> None:
        for _ in range(int(START_S / 0.01)):
            if self._server.started:
                return
            self._thread.join(0.01)
            if not self._thread.is_alive():
                break
        raise HomeError(f"the entrance at {self.host}:{self.port} did not open.")

    def _serve(self) -> None:
        loop = asyncio.SelectorEventLoop()  # on Windows, too: it asks the listener for connections
        loop.set_exception_handler(_on_loop_error)
        try:
            loop.run_until_complete(self._server.serve(sockets=[self._listener]))
        finally:
            self._listener.connections.close_all()
            loop.run_until_complete(_end_handshakes())
            loop.close()

    # --- who comes and goes, in the server's thread -----------------------------------------------

    def on_request(self, who: Who) -> None:
        """The head of a request is there."""
        self._listener.connections.ask(who)

    def answered(self, who: Who) -> None:
        """It is answered."""
        self._listener.connections.answer(who)

    def disconnect(self, who: Who) -> None:
        """Have a connection end."""
        self._listener.connections.disconnect(who)

    @property
    def url(self) -> str:
        """Where it is."""
        host = f"[{self.host}]" if ":" in self.host else self.host  # RFC 3986, section 3.2.2
        return f"http{'s' if self._is_tls else ''}://{host}:{self.port}"

    @property
    def watch_url(self) -> str:
        """Where the home can be looked at, token and all; empty where no page was asked for."""
        return f"{self.url}{self._page.path}" if self._page is not None else ""

    @property
    def services(self) -> "Mapping[str, Service]":
        """What can be asked for."""
        return self._services()

    def close(self) -> None:
        """Let nobody in any more; safe to call twice."""
        if self._page is not None:
            self._page.close()
        self._server.should_exit = True
        self._thread.join(CLOSE_S + 1)
        self._reader.shutdown(wait=False)
        resident_objects.take_back(self)

    def __enter__(self) -> "Gateway":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        page = "; its watch_url shows the home" if self._page is not None else ""
        return f"<Gateway {self.url}: {', '.join(self._services()) or 'no service'}{page}>"


class _GatewayServer(uvicorn.Server):
    """Parts from who asks nothing, several times a second."""

    def __init__(self, config: uvicorn.Config, listener: Listener) -> None:
        super().__init__(config)
        self._listener = listener

    async def on_tick(self, counter: int) -> bool:
        self._listener.connections.sweep()
        return await super().on_tick(counter)


def _traces(provider: "TracerProvider | None") -> "Traces | None":
    if provider is None:
        return None
    from potluck.serve.gateway.traces import Traces

    return Traces(provider)


async def _end_handshakes() -> None:
    """Those under way; each would be told on the terminal as destroyed."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Connections break as they like; all else is told as usual."""
    if isinstance(context.get("exception"), OSError):
        LOG.debug("a connection broke: %s", context["exception"])
    else:
        loop.default_exception_handler(context)


def is_loopback(host: str) -> bool:
    """Whether only this computer can reach it there.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
    (True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_entrance(host: str, token: str) -> None:
    """Refuse an entrance for everybody, and one for nobody: beyond this computer, clients need a
    token, and one that they can send.

    Parameters
    ----------
    host
        Where it listens.
    token
        What clients have to show.

    Raises
    ------
    UserError
        There is none, or none that a client can show in a header.
    """
    if token and not TOKEN.fullmatch(token):
        raise UserError(
            "the token cannot be shown in a header as it is: it may have letters and digits of "
            "ASCII and - . _ ~ + /, and = at its end.",
            next_step="Make one: python -c 'import secrets; print(secrets.token_urlsafe())'",
        )
    if not is_loopback(host) and not token:
        raise UserError(
            f"{host} can be reached from other computers, and no token is asked for.",
            next_step="Give one, home.gateway(host=..., token=...) or POTLUCK_SERVE_TOKEN of "
            "`potluck serve`, and a certificate; or listen at 127.0.0.1.",
        )


def check_certificate(certificate: str | Path | None, key: str | Path | None) -> None:
    """Refuse files that no server can show, and a key that nobody could ask for.

    Parameters
    ----------
    certificate, key
        Files in PEM form; a key may be in the certificate's.

    Raises
    ------
    UserError
        There is a key alone.
    FileError
        They cannot be read, are none, or do not belong together; or the key has a pass phrase.
    """
    if certificate is None:
        if key is not None:
            raise UserError(
                f"{key} is a key without a certificate.", next_step="Give both, or none."
            )
        return
    files = f"the certificate {certificate}" + (f" with the key {key}" if key is not None else "")
    try:
        # a pass phrase would be asked for on the terminal, if there is one
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise FileError(
            f"{files} cannot be used: {error}.",
            next_step="Give files in PEM form that belong together, the key without a pass phrase.",
        ) from error
