"""A line of operators as layers: which of the open cuts are worth offering to a planner, and what each layer weighs.

A layer ends before a heavy operator, where the fewest tensors are alive; residual blocks and the halves of transformer
blocks come out whole. Where one layer would be more than a third of the model, wider cuts are let in. Then neighbours
are merged, the lightest first, until `max_layers` are left and none is below `merge_below` of the model (Dora's Delta).
"""

import math
from dataclasses import dataclass
from itertools import pairwise

from potluck.records import Layer
from potluck_wire.graph import BATCH, DTYPE_BYTES, Buffer, Graph, Parameter, node_refs
from potluck_wire.operators import KIND_OF

from .costs import HEAVY, backward_flop, forward_flop, kept
from .cuts import Line

MAX_SHARE = 1 / 3  # of the model in one layer, before wider cuts are let in


@dataclass(frozen=True, slots=True)
class Layers:
    """A line with the cuts that are offered: layer i is bound nodes [bounds[i], bounds[i + 1])."""

    line: Line
    bounds: tuple[int, ...]
    records: tuple[Layer, ...]


def layers(line: Line, *, max_layers: int, merge_below: float = 0.0) -> Layers:
    """The layers of a line."""
    weights = _weights(line)
    cuts = _worth_offering(line, weights)
    sizes = {**line.traced.hints, BATCH: 1}
    nbytes = {cut: sum(line.traced.type_of(ref).nbytes(sizes) for ref in line.alive(cut)) for cut in cuts}
    bounds = _merged((0, *cuts, len(line.bound)), weights, nbytes, max_layers, merge_below)
    return Layers(line=line, bounds=bounds, records=_records(line, bounds))


def _weights(line: Line) -> list[float]:
    """Share of the model in each bound node: half by arithmetic, half by parameters."""
    traced, graph = line.traced, line.traced.graph
    sizes = {**traced.hints, BATCH: 1}
    flop = [forward_flop(traced, position, sizes) for position in line.bound]
    size = {len(graph.inputs) + i: math.prod(p.shape) for i, p in enumerate(graph.parameters)}
    first_use: dict[int, int] = {}
    for i, needed in enumerate(line.needs):
        for value in needed & size.keys():
            first_use.setdefault(value, i)
    owned = [0.0] * len(line.bound)
    for value, i in first_use.items():
        owned[i] += size[value]
    total_flop, total_size = sum(flop) or 1.0, sum(owned) or 1.0
    return [0.5 * f / total_flop + 0.5 * s / total_size for f, s in zip(flop, owned, strict=True)]


def _worth_offering(line: Line, weights: list[float]) -> tuple[int, ...]:
    """One cut between two heavy operators, where the fewest tensors and then bytes are alive."""
    graph, sizes = line.traced.graph, {**line.traced.hints, BATCH: 1}
    heavy = [KIND_OF[graph.nodes[position].op] in HEAVY for position in line.bound]
    cuts = line.open_cuts()
    alive = {cut: line.alive(cut) for cut in cuts}
    cost = {cut: (len(refs), sum(line.traced.type_of(r).nbytes(sizes) for r in refs)) for cut, refs in alive.items()}
    narrow = _best_between(heavy, [cut for cut in cuts if cost[cut][0] == 1], cost)
    bounds = [0, *narrow, len(line.bound)]
    wide = []
    for start, stop in pairwise(bounds):
        if sum(weights[start:stop]) > MAX_SHARE:
            inside = [cut for cut in cuts if start < cut < stop]
            wide += _best_between(heavy[:stop], inside, cost, start)
    return tuple(sorted({*narrow, *wide}))


def _best_between(heavy: list[bool], cuts: list[int], cost: dict[int, tuple[int, int]], start: int = 0) -> list[int]:
    """Among cuts with no heavy operator in between, the cheapest, the latest of equals; none at either end."""
    groups: dict[int, list[int]] = {}
    for cut in cuts:
        groups.setdefault(sum(heavy[start:cut]), []).append(cut)
    total = sum(heavy[start:])
    return [min(group, key=lambda c: (cost[c], -c)) for n, group in groups.items() if 0 < n < total]


def _merged(
    bounds: tuple[int, ...], weights: list[float], nbytes: dict[int, int], max_layers: int, merge_below: float
) -> tuple[int, ...]:
    """Bounds without the cuts between light neighbours; of cuts alike, those that cost many bytes go first."""
    left = list(bounds)
    usual = sorted(nbytes.values())[len(nbytes) // 2] if nbytes else 1
    while len(left) > 2:
        shares = [sum(weights[start:stop]) for start, stop in pairwise(left)]
        if len(shares) <= max_layers and min(shares) >= merge_below:
            break
        pairs = zip(pairwise(shares), left[1:-1], strict=True)
        burden = [(a + b) / (1 + nbytes[cut] / (usual or 1)) for (a, b), cut in pairs]
        candidates = range(len(burden))
        if len(shares) <= max_layers:  # the lightest layer joins a neighbour
            i = min(range(len(shares)), key=shares.__getitem__)
            candidates = range(max(i - 1, 0), min(i + 1, len(burden)))
        del left[min(candidates, key=burden.__getitem__) + 1]
    return tuple(left)


def _records(line: Line, bounds: tuple[int, ...]) -> tuple[Layer, ...]:
    seen: dict[str, int] = {}
    found = []
    for start, stop in pairwise(bounds):
        name = _name(line, start, stop)
        seen[name] = seen.get(name, 0) + 1
        found.append(_record(line, start, stop, name if seen[name] == 1 else f"{name}#{seen[name]}"))
    return tuple(found)


def _record(line: Line, start: int, stop: int, name: str) -> Layer:
    traced, graph = line.traced, line.traced.graph
    sizes = {**traced.hints, BATCH: 1}
    states = sorted(frozenset().union(*line.needs[start:stop]))
    n_inputs, first = len(graph.inputs), graph.first_node
    of_parameters = [v - n_inputs for v in states if n_inputs <= v < n_inputs + len(graph.parameters)]
    of_buffers = [v - n_inputs - len(graph.parameters) for v in states if first - len(graph.buffers) <= v < first]
    last = stop == len(line.bound)
    crossing = [output.ref for output in graph.outputs] if last else line.alive(stop)
    positions = line.bound[start:stop]
    saved = frozenset().union(*(kept(traced, p, line.requires) for p in positions)) if _trains(graph) else frozenset()
    flowing = line.requires if _trains(graph) and not last else frozenset()
    return Layer(
        name=name,
        parameter_bytes=sum(_state_bytes(graph.parameters[i]) for i in of_parameters),
        buffer_bytes=sum(_state_bytes(graph.buffers[i]) for i in of_buffers),
        output_bytes=sum(traced.type_of(ref).nbytes(sizes) for ref in crossing),
        gradient_bytes=sum(traced.type_of(ref).nbytes(sizes) for ref in crossing if ref in flowing),
        activation_bytes=sum(traced.type_of(ref).nbytes(sizes) for ref in saved if ref.value in line.place),
        forward_flop=sum(forward_flop(traced, p, sizes) for p in positions),
        backward_flop=sum(backward_flop(traced, p, line.requires, sizes) for p in positions) if _trains(graph) else 0.0,
    )


def _trains(graph: Graph) -> bool:
    return any(output.gradient for output in graph.outputs)


def _state_bytes(state: Parameter | Buffer) -> int:
    return math.prod(state.shape) * DTYPE_BYTES[state.dtype]


def _name(line: Line, start: int, stop: int) -> str:
    """After the module of the first parameter, else after the first operator."""
    graph = line.traced.graph
    names = {len(graph.inputs) + i: p.name for i, p in enumerate(graph.parameters)}
    for position in line.bound[start:stop]:
        for ref in node_refs(graph.nodes[position]):
            if ref.value in names:
                return names[ref.value].rpartition(".")[0] or names[ref.value]
    return graph.nodes[line.bound[start]].op.split(".")[1]
