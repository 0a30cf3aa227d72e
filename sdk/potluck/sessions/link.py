"""What a home asks of its devices: events in, futures out, through the controller.

What carries the messages is a subclass: `CurveLink` does so over ZeroMQ, and `potluck.testing` has
one in memory. Everything else of the SDK hands events to `ask` or `tell`.
"""

import atexit
import logging
import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import replace
from typing import Any

from potluck.errors import HomeError, PotluckError, ProtocolError
from potluck.sessions import failures
from potluck.sessions.controller import Controller
from potluck.sessions.events import (
    Action,
    Address,
    AskService,
    CancelExecution,
    Connect,
    ConnectionLost,
    Disconnect,
    Event,
    Notification,
    OpenSession,
    Received,
    Reject,
    RequestAll,
    Resolve,
    Send,
    StartExecution,
    UplinkProbe,
)
from potluck_wire.errors import WireError
from potluck_wire.frames import decode, encode
from potluck_wire.messages import Channel

CLOSE_S = 2.0
# what must not happen and did; silent in an honest home
FAULTS = logging.getLogger("potluck.faults")


class SessionLink(ABC):
    """The controller, the futures of its tickets, and one thread that feeds it.

    Parameters
    ----------
    name
        What this notebook is called.
    """

    def __init__(self, name: str) -> None:
        self._on_notification: Callable[[str, Any], None] = lambda device, news: None
        self._on_handled: Callable[[Event, list[Action]], None] | None = None
        self._name, self._controller = name, Controller(name)
        self._futures: dict[int, Future[Any]] = {}
        self._submitted: deque[Event] = deque()
        self._following: deque[Event] = deque()  # what actions of the event at hand have led to
        self._later: deque[Callable[[], Any]] = deque()  # once what was submitted is sent
        self._lock = threading.Lock()
        self._n_tickets, self._is_over = 0, False
        self._pid = os.getpid()
        self._closing, self._closed = False, threading.Event()
        self._thread = threading.Thread(target=self._loop, name="potluck link", daemon=True)

    def _start(self) -> None:
        self._thread.start()
        _open_links.add(self)

    # --- for any thread ---------------------------------------------------------------------------

    def ask(
        self, event: OpenSession | RequestAll | UplinkProbe | StartExecution | AskService
    ) -> "Future[Any]":
        """Submit an event that has a result."""
        self._check()
        future: Future[Any] = Future()
        with self._lock:
            if self._is_over:
                raise _closed()
            self._n_tickets += 1
            ticket = self._n_tickets
            self._futures[ticket] = future
            self._submitted.append(replace(event, ticket=ticket))
        future.add_done_callback(lambda done: self._abandoned(ticket, done))
        self._wake()
        return future

    def notify(self, event: Event) -> None:
        """Submit an event without a result."""
        self._check()
        self._submitted.append(event)
        self._wake()

    def later(self, call: Callable[[], Any]) -> None:
        """Call this; in the link's thread, once what was submitted before is sent."""
        if self._is_own_thread:
            self._later.append(call)
        else:
            call()

    @property
    def _is_own_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def listen(self, heard: Callable[[str, Any], None]) -> None:
        """Call `heard(device, news)` in the link's thread at each power reading and lost session:
        must be quick.
        """
        self._on_notification = heard

    def watch(self, observer: Callable[[Event, list[Action]], None] | None) -> None:
        """Call `told(event, actions)` in the link's thread before actions are carried out: for
        tests of faults, see `potluck.testing.faults`. None: nobody watches.
        """
        self._on_handled = observer

    def pass_time(self, seconds: float) -> None:
        """Come back after so long, or when the link is closed."""
        self._closed.wait(seconds)

    def answering(self, places: Mapping[str, Sequence[Address]]) -> Mapping[str, Sequence[Address]]:
        """Where to look for devices, by their keys: of these addresses those that answer, where
        that can be told.
        """
        return places

    def connected(self, device: str) -> bool:
        """Whether a session with it is open."""
        return self._controller.session(device) is not None

    @property
    def n_unanswered(self) -> int:
        """Events whose results somebody still waits for."""
        return len(self._futures)

    def close(self) -> None:
        """Say goodbye to everybody and end the thread; safe to call twice, and in a forked child
        (where it does nothing)."""
        if self._pid != os.getpid() or self._closing:
            return
        self._closing = True
        self._closed.set()
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_S)
        _open_links.discard(self)

    # --- the thread -------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise HomeError(
                "a home does not survive fork().", next_step="Make a new Home in the child process."
            )
        if self._closing or not self._thread.is_alive():
            raise _closed()

    def _abandoned(self, ticket: int, future: "Future[Any]") -> None:
        if not future.cancelled():
            return
        future.set_running_or_notify_cancel()  # else futures.wait() never hears of it
        self._futures.pop(ticket, None)
        if not self._closing:
            self._submitted.append(CancelExecution(ticket=ticket))
            self._wake()

    def _go_on(self) -> None:
        """Feed what was submitted; then call what was left for later."""
        while (self._submitted or self._later) and not self._closing:
            if self._submitted:
                self._feed(self._submitted.popleft())
            else:
                self._call(self._later.popleft())

    def _call(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except Exception:  # the link goes on for the others
            FAULTS.exception("a fault in the link: what was left for later could not be done")

    def _feed(self, event: Event) -> None:
        """Have an event handled, and then what its actions led to: one after the other, never one
        within another.
        """
        self._following.append(event)
        while self._following:
            event, now_s = self._following.popleft(), self._now_s()
            try:
                actions = self._controller.handle(event, now_s)
            # the last line of defence: one device or one ticket ends, the link goes on
            except Exception as error:
                actions = self._survive(event, error, now_s)
            if self._on_handled is not None:
                self._on_handled(event, actions)
            for action in actions:
                self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        try:
            self._act(action)
        # the others are carried out all the same: somebody waits for them
        except Exception as error:
            FAULTS.exception("a fault in the link: %s could not be done", type(action).__name__)
            if device := getattr(action, "device", ""):
                text = f"it could not be told or reached ({type(error).__name__}: {error})."
                self._following.append(
                    ConnectionLost(device=device, error=ProtocolError(text, device=device))
                )

    def _survive(self, event: Event, error: Exception, now_s: float) -> list[Action]:
        FAULTS.exception("a fault in the link while handling %.500r", event)
        try:
            return self._controller.survive(event, error, now_s)
        except Exception:  # nothing that is left can be relied on
            FAULTS.exception("all sessions end")
            self._controller = Controller(self._name)
            ended = ProtocolError(
                "the sessions of this home had to end; this is a fault of potluck's."
            )
            lost = [Notification(device=device, message=ended) for device in self._connected()]
            return [
                *(Reject(ticket=ticket, error=ended) for ticket in tuple(self._futures)),
                *lost,
                *(Disconnect(device=heard.device) for heard in lost),
            ]

    def _act(self, action: Action) -> None:
        match action:
            case Send():
                self._send_frames(action)
            case Resolve():
                self._settle(action.ticket, action.result, None)
            case Reject():
                self._settle(action.ticket, None, action.error)
            case Connect():
                self._connect(action)
            case Disconnect():
                self._disconnect(action.device)
            case Notification():
                with suppress(Exception):  # whoever listens must not stop the link
                    self._on_notification(action.device, action.message)

    def _settle(self, ticket: int, result: Any, error: PotluckError | None) -> None:
        future = self._futures.pop(ticket, None)
        if future is None:
            return
        with suppress(InvalidStateError):  # cancelled meanwhile
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    def _end_futures(self) -> None:
        """Nobody will answer any more, and nothing is asked for after this."""
        with self._lock:
            self._is_over = True
        for ticket in tuple(self._futures):
            self._settle(ticket, None, _closed())
        while self._later:
            self._call(self._later.popleft())

    def _send_frames(self, action: Send) -> None:
        try:
            frames = encode(action.message, action.buffers)
        except WireError as error:
            what = type(action.message).__name__
            error_here = ProtocolError(
                f"a {what} for it cannot be sent ({error}).", device=action.device
            )
            self._following.append(ConnectionLost(device=action.device, error=error_here))
            return
        self._send(action.device, action.channel, frames)

    def _take(self, device: str, channel: Channel, frames: list[Any]) -> bool:
        """Read a message and have it handled; whether it is one."""
        try:
            message, buffers = decode(frames, channel)
        except WireError as error:
            self._feed(ConnectionLost(device=device, error=failures.broke(device, error)))
            return False
        except Exception as error:
            FAULTS.exception("a fault in the link while reading from %s", device)
            text = f"what it says cannot be read ({type(error).__name__})."
            self._feed(ConnectionLost(device=device, error=ProtocolError(text, device=device)))
            return False
        self._feed(Received(device=device, message=message, buffers=buffers))
        return True

    # --- what carries messages --------------------------------------------------------------------

    def _now_s(self) -> float:
        return time.monotonic()

    @abstractmethod
    def _loop(self) -> None:
        """Feed what was submitted and what comes in, and ticks, until the link is closing."""

    @abstractmethod
    def _wake(self) -> None:
        """Something was submitted."""

    @abstractmethod
    def _connected(self) -> Iterable[str]:
        """Devices with connections."""

    @abstractmethod
    def _connect(self, action: Connect) -> None:
        """Make the connections to a device."""

    @abstractmethod
    def _disconnect(self, device: str) -> None:
        """Close them, where there are any."""

    @abstractmethod
    def _send(self, device: str, channel: Channel, frames: list[Any]) -> None:
        """Send a message, where there is a connection."""


def _closed() -> HomeError:
    return HomeError("this home is closed.", next_step="Make a new one.")


_open_links: "weakref.WeakSet[SessionLink]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for link in tuple(_open_links):
        link.close()
