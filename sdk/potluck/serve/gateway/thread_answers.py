"""Answers of threads, awaited in the loop of the entrance."""

import asyncio
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import Any


class ThreadAnswers:
    """Those that come together wake the loop once. To wake it is a call of the system, during which
    the loop's thread takes the interpreter from the one that has more answers to give.
    """

    def __init__(self) -> None:
        self._ended: list[asyncio.Future[None]] = []
        self._lock = threading.Lock()

    async def result(self, answer: "Future[Any]") -> Any:
        """What a thread will say; it is cancelled if this is.

        Parameters
        ----------
        answer
            Of the thread.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        answer.add_done_callback(lambda _: self._end(loop, ended))
        try:
            await ended
        except asyncio.CancelledError:
            answer.cancel()
            raise
        return answer.result()

    def _end(self, loop: asyncio.AbstractEventLoop, ended: "asyncio.Future[None]") -> None:
        with self._lock:
            self._ended.append(ended)
            is_first = len(self._ended) == 1
        if is_first:
            with suppress(RuntimeError):  # the entrance is closed
                loop.call_soon_threadsafe(self._hand_out)

    def _hand_out(self) -> None:
        with self._lock:
            handed_out, self._ended = self._ended, []
        for each in handed_out:
            if not each.done():
                each.set_result(None)
