"""A notebook's end of a network in memory; what it is told happens in the driver's thread."""

import threading
from collections.abc import Callable
from typing import Any

from potluck.sessions import failures
from potluck.sessions.events import Connect, ConnectionLost, Tick
from potluck.sessions.link import CLOSE_S, SessionLink
from potluck.testing.memory.agent import MemoryAgent
from potluck.testing.memory.clock import VirtualClock
from potluck.testing.memory.driver import Driver
from potluck.testing.memory.network import HOME, LATENCY_S, MemoryNetwork
from potluck_wire.frames import encode
from potluck_wire.messages import Channel, Goodbye

TICK_S = 0.1


class MemoryLink(SessionLink):
    """What a notebook says and hears.

    Parameters
    ----------
    clock
        The virtual time.
    network
        Carries the messages.
    driver
        Lets time pass.
    agents
        The devices that are there, by name.
    site
        What the network calls this notebook.
    """

    def __init__(
        self,
        clock: VirtualClock,
        network: MemoryNetwork,
        agents: dict[str, MemoryAgent],
        driver: Driver,
        site: str = HOME,
    ) -> None:
        super().__init__("notebook")
        self._clock = clock
        self._network = network
        self._agents = agents
        self._driver = driver
        self.site = site
        self._wanted: dict[str, Connect] = {}
        self._met: set[str] = set()  # devices that this notebook was connected to before
        self._pauses: list[threading.Event] = []  # of threads that let time pass
        self._is_down = threading.Event()
        network.sites[site] = self
        clock.after(TICK_S, self._tick, repeats=True)
        self._start()

    def _start(self) -> None:
        self._thread = self._driver.add(self)

    # --- for any thread ---------------------------------------------------------------------------

    def do(self, order: Callable[[], Any]) -> Any:
        """Have something done between two events; returns its result."""
        if threading.current_thread() is not self._thread:
            self._check()
        return self._driver.do(order)

    def pass_time(self, seconds: float) -> None:
        """Let so much virtual time pass, whether anybody waits or not."""
        is_over = threading.Event()
        self._pauses.append(is_over)
        self.do(lambda: self._clock.after(seconds, is_over.set))
        is_over.wait()
        self._pauses.remove(is_over)

    def close(self) -> None:
        """As for every link; the thread goes on for others."""
        if self._closing:
            return
        self._closing = True
        self._closed.set()
        self._driver.wake()
        if threading.current_thread() is not self._thread:
            self._is_down.wait(CLOSE_S)

    def crash(self) -> None:
        """End without a word, as a process does that is killed: nothing is heard or said."""
        self._closing = True
        self._closed.set()
        self._leave()
        for device in self._wanted:
            self._network.cut(self.site, device)
        self._wanted = {}

    # --- the thread -------------------------------------------------------------------------------

    def _loop(self) -> None:
        """The driver's does this."""

    @property
    def is_open(self) -> bool:
        """Whether it was neither closed nor has crashed."""
        return not self._closing

    @property
    def is_awake(self) -> bool:
        """Whether there is something to look at."""
        return bool(self._closing or self._submitted or self._later)

    @property
    def is_waiting(self) -> bool:
        """Whether somebody waits for an answer."""
        return bool(self._futures)

    def look(self) -> bool:
        """Do what was asked for; whether it is still open."""
        try:
            if not self._closing:
                self._go_on()
        finally:
            if self._closing:
                self._shut_down()
        return not self._closing

    def _wake(self) -> None:
        self._driver.wake()

    def _now_s(self) -> float:
        return self._clock.now_s

    def _tick(self) -> None:
        if not self._closing:
            self._feed(Tick())
            self._clock.after(TICK_S, self._tick, repeats=True)

    def _shut_down(self) -> None:
        self._end_futures()
        for device in tuple(self._wanted):
            self._send(device, Channel.CONTROL, encode(Goodbye(reason="closed")))
        if self._wanted:
            while not self._clock.is_quiet:
                self._clock.step()
        self._leave()
        self._is_down.set()

    def _leave(self) -> None:
        self._end_futures()
        if self._network.sites.get(self.site) is self:
            del self._network.sites[self.site]
        for pause in tuple(self._pauses):
            pause.set()

    # --- what carries messages --------------------------------------------------------------------

    def receive(self, sender: str, channel: Channel, frames: list[bytes]) -> None:
        """A message from a device.

        Parameters
        ----------
        sender
            The device.
        channel
            On which it comes.
        frames
            As on the wire.
        """
        if sender in self._wanted:
            self._take(sender, channel, frames)

    def lost(self, device: str) -> None:
        """The connection to a device broke, because that is gone."""
        if device in self._wanted:
            address = str(self._wanted[device].address)
            self._feed(ConnectionLost(device=device, error=failures.cut_off(device, address)))

    def _connected(self) -> tuple[str, ...]:
        return tuple(self._wanted)

    def _connect(self, action: Connect) -> None:
        self._wanted[action.device] = action
        self._clock.after(LATENCY_S, lambda: self._reach(action))

    def _reach(self, action: Connect) -> None:
        device = action.device
        if self._wanted.get(device) is not action or device in self._network.pulled:
            return
        agent = self._agents.get(device)
        if agent is None:
            error = failures.unreachable(device, str(action.address))
            self._feed(ConnectionLost(device=device, error=error))
            return
        agent.greet(self.site, again=device in self._met)
        self._met.add(device)

    def _disconnect(self, device: str) -> None:
        if self._wanted.pop(device, None) is not None:
            self._network.cut(self.site, device)

    def _send(self, device: str, channel: Channel, frames: list[Any]) -> None:
        if device in self._wanted:
            self._network.send(self.site, device, channel, [bytes(frame) for frame in frames])
