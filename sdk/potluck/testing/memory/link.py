"""The notebook's end of a network in memory. Its thread is the one in which everything happens."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from potluck.sessions import failures
from potluck.sessions.events import Connect, Lost, Tick
from potluck.sessions.link import Link
from potluck.testing.memory.agent import MemoryAgent
from potluck.testing.memory.clock import VirtualClock
from potluck.testing.memory.network import HOME, LATENCY_S, MemoryNetwork
from potluck_wire.frames import encode
from potluck_wire.messages import Channel, Goodbye

TICK_S = 0.1


class MemoryLink(Link):
    """Time passes while somebody waits for an answer, or something is on its way; else it stands.

    Parameters
    ----------
    agents
        The devices that are there, by name.
    """

    def __init__(
        self, clock: VirtualClock, network: MemoryNetwork, agents: dict[str, MemoryAgent]
    ) -> None:
        super().__init__("notebook")
        self._clock = clock
        self._network = network
        self._agents = agents
        self._wanted: dict[str, Connect] = {}
        self._met: set[str] = set()  # devices that this notebook was connected to before
        self._orders: deque[Callable[[], None]] = deque()
        self._news = threading.Condition()
        self._until_s = 0.0
        network.sites[HOME] = self
        clock.after(TICK_S, self._tick, repeats=True)
        self._start()

    # --- for any thread ---------------------------------------------------------------------------

    def do(self, order: Callable[[], Any]) -> Any:
        """Have something done between two happenings; returns its result."""
        if threading.current_thread() is self._thread:
            return order()
        self._check()
        done: Future[Any] = Future()

        def carry_out() -> None:
            try:
                done.set_result(order())
            except Exception as error:
                done.set_exception(error)

        self._orders.append(carry_out)
        self._wake()
        return done.result()

    def pass_time(self, seconds: float) -> None:
        """Let so much virtual time pass, whether anybody waits or not."""

        def begin() -> threading.Event:
            there = threading.Event()
            self._clock.after(seconds, there.set)
            return there

        self.do(begin).wait()

    # --- the thread -------------------------------------------------------------------------------

    def _loop(self) -> None:
        try:
            while not self._closing:
                with self._news:
                    self._news.wait_for(self._is_awake)
                while self._orders:
                    self._orders.popleft()()
                while self._submitted:
                    self._feed(self._submitted.popleft())
                if self._futures or not self._clock.is_quiet:
                    self._clock.step()
        finally:
            self._shut_down()

    def _is_awake(self) -> bool:
        asked = self._closing or self._orders or self._submitted or self._futures
        return bool(asked) or not self._clock.is_quiet

    def _wake(self) -> None:
        with self._news:
            self._news.notify_all()

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
        while not self._clock.is_quiet:
            self._clock.step()
        self._network.sites.pop(HOME, None)
        while self._orders:
            self._orders.popleft()()

    # --- what carries messages --------------------------------------------------------------------

    def receive(self, sender: str, channel: Channel, frames: list[bytes]) -> None:
        """A message from a device."""
        if sender in self._wanted:
            self._take(sender, channel, frames)

    def lost(self, device: str) -> None:
        """The connection to a device broke, because that is gone."""
        if device in self._wanted:
            address = str(self._wanted[device].address)
            self._feed(Lost(device=device, error=failures.cut_off(device, address)))

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
            self._feed(Lost(device=device, error=error))
            return
        agent.greet(again=device in self._met)
        self._met.add(device)

    def _disconnect(self, device: str) -> None:
        if self._wanted.pop(device, None) is not None:
            self._network.cut(HOME, device)

    def _send(self, device: str, channel: Channel, frames: list[Any]) -> None:
        if device in self._wanted:
            self._network.send(HOME, device, channel, [bytes(frame) for frame in frames])
