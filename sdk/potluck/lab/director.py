"""Lets the happenings of a script happen, each at its time, in a thread of its own."""

import heapq
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Protocol

from potluck.errors import HomeError, PotluckError
from potluck.lab import flow
from potluck.lab.script import Bandwidth, Crash, Flow, Freeze, Happening, Join, Leave, Load, Loss
from potluck.units import parse_rate


class Devices(Protocol):
    """What can be done to the devices; `potluck.lab.local.LocalAgents` can."""

    def kill(self, name: str) -> None: ...
    def stop(self, name: str) -> None: ...
    def restart(self, name: str) -> None: ...
    def freeze(self, name: str) -> None: ...
    def thaw(self, name: str) -> None: ...
    def load(self, name: str, times: float) -> None: ...


class Links(Protocol):
    """What can be done to the links; `potluck.lab.namespaces.Namespaces` can."""

    def shape(self, medium: str, bytes_per_s: float) -> None: ...
    def lose(self, loss: dict[str, float]) -> None: ...
    def command(self, device: str) -> list[str]: ...
    def address(self, device: str) -> str: ...


class Director:
    """Begins at once; `close` ends it, and the flows that it began. `happened`: (seconds, what, error or None)."""

    def __init__(self, script: Iterable[Happening], devices: Devices, links: Links | None) -> None:
        self.happened: list[tuple[float, Happening, PotluckError | None]] = []
        self._devices, self._links = devices, links
        self._loss: dict[str, float] = {}
        self._flows: list[subprocess.Popen[bytes]] = []
        self._order = count()
        self._queue = [(item.at_s, next(self._order), item, self._begin(item)) for item in script]
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
        """End it; safe to call twice."""
        self._over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        for process in self._flows:
            process.kill()
            process.wait()
        self._flows.clear()

    def _run(self) -> None:
        while self._queue and not self._over.is_set():
            at_s, _, item, act = heapq.heappop(self._queue)
            if self._over.wait(max(0.0, self._start_s + at_s - time.monotonic())):
                return
            failure: PotluckError | None = None
            try:
                act()
            except PotluckError as error:
                failure = error
            except (OSError, subprocess.SubprocessError) as error:
                failure = HomeError(f"script: {error}")
            self.happened.append((time.monotonic() - self._start_s, item, failure))

    def _begin(self, item: Happening) -> Callable[[], None]:
        devices = self._devices
        match item:
            case Bandwidth():
                return lambda: self._need_links().shape(item.medium, parse_rate(item.rate))
            case Loss():
                return lambda: self._lose(item)
            case Flow():
                return lambda: self._flow(item)
            case Load():
                return lambda: self._for_a_while(
                    item, lambda: devices.load(item.device, 1 / (1 - item.busy_frac)),
                    lambda: devices.load(item.device, 1.0),
                )  # fmt: skip
            case Freeze():
                return lambda: self._for_a_while(
                    item, lambda: devices.freeze(item.device), lambda: devices.thaw(item.device)
                )
            case Crash():
                return lambda: devices.kill(item.device)
            case Leave():
                return lambda: devices.stop(item.device)
            case Join():
                return lambda: devices.restart(item.device)
        raise HomeError(f"script: nobody knows how to {type(item).__name__}.")

    def _for_a_while(self, item: Load | Freeze, begin: Callable[[], None], end: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (item.at_s + item.lasts_s, next(self._order), item, end))
        begin()

    def _lose(self, item: Loss) -> None:
        self._loss[item.medium] = item.loss_frac
        self._need_links().lose(self._loss)

    def _flow(self, item: Flow) -> None:
        links = self._need_links()
        address, program = links.address(item.target), [sys.executable, str(Path(flow.__file__))]
        taker = subprocess.Popen(
            [*links.command(item.target), *program, "take", address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._flows.append(taker)
        assert taker.stdout is not None
        port = taker.stdout.readline().decode().strip()
        giver = subprocess.Popen(
            [*links.command(item.source), *program, "give", address, port, str(item.lasts_s)], stdin=subprocess.PIPE
        )
        self._flows.append(giver)
        with suppress(OSError):
            taker.stdout.close()

    def _need_links(self) -> Links:
        if self._links is None:
            raise HomeError(
                "the links of this lab cannot be changed.", next_step="Play a home of the library, as root."
            )
        return self._links
