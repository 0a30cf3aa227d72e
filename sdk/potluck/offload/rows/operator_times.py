"""How long each operator of a model takes on a device, given how long its layers take. Pure.

A layer's time is divided over its operators as a processor would spend it: a dispatch and the
weights, as long for few rows as for all, then arithmetic and memory traffic. Only the proportions
count: the sum is what was measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from potluck.graph.operator_costs import base, forward_flop
from potluck.graph.partition.layers import Layers
from potluck_wire.graph import BATCH, Ref, node_refs

# One x86 core with torch 2.13 (profile/roofline.py): dispatch of an operator, convolutions, and
# what a copy gets.
DISPATCH_S = 10e-6
FLOP_PER_S = 60e9
BYTES_PER_S = 10e9
# In the pieces of a request, one after the other as they run (in a loop of its own each takes a
# third of that):
# of an operator with weights: 10 to 104 more than its part of the whole, 52 on the mean
WEIGHED_DISPATCH_S = 35e-6
HALO_S = 40e-6  # slice, join and pad: 42 to 56 for each operator that needs some of them


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTimes:
    """Seconds of every operator, by value, and how many of each are there however few rows are
    computed.

    `halo_s` come on top where a piece of it reads rows that are cut out of what is there, joined or
    padded.
    """

    seconds: Mapping[int, float] = field(default_factory=dict)
    fixed_s: Mapping[int, float] = field(default_factory=dict)
    halo_s: Mapping[int, float] = field(default_factory=dict)

    def scaled(self, factor: float) -> "OperatorTimes":
        """All takes so many times as long."""
        return OperatorTimes(
            seconds={value: s * factor for value, s in self.seconds.items()},
            fixed_s={value: s * factor for value, s in self.fixed_s.items()},
            halo_s={value: s * factor for value, s in self.halo_s.items()},
        )


def operator_times(layers: Layers, layer_s: Sequence[float], batch: int) -> OperatorTimes:
    """What every operator takes, where layer i takes `layer_s[i]` for `batch` rows of the batch.

    Parameters
    ----------
    layers
        The traced model in layers.
    layer_s
        Seconds of each layer.
    batch
        Rows that it computes in them.
    """
    traced = layers.line.traced
    first, sizes = traced.graph.first_node, {**traced.hints, BATCH: batch}
    states = range(len(traced.graph.inputs), first)
    found: dict[int, float] = {}
    fixed_s: dict[int, float] = {}
    halo_s: dict[int, float] = {}
    for (start, stop), seconds in zip(pairwise(layers.bounds), layer_s, strict=True):
        weights: dict[int, float] = {}
        fixed: dict[int, float] = {}
        for position in layers.line.bound[start:stop]:
            value = first + position
            if base(traced, Ref(value)) == Ref(value):  # views take no time
                read = set(node_refs(traced.graph.nodes[position]))
                nbytes = sum(t.nbytes(sizes) for t in traced.types[value])
                nbytes += sum(
                    traced.type_of(ref).nbytes(sizes) for ref in read if ref.value not in states
                )
                kept = sum(traced.type_of(ref).nbytes(sizes) for ref in read if ref.value in states)
                fixed[value] = (WEIGHED_DISPATCH_S if kept else DISPATCH_S) + kept / BYTES_PER_S
                flop_s = forward_flop(traced, position, sizes) / FLOP_PER_S
                weights[value] = fixed[value] + flop_s + nbytes / BYTES_PER_S
        scale = seconds / sum(weights.values()) if weights else 0.0
        found |= {value: scale * weight for value, weight in weights.items()}
        fixed_s |= {value: scale * weight for value, weight in fixed.items()}
        halo_s |= dict.fromkeys(weights, scale * HALO_S)
    return OperatorTimes(seconds=found, fixed_s=fixed_s, halo_s=halo_s)
