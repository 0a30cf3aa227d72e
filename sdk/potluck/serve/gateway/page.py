"""A page of the home at the entrance, to look at only: under an address that holds a token, as
browsers send none by themselves.
"""

import asyncio
import hmac
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

MOST_READERS = 16
MOST_WAITING = 64  # parts that a slow reader has not taken; then it waits for the next whole one

Waiting = asyncio.Queue[bytes | None]


class HomePage(Protocol):
    """What is served."""

    @property
    def files(self) -> Mapping[str, tuple[str, str]]:
        """By name: the text of each file, and its type."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Said with every answer."""

    def show(self, view: Callable[[bytes], None]) -> Callable[[], None]:
        """Give this view every part of the stream from now on; its result ends that."""

    def close(self) -> None:
        """Nobody looks any more."""


class PageRoutes:
    """The routes of one page.

    Parameters
    ----------
    page
        What is served.
    """

    def __init__(self, page: HomePage) -> None:
        self._page = page
        self._token = secrets.token_urlsafe(24)
        self._readers: dict[Waiting, asyncio.AbstractEventLoop] = {}

    @property
    def path(self) -> str:
        """Where it is, token and all."""
        return f"/watch/{self._token}/"

    @property
    def routes(self) -> list[Route]:
        """For the application."""
        return [
            Route("/watch/{token}/frames", self._frames, methods=["GET"]),
            Route("/watch/{token}/{name:path}", self._file, methods=["GET"]),
        ]

    def close(self) -> None:
        """Its readers get nothing more."""
        self._page.close()
        for waiting, loop in list(self._readers.items()):
            with suppress(RuntimeError):  # the loop has ended, and they with it
                loop.call_soon_threadsafe(_end, waiting)

    def _may(self, request: Request) -> bool:
        given = str(request.path_params["token"])
        return hmac.compare_digest(given.encode(), self._token.encode())

    async def _file(self, request: Request) -> Response:
        found = self._page.files.get(request.path_params["name"]) if self._may(request) else None
        if found is None:
            return Response(status_code=404)
        text, kind = found
        return Response(text, media_type=kind, headers=dict(self._page.headers))

    async def _frames(self, request: Request) -> Response:
        if not self._may(request):
            return Response(status_code=404)
        if len(self._readers) >= MOST_READERS:
            return Response(status_code=503)
        return StreamingResponse(
            self._stream(), media_type="application/octet-stream", headers=dict(self._page.headers)
        )

    async def _stream(self) -> AsyncIterator[bytes]:
        waiting, loop = Waiting(MOST_WAITING), asyncio.get_running_loop()

        def view(part: bytes) -> None:
            loop.call_soon_threadsafe(_put, waiting, part)

        leave = self._page.show(view)
        self._readers[waiting] = loop
        try:
            while (part := await waiting.get()) is not None:
                yield part
        finally:
            leave()
            del self._readers[waiting]


def _put(waiting: Waiting, part: bytes) -> None:
    with suppress(asyncio.QueueFull):
        waiting.put_nowait(part)


def _end(waiting: Waiting) -> None:
    if waiting.full():
        waiting.get_nowait()
    waiting.put_nowait(None)
