"""A piece of a model as plans see it: its tensors by name, type and size of a row, and what it
learns.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate

from potluck import records
from potluck.graph.partition.cuts import multiple
from potluck.graph.partition.layer_records import is_averaged, shared_parameters
from potluck.graph.partition.layers import Layers
from potluck_wire.graph import BATCH, DTYPE_BYTES, Graph, Input, Output, Parameter, evaluate


def tensor_record(port: Input | Output, hints: Mapping[str, int]) -> records.Tensor:
    """Of an input or an output; `hints`: the sizes of the example."""
    sizes = {**hints, BATCH: 1}
    elements = math.prod(evaluate(size, sizes) for size in port.shape)
    return records.Tensor(
        name=port.name,
        dtype=port.dtype,
        row_bytes=elements * DTYPE_BYTES[port.dtype],
        gradient=port.gradient,
        multiple=multiple(port.shape),
    )


def _shared(
    chosen: Layers, start: int, stop: int, learned: Sequence[Parameter]
) -> tuple[records.SharedPart, ...]:
    """Where gradients of parameters that other layers read, too, are in the vector of a step."""
    line, bounds = chosen.line, chosen.bounds
    names = {p.name for p in shared_parameters(line, bounds[start], bounds[stop])}
    ends = [*accumulate((math.prod(p.shape) for p in learned), initial=0)]
    return tuple(
        records.SharedPart(name=p.name, start=ends[i], stop=ends[i + 1])
        for i, p in enumerate(learned)
        if p.name in names
    )


def segment_record(graph: Graph, chosen: Layers, start: int, stop: int) -> records.Segment:
    """Of layers [start, stop), which are `graph`."""
    traced = chosen.line.traced
    own = {port.name for port in traced.graph.inputs}
    tensors = [tensor_record(port, traced.hints) for port in graph.inputs]
    learned = [p for p in graph.parameters if p.trainable]
    averaged = [b for b in graph.buffers if is_averaged(b)]
    return records.Segment(
        name=f"layers-{start}-{stop}",
        start=start,
        stop=stop,
        feeds=tuple(t for t in tensors if t.name in own),
        inputs=tuple(t for t in tensors if t.name not in own),
        sources=chosen.sources(start, stop),
        outputs=tuple(tensor_record(port, traced.hints) for port in graph.outputs),
        parameter_count=sum(math.prod(p.shape) for p in learned),
        buffer_count=sum(math.prod(b.shape) for b in averaged),
        vector_item_bytes=max(
            [4, *(DTYPE_BYTES[p.dtype] for p in learned), *(DTYPE_BYTES[b.dtype] for b in averaged)]
        ),
        sums_rows=traced.sums_rows,
        whole_batch=any(layer.whole_batch for layer in chosen.records[start:stop]),
        shared=_shared(chosen, start, stop, learned),
        norm_values=min(
            (layer.norm_values for layer in chosen.records[start:stop] if layer.norm_values),
            default=0,
        ),
    )
