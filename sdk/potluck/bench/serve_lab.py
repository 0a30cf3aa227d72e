"""The testbed of EPARA's section 5.1 as a lab home, scaled down: requests of its workloads to six
entrances, four of which have a processor. That is a real agent, and lasts as long as the catalogue
says of a P100, `time_scale` times over.

One scenario by one scheme is played twice with the very same placement, arrivals and decisions
(`serve/simulate/serial_servers.py`): under virtual time, and by the clock with batches computed by
the agents. What differs is the error of the prediction. A hop between entrances takes its time by
the clock: whom a request is handed to is decided here, by the scheme that is played.

Left out of EPARA's models: those that need several processors, and chats, whose limits are longer
than what is played.
"""

import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any

from potluck.records import Device, LayerCost
from potluck.serve.baselines.schemes import EPARA, INTEREDGE, LEAST_LOADED, OURS, as_printed
from potluck.serve.runtime.device_placement import ServiceDemand, record
from potluck.serve.runtime.loaded_model import Loaded, RowsInFlight, plan_on
from potluck.serve.runtime.measure import MeasuredService, padded_times
from potluck.serve.scheduling.events import ComputeBatch
from potluck.serve.scheduling.placement import Placement
from potluck.serve.scheduling.records import (
    BATCHES,
    Frequency,
    Latency,
    Server,
    ServiceSpec,
    Slo,
    by_name,
)
from potluck.serve.simulate import arrivals, epara_services
from potluck.serve.simulate.arrivals import ArrivalLoad
from potluck.serve.simulate.cases import equal_parts
from potluck.serve.simulate.engine import Scenario
from potluck.serve.simulate.outcome import ServingOutcome
from potluck.serve.simulate.scheme import Scheme
from potluck.serve.simulate.serial_servers import SerialServing
from potluck.sessions.agent_specs import Spec

if TYPE_CHECKING:
    from potluck.home import Home
    from potluck.profile.profiles import Profile

N_ENTRANCES, N_HOLDERS = 6, 4  # six hosts, four of them with a P100
WORKLOADS = (
    "mixed",
    *(name for name in epara_services.MODELS if name != "latency, several processors"),
)
SCHEMES = (OURS, EPARA, INTEREDGE, as_printed(INTEREDGE), LEAST_LOADED)
MOST_DEGREE = 4  # services that take turns on one processor, at most, when parts are chosen
N_FUNCTIONS = 20  # callers of a service: so few requests come from no more
INTERVAL_S = 0.1  # of state exchange, in the time of the home
HOP_S, BYTES_PER_S = 0.5e-3, 1.25e9  # the testbed's switch: 10 Gbit/s (Table 4)
FEATURES = 4  # of the models that are really computed
OVERHEAD_REPEATS = 9
LAYER_S = 0.02  # of the batch by which is measured what a batch takes beyond


def figures(
    duration_s: float, time_scale: float, load: float, n_frames: int, seed: int
) -> dict[str, float]:
    """Goodput of ours over others' on the same agents, and how far off the simulator was.

    Parameters
    ----------
    duration_s
        Of what is played, in seconds of the lab, by workload and scheme.
    time_scale
        How many times longer everything takes than on the testbed.
    load
        Times what equal parts of all processors do.
    n_frames
        Of a stream.
    seed
        Of the requests.
    """
    from potluck.home import Home

    played: list[PlayedScenario] = []
    with Home.lab([Spec(name=_name(n), emulated=True) for n in range(N_HOLDERS)]) as home:
        agents = LabServers(home)
        overhead_s = agents.overhead_s()
        for workload in WORKLOADS:
            models = models_of(workload)
            services = [service_of(model, time_scale, overhead_s) for model in models]
            drawn = scenario(services, duration_s, time_scale, load, n_frames, seed)
            lasts_s = {model.name: played_s(model, time_scale) for model in models}
            played += [play(workload, scheme, drawn, agents, lasts_s) for scheme in SCHEMES]
            agents.forget()
    return {"lab_overhead_s": overhead_s, **compared(played, time_scale)}


def _name(number: int) -> str:
    return f"s{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedScenario:
    """One scenario by one scheme: as predicted, and by the agents."""

    workload: str
    scheme: str
    predicted: ServingOutcome
    measured: ServingOutcome

    @property
    def error_frac(self) -> float:
        """How far off the predicted goodput was."""
        return abs(self.predicted.satisfied / max(1.0, self.measured.satisfied) - 1)


def play(
    workload: str,
    scheme: Scheme,
    drawn: Scenario,
    agents: "LabServers",
    lasts_s: Mapping[str, Sequence[float]],
) -> PlayedScenario:
    """Predict it, then play it by the clock with the same placement.

    Parameters
    ----------
    workload, scheme
        What, and how it is served.
    drawn
        The requests.
    agents
        Who computes.
    lasts_s
        By service, the seconds that batches of `BATCHES` rows are played to take.
    """
    prediction = SerialServing(drawn, scheme)
    predicted = prediction.run()
    measured = OnAgents(drawn, scheme, agents, lasts_s, prediction.placement).run()
    return PlayedScenario(
        workload=workload, scheme=scheme.name, predicted=predicted, measured=measured
    )


def compared(played: Sequence[PlayedScenario], time_scale: float) -> dict[str, float]:
    """The figures of the lab, goodput in requests and frames per second of the testbed.

    Parameters
    ----------
    played
        Every workload by every scheme.
    time_scale
        How many times longer everything took.
    """
    found: dict[str, float] = {}
    for each in played:
        where = f"lab {each.workload}, {each.scheme}"
        found[f"{where}: goodput_per_s"] = each.measured.goodput_per_s * time_scale
        found[f"{where}: predicted_per_s"] = each.predicted.goodput_per_s * time_scale
    ours = {each.workload: each.measured.satisfied for each in played if each.scheme == OURS.name}
    ratios = {
        f"lab {each.workload}: ours over {each.scheme}": ours[each.workload]
        / max(1.0, each.measured.satisfied)
        for each in played
        if each.scheme != OURS.name
    }
    errors = [each.error_frac for each in played]
    return {
        **found,
        **ratios,
        "lab_ours_over_others_worst": min(ratios.values()),
        "lab_prediction_error_median_frac": median(errors),
        "lab_prediction_error_max_frac": max(errors),
    }


def models_of(workload: str) -> tuple[epara_services.EparaModel, ...]:
    """The models of a workload that fit one processor, without chats.

    Parameters
    ----------
    workload
        One of `WORKLOADS`.
    """
    kinds = epara_services.MODELS if workload == "mixed" else (workload,)
    models = [model for kind in kinds for model in epara_services.MODELS[kind]]
    return tuple(
        model
        for model in models
        if model.n_processors == 1 and not model.name.endswith(arrivals.CHAT)
    )


def service_of(
    model: epara_services.EparaModel, time_scale: float, overhead_s: float
) -> ServiceSpec:
    """A model as an agent serves it: batches one after the other.

    Parameters
    ----------
    model
        Of the catalogue.
    time_scale
        How many times longer everything takes.
    overhead_s
        What a batch takes beyond what it is played to take.
    """
    alone = padded_times(BATCHES, [overhead_s + s for s in played_s(model, time_scale)])
    measured = MeasuredService(
        alone=alone,
        in_pairs=replace(alone, seconds=tuple(2 * seconds for seconds in alone.seconds)),
        memory_bytes=int(model.memory_gib * epara_services.GIB),
        item_bytes=int(model.item_gib * epara_services.GIB),
    )
    kind, wanted = (
        epara_services.P100,
        ServiceDemand(name=model.name, slo=slower(model.slo, time_scale)),
    )
    made = record(wanted, {kind: measured}, {kind: kind}, MOST_DEGREE)
    return replace(made, input_bytes=model.input_bytes, output_bytes=model.output_bytes)


def played_s(model: epara_services.EparaModel, time_scale: float) -> list[float]:
    """Seconds that batches of `BATCHES` rows are played to take.

    Parameters
    ----------
    model
        Of the catalogue.
    time_scale
        How many times longer than there.
    """
    return [time_scale * epara_services.side_by_side_s(model, n_items, 1) for n_items in BATCHES]


def slower(slo: Slo, time_scale: float) -> Slo:
    """The limit where everything takes longer.

    >>> slower(Latency(0.1), 10), slower(Frequency(60, 0.1), 10)
    (Latency(limit_s=1.0), Frequency(fps=6.0, tolerance_s=1.0))
    """
    if isinstance(slo, Frequency):
        return Frequency(slo.fps / time_scale, slo.tolerance_s * time_scale)
    return Latency(slo.limit_s * time_scale)


def scenario(
    services: Sequence[ServiceSpec],
    duration_s: float,
    time_scale: float,
    load: float,
    n_frames: int,
    seed: int,
) -> Scenario:
    """Servers, of which some only take requests in, and requests drawn by the seed."""
    servers = (
        *epara_services.servers(N_HOLDERS, 1),
        *(Server(name=_name(n), processors=()) for n in range(N_HOLDERS, N_ENTRANCES)),
    )
    drawn_from = ArrivalLoad(
        per_s={name: load * per_s for name, per_s in equal_parts(services, servers).items()},
        duration_s=duration_s,
        n_functions=N_FUNCTIONS,
        n_frames=n_frames,
    )
    rng = Random(seed)
    called = arrivals.functions(services, [server.name for server in servers], drawn_from, rng)
    drawn = arrivals.draw(called, by_name(services), drawn_from, rng)
    return Scenario(
        servers=servers,
        services=services,
        arrivals=drawn,
        demand=arrivals.demand(drawn, duration_s),
        duration_s=duration_s,
        interval_s=INTERVAL_S * time_scale,
        latency_s=HOP_S * time_scale,
        bytes_per_s=BYTES_PER_S / time_scale,
        seed=seed,
    )


class LabServers:
    """The processors of the lab: what is loaded on them.

    Parameters
    ----------
    home
        Of emulated devices, whose names are those of the servers.
    """

    def __init__(self, home: "Home") -> None:
        import torch

        from potluck.graph import Model

        self._home = home
        x = torch.zeros(1, FEATURES)
        self._model: Any = Model.from_torch(torch.nn.Linear(FEATURES, FEATURES), x, name="played")
        self._loaded: dict[tuple[str, str, int], Loaded] = {}
        self.rows = torch.zeros(max(BATCHES), FEATURES)

    def overhead_s(self) -> float:
        """What a batch takes beyond what it is played to take: the median over the devices."""
        taken = []
        for device in self._home.devices:
            loaded = self._load(device, 1, (LAYER_S,))
            for _ in range(OVERHEAD_REPEATS):
                begun_s = time.perf_counter()
                loaded.ask([self.rows[:1]], 1).wait()
                taken.append(time.perf_counter() - begun_s - LAYER_S)
            loaded.close()
        return max(0.0, median(taken))

    def need(self, service: str, device: str, batch: int, seconds: Sequence[float]) -> Loaded:
        """This service there, for so many rows; loaded once.

        Parameters
        ----------
        service, device
            Which and where.
        batch
            The most rows.
        seconds
            That batches of `BATCHES` rows are played to take.
        """
        key = (service, device, batch)
        if key not in self._loaded:
            self._loaded[key] = self._load(device, batch, seconds)
        return self._loaded[key]

    def forget(self) -> None:
        """Nothing is loaded any more."""
        for loaded in self._loaded.values():
            loaded.close()
        self._loaded.clear()

    def _load(self, device: str, batch: int, seconds: Sequence[float]) -> Loaded:
        home, plan = self._home, plan_on(self._model, device, batch)
        profile = self._profile(device, seconds)
        return Loaded(home._link, home.devices, self._model, plan, profile)

    def _profile(self, device: str, seconds: Sequence[float]) -> "Profile":
        from potluck.profile.measure import measurements_of
        from potluck.profile.profiles import Profile

        n_rows = BATCHES[: len(seconds)]
        first = LayerCost(rows=n_rows, forward_s=tuple(seconds))
        rest = LayerCost(rows=n_rows, forward_s=(0.0,) * len(n_rows))
        costs = (first, *(rest for _ in self._model.layers(False)[1:]))
        return Profile(
            model=self._model.name,
            signature=self._model.signature,
            network=self._home.network.records,
            devices=(Device(name=device, memory_bytes=10**9),),
            inference=measurements_of(self._model, False, {device: costs}),
        )


class OnAgents(SerialServing):
    """The same scenario by the clock: batches go to agents, and are done when these answer.

    Parameters
    ----------
    scenario, scheme
        As of `SerialServing`.
    agents
        Who computes.
    played
        By service, the seconds that batches of `BATCHES` rows are played to take.
    placement
        That of the prediction.
    """

    def __init__(
        self,
        scenario: Scenario,
        scheme: Scheme,
        agents: LabServers,
        played: Mapping[str, Sequence[float]],
        placement: Placement,
    ) -> None:
        super().__init__(scenario, scheme, placement=placement)
        self._rows = agents.rows
        self._ended: queue.Queue[Callable[[float], None]] = queue.Queue()
        self._n_computing = 0
        self._loaded = {
            (replica.service, replica.server): agents.need(
                replica.service,
                replica.server,
                self.allocations[replica.service, replica.kind].batch,
                played[replica.service],
            )
            for replica in self.placement.replicas
        }

    def run(self) -> ServingOutcome:
        """Play it by the clock, to the end."""
        begun_s = time.monotonic()
        self.begin()
        while (at_s := self.next_s()) < inf or self._n_computing:
            wait_s = at_s - (time.monotonic() - begun_s)
            try:
                done = self._ended.get(timeout=None if wait_s == inf else max(0.0, wait_s))
            except queue.Empty:
                self.play(time.monotonic() - begun_s)
            else:
                done(time.monotonic() - begun_s)
        return self.outcome

    @property
    def _is_over(self) -> bool:
        return super()._is_over and not self._n_computing

    def begin_batch(self, index: int, start: ComputeBatch, now_s: float) -> None:
        """An agent is given a batch."""
        loaded = self._loaded[start.pool[0], self.nodes[index].name]
        n_rows = len(start.requests)
        self._n_computing += 1
        in_flight = loaded.ask([self._rows[:n_rows]], n_rows)
        in_flight.on_done(
            lambda _: self._ended.put(partial(self._answered_by, index, start, in_flight))
        )

    def _answered_by(
        self, index: int, start: ComputeBatch, in_flight: RowsInFlight, now_s: float
    ) -> None:
        in_flight.wait()  # raises where the agent failed
        self._n_computing -= 1
        self.batch_done(index, start, now_s)
