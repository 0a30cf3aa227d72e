"""One case of a sweep in a few numbers: workload, servers, load, seed and scheme; small to send to
another process, played there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from random import Random

from potluck.errors import UserError
from potluck.serve.scheduling.allocate import allocate_all
from potluck.serve.scheduling.records import Server, ServiceSpec, by_name, check_count, check_number
from potluck.serve.simulate import arrivals, epara_services
from potluck.serve.simulate.arrivals import ArrivalLoad
from potluck.serve.simulate.engine import Scenario, simulate
from potluck.serve.simulate.outcome import ServingOutcome
from potluck.serve.simulate.scheme import Scheme


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCase:
    """What is played. `load` 1: each service asks for what an equal part of all processors does."""

    workload: str = "mixed"
    n_servers: int = 6
    n_processors: int = 8
    load: float = 0.5
    duration_s: float = 30.0
    cv: float = arrivals.CV
    interval_s: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("SweepCase: n_servers", self.n_servers)
        check_count("SweepCase: n_processors", self.n_processors)
        check_number("SweepCase: load", self.load, zero=True)
        check_number("SweepCase: duration_s", self.duration_s)
        check_number("SweepCase: cv", self.cv)
        check_number("SweepCase: interval_s", self.interval_s)
        if self.workload not in epara_services.WORKLOADS:
            raise UserError(
                f"no workload is called {self.workload!r}.",
                next_step=f"There are {', '.join(epara_services.WORKLOADS)}.",
            )

    def scenario(self) -> Scenario:
        """Servers and services of the catalogue, and requests drawn by the seed."""
        services = epara_services.services(self.workload)
        servers = epara_services.servers(self.n_servers, self.n_processors)
        load = ArrivalLoad(
            per_s={
                name: per_s * self.load for name, per_s in equal_parts(services, servers).items()
            },
            duration_s=self.duration_s,
            cv=self.cv,
        )
        rng = Random(f"{self.seed}/{self.workload}")
        names = [server.name for server in servers]
        called = arrivals.functions(services, names, load, rng)
        drawn = arrivals.draw(called, by_name(services), load, rng)
        return Scenario(
            servers=servers,
            services=services,
            arrivals=drawn,
            demand=arrivals.demand(drawn, self.duration_s),
            duration_s=self.duration_s,
            interval_s=self.interval_s,
            seed=self.seed,
        )


def equal_parts(services: Sequence[ServiceSpec], servers: Sequence[Server]) -> dict[str, float]:
    """Requests or frames per second of each service, had it an equal part of all processors.

    Parameters
    ----------
    services
        With their profiles.
    servers
        With their processors.
    """
    allocations = allocate_all(services, servers)
    n_processors = sum(len(server.processors) for server in servers)
    return {
        service: each.replicas
        * each.rate_per_s
        / each.variant.n_processors
        * n_processors
        / len(services)
        for (service, _), each in allocations.items()
    }


def play(case: SweepCase, scheme: Scheme) -> ServingOutcome:
    """What a scheme makes of a case.

    Parameters
    ----------
    case
        What is played.
    scheme
        How it is served.
    """
    return simulate(case.scenario(), scheme)


def peak(outcomes: Sequence[ServingOutcome]) -> float:
    """The most goodput of these outcomes."""
    return max((outcome.goodput_per_s for outcome in outcomes), default=-inf)
