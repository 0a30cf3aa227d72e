"""What came of a simulation: what was asked, satisfied, refused and late, by service."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from potluck_wire.request_handler import ServeRefusal


@dataclass(slots=True)
class Tally:
    """One service: requests or frames that were asked for, and satisfied within the limit."""

    n_asked: float = 0.0
    satisfied: float = 0.0
    late: float = 0.0


@dataclass(slots=True)
class ServingOutcome:
    """A whole simulation. A frame counts like a request; half a stream's frames count half."""

    duration_s: float
    tallies: dict[str, Tally] = field(default_factory=dict)
    refused: Counter[ServeRefusal] = field(default_factory=Counter)
    n_requests: int = 0
    n_offloads: int = 0
    n_events: int = 0
    n_replicas: int = 0

    @property
    def n_asked(self) -> float:
        """Requests and frames of all services."""
        return sum(tally.n_asked for tally in self.tallies.values())

    @property
    def satisfied(self) -> float:
        """Those within their limits."""
        return sum(tally.satisfied for tally in self.tallies.values())

    @property
    def goodput_per_s(self) -> float:
        """Satisfied requests and frames per second."""
        return self.satisfied / self.duration_s

    @property
    def satisfied_frac(self) -> float:
        """Of all that were asked for."""
        return self.satisfied / self.n_asked if self.n_asked else 1.0

    @property
    def offloads_per_request(self) -> float:
        """How often a request was handed on, on average."""
        return self.n_offloads / self.n_requests if self.n_requests else 0.0

    def by_service(self) -> Mapping[str, float]:
        """The part that was satisfied, of each service."""
        return {
            name: tally.satisfied / tally.n_asked if tally.n_asked else 1.0
            for name, tally in sorted(self.tallies.items())
        }
