"""Requests as they would arrive: functions of uneven popularity whose calls come in bursts, with
answers of uneven length; drawn by a seed, or as a trace says.

The shape is that of two public traces. Of Azure Functions 2021 (Zhang et al., SOSP 2021): calls are
very bursty, and a few functions get orders of magnitude more than others. That is how AlpaServe
(OSDI 2023, section 6.1, "MAF2") describes it, and it draws them, as here, as Gamma renewals with a
coefficient of variation. The numbers for it (`SIGMA`, `SERVER_SIGMA`, `CV`) are ours. Of Azure LLM
inference 2023 (Patel et al., "Splitwise", ISCA 2024, section III): a conversation's median prompt
has 1020 tokens and its median answer 129; code has 1500 and 13. Lengths are lognormal by median and
mean; the means of the conversation file, 1155 and 211, are as commonly reported of it. As in
EPARA's section 5.1, functions go to models in turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from random import Random

from potluck.serve.scheduling.records import (
    Frequency,
    Request,
    ServiceSpec,
    check_count,
    check_number,
)

SIGMA = 1.5  # of the logarithm of a function's rate: two of three are within 4.5 times the median
SERVER_SIGMA = 0.7  # of the logarithm of how often a server is called: edges are uneven
CV = 2.0  # standard deviation of the time between two calls of a function, over its mean
FRAMES = 120  # of a stream: the example of section 3.3
CHAT = " chat"  # the services whose requests have answers of uneven length end so


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Lengths of one kind of conversation: lognormal, by median and mean."""

    median: float
    mean: float

    def draw(self, rng: Random) -> float:
        """One length, at least 1."""
        sigma = (2 * log(self.mean / self.median)) ** 0.5
        return max(1.0, self.median * exp(sigma * rng.gauss(0.0, 1.0)))


PROMPT = Tokens(median=1020, mean=1155)
ANSWER = Tokens(median=129, mean=211)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request and the server where it arrives."""

    server: str
    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalLoad:
    """How requests are drawn.

    `per_s`: by service, requests (or frames) per second over all servers. Each has `n_functions` of
    its own, whose rates are uneven (`sigma`) and whose calls are bursty (`cv`). A function calls
    one server, and some servers are called much more than others (`server_sigma`).
    """

    per_s: Mapping[str, float]
    duration_s: float
    n_functions: int = 1000
    sigma: float = SIGMA
    server_sigma: float = SERVER_SIGMA
    cv: float = CV
    n_frames: int = FRAMES

    def __post_init__(self) -> None:
        check_number("Load: duration_s", self.duration_s)
        check_count("Load: n_functions", self.n_functions)
        check_number("Load: sigma", self.sigma, zero=True)
        check_number("Load: server_sigma", self.server_sigma, zero=True)
        check_number("Load: cv", self.cv)
        check_count("Load: n_frames", self.n_frames)


@dataclass(frozen=True, slots=True)
class Function:
    """One caller: which service it calls, where, and how often per second."""

    service: str
    server: str
    per_s: float


def functions(
    services: Sequence[ServiceSpec], servers: Sequence[str], load: ArrivalLoad, rng: Random
) -> list[Function]:
    """Who calls what: rates lognormal, scaled so that each service gets what `load` says.

    Parameters
    ----------
    services
        With their limits.
    servers
        The entrances.
    load
        How much of each.
    rng
        Randomness.
    """
    found = []
    called = [exp(load.server_sigma * rng.gauss(0.0, 1.0)) for _ in servers]
    for service in services:
        per_s = load.per_s.get(service.name, 0.0)
        if isinstance(service.slo, Frequency):
            per_s /= load.n_frames  # streams
        if per_s <= 0:
            continue
        weights = [exp(load.sigma * rng.gauss(0.0, 1.0)) for _ in range(load.n_functions)]
        total = sum(weights)
        places = rng.choices(servers, called, k=load.n_functions)
        found += [
            Function(service.name, server, per_s * weight / total)
            for server, weight in zip(places, weights, strict=True)
        ]
    return found


def demand(arrivals: Sequence[Arrival], duration_s: float) -> dict[tuple[str, str], float]:
    """Requests or frames per second by service and server: the requests of a period, as placement
    is told them (R^T in section 3.3).

    Parameters
    ----------
    arrivals
        Of the period.
    duration_s
        Its length.
    """
    found: dict[tuple[str, str], float] = {}
    for each in arrivals:
        key = (each.request.service, each.server)
        amount = each.request.n_frames if each.request.fps else 1
        found[key] = found.get(key, 0.0) + amount / duration_s
    return found


def draw(
    called: Sequence[Function], services: Mapping[str, ServiceSpec], load: ArrivalLoad, rng: Random
) -> list[Arrival]:
    """All arrivals, in order.

    Parameters
    ----------
    called
        Who calls what.
    services
        By name.
    load
        For how long, and how bursty.
    rng
        Randomness.
    """
    times = []
    for number, function in enumerate(called):
        times += [(at_s, number) for at_s in _calls(function.per_s, load, rng)]
    times.sort()
    return [
        Arrival(
            server=called[number].server,
            request=request(index, services[called[number].service], at_s, load.n_frames, rng),
        )
        for index, (at_s, number) in enumerate(times)
    ]


def _calls(per_s: float, load: ArrivalLoad, rng: Random) -> list[float]:
    """A Gamma renewal process that has been going on for long."""
    shape = 1 / load.cv**2
    scale_s = 1 / (per_s * shape)
    at_s = rng.random() * rng.gammavariate(shape + 1, scale_s)  # what is left of the gap under way
    found = []
    while at_s < load.duration_s:
        found.append(at_s)
        at_s += rng.gammavariate(shape, scale_s)
    return found


def request(number: int, service: ServiceSpec, at_s: float, n_frames: int, rng: Random) -> Request:
    """A request of this service; a chat's answer has a drawn length, and as much longer a limit.

    Parameters
    ----------
    number
        Of the request.
    service
        Which is asked for.
    at_s
        When.
    n_frames
        Of a stream.
    rng
        Randomness.
    """
    slo = service.slo
    if isinstance(slo, Frequency):
        stop_s = at_s + n_frames / slo.fps + slo.tolerance_s
        return Request(number, service.name, at_s, stop_s, fps=slo.fps, n_frames=n_frames)
    work = ANSWER.draw(rng) / ANSWER.mean if service.name.endswith(CHAT) else 1.0
    return Request(number, service.name, at_s, at_s + slo.limit_s * max(1.0, work), work=work)
