"""The HTTP application: routes of the Open Inference Protocol v2, server-sent events, health and
metrics, as Starlette has them.

`/v2`, `/v2/health/live`, `/v2/health/ready`, `/v2/models/NAME`, `.../ready`, `.../infer`,
`.../stream` (frames in a body of lines, answers as server-sent events), `/metrics`; and of Triton's
`.../config`, `.../stats`, `/v2/models/stats` and `/v2/repository/index`.
"""

import asyncio
import hmac
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from potluck.errors import NotServed, PotluckError, RequestFailed, UserError
from potluck.serve.gateway import metrics, protocol, triton
from potluck.serve.gateway.asked_models import answered, ports, tell_nobody
from potluck.serve.gateway.frames import FrameStream, FramesUnderWay, events, frames_of
from potluck.serve.gateway.middleware import SHARE, AsciiJSONResponse
from potluck.serve.gateway.protocol import BadRequest, Port
from potluck.serve.gateway.text import Endpoint, TextRoutes, Texts, with_openai_errors
from potluck.serve.gateway.thread_answers import ThreadAnswers
from potluck.serve.stats import TOO_MANY_ROWS
from potluck_wire import __version__

if TYPE_CHECKING:
    from potluck.serve.gateway.traces import Tell, Traces
    from potluck.serve.runtime.service import Service
    from potluck.serve.runtime.text_service import TextService

TEXT_PORTS = ((Port("text_input", "BYTES", (1,)),), (Port("text_output", "BYTES", (1,)),))
MAX_BODY_BYTES = 64 * 2**20
BODY_S = 30.0  # that a body may take
SMALL_BYTES = 64 * 1024  # read at once: 3 ms; larger ones one after the other, beside the rest
LIVE = "/v2/health/live"
STATS = "stats"
HEADER = "Inference-Header-Content-Length"
EXTENSIONS = ["binary_tensor_data", "model_configuration", "statistics"]
Services = Callable[[], "Mapping[str, Service]"]


def application(
    services: Services,
    texts: Texts,
    reader: Executor,
    *,
    token: str = "",
    max_body_bytes: int = MAX_BODY_BYTES,
    more: Sequence[Route] = (),
    traces: "Traces | None" = None,
) -> Starlette:
    """The application for these services.

    Parameters
    ----------
    services, texts
        Give them, and those that write, as they are at each request.
    reader
        Of one thread, in which large bodies are read one after the other.
    token
        What clients have to show as `Authorization: Bearer TOKEN`; empty: nothing.
    max_body_bytes
        Of one request; longer ones are refused before they are read.
    more
        Routes of pages, which have a token of their own.
    traces
        Makes spans of requests.
    """
    entrance = GatewayRoutes(
        services, texts, reader, token=token, max_body_bytes=max_body_bytes, traces=traces
    )
    one = "/v2/models/{name}"
    routes: list[tuple[str, Endpoint, str]] = [
        ("/v2", entrance.server, "GET"),
        (LIVE, entrance.live, "GET"),
        ("/v2/health/ready", entrance.ready, "GET"),
        ("/v2/repository/index", entrance.index, "POST"),
        ("/v2/models/stats", entrance.all_statistics, "GET"),
        (f"{one}/stream", entrance.stream, "POST"),
        ("/metrics", entrance.metrics, "GET"),
    ]
    for at in (one, f"{one}/versions/1"):
        routes += [
            (at, entrance.about, "GET"),
            (f"{at}/ready", entrance.model_ready, "GET"),
            (f"{at}/config", entrance.config, "GET"),
            (f"{at}/stats", entrance.statistics, "GET"),
            (f"{at}/infer", entrance.infer, "POST"),
        ]
    routes += TextRoutes(texts, entrance.body, entrance.aside).routes
    own = []
    for path, does, how in routes:
        answer = entrance.guarded(does)
        answer = with_openai_errors(answer) if path.startswith("/v1/") else answer
        answer = traces.traced(path, answer) if traces is not None else answer
        own.append(Route(path, answer, methods=[how]))
    return Starlette(routes=[*own, *more], exception_handlers={HTTPException: _no_route})


_Read = TypeVar("_Read")


class GatewayRoutes:
    """What each route answers.

    Parameters
    ----------
    services, texts, reader, token, max_body_bytes, traces
        As for `application`.
    """

    def __init__(
        self,
        services: Services,
        texts: Texts,
        reader: Executor,
        *,
        token: str,
        max_body_bytes: int,
        traces: "Traces | None" = None,
    ) -> None:
        self._services, self._texts = services, texts
        self._token, self._traces = token, traces
        self._max_body_bytes = max_body_bytes
        self._reader = reader
        self._answers = ThreadAnswers()

    def guarded(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint for who may come in; errors become answers with their status."""

        async def answer(request: Request) -> Response:
            if not self._may(request):
                return _error(401, "this entrance asks for a token: Authorization: Bearer TOKEN.")
            try:
                return await endpoint(request)
            except _Status as error:
                return _error(error.status, str(error))
            except BadRequest as error:
                return _error(error.status, str(error), **error.facts)
            except UserError as error:
                return _error(400, str(error), field="inputs")
            except RequestFailed as error:
                return _error(422, str(error), field="inputs")
            except NotServed as error:
                return _refused(error)
            except PotluckError as error:
                return _error(503, str(error))
            except ClientDisconnect:
                return _error(400, "body: it ended before its time.", field="body")

        return answer

    def _may(self, request: Request) -> bool:
        # the path by which the route was found; that of `request.url` may hold what `Host` says
        if not self._token or request.scope["path"] == LIVE:
            return True
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        is_same = hmac.compare_digest(given.strip().encode(), self._token.encode())
        return is_same and scheme.lower() == "bearer"  # RFC 7235, section 2.1

    # --- about ------------------------------------------------------------------------------------

    async def server(self, request: Request) -> Response:
        """Who this is."""
        return AsciiJSONResponse(
            {"name": "potluck", "version": __version__, "extensions": EXTENSIONS}
        )

    async def live(self, request: Request) -> Response:
        """It answers."""
        return AsciiJSONResponse({"live": True})

    async def ready(self, request: Request) -> Response:
        """Whether every service has a device."""
        ready = all(service.devices for service in self._services().values())
        return AsciiJSONResponse({"ready": ready}, status_code=200 if ready else 503)

    async def about(self, request: Request) -> Response:
        """A model's inputs and outputs."""
        inputs, outputs = self._ports(request)
        return AsciiJSONResponse(
            {
                "name": request.path_params["name"],
                "versions": ["1"],
                "platform": "potluck",
                "inputs": [port.document() for port in inputs],
                "outputs": [port.document() for port in outputs],
            }
        )

    async def config(self, request: Request) -> Response:
        """A model's configuration, as Triton has it."""
        name, (inputs, outputs) = request.path_params["name"], self._ports(request)
        max_rows = 0 if name in self._texts() else self._service(request).max_rows
        return AsciiJSONResponse(triton.config(name, inputs, outputs, max_rows))

    async def statistics(self, request: Request) -> Response:
        """What a model has done, as Triton has it."""
        name = request.path_params["name"]
        served = self._texts().get(name) or self._service(request)
        return AsciiJSONResponse({"model_stats": [triton.statistics(name, served.stats)]})

    async def all_statistics(self, request: Request) -> Response:
        """What every model has done; or about one that is called so."""
        served = self._served()
        if STATS in served:
            request.path_params["name"] = STATS
            return await self.about(request)
        rows = [triton.statistics(name, each.stats) for name, each in served.items()]
        return AsciiJSONResponse({"model_stats": rows})

    async def index(self, request: Request) -> Response:
        """Which models there are; with `{"ready": true}`, those that are ready."""
        body = await self.body(request)
        is_ready_only = bool(body) and protocol.read_document(body).get("ready") is True
        served = self._served()
        rows = [
            triton.index_row(name, is_ready=bool(each.devices))
            for name, each in served.items()
            if each.devices or not is_ready_only
        ]
        return AsciiJSONResponse(rows)

    async def model_ready(self, request: Request) -> Response:
        """Whether a device has it."""
        name = request.path_params["name"]
        service = self._texts().get(name) or self._service(request)
        ready = bool(service.devices)
        return AsciiJSONResponse({"name": name, "ready": ready}, status_code=200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        """For Prometheus."""
        services, texts = self._services(), self._texts()
        devices = {name: each.devices for name, each in services.items()}
        writing = {n: dict.fromkeys(each.devices, each.model.rows) for n, each in texts.items()}
        stats = {name: each.stats for name, each in services.items()}
        page = metrics.text(stats, {**devices, **writing})
        page += metrics.texts({name: each.stats for name, each in texts.items()})
        return Response(page, media_type=metrics.TYPE)

    def _served(self) -> "Mapping[str, Service | TextService]":
        return {**self._services(), **self._texts()}

    def _ports(self, request: Request) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
        is_text = request.path_params["name"] in self._texts()
        return TEXT_PORTS if is_text else ports(self._service(request).model)

    def _service(self, request: Request) -> "Service":
        name = request.path_params["name"]
        found = self._services().get(name)
        if name in self._texts():
            raise _Status(404, f"{name} writes texts: ask at /v2/models/{name}/generate.")
        if found is None:
            raise _Status(404, f"no service is called {name!r}.")
        return found

    # --- inference --------------------------------------------------------------------------------

    async def infer(self, request: Request) -> Response:
        """One request."""
        service = self._service(request)
        body = await self.body(request)
        json_bytes_given = _json_bytes(request)
        inference = await self.aside(len(body), lambda: protocol.read(body, json_bytes_given))
        outputs = await answered(service, inference, self._answers, self._tell())
        content, json_bytes = protocol.write(service.name, inference, outputs)
        if json_bytes is None:
            return Response(content, media_type="application/json")
        return Response(
            content, headers={HEADER: str(json_bytes)}, media_type="application/octet-stream"
        )

    async def stream(self, request: Request) -> Response:
        """Frames, one request of the protocol per line; answers in order, as events."""
        service = self._service(request)
        body = await self.body(request)
        frames, tensors = await self.aside(len(body), lambda: frames_of(service.model, body))
        found = FramesUnderWay(service.pending_frames(tensors))
        return FrameStream(
            found,
            events(service, frames, found, self._answers, self._tell()),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store"},
        )

    def _tell(self) -> "Tell":
        """Who is told of what becomes of the requests that are asked for here."""
        return tell_nobody if self._traces is None else self._traces.tell()

    async def aside(self, n_bytes: int, read: "Callable[[], _Read]") -> "_Read":
        """What is read of a body; of a large one in a thread, where one after the other is read.

        Parameters
        ----------
        n_bytes
            That it has.
        read
            Reads it.
        """
        if n_bytes <= SMALL_BYTES:
            return read()
        return await asyncio.get_running_loop().run_in_executor(self._reader, read)

    async def body(self, request: Request) -> bytes:
        """All of it, if it is not too long, has room and does not take too long.

        Parameters
        ----------
        request
            Whose it is.

        Raises
        ------
        _Status
            It is not so.
        """
        share = request.scope[SHARE]
        encoding = request.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise _Status(
                415, f"Content-Encoding: bodies are taken as they are, not as {encoding:.20}."
            )
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > self._max_body_bytes:
            raise _Status(413, self._too_long(declared))
        parts: list[bytes] = []
        n = 0

        async def take() -> None:
            nonlocal n
            async for part in request.stream():
                n += len(part)
                if n > self._max_body_bytes:
                    raise _Status(413, self._too_long(f"{n} or more"))
                if not share.take(len(part)):
                    raise _Status(503, "body: too many are under way; ask again.")
                parts.append(part)

        try:
            await asyncio.wait_for(take(), BODY_S)
        except asyncio.TimeoutError:
            raise _Status(408, f"body: it took longer than {BODY_S:g} s.") from None
        return b"".join(parts)

    def _too_long(self, got: str) -> str:
        return f"body: at most {self._max_body_bytes} bytes are taken, got {got}."


class _Status(Exception):
    """An answer with this status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def _json_bytes(request: Request) -> int | None:
    text = request.headers.get(HEADER)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise BadRequest(
            f"{HEADER}: a number of bytes is expected, got {text[:20]!r}.", field=HEADER
        )
    return int(text)


def _error(status: int, text: str, **facts: object) -> Response:
    return AsciiJSONResponse({"error": text, **facts}, status_code=status)


async def _no_route(request: Request, error: Exception) -> Response:
    """No route, or none for this verb, as clients of the protocol read errors."""
    assert isinstance(error, HTTPException)
    response = _error(
        error.status_code, f"{request.method} {request.scope['path']}: {error.detail}."
    )
    response.headers.update(error.headers or {})
    return response


def _refused(error: NotServed) -> Response:
    """Overloaded: said so at once, and when to ask again."""
    if error.facts.get("reason") == TOO_MANY_ROWS:
        return _error(422, str(error), field="inputs")  # at any time
    soonest_s, limit_s = error.facts.get("soonest_s"), error.facts.get("limit_s")
    wait_s = 1.0
    if isinstance(soonest_s, float) and isinstance(limit_s, float):
        wait_s = max(0.0, soonest_s - limit_s)
    response = _error(503, str(error), **error.facts)
    response.headers["Retry-After"] = str(max(1, round(wait_s)))
    return response
