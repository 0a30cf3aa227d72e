"""How a request's server is chosen, by EPARA's baselines and in practice: `choose` of the
handler.
"""

from collections.abc import Sequence
from random import Random

from potluck_wire.request_handler import AskedRequest, CandidateServer


class RoundRobin:
    """The candidates in turn; each server keeps its own turn per service."""

    def __init__(self) -> None:
        self._turn: dict[str, int] = {}

    def __call__(
        self,
        request: AskedRequest,
        candidates: Sequence[CandidateServer],
        now_s: float,
        rng: Random,
    ) -> CandidateServer | None:
        """The next one.

        Parameters
        ----------
        request, candidates, now_s, rng
            As of `potluck_wire.request_handler.Choose`.
        """
        turn = self._turn.get(request.service, rng.randrange(len(candidates)))
        self._turn[request.service] = turn + 1
        return candidates[turn % len(candidates)]


def load_of(request: AskedRequest, candidate: CandidateServer) -> float:
    """Seconds that wait there; for a stream, the part of its frames that is in use."""
    if request.fps:
        return 1 - candidate.idle_per_s / max(candidate.capacity_per_s, 1e-9)
    return candidate.queue_s


def least_loaded(
    request: AskedRequest, candidates: Sequence[CandidateServer], now_s: float, rng: Random
) -> CandidateServer | None:
    """The one with the least load as last heard; one of them by chance where several are equal.

    Parameters
    ----------
    request, candidates, now_s, rng
        As of `potluck_wire.request_handler.Choose`.
    """
    least = min(load_of(request, each) for each in candidates)
    return rng.choice([each for each in candidates if load_of(request, each) <= least])


def two_choices(
    request: AskedRequest, candidates: Sequence[CandidateServer], now_s: float, rng: Random
) -> CandidateServer | None:
    """The less loaded of two by chance (Mitzenmacher, TPDS 2001).

    Parameters
    ----------
    request, candidates, now_s, rng
        As of `potluck_wire.request_handler.Choose`.
    """
    two = rng.sample(candidates, min(2, len(candidates)))
    return min(two, key=lambda each: load_of(request, each))


def soonest(
    request: AskedRequest, candidates: Sequence[CandidateServer], now_s: float, rng: Random
) -> CandidateServer | None:
    """The one that is expected to finish it first, if in time: with exact states, a central
    scheduler's best single decision.

    Parameters
    ----------
    request, candidates, now_s, rng
        As of `potluck_wire.request_handler.Choose`.
    """
    if request.fps:
        best = max(candidates, key=lambda each: each.idle_per_s)
        return best if best.idle_per_s > 0 else None
    best = min(candidates, key=lambda each: each.queue_s + each.batch_s + each.transfer_s)
    finish_s = now_s + best.queue_s + best.transfer_s
    return best if finish_s <= request.deadline_s else None
