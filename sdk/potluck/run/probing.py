"""Asks those that no step shows how fast they are now: a device computes one layer, a medium
carries some bytes behind everything else.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from potluck.adapt.conditions import DEVICE, Conditions, Thing, under
from potluck.errors import PotluckError
from potluck.handle import Task
from potluck.profile.device_bench import Bench
from potluck.profile.link_probes import LinkProber
from potluck.profile.links_from_runs import ratios_of
from potluck.provenance import MEASURED
from potluck.records import LayerCost, Network, Plan, Problem

if TYPE_CHECKING:
    from potluck.run.engine import RunEngine

REPEATS = 5
LASTS_S = 0.1  # at most, of the layer that a device is asked for, where there is one so short
CARRIED_S = 0.02  # of bytes on a medium that is as profiled
LEAST_BYTES, MOST_BYTES = 512, 2**20
N_VALUES = 1

Flow = tuple[str, str]


class Prober:
    """Of one run.

    Parameters
    ----------
    engine
        Of the run.
    task
        Is asked between probes whether it was cancelled.
    """

    def __init__(self, engine: "RunEngine", task: Task) -> None:
        self._engine, self._task = engine, task
        self._bench = Bench(engine.link, engine.members, task, 1)
        self._links = LinkProber(engine.link, task)
        self.spent_s = 0.0  # by those that were asked, the last time

    def slowness(
        self, things: Iterable[Thing], plan: Plan, profiled: Problem, known: Conditions
    ) -> dict[Thing, float]:
        """Seconds by those of the profile, of each that can be asked and answers.

        A device cannot be whose profile is an estimate: what it computes has another one.

        Parameters
        ----------
        things
            Devices and media.
        plan
            At work.
        profiled
            As profiled.
        known
            Conditions of now.
        """
        self.spent_s, found = 0.0, {}
        self._bench.calls.clear()  # who is slow now takes longer for a call, too
        for thing in things:
            kind, name = thing
            try:
                ratio = (
                    self._device(name, plan, profiled)
                    if kind == DEVICE
                    else self._medium(name, profiled, known, thing)
                )
            except PotluckError:  # it is gone, wants to leave, or has no time: nobody knows
                continue
            if ratio is not None:
                found[thing] = ratio
        return found

    def _device(self, name: str, plan: Plan, profiled: Problem) -> float | None:
        costs = profiled.costs[name]
        if name not in self._engine.members.staying or costs[0].source != MEASURED:
            return None
        at = _row_index(costs[0], plan.micro_batch)
        index = _layer_index([_seconds(cost, at) for cost in costs])
        rows, expected_s = (costs[index].rows[at],), _seconds(costs[index], at)
        if expected_s <= 0:
            return None
        took = self._bench.layer(name, self._engine.model, index, plan.training, rows, REPEATS)
        self.spent_s += REPEATS * _seconds(took, 0)
        return _seconds(took, 0) / expected_s

    def _medium(
        self, name: str, profiled: Problem, known: Conditions, thing: Thing
    ) -> float | None:
        network = under(profiled, known).network
        flow = _flow_over(name, network, self._engine.members.staying)
        if flow is None:
            return None
        nbytes = _some_bytes(profiled.network.bandwidth(*flow))
        predicted_s = nbytes / network.bandwidth(*flow) + network.paths[flow].latency_s
        seconds = self._links.send({flow: (N_VALUES, nbytes)})[flow]
        self.spent_s += sum(seconds)
        found = ratios_of(network, {flow: (predicted_s, min(seconds))}).get(name)
        return None if not found else found[0] * known.of(thing)


def _seconds(cost: LayerCost, at: int) -> float:
    return cost.forward_s[at] + (cost.backward_s[at] if cost.backward_s else 0.0)


def _row_index(cost: LayerCost, rows: int) -> int:
    """Of the largest batch size that was profiled, up to this one."""
    fitting = [index for index, each in enumerate(cost.rows) if each <= rows]
    return fitting[-1] if fitting else 0


def _layer_index(seconds: Sequence[float]) -> int:
    """Of the longest layer that is no trouble, else of the shortest."""
    short = [index for index, each in enumerate(seconds) if each <= LASTS_S]
    if short:
        return max(short, key=seconds.__getitem__)
    return min(range(len(seconds)), key=seconds.__getitem__)


def _flow_over(medium: str, network: Network, names: Iterable[str]) -> Flow | None:
    """Two devices whose bytes this medium limits."""
    present, capacity = set(names), {m.name: m.capacity_bytes_per_s for m in network.media}
    for flow, path in sorted(network.paths.items()):
        if path.media and not path.host and present.issuperset(flow):
            limit, _ = min(path.media, key=lambda crossed: capacity[crossed[0]] / crossed[1])
            if limit == medium:
                return flow
    return None


def _some_bytes(bytes_per_s: float) -> int:
    return int(min(max(bytes_per_s * CARRIED_S, LEAST_BYTES), MOST_BYTES))
