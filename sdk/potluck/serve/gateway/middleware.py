"""What stands between the server and the application: who is asked by a name that is this
computer's own, how long an answer waits for its reader, and how much all bodies take together.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol
from urllib.parse import urlsplit

from starlette.responses import JSONResponse

from potluck.serve.gateway.connection_limit import Who

PIECE_BYTES = 64 * 1024
PIECE_S = 30.0  # for a reader to take one: 17 kbit/s
SHARE = "potluck.share"  # of the room for bodies, in the scope of a request
_LENGTHS = {b"content-length", b"transfer-encoding"}
OWN_NAMES = ("localhost", "127.0.0.1", "::1")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class AsciiJSONResponse(JSONResponse):
    """An answer in JSON that can be sent whatever text is in it: JSON may ask with half a
    character, which no UTF-8 has, and errors say what was asked.
    """

    def render(self, content: Any) -> bytes:
        """The body: what is not ASCII is escaped."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


class ConnectionGate(Protocol):
    """Whom the guard tells what becomes of a connection."""

    def on_request(self, who: Who) -> None:
        """The head of a request is there."""

    def answered(self, who: Who) -> None:
        """It is answered."""

    def disconnect(self, who: Who) -> None:
        """It has to leave."""


class BodyBudget:
    """Bytes that all bodies may have together.

    Parameters
    ----------
    most_bytes
        Of all.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes, self.used_bytes = most_bytes, 0

    def share(self) -> "BodyShare":
        """One for a request, still empty."""
        return BodyShare(self)


class BodyShare:
    """What one request has of the room."""

    def __init__(self, room: BodyBudget) -> None:
        self._room, self._taken_bytes = room, 0

    def take(self, n_bytes: int) -> bool:
        """Whether there was room for as many more."""
        if self._room.used_bytes + n_bytes > self._room.most_bytes:
            return False
        self._room.used_bytes += n_bytes
        self._taken_bytes += n_bytes
        return True

    def give_back(self) -> None:
        """The request is answered."""
        self._room.used_bytes -= self._taken_bytes
        self._taken_bytes = 0


class RequestGuard:
    """An application within bounds.

    Parameters
    ----------
    application
        What answers.
    keeper
        Is told who asked, who is answered, and who does not read its answer.
    room
        For all bodies.
    names
        By which this computer may be asked; None: by any, as a token is asked for.
    """

    def __init__(
        self,
        application: Application,
        keeper: ConnectionGate,
        room: BodyBudget,
        names: tuple[str, ...] | None,
    ) -> None:
        self._application = application
        self._keeper = keeper
        self._room = room
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, as ASGI has it."""
        who, share = scope["client"], self._room.share()
        scope[SHARE] = share
        self._keeper.on_request(who)

        async def paced(message: Message) -> None:
            try:
                for piece in _pieces(message):
                    await asyncio.wait_for(send(piece), PIECE_S)
            except asyncio.TimeoutError:
                self._keeper.disconnect(who)
                raise OSError("the answer is not read") from None

        try:
            why_not = self._why_not(scope)
            application = _refusal(*why_not) if why_not else self._application
            await application(scope, receive, paced)
        except OSError:  # nobody reads it: there is nobody to tell
            self._keeper.disconnect(who)
        finally:
            share.give_back()
            self._keeper.answered(who)

    def _why_not(self, scope: Scope) -> tuple[int, str] | None:
        """The status and the reason of a refusal."""
        headers, names = scope["headers"], self._names
        if {name for name, _ in headers} >= _LENGTHS:
            # two servers in a row could differ on where it ends
            return 400, "Content-Length: a body has a length, or comes in chunks, not both."
        if names is None:
            return None
        for name, raw in headers:
            value = raw.decode("latin-1")
            if name == b"host" and value and name_in(f"//{value}") not in names:
                return 403, f"Host: this entrance is asked as {names[0]}, not as {value[:80]!r}."
            if name == b"origin" and name_in(value) not in names:
                return 403, "Origin: pages of other places may not ask this entrance."
        return None


def name_in(url: str) -> str:
    """The name of a computer in an address; empty where there is none.

    >>> name_in("http://localhost:8000"), name_in("//[::1]:80"), name_in("null")
    ('localhost', '::1', '')
    """
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _refusal(status: int, text: str) -> Application:
    response = AsciiJSONResponse({"error": text}, status_code=status)
    response.headers["Connection"] = "close"
    return response


def _pieces(message: Message) -> list[Message]:
    """A long body in pieces: so its reader is waited for in between, and after the last one, by an
    empty piece. Else it would count as answered while much of it is not sent yet.
    """
    body = message.get("body", b"")
    if len(body) <= PIECE_BYTES:
        return [message]
    begins = range(0, len(body), PIECE_BYTES)
    pieces: list[Message] = [
        {**message, "body": body[at : at + PIECE_BYTES], "more_body": True} for at in begins
    ]
    return [*pieces, {**message, "body": b""}]
