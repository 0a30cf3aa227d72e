"""Sleep that the system announces: systemd's logind, over D-Bus. Linux alone.

logind says `PrepareForSleep` before the system sleeps and after it wakes. A lock of the kind
`delay` makes it wait until the lock is given back, though for some seconds at the most
(https://systemd.io/INHIBITOR_LOCKS).

Any user of the machine may send this process messages, and a bus may fall silent. So a thread of
its own listens, reads none but small messages, and begins anew where anything is not as it should.
"""

import os
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import Any

LOGIND, AT = "org.freedesktop.login1", "/org/freedesktop/login1"
MANAGER = "org.freedesktop.login1.Manager"
ANSWER_S = 2.0  # for logind to answer in
AGAIN_S = 30.0  # until a bus that is gone, or says what cannot be, is tried again
MESSAGE_BYTES = 1 << 16  # the largest that is read
PART = 0.8  # of the time that logind waits: the rest is for giving the lock back
USUAL_DELAY_S = 5.0  # of logind, where it does not say


class SystemSleep:
    """Whether this machine is about to sleep, as far as its system tells; elsewhere it never is.

    `about_to`: it sleeps as soon as it may. `delay_s`: how long it may be kept from that.

    Parameters
    ----------
    watched
        Otherwise nothing is asked, and nothing told.
    """

    def __init__(self, *, watched: bool = True) -> None:
        self.about_to = False
        self.delay_s = 0.0
        self._lock: int | None = None
        self._changes = threading.Lock()  # of all above
        self._bus: Any = None
        self._has_ended = threading.Event()
        if watched and sys.platform == "linux":
            threading.Thread(target=self._watch, name="potluck sleep", daemon=True).start()

    def allow(self) -> None:
        """The device has left what it did: the system need not wait for it any longer."""
        with self._changes:
            if self.about_to:  # else it is awake again, and the lock is a new one
                self._give_back()

    def close(self) -> None:
        """Nothing is heard any more."""
        self._has_ended.set()
        with suppress(Exception):  # there is no bus
            self._bus.sock.shutdown(2)
        self._is_awake()

    def _watch(self) -> None:
        while not self._has_ended.is_set():
            with suppress(Exception):  # no bus, no logind, it refuses, or says what cannot be
                self._listen()
            self._is_awake()
            self._has_ended.wait(AGAIN_S)

    def _is_awake(self) -> None:
        with self._changes:
            self.about_to = False
            self._give_back()

    def _give_back(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _listen(self) -> None:
        """Until the bus ends, or another logind is there."""
        from jeepney import DBusErrorResponse, MatchRule
        from jeepney.bus_messages import message_bus
        from jeepney.io.blocking import open_dbus_connection

        told: deque[Any] = deque()
        with open_dbus_connection("SYSTEM", enable_fds=True) as bus:
            self._bus, bus.parser = bus, _parser()
            with suppress(DBusErrorResponse):  # none that the bus could start; it may be there
                self._answer(message_bus.StartServiceByName(LOGIND))
            (logind,) = self._answer(message_bus.GetNameOwner(LOGIND))
            # by its number on the bus, which the bus itself writes into each message
            signal = {"type": "signal", "interface": MANAGER, "member": "PrepareForSleep"}
            about_sleep = MatchRule(sender=logind, path=AT, **signal)
            bus.filter(about_sleep, queue=told)
            self._answer(message_bus.AddMatch(about_sleep))
            gone = MatchRule(type="signal", sender=message_bus.bus_name, member="NameOwnerChanged")
            gone.add_arg_condition(0, logind)
            bus.filter(gone, queue=told)
            self._answer(message_bus.AddMatch(gone))
            self._take_lock()
            while not self._has_ended.is_set():
                while told:
                    self._hear(told.popleft())
                bus.recv_messages()

    def _take_lock(self) -> None:
        from jeepney import DBusAddress, Properties, new_method_call

        logind = DBusAddress(AT, bus_name=LOGIND, interface=MANAGER)
        why = "what runs on this device moves to others first"
        words = ("sleep", "potluck", why, "delay")
        (lock,) = self._answer(new_method_call(logind, "Inhibit", "ssss", words))
        delay_s = USUAL_DELAY_S
        with suppress(Exception):  # an older logind does not say
            ((kind, most_us),) = self._answer(Properties(logind).get("InhibitDelayMaxUSec"))
            delay_s = most_us * 1e-6 if kind == "t" else USUAL_DELAY_S
        with self._changes:
            self._lock, self.delay_s = lock.to_raw_fd(), PART * delay_s
            os.set_inheritable(self._lock, False)

    def _answer(self, call: Any) -> Any:
        from jeepney.wrappers import unwrap_msg

        return unwrap_msg(self._bus.send_and_get_reply(call, timeout=ANSWER_S))

    def _hear(self, message: Any) -> None:
        (before,) = message.body  # of three: logind is gone, and all begins anew
        with self._changes:
            self.about_to = before is True
        if not self.about_to and self._lock is None:
            self._take_lock()


def _parser() -> Any:
    """Reads the messages of a bus, and refuses what is larger than a message about sleep."""
    from jeepney import Parser

    class SmallMessages(Parser):  # type: ignore[misc]
        def add_data(self, data: bytes, fds: Any = ()) -> None:
            super().add_data(data, fds=fds)
            if self.bytes_desired() > MESSAGE_BYTES:
                raise ValueError("the message is too large")

    return SmallMessages()
