"""The cockpit's page on loopback (or, to look at, on one network), for browsers without Jupyter: a
token in its address, frames as one stream, clicks as posts. Whoever has no token, or comes by
another name than this machine's, gets nothing.
"""

import hmac
import json
import queue
import secrets
import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler
from typing import Any

from potluck.display.cockpit.observer import CockpitObserver
from potluck.display.cockpit.page_connections import BoundedPageServer
from potluck.display.cockpit.page_files import (
    HEADERS,
    LENGTH,
    MOST_STREAMS,
    MOST_WAITING,
    page_files,
)
from potluck.errors import PotluckError, UserError
from potluck.sanitized_text import harmless

HOST = "127.0.0.1"
MOST_ASKED_BYTES = 64 << 10
SILENCE_S = 15.0  # of a reader that has gone without a word


class PageServer:
    """The page of one cockpit.

    Parameters
    ----------
    watching
        What it shows.
    may_act
        Whether its clicks may switch and pair; else they look only.
    port
        Default: any that is free.
    host
        An address of this machine; on any but the loopback one the page looks only, since what is
        sent there is not encrypted.

    Raises
    ------
    UserError
        This machine has no such address, or it is that of all networks.
    """

    def __init__(
        self, watching: CockpitObserver, *, may_act: bool = False, port: int = 0, host: str = HOST
    ) -> None:
        self.watching, self.host = watching, host
        self.may_act = may_act and host == HOST
        self.token = secrets.token_urlsafe(24)
        self.streams = threading.BoundedSemaphore(MOST_STREAMS)
        self.ended = threading.Event()
        outer = self

        class Browser(PageRequests):
            server_of = outer

        if host in ("", "0.0.0.0", "::"):  # noqa: S104
            raise UserError("the page is for one network: say which address of this machine.")
        try:
            self._server = BoundedPageServer((host, port), Browser)
        except OSError as error:
            raise UserError(f"cannot listen at {host}:{port}: {error.strerror}.") from error
        threading.Thread(
            target=self._server.serve_forever, name="potluck page", daemon=True
        ).start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Its address, token and all."""
        return f"http://{self.host}:{self.port}/{self.token}/"

    @property
    def names(self) -> tuple[str, ...]:
        """By which browsers may ask for it."""
        known = (HOST, "localhost") if self.host == HOST else (self.host,)
        return tuple(f"{name}:{self.port}" for name in known)

    def close(self) -> None:
        """Serve nobody any more; safe to call twice."""
        if not self.ended.is_set():
            self.ended.set()
            self._server.shutdown()
            self._server.server_close()


class PageRequests(BaseHTTPRequestHandler):
    """What is asked for over one connection."""

    server: BoundedPageServer
    server_of: PageServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "potluck", ""
    timeout = SILENCE_S

    def do_GET(self) -> None:
        """Page, script or frames."""
        answers: dict[str, Callable[[], None]] = {
            name: partial(self._bytes, text.encode(), kind)
            for name, (text, kind) in page_files(may_act=self.server_of.may_act).items()
        }
        self._answered({**answers, "frames": self._frames})

    def do_POST(self) -> None:
        """A click."""
        self._answered({"ask": self._ask})

    def _answered(self, answers: dict[str, Callable[[], None]]) -> None:
        token, _, what = self.path.removeprefix("/").partition("/")
        its = self.server_of
        is_ours = self.headers.get("Host", "") in its.names
        if not is_ours or not hmac.compare_digest(token.encode(), its.token.encode()):
            return self._refuse(403)
        if what not in answers:
            return self._refuse(404)
        with suppress(OSError), self.server.answering(self.client_address[:2]):
            answers[what]()  # unless the browser has gone
        return None

    def _refuse(self, code: int) -> None:
        self.close_connection = True
        self.send_response(code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _bytes(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self._headers(kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _headers(self, kind: str) -> None:
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        for name, value in HEADERS.items():
            self.send_header(name, value)

    def _ask(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or len(length) > 9 or int(length) > MOST_ASKED_BYTES:
            return self._refuse(413)
        words = ""
        try:
            content: Any = json.loads(self.rfile.read(int(length)))
            self.server_of.watching.clicked(content, may_act=self.server_of.may_act)
        except (ValueError, RecursionError):
            return self._refuse(400)
        except PotluckError as error:
            words = harmless(str(error))
        self._bytes(json.dumps({"words": words}).encode(), "application/json")
        return None

    def _frames(self) -> None:
        """All frames from now on, where there is a place for one more reader."""
        streams = self.server_of.streams
        if not streams.acquire(blocking=False):
            return self._refuse(503)
        try:
            self._stream()
        finally:
            streams.release()
        return None

    def _stream(self) -> None:
        """Each frame behind its length, until the reader leaves."""
        its = self.server_of
        waiting: queue.Queue[bytes] = queue.Queue(MOST_WAITING)

        def view(frame: bytes) -> None:
            with suppress(queue.Full):
                waiting.put_nowait(frame)

        self.close_connection = True
        self.send_response(200)
        self._headers("application/octet-stream")
        self.end_headers()
        leave = its.watching.show(view)
        try:
            while not its.ended.is_set():
                try:
                    frame = waiting.get(timeout=1.0)
                except queue.Empty:  # nothing is written by which it would be seen
                    if self._has_left():
                        return
                    continue
                self.wfile.write(LENGTH.pack(len(frame)) + frame)
        finally:
            leave()

    def _has_left(self) -> bool:
        """Whether the reader has closed its end: it says nothing else behind its request."""
        with selectors.DefaultSelector() as reading:
            reading.register(self.connection, selectors.EVENT_READ)
            return bool(reading.select(0)) and not self.connection.recv(1, socket.MSG_PEEK)

    def log_message(self, *_: Any) -> None:
        """Say nothing: the token is in the address."""
