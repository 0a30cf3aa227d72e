"""Devices in memory that a home can be opened over, and what may happen to them."""

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

import zmq

from potluck.errors import HomeError
from potluck.home import Home
from potluck.sessions.agent_specs import Spec, local_specs, specs_of
from potluck.sessions.connections import Keys
from potluck.sessions.events import Address
from potluck.sessions.local_agents import Started
from potluck.testing.memory.agent import MemoryAgent
from potluck.testing.memory.clock import VirtualClock
from potluck.testing.memory.driver import Driver
from potluck.testing.memory.link import MemoryLink
from potluck.testing.memory.network import HOME, MemoryNetwork, Says
from potluck.testing.memory.notebook import InMemory, MemoryNotebook
from potluck_wire.limits import PORT

AHEAD_S = 500.0  # how far the clock of each device is ahead of the one before it
SETTLED_S = 1.0  # by then every device has been heard
_FAULTS = logging.getLogger("potluck.faults")


class MemoryLab(InMemory):
    """Devices in this process, in virtual time; one home, and those of other notebooks.

    Parameters
    ----------
    specs
        The devices.
    metered
        The names of those whose power a meter tells.
    """

    def __init__(self, specs: Sequence[Spec], metered: Collection[str] = ()) -> None:
        self._metered = metered
        self.keys = _keys()
        self._clock = VirtualClock()
        self._network = MemoryNetwork(self._clock)
        self._specs = {spec.name: spec for spec in specs_of(specs)}
        keys = {name: _keys().public for name in self._specs}
        self.started = tuple(
            Started(name=name, address=Address(host="memory", port=PORT + i), key=key, pid=0)
            for i, (name, key) in enumerate(keys.items())
        )
        self._keys, self._names = keys, {key: name for name, key in keys.items()}
        self._agents: dict[str, MemoryAgent] = {}
        self._owners = {HOME: self.keys.public}
        self._driver = Driver(self._clock)
        for name in self._specs:
            self._begin(name)
        self._links: dict[str, MemoryLink] = {}  # those that were opened last, by notebook

    def _begin(self, name: str) -> None:
        self._agents[name] = self._network.sites[name] = MemoryAgent(
            self._specs[name],
            self._keys[name],
            owners=self._owners,
            names=self._names,
            clock=self._clock,
            network=self._network,
            ahead_s=AHEAD_S * (1 + list(self._specs).index(name)),
            fault=_FAULTS.error,
            is_metered=name in self._metered,
            left=lambda: self._kill(name),
        )

    # --- what a home needs ------------------------------------------------------------------------

    def link(self) -> MemoryLink:
        """The notebook's connection."""
        return self.link_at(HOME)

    def link_at(self, notebook: str) -> MemoryLink:
        """That of this notebook; a new one, also where it had one before."""
        link = MemoryLink(self._clock, self._network, self._agents, self._driver, notebook)
        self._links[notebook] = link
        return link

    def notebook(self, name: str, keys: Keys) -> MemoryNotebook:
        """Another notebook, which is paired with all devices.

        Parameters
        ----------
        name
            Of its own; the same one again, where it comes back with the same keys.
        keys
            Its own.
        """
        self._do(lambda: self._owners.__setitem__(name, keys.public))
        return MemoryNotebook(self, name, keys)

    def crash(self, notebook: str) -> None:
        """End a notebook's connection without a word, as when its process is killed.

        Parameters
        ----------
        notebook
            Its name.
        """
        if notebook in self._links:
            self._do(self._links[notebook].crash)

    def watch(self, passes: Callable[[str, str], None]) -> None:
        """Call this for each message before it leaves, with who sends it and to whom; in the
        driver's thread.
        """
        self._network.passes = passes

    @property
    def driver(self) -> Driver:
        """The thread in which everything happens."""
        return self._driver

    @property
    def clock(self) -> VirtualClock:
        """Its time."""
        return self._clock

    def close(self) -> None:
        """All devices are gone."""
        self._do(self._end_all)

    # --- what happens to devices ------------------------------------------------------------------

    def is_there(self, device: str) -> bool:
        """Whether a device has not been killed."""
        return device in self._agents

    def kill(self, device: str) -> None:
        """End an agent without a word; its connections break.

        Parameters
        ----------
        device
            Its name.

        Raises
        ------
        HomeError
            It is gone already.
        """
        if device not in self._agents:
            raise HomeError("it is gone.", device=device)
        self._do(lambda: self._kill(device))

    def kill_worker(self, device: str) -> None:
        """End its worker, from outside."""
        self._do(self._agents[device].kill_worker)

    def leave(
        self, device: str, reason: str, within_s: float = 60.0, *, for_good: bool = False
    ) -> None:
        """Have an agent leave, as by its owner's rules or, `for_good`, by Ctrl-C.

        Parameters
        ----------
        device
            Its name.
        reason
            What notebooks are told.
        within_s
            What is under way has so long to move elsewhere.
        for_good
            Then it ends.
        """
        self._do(lambda: self._agents[device].leave(reason, within_s, for_good=for_good))

    def stay(self, device: str) -> None:
        """It need not leave any more."""
        self._do(self._agents[device].stay)

    def restart(self, device: str) -> None:
        """Start an agent that was killed again: at the same address, with the same key.

        Parameters
        ----------
        device
            Its name.

        Raises
        ------
        HomeError
            It is there.
        """
        if device in self._agents:
            raise HomeError("it is there already.", device=device)
        self._do(lambda: self._begin(device))

    def pull(self, device: str) -> None:
        """Pull its cable: nothing gets there or from there, and nobody is told."""
        self._do(lambda: self._network.pulled.add(device))

    def plug(self, device: str) -> None:
        """Put its cable back in; what was under way is lost."""
        self._do(lambda: self._network.pulled.discard(device))

    def after(self, seconds: float, order: Callable[[], None]) -> None:
        """Have something happen so many seconds of virtual time from now.

        Parameters
        ----------
        seconds
            Of virtual time.
        order
            What happens, between two other events.
        """
        self._do(lambda: self._clock.after(seconds, order, repeats=True))

    def part(self, sender: str, receiver: str) -> None:
        """Nothing gets from one to the other any more, in this direction, and nobody is told.

        Parameters
        ----------
        sender, receiver
            Names of devices, or `HOME`.
        """
        self._do(lambda: self._part(sender, receiver))

    def mend(self, sender: str, receiver: str) -> None:
        """It gets there again; what was sent meanwhile comes now, where the connection stood."""
        self._do(lambda: self._network.mend(sender, receiver))

    def delay(self, device: str, latency_s: float) -> None:
        """Let every message to or from a device take so much longer from now on.

        Parameters
        ----------
        device
            Its name.
        latency_s
            Seconds, one way.
        """
        self._do(lambda: self._network.latency_s.__setitem__(device, latency_s))

    def slow(self, device: str, bytes_per_s: float) -> None:
        """Let every connection to or from a device carry no more than this from now on.

        Parameters
        ----------
        device
            Its name.
        bytes_per_s
            In each direction.
        """
        self._do(lambda: self._network.bytes_per_s.__setitem__(device, bytes_per_s))

    def load(self, device: str, times: float) -> None:
        """Let the tasks of a device last so many times longer from now on, as if something else
        ran beside them.

        Parameters
        ----------
        device
            Its name.
        times
            1 for as before.
        """
        self._do(lambda: self._agents[device].load(times))

    def take_over(self, device: str, says: Says) -> None:
        """From now on home hears of a device what `says` makes of its messages.

        Parameters
        ----------
        device
            Its name.
        says
            A message and its buffers -> what is said instead, none or more.
        """
        self._do(lambda: self._network.taken_over.__setitem__(device, says))

    def pass_time(self, seconds: float) -> None:
        """Let virtual time pass while nobody waits for anything."""
        for link in tuple(self._links.values()):
            if link.is_open:
                link.pass_time(seconds)
                return

    def _do(self, order: Callable[[], Any]) -> None:
        self._driver.do(order)

    def _end_all(self) -> None:
        for agent in self._agents.values():
            agent.end()

    def _part(self, sender: str, receiver: str) -> None:
        self._network.part(sender, receiver)
        for one, other in ((sender, receiver), (receiver, sender)):
            if one in self._agents and other in self._agents:
                self._agents[one].misses(other)

    def _kill(self, device: str) -> None:
        self._agents.pop(device).end()
        del self._network.sites[device]
        for other, agent in self._agents.items():
            self._network.cut(device, other)
            self._clock.after(0.0, lambda agent=agent: agent.lost(device))  # type: ignore[misc]
        for site, link in self._links.items():
            self._network.cut(device, site)
            self._clock.after(0.0, lambda link=link: link.lost(device))  # type: ignore[misc]


def memory_home(devices: int | Sequence[Spec] = 2, *, metered: Collection[str] = ()) -> Home:
    """A home in this process, in virtual time.

    Parameters
    ----------
    devices
        How many, called local-1, local-2, ... as those of `Home.local`, or their specs.
    metered
        The names of those whose power a meter tells.
    """
    lab = MemoryLab(local_specs(devices) if isinstance(devices, int) else devices, metered)
    home = Home.over(lab)
    lab.pass_time(SETTLED_S)
    return home


def _keys() -> Keys:
    public, secret = (part.decode() for part in zmq.curve_keypair())
    return Keys(public=public, secret=secret)
