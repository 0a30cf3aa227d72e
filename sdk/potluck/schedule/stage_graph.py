"""Which stage takes which tensors from which: the stages of a plan as a graph, read off their
segments. Pure.

In a chain every stage takes all its tensors from the one before. Stages of parallel branches take
them from wherever they are made, and act at the same time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from potluck.errors import PlanError
from potluck.records import Plan, Segment, Tensor

Before = tuple[tuple[int, ...], ...]  # per stage, the stages that it takes tensors from, in order


def chain(n_stages: int) -> Before:
    """Every stage takes from the one before.

    >>> chain(3)
    ((), (0,), (1,))
    """
    return tuple((p - 1,) if p else () for p in range(n_stages))


@lru_cache(maxsize=256)
def behind(before: Before) -> Before:
    """Per stage, the stages that take tensors from it: `before` the other way round."""
    return tuple(
        tuple(q for q, sources in enumerate(before) if p in sources) for p in range(len(before))
    )


def path_lengths(before: Before) -> tuple[int, ...]:
    """Per stage, the stages on the longest way from it to the end, itself included: P - p in a
    chain.

    >>> path_lengths(((), (0,), (0,), (1, 2)))
    (3, 2, 2, 1)
    """
    found = [1] * len(before)
    for q in reversed(range(len(before))):
        for p in before[q]:
            found[p] = max(found[p], found[q] + 1)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class StageGraph:
    """`before`: the graph of stages. `takers[p][tensor]`: the stages that take that output of stage
    p, in order.

    `suppliers[p]`: for each input of stage p the stage it comes from. `learns[p]`: whether a
    gradient reaches stage p.
    """

    before: Before
    takers: tuple[Mapping[str, tuple[int, ...]], ...]
    suppliers: tuple[tuple[int, ...], ...]
    learns: tuple[bool, ...]

    def returning(self, p: int, tensor: Tensor) -> tuple[int, ...]:
        """The stages from which the gradient of an output of stage p comes back, the last first: as
        autograd adds.
        """
        return returning(self.takers[p].get(tensor.name, ()), tensor.gradient, self.learns)


def returning(takers: Sequence[int], gradient: bool, learns: Sequence[bool]) -> tuple[int, ...]:
    """Of the stages that take an output, those from which its gradient comes back, the last first.

    Parameters
    ----------
    takers
        Stages that take the output, in order.
    gradient
        Whether it has a gradient.
    learns
        Per stage, whether a gradient comes back to it.
    """
    return tuple(q for q in reversed(takers) if learns[q]) if gradient else ()


def learning(takers: Sequence[Sequence[Sequence[int]]]) -> tuple[bool, ...]:
    """Whether a gradient comes back to each stage in training: from the loss, through every stage
    in between.

    `takers[p]`: for each output of stage p that has a gradient, the stages that take it.

    >>> learning([[[1]], [], [[3]], []])
    (False, False, True, True)
    """
    learns = [False] * (len(takers) - 1) + [True]
    for p in reversed(range(len(takers) - 1)):
        learns[p] = any(learns[q] for to in takers[p] for q in to)
    return tuple(learns)


def wire(plan: Plan, segments: Sequence[Segment], *, training: bool) -> StageGraph:
    """The graph of the segments of a plan: segment p is stage p.

    Parameters
    ----------
    plan
        Its stages.
    segments
        One per stage, in order.
    training
        Gradients come back, too.

    Raises
    ------
    PlanError
        The segments are not the plan's stages, or a tensor has no maker, taker or gradient.
    """
    if [(s.start, s.stop) for s in segments] != [(s.start, s.stop) for s in plan.stages]:
        cuts = ", ".join(f"[{s.start}, {s.stop})" for s in segments)
        raise PlanError(
            f"The segments {cuts} are not the plan's stages.",
            next_step="Cut the model by this plan.",
        )
    if not segments[-1].outputs:
        raise PlanError(f"The last segment, {segments[-1].name}, has no output.")
    suppliers = tuple(_suppliers(segments, p) for p in range(len(segments)))
    takers: list[dict[str, tuple[int, ...]]] = [{} for _ in segments]
    for q, segment in enumerate(segments):
        for tensor, p in zip(segment.inputs, suppliers[q], strict=True):
            _meet(segments[p], segment, tensor)
            takers[p][tensor.name] = (*takers[p].get(tensor.name, ()), q)
    for p, segment in enumerate(segments[:-1]):
        lost = sorted({t.name for t in segment.outputs if t.gradient and t.name not in takers[p]})
        if training and lost:
            raise PlanError(
                f"{segment.name} gives {', '.join(lost)}, whose gradient nobody ever returns."
            )
    back = [
        [takers[p].get(tensor.name, ()) for tensor in segment.outputs if tensor.gradient]
        for p, segment in enumerate(segments)
    ]
    return StageGraph(
        before=tuple(tuple(sorted(set(sources))) for sources in suppliers),
        takers=tuple(takers),
        suppliers=suppliers,
        learns=learning(back) if training else (False,) * len(segments),
    )


def _suppliers(segments: Sequence[Segment], q: int) -> tuple[int, ...]:
    segment = segments[q]
    layers = segment.sources or (segment.start - 1,) * len(segment.inputs)
    if len(layers) != len(segment.inputs) or any(
        not 0 <= layer < segment.start for layer in layers
    ):
        raise PlanError(
            f"{segment.name} takes {len(segment.inputs)} inputs from the layers {layers}."
        )
    return tuple(
        next(p for p, giver in enumerate(segments) if layer < giver.stop) for layer in layers
    )


def _meet(giver: Segment, taker: Segment, tensor: Tensor) -> None:
    made = {output.name: output for output in giver.outputs}
    if made.get(tensor.name) != tensor:
        raise PlanError(
            f"{taker.name} needs {tensor}, but {giver.name} gives {made.get(tensor.name)}."
        )
    if tensor.gradient and tensor.multiple == 0:
        raise PlanError(
            f"{tensor.name} carries a gradient but has no batch dimension: it cannot be cut."
        )
