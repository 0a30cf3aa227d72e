"""Links that learn from a run: media carry what its transfers showed. Pure.

The rule: what a value took on its way from one device to another, beyond the latency, is compared
with its prediction (which knows who shared the media). The ratio counts for the medium that limits
that flow; a medium takes the median over its flows, and goes half of the way there, as layers do
(`correction_factors.half_way`).
"""

from collections.abc import Mapping
from dataclasses import replace

from potluck.profile.correction_factors import half_way
from potluck.profile.home_network import LEARNED, Figure, HomeNetwork, SharedMedium
from potluck.profile.network_rows import media_of
from potluck.records import Network

LEAST_FRAC = 0.5  # of a transfer that must be bytes on a medium, and not latency

Flow = tuple[str, str]


def factors_of(network: Network, transfers: Mapping[Flow, tuple[float, float]]) -> dict[str, float]:
    """How many times less each medium carries than was thought, half of the way.

    Parameters
    ----------
    network, transfers
        As for `ratios_of`.
    """
    return half_way(ratios_of(network, transfers))


def ratios_of(
    network: Network, transfers: Mapping[Flow, tuple[float, float]]
) -> dict[str, list[float]]:
    """Per medium, measured by predicted seconds of every flow that it limits.

    Parameters
    ----------
    network
        As it was thought.
    transfers
        Per ordered pair of devices: the seconds that a value was predicted to take, and took.
    """
    ratios: dict[str, list[float]] = {}
    capacity = {medium.name: medium.capacity_bytes_per_s for medium in network.media}
    for flow, (predicted_s, measured_s) in transfers.items():
        path = network.paths.get(flow)
        if path is None or not path.media or path.host:
            continue
        expected_s, took_s = predicted_s - path.latency_s, measured_s - path.latency_s
        if expected_s <= LEAST_FRAC * predicted_s or took_s <= 0:
            continue
        limit, _ = min(path.media, key=lambda crossed: capacity[crossed[0]] / crossed[1])
        ratios.setdefault(limit, []).append(took_s / expected_s)
    return ratios


def slowed(network: Network, factors: Mapping[str, float]) -> Network:
    """The network whose media carry so many times less.

    Parameters
    ----------
    network
        As it was thought.
    factors
        Per medium, as of `factors_of`.
    """
    media = tuple(
        replace(
            medium, capacity_bytes_per_s=medium.capacity_bytes_per_s / factors.get(medium.name, 1.0)
        )
        for medium in network.media
    )
    return replace(network, media=media)


def learned_rows(document: HomeNetwork, factors: Mapping[str, float]) -> HomeNetwork:
    """The document whose media carry so many times less, which it says it has learned.

    Parameters
    ----------
    document
        As it was thought.
    factors
        Per medium, as of `factors_of`.
    """
    between_pairs = None if document.beside is None else slowed(document.beside, factors)
    names = media_of(document)
    rows = tuple(_learned(row, names[row.name], factors) for row in document.media)
    return replace(document, media=rows, beside=between_pairs)


def _learned(
    row: SharedMedium, names: Mapping[str, str], factors: Mapping[str, float]
) -> SharedMedium:
    """The row, if a run showed anything of it. `names`: its media, by the way that they lead."""

    def learned(figure: Figure | None, way: str) -> Figure | None:
        factor = factors.get(names.get(way, ""))
        if figure is None or factor is None:
            return figure
        return replace(figure, value=figure.value / factor, source=LEARNED)

    stations = {
        name: rate for name, each in row.stations.items() if (rate := learned(each, "both"))
    }
    one_way = "up" if row.down_bytes_per_s is not None else "both"
    return replace(
        row,
        up_bytes_per_s=learned(row.up_bytes_per_s, one_way),
        down_bytes_per_s=learned(row.down_bytes_per_s, "down"),
        stations=stations,
    )
