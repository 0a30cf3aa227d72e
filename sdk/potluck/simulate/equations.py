"""What things cost, from the sums of a `CostTable`: one equation per function.

Sources: Asteroid (Ye et al., MobiCom 2024) section 3.3 for times, eq. (3) for memory; Dora eq. (2)
for energy.
"""

from collections.abc import Iterable, Sequence

from potluck.records import Device, Network
from potluck.schedule.rows import overlaps
from potluck.simulate.cost import (
    ADAMW,
    UPDATE_PASSES,
    CostTable,
    is_clipped,
    kept_by_table,
    optimizer_copies,
)

SCALE_PASSES = 2  # of gradients that are multiplied in place, each is read and written
ADD_PASSES = 3  # of a sum, two are read and one is written; `copy_bytes_per_s` counts the one


# --- memory ---------------------------------------------------------------------------------------


@kept_by_table
def static_bytes(table: CostTable, start: int, stop: int) -> int:
    """Bytes that stand as long as the plan does: weights and buffers, and for training gradients
    and optimizer state.

    Asteroid, eq. (3), the terms of the model and of the optimizer (frozen weights have none of the
    latter); and what a worker takes beside its tensors.

    Parameters
    ----------
    table
        Of the problem.
    start, stop
        Layers [start, stop).
    """
    weights = table.weight_copies * table.parameter_bytes(start, stop)
    learning = table.trained_copies * table.trained_bytes(start, stop)
    return table.floor_bytes + weights + learning + table.buffer_bytes(start, stop)


def resting_bytes(table: CostTable, ranges: Iterable[tuple[int, int]]) -> int:
    """What stands on a device that has all these ranges of layers: its worker counts once, and with
    some of them.
    """
    held = [static_bytes(table, start, stop) - table.floor_bytes for start, stop in ranges]
    return sum(held) + table.floor_bytes if held else 0


def working_bytes(table: CostTable, start: int, stop: int, rows: int) -> int:
    """Bytes at work inside one forward or backward beyond what it keeps: the widest layer's input
    and output, and the activations where these are not kept.

    Parameters
    ----------
    table
        Of the problem.
    start, stop
        Layers [start, stop).
    rows
        Rows of a micro-batch.
    """
    again = table.activation_bytes(start, stop) if table.recomputes else 0
    return (table.widest_bytes(start, stop) + again) * rows


# --- transfers ------------------------------------------------------------------------------------


def cut_s(
    network: Network,
    row_bytes: int,
    left: Sequence[str],
    left_shares: Sequence[int],
    right: Sequence[str],
    right_shares: Sequence[int],
) -> float:
    """Seconds to pass one micro-batch over a cut, `row_bytes` per row, every device sending one
    transfer at a time.

    The busiest sender or receiver decides; other traffic is left out (Asteroid assumes
    device-to-device links).

    Parameters
    ----------
    network
        Bandwidths and latencies per pair.
    row_bytes
        Bytes of one row over the cut.
    left, left_shares
        Devices before the cut, and rows of each.
    right, right_shares
        Devices behind it, and rows of each.
    """
    if row_bytes == 0:
        return 0.0
    sending, receiving = dict.fromkeys(left, 0.0), dict.fromkeys(right, 0.0)
    for piece in overlaps(left_shares, right_shares):
        a, b = left[piece.left], right[piece.right]
        if a != b:
            seconds = (piece.stop - piece.start) * row_bytes / network.bandwidth(
                a, b
            ) + network.latency(a, b)
            sending[a] += seconds
            receiving[b] += seconds
    return max(*sending.values(), *receiving.values())


def all_reduce_s(network: Network, devices: Sequence[str], nbytes: int) -> float:
    """T_a = 2 (n - 1) / n * bytes / the slowest link of the ring, and 2 (n - 1) latencies
    (Asteroid, below eq. (5)).

    Parameters
    ----------
    network
        Bandwidths and latencies per pair.
    devices
        The replicas, in ring order; n of them.
    nbytes
        Bytes of the vector that is summed.
    """
    n = len(devices)
    if n == 1:
        return 0.0
    ring = [(devices[i], devices[(i + 1) % n]) for i in range(n)]
    slowest = min(network.bandwidth(a, b) for a, b in ring)
    latency = max(network.latency(a, b) for a, b in ring)
    return 2 * (n - 1) * (nbytes / n / slowest + latency)


# --- updates and copies ---------------------------------------------------------------------------


def update_s(table: CostTable, device: Device, start: int, stop: int) -> float:
    """Seconds of one optimizer step, as profiled; of layers that were not, in proportion to the
    bytes that it reads and writes, which pass as fast as in a sum.

    Measured on an x86 core, steps of SGD, momentum and AdamW on 4 to 192 MiB of float32 pass 0.8 to
    1.5 times as many. Half precision, which such a core has to emulate, passes a third.

    Parameters
    ----------
    table
        Of the problem.
    device
        Whose step it is.
    start, stop
        Layers [start, stop).
    """
    known_s, others_bytes = table.measured_update_s(device.name, start, stop)
    passes = UPDATE_PASSES[min(optimizer_copies(table.problem), ADAMW)]
    scaled_s = passes_s(
        device, SCALE_PASSES * is_clipped(table.problem), table.updated_bytes(start, stop)
    )
    return device.overhead_s + known_s + passes_s(device, passes, others_bytes) + scaled_s


def again_s(table: CostTable, device: Device, layer: int) -> float:
    """Seconds of an optimizer step on weights that an earlier layer reads, too: at the most what a
    stage with both saves.

    Parameters
    ----------
    table
        Of the problem.
    device
        Whose step it is.
    layer
        The later one.
    """
    nbytes = table.read_before_bytes(layer)
    if not nbytes:
        return 0.0
    alone_s = update_s(table, device, layer, layer + 1) - device.overhead_s
    passes = SCALE_PASSES + UPDATE_PASSES[min(optimizer_copies(table.problem), ADAMW)]
    return min(alone_s, passes_s(device, passes, nbytes))


def norms_s(table: CostTable, device: Device, start: int, stop: int) -> float:
    """Seconds to look at all gradients of layers [start, stop) once.

    Parameters
    ----------
    table
        Of the problem.
    device
        Who looks.
    start, stop
        Layers [start, stop).
    """
    return device.overhead_s + passes_s(device, 1, table.updated_bytes(start, stop))


def passes_s(device: Device, passes: int, nbytes: int) -> float:
    """Seconds to read or write bytes, as fast as they pass in a sum.

    Parameters
    ----------
    device
        Whose memory it is.
    passes
        How often.
    nbytes
        How many.
    """
    return passes * nbytes / (ADD_PASSES * device.copy_bytes_per_s)


def copy_s(device: Device, nbytes: int) -> float:
    """Seconds to slice, join or add `nbytes`."""
    return device.overhead_s + nbytes / device.copy_bytes_per_s


# --- energy ---------------------------------------------------------------------------------------


def energy_j(device: Device, elapsed_s: float, busy_s: float, radio_s: float) -> float | None:
    """Joules in `elapsed_s`: idle all the time, computing `busy_s` of it, radio on `radio_s`.

    None: power unknown.

    A radio of unknown power counts as part of idle power.

    Dora, eq. (2).

    Parameters
    ----------
    device
        Its `idle_w`, `busy_w` and `radio_w`.
    elapsed_s
        Seconds in all.
    busy_s
        Seconds of computing.
    radio_s
        Seconds of sending or receiving.
    """
    if device.idle_w is None or device.busy_w is None:
        return None
    return (
        device.idle_w * elapsed_s
        + (device.busy_w - device.idle_w) * busy_s
        + (device.radio_w or 0.0) * radio_s
    )
