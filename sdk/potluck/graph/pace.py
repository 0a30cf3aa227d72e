"""How long each operator of a model takes on a device, given how long its layers take. Pure.

A layer's time is divided over its operators as a processor would spend it: a dispatch each, then arithmetic and memory
traffic. Only the proportions count: the sum is what was measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from potluck_wire.graph import BATCH, Ref, node_refs

from .costs import base, forward_flop
from .layers import Layers

# One x86 core with torch 2.13 (profile/roofline.py): dispatch of an operator, convolutions, and what a copy gets.
DISPATCH_S, FLOP_PER_S, BYTES_PER_S = 10e-6, 60e9, 10e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds of every operator, by value, and how much of each is there however few rows are computed."""

    seconds: dict[int, float]
    overhead_s: float


def pace(layers: Layers, layer_s: Sequence[float], batch: int) -> Pace:
    """What every operator takes, where layer i takes `layer_s[i]` for `batch` rows of the batch."""
    traced = layers.line.traced
    first, sizes = traced.graph.first_node, {**traced.hints, BATCH: batch}
    found: dict[int, float] = {}
    total = 0.0
    for (start, stop), seconds in zip(pairwise(layers.bounds), layer_s, strict=True):
        weights: dict[int, float] = {}
        for position in layers.line.bound[start:stop]:
            value = first + position
            if base(traced, Ref(value)) == Ref(value):  # views take no time
                read = set(node_refs(traced.graph.nodes[position]))
                nbytes = sum(t.nbytes(sizes) for t in traced.types[value])
                nbytes += sum(traced.type_of(ref).nbytes(sizes) for ref in read)
                flop_s = forward_flop(traced, position, sizes) / FLOP_PER_S
                weights[value] = DISPATCH_S + flop_s + nbytes / BYTES_PER_S
        whole = sum(weights.values())
        found |= {value: seconds * weight / whole for value, weight in weights.items()}
        total += whole
    return Pace(seconds=found, overhead_s=DISPATCH_S * sum(layer_s) / total if total else 0.0)
