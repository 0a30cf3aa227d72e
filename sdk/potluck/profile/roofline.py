"""How long each operator should take on a device that nobody measured: the roofline, from a data
sheet's numbers. Pure.

An operator takes its launch, and then as long as the slower of its arithmetic and its memory
traffic:
    t(rows) = launch_s + max(flop x rows / (peak x e), (traffic x rows + weights) / (bandwidth x m))
so small batches cost more per row: launch and weights do not shrink with the batch. e and m are the
parts of the data sheet's rates that an operator of that kind gets. Everything is labelled
"estimated"; measuring replaces it. Williams, Waterman and Patterson 2009, "Roofline".
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from potluck.graph.modelgraph import ModelGraph, OperatorNode, still_nodes
from potluck.records import LayerCost
from potluck.simulate.cost import ADAMW, UPDATE_PASSES
from potluck.simulate.equations import ADD_PASSES


class Numbers(Protocol):
    """What the estimate asks of a device: `potluck.profile.library.DeviceSpec` is one."""

    @property
    def kind(self) -> str:
        """Its name in the library."""

    def get(self, field: str) -> float | None:
        """A number of its data sheet; None where that has none."""

    def need(self, field: str) -> float:
        """The same; an error where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """The part of the peak that arithmetic gets, and the part of the bandwidth that traffic
    gets.
    """

    compute_frac: float
    memory_frac: float


# Of a *printed* peak (clock x units): graphics cards, Jetsons, phones.
# - conv: with it, a step of ResNet-50 takes 0.22 s an image on a Jetson Nano and 0.08 s on a TX2;
#   Asteroid, Table 1, measured 0.21 to 0.33 s and 0.07 to 0.11 s (3.48 h and 1.14 h an epoch;
#   Mini-ImageNet's common training splits have 38,400 to 60,000 images).
# - matmul: BERT-sized linear layers got 0.67 of the best square product on one x86 core; large
#   products come closer.
# - attention: fused kernels do the softmax between two thin products; 0.87 of a product on one x86
#   core.
# - depthwise: one channel a group leaves most lanes idle; 0.14 to 0.28 of a product on one x86
#   core.
# - the rest does little arithmetic: memory decides. Streams get about three quarters of a bus
#   (STREAM's usual part); norms read their input twice, for the sums and again to apply them;
#   gathers and windows read in pieces.
PRINTED = {
    "attention": Efficiency(compute_frac=0.50, memory_frac=0.75),
    "conv": Efficiency(compute_frac=0.60, memory_frac=0.75),
    "depthwise": Efficiency(compute_frac=0.15, memory_frac=0.50),
    "elementwise": Efficiency(compute_frac=0.50, memory_frac=0.75),
    "embedding": Efficiency(compute_frac=0.50, memory_frac=0.50),
    "matmul": Efficiency(compute_frac=0.70, memory_frac=0.75),
    "norm": Efficiency(compute_frac=0.50, memory_frac=0.50),
    "pool": Efficiency(compute_frac=0.50, memory_frac=0.50),
}
# Of a peak that large products *reached* (HPL): processors. Measured with torch 2.13 on one x86
# core, as parts of its best 1024^3 product (67 Gflop/s) and of its copy (17 GB/s): conv 0.83 to
# 1.05, linear 0.67, attention 0.87, depthwise 0.14 to 0.28; relu and add 1.2, gelu 0.35, batch norm
# 0.19, layer norm and softmax 0.32, max pool 0.05. A copy gets about 0.6 of the bus.
REACHED = {
    "attention": Efficiency(compute_frac=0.85, memory_frac=0.60),
    "conv": Efficiency(compute_frac=0.90, memory_frac=0.60),
    "depthwise": Efficiency(compute_frac=0.20, memory_frac=0.60),
    "elementwise": Efficiency(compute_frac=0.50, memory_frac=0.40),
    "embedding": Efficiency(compute_frac=0.50, memory_frac=0.40),
    "matmul": Efficiency(compute_frac=0.67, memory_frac=0.60),
    "norm": Efficiency(compute_frac=0.50, memory_frac=0.15),
    "pool": Efficiency(compute_frac=0.50, memory_frac=0.03),
}
EFFICIENCY = {"gpu": PRINTED, "jetson": PRINTED, "laptop": PRINTED, "phone": PRINTED}
EFFICIENCY |= {"board": REACHED, "mac": REACHED, "pc": REACHED}

# One operator's fixed cost where the device's file has no launch_s. torch's dispatch took 3.4 us
# (relu) to 17 us (linear) on an x86 core at 8 numbers each; a graphics card is fed by such a core;
# a Jetson's or a board's cores are some five times slower (HPL over 4 cores: 63 Gflop/s on an N100,
# 12 on a Raspberry Pi 4), a phone's about as fast.
LAUNCH_S = {
    "gpu": 10e-6,
    "laptop": 10e-6,
    "pc": 10e-6,
    "mac": 10e-6,
    "phone": 15e-6,
    "jetson": 50e-6,
    "board": 50e-6,
}

# Sums and optimizer steps, of the bus: streams, as above. A worker measures sums by itself
# (`copy_bytes_per_s`).
STREAM_FRAC = {
    "gpu": 0.75,
    "jetson": 0.75,
    "laptop": 0.75,
    "phone": 0.75,
    "board": 0.60,
    "mac": 0.60,
    "pc": 0.60,
}

# A backward pass is two products (for the input, for the weights), reads what was kept and two
# gradients, writes two. Frozen weights are read, and have neither product nor gradient.
BACKWARD_LAUNCHES = 2
BACKWARD_TRAFFIC = 2


def node_s(
    device: Numbers, node: OperatorNode, rows: int, dtype: str = "float32"
) -> tuple[float, float]:
    """Seconds of one operator forward and backward over `rows` rows.

    By hand: 1e9 flop a row as a matmul at a peak of 1e12 flop/s is 1e9 / 0.7e12 = 1.43 ms a row,
    and 4 MB of weights at 1e10 bytes/s are 0.53 ms whatever the rows: 1.43 ms for one row, 14.3 ms
    for ten, and a launch each.

    Parameters
    ----------
    device
        Its data sheet.
    node
        Its kind, floating-point operations and bytes.
    rows
        Of a batch.
    dtype
        Of weights and tensors. A device whose rate in half precision is not known computes as fast
        as in single precision.
    """
    efficiency = EFFICIENCY[device.kind][node.kind]
    half = device.get("peak_fp16_flop_per_s") if dtype == "float16" else None
    flop_per_s = (half or device.need("peak_fp32_flop_per_s")) * efficiency.compute_frac
    bytes_per_s = device.need("memory_bytes_per_s") * efficiency.memory_frac
    launch_s = device.get("launch_s") or LAUNCH_S[device.kind]
    # a gather reads the rows of its table that it takes, which are traffic
    weight_bytes = 0 if node.kind == "embedding" else node.parameter_bytes
    forward_bytes = node.traffic_bytes * rows + weight_bytes
    forward_s = launch_s + max(node.forward_flop * rows / flop_per_s, forward_bytes / bytes_per_s)
    all_frozen = 0 < node.parameter_bytes == node.frozen_bytes
    backward_bytes = BACKWARD_TRAFFIC * forward_bytes - min(node.frozen_bytes, weight_bytes)
    backward_s = (BACKWARD_LAUNCHES - all_frozen) * launch_s + max(
        node.backward_flop * rows / flop_per_s, backward_bytes / bytes_per_s
    )
    return forward_s, backward_s


def copy_bytes_per_s(device: Numbers) -> float:
    """Bytes of result per second when two tensors are added: as its file states, else by its
    memory's bandwidth.

    By hand: at 1e10 bytes/s of memory, 0.75 of it reached, 7.5e9 bytes/s pass, two read for each
    one written: 2.5e9.
    """
    return (
        device.get("copy_bytes_per_s")
        or device.need("memory_bytes_per_s") * STREAM_FRAC[device.kind] / ADD_PASSES
    )


def adamw_s(device: Numbers, parameter_bytes: int) -> float:
    """Seconds of one step of AdamW on so many bytes of parameters."""
    return UPDATE_PASSES[ADAMW] * parameter_bytes / (ADD_PASSES * copy_bytes_per_s(device))


def layer_cost(
    device: Numbers,
    nodes: Iterable[OperatorNode],
    rows: Sequence[int],
    *,
    train: bool = True,
    dtype: str = "float32",
    still: Container[str] = (),
) -> LayerCost:
    """The cost table of a run of operators, one after the other, labelled as an estimate.

    Backward where they `train`.

    Parameters
    ----------
    device
        Its data sheet.
    nodes
        In order.
    rows
        Batch sizes, ascending.
    train
        With backward.
    dtype
        Of weights and tensors.
    still
        Names of nodes that have none, as no gradient flows through them.

    Raises
    ------
    FileError
        The device's peak or bandwidth is not known.
    UserError
        Rows do not ascend.
    """
    nodes = tuple(nodes)
    forward_s, backward_s = [0.0] * len(rows), [0.0] * len(rows)
    for node in nodes:
        for i, count in enumerate(rows):
            forward, backward = node_s(device, node, count, dtype)
            forward_s[i] += forward
            backward_s[i] += 0.0 if node.name in still else backward
    return LayerCost(
        rows=tuple(rows),
        forward_s=tuple(forward_s),
        backward_s=tuple(backward_s) if train else (),
        source="estimated",
        update_s=adamw_s(device, sum(n.parameter_bytes - n.frozen_bytes for n in nodes))
        if train
        else None,
    )


def estimate(
    device: Numbers,
    graph: ModelGraph,
    rows: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
    bounds: Sequence[int] = (),
) -> tuple[LayerCost, ...]:
    """A cost table for each of `graph.layers(bounds)`: for every node where no bounds are given.

    Parameters
    ----------
    device
        Its data sheet.
    graph
        The model's operators.
    rows
        Batch sizes, ascending.
    bounds
        Layer i is the nodes [bounds[i], bounds[i + 1]).
    """
    bounds, still = bounds or range(len(graph.nodes) + 1), still_nodes(graph.nodes)
    return tuple(
        layer_cost(device, graph.nodes[start:stop], rows, dtype=graph.dtype, still=still)
        for start, stop in pairwise(bounds)
    )
