"""Plays the events of a scenario, each at its time, in a thread of its own."""

import heapq
import logging
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple, Protocol

from potluck.errors import HomeError, PotluckError
from potluck.lab.scenario import (
    Bandwidth,
    Crash,
    Flow,
    Freeze,
    Join,
    Leave,
    Load,
    Loss,
    ScenarioEvent,
    slowed,
)
from potluck.units import parse_rate


class Devices(Protocol):
    """What can be done to the devices; `potluck.sessions.local_agents.LocalAgents` can."""

    def kill(self, name: str) -> None: ...
    def stop(self, name: str) -> None: ...
    def restart(self, name: str) -> None: ...
    def freeze(self, name: str) -> None: ...
    def thaw(self, name: str) -> None: ...
    def load(self, name: str, times: float) -> None: ...


class Links(Protocol):
    """What can be done to the links; `potluck.lab.namespaces.Namespaces` and
    `potluck.lab.relay_client.RelayClient` can.
    """

    def shape(self, medium: str, bytes_per_s: float) -> None: ...
    def lose(self, medium: str, loss_frac: float) -> None: ...
    def flow(self, source: str, target: str, lasts_s: float) -> None: ...
    def calm(self) -> None: ...


class Happened(NamedTuple):
    """What has begun, or ended (`over`), how long after the start, and why it failed if it did."""

    passed_s: float
    item: ScenarioEvent
    over: bool = False
    failure: PotluckError | None = None

    def __str__(self) -> str:
        words = f"{self.item}{' is over' if self.over else ''}"
        return f"{words} failed: {self.failure}" if self.failure is not None else words


def log(happened: Happened) -> None:
    """What failed, as a warning."""
    if happened.failure is not None:
        logging.getLogger("potluck.lab").warning("script: %s", happened)


@dataclass(frozen=True, slots=True, order=True)
class _ScheduledEvent:
    at_s: float
    number: int
    item: ScenarioEvent = field(compare=False)
    act: Callable[[], None] = field(compare=False)
    ends: bool = field(default=False, compare=False)


class ScenarioRunner:
    """Begins at once; `close` ends it, and what lasts. `happened`: all that has.

    `tell` hears of each, in its thread.

    What fails is noted there too (and logged, where nobody else is told), and the next happens all
    the same. Everything takes `time_scale` times as long as the script says.
    """

    def __init__(
        self,
        script: Iterable[ScenarioEvent],
        devices: Devices,
        links: Links | None,
        *,
        time_scale: float = 1.0,
        tell: Callable[[Happened], None] = log,
    ) -> None:
        self.happened: list[Happened] = []
        self._devices = devices
        self._links = links
        self._notify = tell
        self._numbers = count()
        self._queue = [
            _ScheduledEvent(
                item.at_s * time_scale,
                next(self._numbers),
                item,
                self._begin(item, slowed(item, time_scale)),
            )
            for item in script
        ]
        heapq.heapify(self._queue)
        self._over = threading.Event()
        self._start_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="potluck script", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until all has happened; whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close(self) -> None:
        """End it, and what it began that lasts: flows, load, a freeze. Safe to call twice."""
        self._over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        for entry in sorted(self._queue):
            if entry.ends:
                self._let_happen(entry)
        self._queue.clear()
        if self._links is not None:
            self._links.calm()

    def _run(self) -> None:
        while self._queue:
            if self._over.wait(max(0.0, self._start_s + self._queue[0].at_s - time.monotonic())):
                return
            self._let_happen(heapq.heappop(self._queue))

    def _let_happen(self, entry: _ScheduledEvent) -> None:
        failure: PotluckError | None = None
        try:
            entry.act()
        except PotluckError as error:
            failure = error
        except (OSError, subprocess.SubprocessError) as error:
            failure = HomeError(f"{error}.")
        passed_s = time.monotonic() - self._start_s
        self.happened.append(Happened(passed_s, entry.item, over=entry.ends, failure=failure))
        self._notify(self.happened[-1])

    def _begin(self, item: ScenarioEvent, slow: ScenarioEvent) -> Callable[[], None]:
        """What makes `item` happen; `slow` is the same in the lab's time."""
        devices = self._devices
        match slow:
            case Bandwidth():
                return lambda: self._need_links().shape(slow.medium, parse_rate(slow.rate))
            case Loss():
                return lambda: self._need_links().lose(slow.medium, slow.loss_frac)
            case Flow():
                return lambda: self._need_links().flow(slow.source, slow.target, slow.lasts_s)
            case Load():
                return lambda: self._for_a_while(
                    item,
                    slow,
                    lambda: devices.load(slow.device, 1 / (1 - slow.busy_frac)),
                    lambda: devices.load(slow.device, 1.0),
                )
            case Freeze():
                return lambda: self._for_a_while(
                    item,
                    slow,
                    lambda: devices.freeze(slow.device),
                    lambda: devices.thaw(slow.device),
                )
            case Crash():
                return lambda: devices.kill(slow.device)
            case Leave():
                return lambda: devices.stop(slow.device)
            case Join():
                return lambda: devices.restart(slow.device)
        raise HomeError(f"script: nobody knows how to {type(item).__name__}.")

    def _for_a_while(
        self,
        item: ScenarioEvent,
        slow: Load | Freeze,
        begin: Callable[[], None],
        end: Callable[[], None],
    ) -> None:
        begin()
        heapq.heappush(
            self._queue,
            _ScheduledEvent(slow.at_s + slow.lasts_s, next(self._numbers), item, end, ends=True),
        )

    def _need_links(self) -> Links:
        if self._links is None:
            raise HomeError(
                "the links of this lab cannot be changed.",
                next_step="Play a home of the library, or a file of yours.",
            )
        return self._links
