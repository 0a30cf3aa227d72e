"""Tell the network that this device is here, by mDNS: a hint for notebooks, never more.

In a thread of its own.

Asking and probing for the name takes 3.2 s and nobody waits for it. A failure is reported, tried
again (a network may come up or change meanwhile), and changes nothing else: explicit addresses
always work.
"""

import hashlib
import ipaddress
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from potluck_agent.net.own_addresses import ANYWHERE, addresses
from potluck_wire.limits import SERVICE_TYPE
from potluck_wire.version import show

STOP_S = 3.0
AGAIN_S = 5.0  # after a failure
TTL_S = 120
# an answer that was given a second ago waits 1.3 s; a probe's come by unicast, to one process only
ASK_MS = 1500
MAX_STEM = 36  # so that a name of 40 characters has room for a number
# More devices of one name than a home has are somebody who answers to every name.
MOST_NAMES, PAUSE_S = 16, 0.2


class Announcement:
    """One device's record; a device of the same name elsewhere makes it `NAME-2`, and both are
    seen.
    """

    def __init__(
        self, *, name: str, host: str, port: int, key: str, note: Callable[[str], None]
    ) -> None:
        self._name = name
        self._host = host
        self._port = port
        self._fp = hashlib.sha256(key.encode()).hexdigest()[:16]
        self._note = note
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="potluck announce", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take the record back."""
        self._stop.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        is_noted = False
        while not self._stop.is_set():
            try:
                self._announce()
            except Exception as error:  # discovery is a convenience: the agent goes on
                if not is_noted:
                    self._note(f"not announced by mDNS yet: {type(error).__name__}: {error}")
                is_noted = True
                self._stop.wait(AGAIN_S)

    def _announce(self) -> None:
        """Until it is closed."""
        zeroconf: Any = None
        try:
            from zeroconf import InterfaceChoice, IPVersion, Zeroconf  # 70 ms, and 10 MiB

            only = addresses(self._host) if self._host not in ANYWHERE else InterfaceChoice.All
            zeroconf = Zeroconf(interfaces=only, ip_version=IPVersion.V4Only)
            name, is_own = self._free_name(zeroconf)
            info = self._record(name)
            zeroconf.register_service(info, allow_name_change=True, cooperating_responders=is_own)
            self._stop.wait()
            zeroconf.unregister_service(info)
        finally:
            if zeroconf is not None:
                with suppress(Exception):
                    zeroconf.close()

    def _free_name(self, zeroconf: Any) -> tuple[str, bool]:
        """A name that nobody else has, and whether an announcement of ours still has it: one that
        failed half-way is heard for a while. Zeroconf probes too, but gets no answers from agents
        of this very machine.
        """
        from zeroconf import DNSQuestionType

        name = self._name
        for number in range(2, MOST_NAMES + 2):
            found = zeroconf.get_service_info(
                SERVICE_TYPE, f"{name}.{SERVICE_TYPE}", ASK_MS, DNSQuestionType.QM
            )
            if not found:
                return name, False
            if found.properties.get(b"fp") == self._fp.encode():
                return name, True
            name = f"{self._name[:MAX_STEM]}-{number}"
            if self._stop.wait(PAUSE_S):
                break
        else:
            name = f"{self._name[: MAX_STEM - len(self._fp)]}-{self._fp}"
            self._note(
                f"somebody in this network answers to the name {self._name} and the {MOST_NAMES} "
                f"after it; this device is announced as {name}"
            )
        return name, False

    def _record(self, name: str) -> Any:
        from zeroconf import ServiceInfo

        return ServiceInfo(
            SERVICE_TYPE,
            f"{name}.{SERVICE_TYPE}",
            port=self._port,
            addresses=[ipaddress.ip_address(address).packed for address in addresses(self._host)],
            properties={"v": show(), "fp": self._fp},
            server=f"potluck-{self._fp[:12]}.local.",
            host_ttl=TTL_S,
            other_ttl=TTL_S,
        )
