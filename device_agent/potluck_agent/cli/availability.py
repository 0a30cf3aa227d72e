"""Whether the device may take part: the owner's rules are looked at every few seconds, and whoever
ends the agent, or lets the machine sleep, is heard.
"""

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from potluck_agent import owner_rules
from potluck_agent.cli.options import Options
from potluck_agent.errors import AgentError
from potluck_agent.meters import conditions
from potluck_agent.owner_rules import NO_RULES, Broken, DeviceConditions, OwnerRules
from potluck_agent.system_sleep import SystemSleep

LOOK_S = 2.0  # some files of /sys, well under a millisecond
UNKNOWN_S = 60.0  # without a temperature: a sensor may be asleep or away for some looks
SLEEP = "sleep"


class Loop(Protocol):
    """What is told: `net.event_loop.EventLoop`."""

    stopping: bool

    def state(self) -> dict[str, Any]:
        """What goes on: `runs` are those of notebooks."""

    def leave(self, reason: str, within_s: float, *, for_good: bool = False) -> None:
        """The device has to leave."""

    def stay(self) -> None:
        """It need not leave any more."""


def check(rules: OwnerRules, root: Path) -> None:
    """AgentError where a rule can never be looked at here."""
    if rules.max_temp_c is not None and conditions.temperature_c(root) is None:
        raise AgentError(
            "--max-temp: this machine tells no temperature. Leave it out, or load the driver of "
            "its sensors."
        )


class Availability:
    """Tells the loop to leave and to stay, as rules and signals say.

    Parameters
    ----------
    loop
        Is told.
    rules
        The owner's.
    drain_s
        For so long what is under way may move elsewhere.
    read
        How the device is now.
    sleep
        What the system says of its sleep.
    """

    def __init__(
        self,
        loop: Loop,
        rules: OwnerRules,
        drain_s: float,
        read: Callable[[], DeviceConditions],
        sleep: SystemSleep,
    ) -> None:
        self._loop = loop
        self._rules = rules
        self._drain_s = drain_s
        self._read = read
        self._sleep = sleep
        self._broken: Broken = {}
        self._looked_s = float("-inf")
        self._warm_s: float | None = None  # when a temperature was told last
        self._n_asked = self._n_told = 0

    def look(self, now_s: float) -> None:
        """Tell the loop what has changed; called some times a second."""
        if self._n_asked > self._n_told:
            self._n_told = self._n_asked
            self._loop.leave("it was told to end", self._drain_s, for_good=True)
        before = self._broken
        self._broken = {**self._rules_broken(now_s), **self._about_to_sleep()}
        if self._broken and self._broken.keys() != before.keys():
            most_s = self._sleep.delay_s if SLEEP in self._broken else self._drain_s
            self._loop.leave(owner_rules.reason(self._broken), min(self._drain_s, most_s))
        elif before and not self._broken:
            self._loop.stay()

    def _rules_broken(self, now_s: float) -> Broken:
        before = {rule: why for rule, why in self._broken.items() if rule != SLEEP}
        if now_s - self._looked_s < LOOK_S or self._rules == NO_RULES:
            return before
        self._looked_s = now_s
        readings = self._read()
        found = owner_rules.broken(self._rules, readings, before)
        if readings.temp_c is not None or self._warm_s is None:
            self._warm_s = now_s
        limit_c = self._rules.max_temp_c
        if limit_c is not None and now_s - self._warm_s >= UNKNOWN_S:
            why = f"its sensors tell no temperature, and its owner allows {limit_c:g} °C"
            return {**found, "temperature": why}
        return found

    def _about_to_sleep(self) -> Broken:
        """The system waits until nothing is here any more, or its patience ends."""
        if not self._sleep.about_to:
            return {}
        if SLEEP in self._broken and not self._loop.state()["runs"]:
            self._sleep.allow()
        return {SLEEP: "this machine goes to sleep"}

    def end(self) -> None:
        """Leave for good; asked a second time, the agent ends at once."""
        self._n_asked += 1
        self._loop.stopping = self._n_asked > 1

    def handle_signals(self) -> None:
        """Ctrl-C and the system's word end it, and a terminal that is closed, but under `nohup`."""
        numbers = [signal.SIGTERM, signal.SIGINT]
        if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        for number in numbers:
            signal.signal(number, lambda *_: self.end())


def of(loop: Loop, chosen: Options) -> Availability:
    """By the sensors of this machine and what its system says; it is looked at once at the start
    already. Agents that a notebook has on its own machine do not keep that from sleeping.
    """
    sleep = SystemSleep(watched=chosen.scratch is None)

    def read() -> DeviceConditions:
        return conditions.read(chosen.system_root)

    found = Availability(loop, chosen.rules, chosen.drain_s, read, sleep)
    found.look(time.monotonic())
    return found
