"""Frames of a stream in the body of a request, and their answers as server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from starlette.responses import StreamingResponse

from potluck.errors import NotServed, PotluckError
from potluck.serve.gateway import protocol
from potluck.serve.gateway.asked_models import arrays, tensors_of
from potluck.serve.gateway.protocol import BadRequest, Infer
from potluck.serve.gateway.thread_answers import ThreadAnswers

if TYPE_CHECKING:
    from potluck.serve.gateway.traces import Tell
    from potluck.serve.runtime.pending_requests import Pending
    from potluck.serve.runtime.service import Service

MAX_FRAMES = 10_000  # of one stream


def frames_of(model: Any, body: bytes) -> tuple[list[Infer], list[tuple[Any, ...]]]:
    """The frames of a stream, one per line, and their tensors.

    Parameters
    ----------
    model
        What is served.
    body
        Of the request.

    Raises
    ------
    BadRequest
        There are none or too many, or one is none; says which.
    """
    if body.count(b"\n") > 2 * MAX_FRAMES:
        raise _no_frames(f"{2 * MAX_FRAMES} lines or more")
    lines = [line for line in body.split(b"\n") if line.strip()]
    if not 0 < len(lines) <= MAX_FRAMES:
        raise _no_frames(str(len(lines)))
    frames, tensors = [], []
    for line in lines:
        frame = protocol.read(line, None)
        found = tensors_of(model, frame)
        frames.append(frame)
        tensors.append(found)
    return frames, tensors


def _no_frames(got: str) -> BadRequest:
    return BadRequest(
        f"body: 1 to {MAX_FRAMES} frames are expected, one per line; got {got}.", field="body"
    )


class FrameStream(StreamingResponse):
    """A stream of events, whose frames end with it: also where it has not begun, and where a thread
    is at the next frame.

    Parameters
    ----------
    found
        What becomes of the frames.
    *arguments, **more
        As for `StreamingResponse`.
    """

    def __init__(self, found: "FramesUnderWay", *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._found = found

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """As ASGI has it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._found.end()


class FramesUnderWay:
    """The frames of a stream, asked for one after the other in any thread, until it is ended in any
    other.

    Parameters
    ----------
    pending
        What becomes of each.
    """

    def __init__(self, pending: "Generator[Pending, None, None]") -> None:
        self._pending, self._is_over = pending, False

    def next(self) -> "Pending":
        """The next one."""
        found = next(self._pending)
        if self._is_over:
            self.end()
        return found

    def end(self) -> None:
        """No more of them; where a thread is at one, once it has that."""
        self._is_over = True
        with suppress(ValueError):  # it is at it
            self._pending.close()


async def events(
    service: "Service",
    frames: list[Infer],
    found: FramesUnderWay,
    answers: ThreadAnswers,
    tell: "Tell",
) -> AsyncIterator[bytes]:
    """One event per frame: its answer, or that it had none in time; or an error, and the end.

    Parameters
    ----------
    service
        What is asked.
    frames
        What the client sent.
    found
        What becomes of them.
    answers
        By which each is awaited.
    tell
        Called with each that is over.
    """
    number, loop = 0, asyncio.get_running_loop()
    try:
        for number, frame in enumerate(frames):
            # in a thread: the first one asks for all that may be under way, seconds for thousands
            pending = await loop.run_in_executor(None, found.next)
            try:
                answer = await answers.result(pending.future)
            except NotServed:
                text = json.dumps({"error": "no answer in time", "frame": number})
                yield f"id: {number}\nevent: late\ndata: {text}\n\n".encode()
                continue
            finally:
                tell(pending)
            plain = Infer(inputs={}, id=frame.id)
            content, _ = protocol.write(service.name, plain, arrays(service.model, answer))
            yield b"id: %d\ndata: %s\n\n" % (number, content)
    except PotluckError as error:
        text = json.dumps({"error": str(error), "frame": number})
        yield f"id: {number}\nevent: error\ndata: {text}\n\n".encode()
