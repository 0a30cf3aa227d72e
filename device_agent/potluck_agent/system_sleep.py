"""Sleep that the system announces: systemd's logind, over D-Bus. Linux alone.

logind says `PrepareForSleep` before the system sleeps and after it wakes. A lock of the kind
`delay` makes it wait until the lock is given back, though for some seconds at the most
(https://systemd.io/INHIBITOR_LOCKS).
"""

import contextlib
import os
import sys
from collections import deque
from typing import Any

LOGIND, AT = "org.freedesktop.login1", "/org/freedesktop/login1"
MANAGER = "org.freedesktop.login1.Manager"
ANSWER_S = 2.0  # for logind to answer in
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
        self._told: deque[Any] = deque()
        self._bus: Any = None
        self._lock: int | None = None
        if watched and sys.platform == "linux":
            with contextlib.suppress(Exception):  # no bus, no logind, or it refuses: never told
                self._connect()

    def look(self) -> bool:
        """Whether it is about to sleep, by what was said until now."""
        try:
            while self._bus is not None:
                while self._told:
                    self._hear(self._told.popleft())
                self._bus.recv_messages(timeout=0)
        except TimeoutError:
            pass
        except Exception:  # the bus is gone: nothing will be told any more
            self.close()
        return self.about_to

    def allow(self) -> None:
        """The device has left what it did: the system need not wait for it any longer."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def close(self) -> None:
        """Nothing is looked at any more."""
        self.allow()
        self.about_to = False
        if self._bus is not None:
            self._bus.close()
            self._bus = None

    def _connect(self) -> None:
        from jeepney import MatchRule
        from jeepney.bus_messages import message_bus
        from jeepney.io.blocking import open_dbus_connection

        self._bus = open_dbus_connection("SYSTEM", enable_fds=True)
        told = {"type": "signal", "interface": MANAGER, "member": "PrepareForSleep", "path": AT}
        self._bus.filter(MatchRule(**told), queue=self._told)
        try:
            self._answer(message_bus.AddMatch(MatchRule(sender=LOGIND, **told)))
            self._take_lock()
        except Exception:
            self.close()
            raise

    def _take_lock(self) -> None:
        from jeepney import DBusAddress, Properties, new_method_call

        logind = DBusAddress(AT, bus_name=LOGIND, interface=MANAGER)
        why = "what runs on this device moves to others first"
        words = ("sleep", "potluck", why, "delay")
        (lock,) = self._answer(new_method_call(logind, "Inhibit", "ssss", words))
        self._lock = lock.to_raw_fd()
        os.set_inheritable(self._lock, False)
        self.delay_s = PART * USUAL_DELAY_S
        with contextlib.suppress(Exception):  # an older logind does not say
            ((_, most_us),) = self._answer(Properties(logind).get("InhibitDelayMaxUSec"))
            self.delay_s = PART * most_us * 1e-6

    def _answer(self, call: Any) -> Any:
        from jeepney.wrappers import unwrap_msg

        return unwrap_msg(self._bus.send_and_get_reply(call, timeout=ANSWER_S))

    def _hear(self, message: Any) -> None:
        """What logind says, and nobody else: the bus says who sent a message."""
        from jeepney import HeaderFields
        from jeepney.bus_messages import message_bus

        (logind,) = self._answer(message_bus.GetNameOwner(LOGIND))
        if message.header.fields.get(HeaderFields.sender) != logind:
            return
        (self.about_to,) = message.body
        if not self.about_to and self._lock is None:
            self._take_lock()
