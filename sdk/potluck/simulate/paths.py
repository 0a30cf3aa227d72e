"""A problem's network and shared processors in numbers, as task graphs need them."""

from collections.abc import Sequence
from math import inf

from potluck.records import HOME, Problem
from potluck.simulate.engine import TaskGraph
from potluck_wire.limits import CHUNK_BYTES


class Paths:
    """The routes of all graphs of a problem, each numbered when it is first asked for.

    Where the network knows no path from or to home, inputs and results are already where they are
    needed.

    Parameters
    ----------
    problem
        Its network and devices.
    home
        What the notebook is called.
    """

    def __init__(self, problem: Problem, home: str = HOME) -> None:
        self._network, self._home = problem.network, home
        self._devices = {device.name: device for device in problem.devices}
        cores: dict[str, float] = {}
        for device in problem.devices:
            if device.host_cores:  # the least that was measured on any of one host
                cores[device.host] = min(device.host_cores, cores.get(device.host, inf))
        self._hosts = {host: number for number, host in enumerate(cores)}
        self._graph = TaskGraph(
            capacity=[medium.capacity_bytes_per_s for medium in problem.network.media],
            cores=list(cores.values()),
            chunk_bytes=CHUNK_BYTES,
        )
        self._medium = {medium.name: i for i, medium in enumerate(problem.network.media)}
        self._has_home = any(home in pair for pair in problem.network.paths)
        self._routes: dict[tuple[str, str], int] = {}

    def graph(self) -> TaskGraph:
        """A graph without tasks on these media and routes."""
        return self._graph.on_same_paths()

    def place(self, graph: TaskGraph, names: Sequence[str]) -> None:
        """Tell a graph which of its computing resources share a processor: device i computes on
        resource 2 i.
        """
        places = {2 * i: self._devices[name] for i, name in enumerate(names)}
        sharing = {at: device for at, device in places.items() if device.host_cores}
        graph.resource_host = {at: self._hosts[device.host] for at, device in sharing.items()}
        graph.handling_s = {at: d.handling_s for at, d in sharing.items() if d.handling_s}

    def route(self, source: str, target: str) -> int:
        """The number of a route in all graphs."""
        found = self._routes.get((source, target))
        if found is None:
            found = self._routes[source, target] = self._added(source, target)
        return found

    def _added(self, source: str, target: str) -> int:
        if self._home in (source, target) and not self._has_home:
            return self._graph.add_route(())
        path = self._network.path(source, target)
        media = tuple((self._medium[name], times) for name, times in path.media)
        return self._graph.add_route(media, path.latency_s, self._hosts.get(path.host, -1))
