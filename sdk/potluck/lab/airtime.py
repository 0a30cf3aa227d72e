"""Shared media as a book of when each is free: a piece takes its turn on every medium of its path. Pure.

What comes first is served first, piece by piece; so flows that always have something to send share a medium evenly.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from potluck.records import Network

PIECE_S = 0.004  # of the slowest medium: what flows take turns with
MIN_PIECE_BYTES, MAX_PIECE_BYTES = 1024, 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """When a piece has left its first medium, and when it is there."""

    gone_s: float
    there_s: float


class Airtime:
    """The media of a network and when each is free next."""

    def __init__(self, network: Network) -> None:
        self._paths = network.paths
        self._rates = {medium.name: medium.capacity_bytes_per_s for medium in network.media}
        self._free_s = dict.fromkeys(self._rates, 0.0)

    def shape(self, rates: Mapping[str, float]) -> None:
        """Other rates from now on, by medium."""
        self._rates |= rates

    def piece_bytes(self, source: str, target: str) -> int:
        """How much takes its turn at once."""
        rates = [self._rates[name] / times for name, times in self._paths[source, target].media]
        return int(min(max(min(rates, default=float("inf")) * PIECE_S, MIN_PIECE_BYTES), MAX_PIECE_BYTES))

    def take(self, source: str, target: str, nbytes: int, now_s: float) -> Slot:
        """Turns for so many bytes on every medium of the path, from now on.

        By hand: 1,000 bytes over ("air", 2) at 1e4 bytes/s: gone and there after 0.2 s; the next ones after 0.4 s.
        """
        path, at_s, gone_s = self._paths[source, target], now_s, now_s
        for index, (name, times) in enumerate(path.media):
            at_s = max(at_s, self._free_s[name]) + nbytes * times / self._rates[name]
            self._free_s[name] = at_s
            gone_s = gone_s if index else at_s
        return Slot(gone_s=gone_s, there_s=at_s + path.latency_s)
