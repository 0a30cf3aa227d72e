"""What an accelerated model has done: one record per request, and what they come to. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median

from potluck.display_hooks import Tabular
from potluck.provenance import UNKNOWN, worst

ALONE, SHARED = "alone", "shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One request: how it was answered, how long that took and was to take, and what the device
    spent.

    `bytes_per_s`: the estimate by which the way was chosen. `fallback`: it was begun with the
    helper and ended without.
    """

    at_s: float
    way: str  # the program's name; ALONE
    latency_s: float
    predicted_s: float
    bytes_per_s: float
    joules: float | None = None
    source: str = ""  # of the joules: see `provenance`
    fallback: bool = False
    by: tuple[str, ...] = ()  # the devices that computed


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """How far the search for splits is: at so many bandwidths of at most so many."""

    done: int
    most: int

    @property
    def note(self) -> str:
        """What that means for requests."""
        return (
            f"better ways to share are searched for, {self.done} of {self.most} bandwidths so far; "
            "until then there is a way for every few MB/s."
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Stats(Tabular):
    """All requests so far, the oldest first.

    `searched`: None where all ways to share have been searched for.
    """

    answers: tuple[Answer, ...] = ()
    searched: Searched | None = None

    @property
    def requests(self) -> int:
        """How many were answered."""
        return len(self.answers)

    def since(self, request: int) -> "Stats":
        """Without the first so many requests."""
        return replace(self, answers=self.answers[request:])

    @property
    def fallbacks(self) -> int:
        """How many the helper left to the device."""
        return sum(answer.fallback for answer in self.answers)

    @property
    def entries(self) -> dict[str, int]:
        """How often each way was taken."""
        return dict(Counter(answer.way for answer in self.answers))

    @property
    def latency_s(self) -> float | None:
        """The median."""
        return median(answer.latency_s for answer in self.answers) if self.answers else None

    @property
    def joules(self) -> float | None:
        """What the device spent on all of them; None where its power is not known."""
        known = [answer.joules for answer in self.answers if answer.joules is not None]
        return sum(known) if known and len(known) == len(self.answers) else None

    @property
    def source(self) -> str:
        """Where their worst joules come from: see `provenance`."""
        return worst(answer.source or UNKNOWN for answer in self.answers)

    @property
    def prediction_error_frac(self) -> float | None:
        """The median of |predicted - measured| / measured, fallbacks left out."""
        return _error_frac(answer for answer in self.answers if not answer.fallback)

    @property
    def prediction_error_fracs(self) -> dict[str, tuple[int, float]]:
        """The same by what was predicted, {SHARED, ALONE: (requests, error)}: what is shared is
        harder to predict.
        """
        kinds: dict[str, list[Answer]] = {}
        for answer in self.answers:
            if not answer.fallback:
                kinds.setdefault(ALONE if answer.way == ALONE else SHARED, []).append(answer)
        return {
            kind: (len(kinds[kind]), _error_frac(kinds[kind]) or 0.0)
            for kind in (SHARED, ALONE)
            if kind in kinds
        }


def _error_frac(answers: Iterable[Answer]) -> float | None:
    errors = [abs(answer.predicted_s - answer.latency_s) / answer.latency_s for answer in answers]
    return median(errors) if errors else None
