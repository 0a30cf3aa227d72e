"""The server in a thread of this process: uvicorn, on the loopback unless told otherwise."""

import ipaddress
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from potluck.errors import FileError, HomeError, UserError
from potluck.optional import needed

if TYPE_CHECKING:
    from potluck.serve.runtime.service import Service

with needed():
    import uvicorn

    from potluck.serve.gateway.app import MAX_BODY_BYTES, Services, application

START_S = 30.0
CLOSE_S = 5.0
MAX_AT_ONCE = 1024  # connections; more are answered 503
IDLE_S = 5.0  # then a connection without a request is closed


class Gateway:
    """An HTTP entrance that is open.

    Parameters
    ----------
    services
        Gives the services of the home.
    host, port
        Where it listens; port 0 is a free one.
    token
        What clients have to show.
    certificate, key
        Files in PEM form, for HTTPS.
    max_body_bytes
        Of one request.

    Raises
    ------
    UserError
        It would listen beyond this computer without a token.
    FileError
        A file of the certificate cannot be used.
    HomeError
        It cannot listen there.
    """

    def __init__(
        self,
        services: Services,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str = "",
        certificate: str | Path | None = None,
        key: str | Path | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        check_entrance(host, token)
        self._services = services
        self.token, self._is_tls = token, certificate is not None
        config = uvicorn.Config(
            application(services, token=token, max_body_bytes=max_body_bytes),
            host=host,
            port=port,
            log_level="critical",
            access_log=False,
            lifespan="off",
            limit_concurrency=MAX_AT_ONCE,
            timeout_keep_alive=int(IDLE_S),
            timeout_graceful_shutdown=int(CLOSE_S),
            ssl_certfile=certificate,
            ssl_keyfile=key,
            server_header=False,
        )
        try:
            config.load()
        except (OSError, ValueError) as error:
            raise FileError(f"the certificate cannot be used: {error}.") from error
        try:
            sock = config.bind_socket()
        except SystemExit:
            raise HomeError(
                f"nothing can listen at {host}:{port}: is something else there?",
                next_step="Choose another port; 0 is a free one.",
            ) from None
        self.host, self.port = host, int(sock.getsockname()[1])
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([sock],), name="potluck gateway", daemon=True
        )
        self._thread.start()
        self._await()

    def _await(self) -> None:
        for _ in range(int(START_S / 0.01)):
            if self._server.started:
                return
            self._thread.join(0.01)
            if not self._thread.is_alive():
                break
        raise HomeError(f"the entrance at {self.host}:{self.port} did not open.")

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http{'s' if self._is_tls else ''}://{self.host}:{self.port}"

    @property
    def services(self) -> "Mapping[str, Service]":
        """What can be asked for."""
        return self._services()

    def close(self) -> None:
        """Let nobody in any more; safe to call twice."""
        self._server.should_exit = True
        self._thread.join(CLOSE_S + 1)

    def __enter__(self) -> "Gateway":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Gateway {self.url}: {', '.join(self._services()) or 'no service'}>"


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
    """Refuse an entrance for everybody: beyond this computer, clients need a token.

    Parameters
    ----------
    host
        Where it listens.
    token
        What clients have to show.

    Raises
    ------
    UserError
        There is none.
    """
    if not is_loopback(host) and not token:
        raise UserError(
            f"{host} can be reached from other computers, and no token is asked for.",
            next_step="Give one, home.gateway(host=..., token=...), and a certificate; or listen "
            "at 127.0.0.1.",
        )
