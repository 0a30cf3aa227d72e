"""A home as the planner of shared requests sees it: the seconds of its sides, the media between
them, watts. Pure.
"""

from collections.abc import Sequence
from itertools import permutations

from potluck.offload.plan.lowering import DEVICE, HELPER, Shareable
from potluck.offload.plan.problem import OffloadProblem, SharedLink
from potluck.offload.rows.operator_times import OperatorTimes
from potluck.records import Device, Network


def sharing_in(
    network: Network,
    device: Device,
    helpers: Sequence[str],
    shareable: Shareable,
    side_times: Sequence[OperatorTimes],
    batch: int,
) -> OffloadProblem:
    """The problem of one request of `batch` rows to this device, with its helpers.

    The bandwidth between them is still open.

    Parameters
    ----------
    network
        Between them.
    device
        Where the answer is wanted.
    helpers
        Their names.
    shareable
        The model.
    side_times
        Per side, what each operator takes.
    batch
        Rows of a request.
    """
    names = (device.name, *helpers)
    busy_w, radio_w, idle_w = _watts(device)
    lines, rates = _lines(network, names, device.overhead_s)
    return OffloadProblem(
        operators=shareable.operators(side_times, batch),
        bytes_per_s=0.0,
        n_sides=len(names),
        lines=lines,
        media_bytes_per_s=rates,
        latency_s=network.path(device.name, helpers[0]).latency_s + device.overhead_s,
        piece_s=device.overhead_s,
        busy_w=busy_w,
        radio_w=radio_w,
        idle_w=idle_w,
    )


def own_media(network: Network, names: Sequence[str]) -> dict[str, int]:
    """The media that the bandwidth of now is about, and how often they are crossed: the narrowest
    ones between the device and its helpers.
    """
    found: dict[str, int] = {}
    capacity = {item.name: item.capacity_bytes_per_s for item in network.media}
    for helper in names[HELPER:]:
        for a, b in ((names[DEVICE], helper), (helper, names[DEVICE])):
            narrow = network.bandwidth(a, b) * (1 + 1e-9)
            found |= {
                name: n for name, n in network.path(a, b).media if capacity[name] / n <= narrow
            }
    return found


def _lines(
    network: Network, names: Sequence[str], overhead_s: float
) -> tuple[dict[tuple[int, int], SharedLink], tuple[float, ...]]:
    """Between any two sides: the device's own link counts as one medium.

    And what the other media carry.
    """
    own, capacity = (
        own_media(network, names),
        {item.name: item.capacity_bytes_per_s for item in network.media},
    )
    number: dict[str, int] = {}
    lines = {}
    for a, b in permutations(range(len(names)), 2):
        path = network.path(names[a], names[b])
        crossed = {
            (number.setdefault(m, len(number) + 1), times)
            for m, times in path.media
            if m not in own
        }
        if any(m in own for m, _ in path.media):
            crossed.add((0, 1))
        lines[a, b] = SharedLink(
            media=tuple(sorted(crossed)), latency_s=path.latency_s + overhead_s
        )
    return lines, tuple(capacity[name] for name in number)


def _watts(device: Device) -> tuple[float, float, float]:
    """Computing, sending and waiting; zeros where a device's power is not known."""
    if device.idle_w is None or device.busy_w is None:
        return 0.0, 0.0, 0.0
    return device.busy_w, device.radio_w or 0.0, device.idle_w
