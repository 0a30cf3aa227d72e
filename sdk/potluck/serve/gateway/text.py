"""Texts over HTTP: `/v2/models/NAME/generate` and `.../generate_stream`, as Triton has them, and
`/v1/models`, `/v1/completions` and `/v1/chat/completions`, as clients of OpenAI ask.

Whole texts, or as they are written, as server-sent events. A text ends with its client.
"""

import asyncio
import json
import secrets
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from potluck.errors import PotluckError, UserError
from potluck.serve.gateway.http_connection import SAYS_NO_MORE
from potluck.serve.gateway.middleware import AsciiJSONResponse
from potluck.serve.gateway.protocol import BadRequest, NotFound, read_document
from potluck.serve.gateway.shown_text import CLEANED, behind, certain

if TYPE_CHECKING:
    from potluck.run.text.writer import Generation
    from potluck.serve.runtime.text_service import TextService

LOOK_S = 1.0  # between looks whether the client is still there
DEFAULT_TOKENS = 128
MAX_TOKEN = 256  # characters that a token of a prompt may stand for; the longest known have 128
MAX_STOPS, MAX_STOP = 16, 256  # of one text; characters of one, as all are looked for at each token
SERVER_ERROR = "server_error"  # as OpenAI calls what is not the client's fault
Texts = Callable[[], "Mapping[str, TextService]"]
Body = Callable[[Request], Awaitable[bytes]]
Endpoint = Callable[[Request], Awaitable[Response]]
_Done = TypeVar("_Done")


class Aside(Protocol):
    """Does what is long with so many bytes beside the rest."""

    async def __call__(self, n_bytes: int, read: Callable[[], _Done], /) -> _Done:
        """What that gives."""


# what would change the text in ways that are not there: the value that means nothing
_NOT_THERE: dict[str, Any] = {
    "n": 1,
    "best_of": 1,
    "logprobs": False,
    "top_logprobs": 0,
    "echo": False,
    "suffix": "",
    "tools": [],
    "tool_choice": "none",
    "functions": [],
    "logit_bias": {},
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "response_format": {"type": "text"},
    "bad_words": "",
    "stop_words": "",
    "exclude_input_in_output": True,
}
# what is read elsewhere, or changes no text
_READ = {"model", "prompt", "messages", "stream", "stream_options", "stop", "text_input", "id"}
_READ |= {"parameters", "max_completion_tokens", "user", "metadata", "store", "service_tier"}
_WORDS = {"max_tokens": int, "temperature": float, "top_k": int, "top_p": float, "seed": int}


class TextRoutes:
    """What the routes of texts answer.

    Parameters
    ----------
    texts
        Gives the services that write, as they are at each request.
    body
        Reads the body of a request, within bounds.
    aside
        Does what is long with so many bytes beside the rest.
    """

    def __init__(self, texts: Texts, body: Body, aside: Aside) -> None:
        self._texts = texts
        self._body = body
        self._aside = aside
        one = "/v2/models/{name}"
        self.routes: list[tuple[str, Endpoint, str]] = [
            (f"{one}/generate", self.generate, "POST"),
            (f"{one}/generate_stream", self.generate_stream, "POST"),
            ("/v1/models", self.models, "GET"),
            ("/v1/models/{name}", self.model, "GET"),
            ("/v1/completions", self.completions, "POST"),
            ("/v1/chat/completions", self.chat_completions, "POST"),
        ]

    # --- as Triton --------------------------------------------------------------------------------

    async def generate(self, request: Request) -> Response:
        """A whole text."""
        service, asked = await self._triton(request)
        text = await _whole(request, asked)
        return AsciiJSONResponse(_triton(service, asked, text) | {"finish_reason": asked.reason})

    async def generate_stream(self, request: Request) -> Response:
        """A text as it is written, an event for each part."""
        service, asked = await self._triton(request)

        async def events() -> AsyncIterator[bytes]:
            async for part in _parts(asked):
                yield _event(_triton(service, asked, part))

        return _TextStream(asked, events())

    async def _triton(self, request: Request) -> "tuple[TextService, Asked]":
        document, n_bytes = await self._document(request)
        service = self._service(request.path_params["name"])
        parameters = document.get("parameters", {})
        if not isinstance(parameters, dict):
            raise BadRequest("parameters: an object is expected.", field="parameters")
        words = {**document, **parameters}
        how = _how(words, temperature=0.0)
        prompt = _prompt(service, document.get("text_input"), "text_input")
        stops = _stops(words)
        return service, await self._aside(
            n_bytes, lambda: Asked(service, prompt, how, stops, "text_input")
        )

    # --- as OpenAI --------------------------------------------------------------------------------

    async def models(self, request: Request) -> Response:
        """Who writes."""
        return AsciiJSONResponse({"object": "list", "data": [*map(_model, self._texts())]})

    async def model(self, request: Request) -> Response:
        """One of them."""
        return AsciiJSONResponse(_model(self._service(request.path_params["name"], "model").name))

    async def completions(self, request: Request) -> Response:
        """What comes behind a prompt."""
        document, n_bytes = await self._document(request)
        service = self._service(document.get("model"), "model")
        prompt = _prompt(service, document.get("prompt"), "prompt")
        return await self._openai(request, document, n_bytes, service, prompt, _Completion())

    async def chat_completions(self, request: Request) -> Response:
        """What comes next in a conversation, as the model's tokenizer lays it out."""
        document, n_bytes = await self._document(request)
        service = self._service(document.get("model"), "model")
        prompt = await self._aside(
            n_bytes, lambda: _conversation(service, document.get("messages"))
        )
        return await self._openai(request, document, n_bytes, service, prompt, _Chat())

    async def _openai(
        self,
        request: Request,
        document: Mapping[str, Any],
        n_bytes: int,
        service: "TextService",
        prompt: "str | list[int]",
        form: "_Completion",
    ) -> Response:
        words = dict(document)
        if words.get("max_tokens") is None:
            words["max_tokens"] = words.get("max_completion_tokens")
        is_stream, tells_usage = _flag(document, "stream"), _tells_usage(document)
        how, stops = _how(words, temperature=1.0), _stops(document)
        asked = await self._aside(n_bytes, lambda: Asked(service, prompt, how, stops, form.prompt))
        frame = {
            "id": f"{form.prefix}-{uuid.uuid4().hex}",
            "object": form.kind,
            "created": 0,
            "model": service.name,
        }
        if not is_stream:
            text = await _whole(request, asked)
            choice = form.whole(text) | {"index": 0, "finish_reason": asked.reason}
            return AsciiJSONResponse(frame | {"choices": [choice], "usage": asked.usage})
        frame["object"] = form.part_kind

        async def events() -> AsyncIterator[bytes]:
            async for part in _parts(asked):
                yield _event(frame | {"choices": [form.part(part) | {"index": 0}]})
            ended = form.part("") | {"index": 0, "finish_reason": asked.reason}
            yield _event(frame | {"choices": [ended]})
            if tells_usage:
                yield _event(frame | {"choices": [], "usage": asked.usage})
            yield b"data: [DONE]\n\n"

        return _TextStream(asked, events(), _openai_error)

    async def _document(self, request: Request) -> tuple[dict[str, Any], int]:
        """What a request says, and how many bytes that has."""
        body = await self._body(request)
        return await self._aside(len(body), lambda: read_document(body)), len(body)

    def _service(self, name: Any, field: str = "name") -> "TextService":
        texts = self._texts()
        if not isinstance(name, str) or name not in texts:
            known = ", ".join(texts) or "none"
            raise NotFound(
                f"{field}: no service writes texts by the name {name!r}; there is {known}.",
                field=field,
            )
        return texts[name]


def with_openai_errors(endpoint: Endpoint) -> Endpoint:
    """The endpoint, with errors as clients of OpenAI read them: an object with a message."""

    async def answer(request: Request) -> Response:
        response = await endpoint(request)
        if response.status_code < 400:
            return response
        told = json.loads(bytes(response.body))
        kind = SERVER_ERROR if response.status_code >= 500 else "invalid_request_error"
        told["error"] = _openai_error(told["error"], kind, told.get("field"), told.get("reason"))
        again = AsciiJSONResponse(told, status_code=response.status_code)
        if wait_s := response.headers.get("retry-after"):
            again.headers["Retry-After"] = wait_s
        return again

    return answer


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "potluck"}


class _Completion:
    """How a text stands in an answer."""

    prefix, kind = "cmpl", "text_completion"
    part_kind = "text_completion"
    prompt = "prompt"

    def whole(self, text: str) -> dict[str, Any]:
        return {"text": text, "logprobs": None}

    def part(self, text: str) -> dict[str, Any]:
        return {"text": text, "logprobs": None, "finish_reason": None}


class _Chat(_Completion):
    prefix, kind = "chatcmpl", "chat.completion"
    part_kind = "chat.completion.chunk"
    prompt = "messages"

    def whole(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}}

    def part(self, text: str) -> dict[str, Any]:
        delta = {"role": "assistant", "content": text} if text else {}
        return {"delta": delta, "finish_reason": None}


class Asked:
    """A text that a client asked for.

    Parameters
    ----------
    service
        Who writes it.
    prompt
        Words, or tokens.
    how
        As for `Run.generate`.
    stops
        Words at which it ends, and which are not shown.
    field
        What the request calls its prompt.

    Raises
    ------
    BadRequest
        It cannot be written; names the field.
    """

    def __init__(
        self,
        service: "TextService",
        prompt: "str | list[int]",
        how: Mapping[str, Any],
        stops: tuple[str, ...],
        field: str,
    ) -> None:
        fields = {"prompt": field, "max_new_tokens": "max_tokens"}
        try:
            self.generation: Generation = service.generate(prompt, **how)
        except UserError as error:
            argument = str(error.facts.get("argument", "prompt"))
            raise BadRequest(str(error), field=fields.get(argument, argument)) from error
        tokenizer = service.model.tokenizer
        self._has_words = tokenizer is not None
        is_cleaned = getattr(tokenizer, "clean_up_tokenization_spaces", False)
        self._held_back = (*stops, *CLEANED) if is_cleaned else stops
        self._stops, self._is_stopped = stops, False

    @property
    def reason(self) -> str:
        """Why it is whole."""
        return "stop" if self._is_stopped else self.generation.reason

    @property
    def usage(self) -> dict[str, int]:
        """Tokens that were read and written."""
        n_prompt, n_new = self.generation.n_prompt, len(self.generation.tokens)
        return {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_new,
            "total_tokens": n_prompt + n_new,
        }

    def text(self) -> str:
        """What may be shown so far: its words, or where there is no tokenizer its tokens."""
        is_over = self.generation.is_over
        if not self._has_words:
            return " ".join(map(str, self.generation.tokens))
        text = self.generation.text
        ends = [place for place in (text.find(stop) for stop in self._stops) if place >= 0]
        if ends:
            self._is_stopped = True
            self.generation.cancel()
            return text[: min(ends)]
        if is_over:
            return text
        return certain(text, self._held_back)


async def _changes(generation: "Generation") -> AsyncIterator[None]:
    """Whenever it has changed, and from time to time, until it is over."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        with suppress(RuntimeError):  # the entrance is closed
            loop.call_soon_threadsafe(changed.set)

    generation.listen(tell)
    while not generation.is_over:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(changed.wait(), LOOK_S)
        changed.clear()
        yield


async def _whole(request: Request, asked: Asked) -> str:
    """The whole text; none is written for a client that is gone, or by an entrance that closes."""
    try:
        async for _ in _changes(asked.generation):
            asked.text()  # it may stop here
            if await request.is_disconnected():
                asked.generation.cancel()
            elif request.scope.get(SAYS_NO_MORE):
                raise BadRequest(
                    "connection: you closed your side of it; keep it open, or ask for a stream.",
                    field="connection",
                )
        asked.generation.check()
        return asked.text()
    finally:
        asked.generation.cancel()


async def _parts(asked: Asked) -> AsyncIterator[str]:
    """What is new of a text, as it is written."""
    shown = ""
    async for _ in _changes(asked.generation):
        if new := behind(shown, asked.text()):
            yield new
            shown += new
    asked.generation.check()
    if new := behind(shown, asked.text()):
        yield new


class _TextStream(StreamingResponse):
    """Events of a text, which ends with them: also where they have not begun."""

    def __init__(
        self, asked: Asked, events: AsyncIterator[bytes], told: Callable[[str], Any] = str
    ) -> None:
        super().__init__(
            _with_error(events, told),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store"},
        )
        self._asked = asked

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """As ASGI has it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._asked.generation.cancel()


def _openai_error(
    text: str, kind: str = SERVER_ERROR, field: str | None = None, reason: str | None = None
) -> dict[str, Any]:
    return {"message": text, "type": kind, "param": field, "code": reason}


async def _with_error(
    events: AsyncIterator[bytes], told: Callable[[str], Any]
) -> AsyncIterator[bytes]:
    """The events, and where the text cannot be written to its end, one that says so."""
    try:
        async for event in events:
            yield event
    except PotluckError as error:
        yield b"event: error\n" + _event({"error": told(str(error))})


def _event(document: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def _triton(service: "TextService", asked: Asked, text: str) -> dict[str, Any]:
    return {"model_name": service.name, "model_version": "1", "text_output": text}


# --- what is asked ------------------------------------------------------------------------------


def _prompt(service: "TextService", given: Any, field: str) -> "str | list[int]":
    if isinstance(given, str):
        _check_length(service, len(given), field)
        return given
    if isinstance(given, list) and all(type(token) is int for token in given):
        return given
    raise BadRequest(f"{field}: words, or a list of tokens, are expected.", field=field)


def _check_length(service: "TextService", n_characters: int, field: str) -> None:
    """Refuse what cannot be a prompt, before a tokenizer takes memory and time for it."""
    most = MAX_TOKEN * service.model.max_length
    if n_characters > most:
        raise BadRequest(
            f"{field}: at most {most} characters are taken, {MAX_TOKEN} for each of the "
            f"{service.model.max_length} tokens of a text, got {n_characters}.",
            field=field,
        )


def _conversation(service: "TextService", messages: Any) -> list[int]:
    """The tokens of a conversation, up to where the answer begins."""
    if isinstance(messages, list) and all(isinstance(message, dict) for message in messages):
        messages = [each | {"content": _words_of(each.get("content"))} for each in messages]
    if not isinstance(messages, list) or not all(
        isinstance(message, dict)
        and isinstance(message.get("role"), str)
        and isinstance(message["content"], str)
        for message in messages
    ):
        raise BadRequest(
            "messages: a list of {role, content} is expected, of words.", field="messages"
        )
    _check_length(service, sum(len(message["content"]) for message in messages), "messages")
    template = getattr(service.model.tokenizer, "apply_chat_template", None)
    if template is None:
        raise BadRequest(
            f"messages: the tokenizer of {service.name} knows no conversations; ask "
            "/v1/completions.",
            field="messages",
        )
    try:
        tokens = template(messages, add_generation_prompt=True, return_dict=False)
    except Exception as error:  # a template is code of others, and refuses by errors of its own
        raise BadRequest(f"messages: {str(error)[:300]}", field="messages") from error
    return list(tokens)


def _words_of(content: Any) -> Any:
    """What somebody says, of whose parts each is words; anything else as it is.

    >>> _words_of([{"type": "text", "text": "so"}, {"type": "text", "text": " it is"}])
    'so it is'
    """
    parts: list[Any] = content if isinstance(content, list) and content else [None]
    is_words = [
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
        for part in parts
    ]
    return "".join(part["text"] for part in parts) if all(is_words) else content


def _how(words: Mapping[str, Any], *, temperature: float) -> dict[str, Any]:
    """How it is written, by the words of a request; what is not there is refused by its name."""
    for word in words.keys() - _READ - _WORDS.keys():
        value, nothing = words[word], _NOT_THERE.get(word)
        is_other_kind = isinstance(value, bool) != isinstance(nothing, bool)  # 0 == False
        if value is not None and (value != nothing or is_other_kind):
            raise BadRequest(f"{word:.40}: is not there in this service.", field=word[:40])
    found: dict[str, Any] = {"temperature": temperature, "max_tokens": DEFAULT_TOKENS}
    for word, kind in _WORDS.items():
        value = words.get(word)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, kind)):
            raise BadRequest(f"{word}: a number is expected, got {value!r:.40}.", field=word)
        found[word] = value
    found["max_new_tokens"] = found.pop("max_tokens")
    found["seed"] = found.get("seed", secrets.randbits(63)) % 2**63
    return found


def _flag(words: Mapping[str, Any], word: str) -> bool:
    value = words.get(word)
    if not isinstance(value, bool | None):
        raise BadRequest(f"{word}: true or false is expected.", field=word)
    return bool(value)


def _tells_usage(words: Mapping[str, Any]) -> bool:
    """Whether a stream ends with how many tokens there were."""
    options = words.get("stream_options")
    if not isinstance(options, dict | None):
        raise BadRequest("stream_options: an object is expected.", field="stream_options")
    return _flag(options or {}, "include_usage")


def _stops(words: Mapping[str, Any]) -> tuple[str, ...]:
    given = words.get("stop")
    given = [given] if isinstance(given, str) else [] if given is None else given
    if not isinstance(given, list) or not all(
        isinstance(stop, str) and 0 < len(stop) <= MAX_STOP for stop in given
    ):
        raise BadRequest(
            f"stop: words of 1 to {MAX_STOP} characters, or a list of them, are expected.",
            field="stop",
        )
    if len(given) > MAX_STOPS:
        raise BadRequest(f"stop: at most {MAX_STOPS} are taken, got {len(given)}.", field="stop")
    return tuple(given)
