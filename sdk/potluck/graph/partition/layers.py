"""Operators as layers: which of the open cuts are worth offering to a planner.

A layer ends before a heavy operator, where the fewest tensors are alive; residual blocks and the
halves of transformer blocks come out whole. Where one layer would be more than a third of the
model, wider cuts are let in. Then neighbours are merged, the lightest first, until `max_layers` are
left and none is below `merge_below` of the model (Dora's Delta). Parallel branches begin and end
with a layer; a cut inside one counts only the branch's own tensors.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from potluck.errors import ModelError
from potluck.graph.operator_costs import HEAVY, forward_flop
from potluck.graph.partition.boundary_tensors import BoundaryTensors, boundary_tensors
from potluck.graph.partition.branches import find
from potluck.graph.partition.cuts import Linearization, cut_out
from potluck.graph.partition.cuts import line as make_line
from potluck.graph.partition.layer_records import layer_records
from potluck.records import Layer
from potluck_wire.graph import BATCH, Graph, Ref
from potluck_wire.operators import KIND_OF

Spans = tuple[tuple[int, int], ...]

MAX_SHARE = 1 / 3  # of the model in one layer, before wider cuts are let in


@dataclass(frozen=True, slots=True)
class Layers:
    """A line with the cuts that are offered: layer i is bound nodes [bounds[i], bounds[i + 1]).

    `max_layers` and `merge_below` are what they were chosen by.
    """

    line: Linearization
    bounds: tuple[int, ...]
    records: tuple[Layer, ...]
    boundary_tensors: BoundaryTensors
    max_layers: int
    merge_below: float

    def graph(self, start: int, stop: int) -> Graph:
        """Layers [start, stop) as a graph of their own."""
        taken = [ref for ref, _ in self.boundary_tensors.into(start, stop)]
        given = self.boundary_tensors.out_of(start, stop)
        return cut_out(self.line, self.bounds[start], self.bounds[stop], taken, given)

    def sources(self, start: int, stop: int) -> tuple[int, ...]:
        """For each value that layers [start, stop) take from earlier ones, the layer that gives
        it.
        """
        return tuple(layer for _, layer in self.boundary_tensors.into(start, stop))


def layers(
    line: Linearization, *, n_inputs: int, max_layers: int, merge_below: float = 0.0
) -> Layers:
    """The layers of a line; the first `n_inputs` of the graph's inputs are the model's, the others
    targets.

    Raises ModelError where no operator reads an input: there is nothing to divide.
    """
    if max_layers < 1:
        raise ModelError(f"a model needs at least one layer; got max_layers={max_layers}.")
    if not line.bound:
        raise ModelError(
            "it computes nothing from the values of its inputs.",
            next_step="Give it at least one operator that reads one.",
        )
    weights = _weights(line)
    found = find(line.reads(), weights)
    if found.spans:
        ordered = make_line(line.traced, found.order)
        branched = _laid_out(
            ordered,
            [weights[i] for i in found.order],
            found.spans,
            n_inputs,
            max_layers,
            merge_below,
        )
        if branched is not None:
            return branched
    chain = _laid_out(line, weights, (), n_inputs, max_layers, merge_below)
    if chain is None:
        raise AssertionError("a chain is always possible")
    return chain


def layers_at(
    line: Linearization, bounds: tuple[int, ...], *, n_inputs: int, lanes: Sequence[int]
) -> Layers:
    """Layers with these bounds, whatever they weigh.

    Parameters
    ----------
    line
        The line that is cut.
    bounds
        Layer i is bound nodes [bounds[i], bounds[i + 1]).
    n_inputs
        So many of the graph's inputs are the model's.
    lanes
        Of each layer, the place of its device in a division by tensor.
    """
    boundary = boundary_tensors(line, bounds, branched=True)
    records = layer_records(line, bounds, boundary, n_inputs)
    return Layers(
        line=line,
        bounds=bounds,
        records=tuple(
            replace(record, name=f"{record.name}@{lane}", lane=lane)
            for record, lane in zip(records, lanes, strict=True)
        ),
        boundary_tensors=boundary,
        max_layers=len(records),
        merge_below=0.0,
    )


def layers_with_bounds(
    line: Linearization, bounds: tuple[int, ...], like: Layers, *, n_inputs: int
) -> Layers:
    """Layers with these bounds, one for each of others, by their names and with their branches.

    Parameters
    ----------
    line
        The line that is cut.
    bounds
        Layer i is bound nodes [bounds[i], bounds[i + 1]).
    like
        The others.
    n_inputs
        So many of the graph's inputs are the model's.
    """
    branched = any(record.edges for record in like.records)
    boundary = boundary_tensors(line, bounds, branched=branched)
    records = layer_records(line, bounds, boundary if branched else None, n_inputs)
    return replace(
        like,
        line=line,
        bounds=bounds,
        records=tuple(
            replace(record, name=old.name)
            for record, old in zip(records, like.records, strict=True)
        ),
        boundary_tensors=boundary,
    )


def _laid_out(
    line: Linearization,
    weights: list[float],
    spans: Spans,
    n_inputs: int,
    max_layers: int,
    merge_below: float,
) -> Layers | None:
    """Layers whose branches are `spans`.

    None where a size that a branch needs cannot be read inside it.
    """
    cuts = _worth_offering(line, weights, spans)
    sizes = {**line.traced.hints, BATCH: 1}
    nbytes = {
        cut: sum(line.traced.type_of(ref).nbytes(sizes) for ref in _boundary(line, cut, spans))
        for cut in cuts
    }
    ends = {end for span in spans for end in span}
    offered = _that_give((0, *cuts, len(line.bound)), line, branched=bool(spans))
    bounds = _merged(offered, weights, nbytes, max_layers, merge_below, ends)
    boundary = boundary_tensors(line, bounds, branched=bool(spans))
    records = layer_records(line, bounds, boundary if spans else None, n_inputs)
    made = Layers(
        line=line,
        bounds=bounds,
        records=records,
        boundary_tensors=boundary,
        max_layers=max_layers,
        merge_below=merge_below,
    )
    return (
        made if not spans or all(_readable(made, layer) for layer in range(len(records))) else None
    )


def _readable(made: Layers, layer: int) -> bool:
    """Whether a layer finds every size that it needs in its own inputs."""
    known = {symbol.name for symbol in made.graph(layer, layer + 1).symbols}
    return made.line.symbols_of(made.bounds[layer], made.bounds[layer + 1]) <= known | {BATCH}


def _boundary(line: Linearization, cut: int, spans: Spans) -> tuple[Ref, ...]:
    """What crosses a cut, but for what merely passes by the branch that it is in."""
    refs = line.alive(cut)
    inside = [span for span in spans if span[0] < cut < span[1]]
    if not inside:
        return refs
    start, stop = max(inside)
    return tuple(
        r
        for r in refs
        if start <= line.place[r.value] or any(cut <= use < stop for use in line.uses[r])
    )


def _weights(line: Linearization) -> list[float]:
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


def _worth_offering(line: Linearization, weights: list[float], spans: Spans) -> tuple[int, ...]:
    """One cut between two heavy operators, where the fewest tensors and then bytes cross.

    And the ends of branches.
    """
    graph, sizes = line.traced.graph, {**line.traced.hints, BATCH: 1}
    heavy = [KIND_OF[graph.nodes[position].op] in HEAVY for position in line.bound]
    cuts = line.open_cuts()
    ends = {end for span in spans for end in span}.intersection(cuts)
    alive = {cut: _boundary(line, cut, spans) for cut in cuts}
    cost = {
        cut: (len(refs), sum(line.traced.type_of(r).nbytes(sizes) for r in refs))
        for cut, refs in alive.items()
    }
    narrow = _best_between(heavy, [cut for cut in cuts if cost[cut][0] == 1], cost)
    bounds = [0, *narrow, len(line.bound)]
    wide = []
    for start, stop in pairwise(bounds):
        if sum(weights[start:stop]) > MAX_SHARE:
            inside = [cut for cut in cuts if start < cut < stop]
            wide += _best_between(heavy[:stop], inside, cost, start)
    before = list(accumulate(heavy, initial=0))
    done = {before[end] for end in ends}  # between the same two heavy operators one cut is enough
    return tuple(sorted({*(cut for cut in (*narrow, *wide) if before[cut] not in done), *ends}))


def _that_give(bounds: tuple[int, ...], line: Linearization, *, branched: bool) -> tuple[int, ...]:
    """Bounds of layers each of which hands something on.

    One that only changes a buffer, such as the counter of a batch norm in another branch, joins
    the layer before where that gives it something, else the next.
    """
    while True:
        boundary = boundary_tensors(line, bounds, branched=branched)
        idle = [i for i, given in enumerate(boundary.hands[:-1]) if not given]
        if not idle:
            return bounds
        layer = idle[0]
        givers = [giver for _, giver in boundary.into(layer, layer + 1)]
        joined = layer if layer - 1 in givers else layer + 1
        bounds = (*bounds[:joined], *bounds[joined + 1 :])


def _best_between(
    heavy: list[bool], cuts: list[int], cost: dict[int, tuple[int, int]], start: int = 0
) -> list[int]:
    """Among cuts with no heavy operator in between, the cheapest, the latest of equals.

    None at either end.
    """
    groups: dict[int, list[int]] = {}
    for cut in cuts:
        groups.setdefault(sum(heavy[start:cut]), []).append(cut)
    total = sum(heavy[start:])
    return [min(group, key=lambda c: (cost[c], -c)) for n, group in groups.items() if 0 < n < total]


def _merged(
    bounds: tuple[int, ...],
    weights: list[float],
    nbytes: dict[int, int],
    max_layers: int,
    merge_below: float,
    ends: set[int],
) -> tuple[int, ...]:
    """Bounds without the cuts between light neighbours.

    Of cuts alike, those that cost many bytes go first.

    The ends of branches go only when nothing else is left to merge.
    """
    kept = list(bounds)
    usual = sorted(nbytes.values())[len(nbytes) // 2] if nbytes else 1
    while len(kept) > 2:
        shares = [sum(weights[start:stop]) for start, stop in pairwise(kept)]
        if len(shares) <= max_layers and min(shares) >= merge_below:
            break
        pairs = zip(pairwise(shares), kept[1:-1], strict=True)
        burden = [(a + b) / (1 + nbytes[cut] / (usual or 1)) for (a, b), cut in pairs]
        candidates = range(len(burden))
        if len(shares) <= max_layers:  # the lightest layer joins a neighbour
            i = min(range(len(shares)), key=shares.__getitem__)
            candidates = range(max(i - 1, 0), min(i + 1, len(burden)))
        del kept[min(candidates, key=lambda k: (kept[k + 1] in ends, burden[k])) + 1]
    return tuple(kept)
