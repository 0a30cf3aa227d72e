"""Which stage hands how many bytes to which, and what home feeds it: read off the layers and their
edges. Pure.

Tensors that go from one stage to the same other stages are one output group.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from potluck.records import Problem, Stage
from potluck.schedule import stage_graph
from potluck.schedule.stage_graph import Before


class OutputGroup(NamedTuple):
    """What a stage hands to the stages `to`, the same to each: bytes per row, and the part with a
    gradient.
    """

    to: tuple[int, ...]
    output_bytes: int
    gradient_bytes: int


def output_groups(problem: Problem, stages: Sequence[Stage]) -> tuple[tuple[OutputGroup, ...], ...]:
    """Per stage what it hands on; nothing for the last.

    In a chain: all that is alive at the cut, to the next.
    """
    return tuple(
        tuple(
            OutputGroup(tuple(p + 1 + q for q in to), outputs, gradients)
            for to, outputs, gradients in handed(problem, stage.start, stage.stop, stages[p + 1 :])
        )
        for p, stage in enumerate(stages)
    )


def handed(
    problem: Problem, start: int, stop: int, behind: Sequence[Stage]
) -> tuple[OutputGroup, ...]:
    """What a stage of layers [start, stop) hands to the stages `behind` it, by their number there.

    Parameters
    ----------
    problem
        Its layers and their edges.
    start, stop
        Layers [start, stop).
    behind
        The later stages.
    """
    if not behind:
        return ()
    if not problem.branches:
        cut = problem.layers[stop - 1]
        return (OutputGroup((0,), cut.output_bytes, cut.gradient_bytes),)
    stops, found = [stage.stop for stage in behind], dict[tuple[int, ...], OutputGroup]()
    for edge in (edge for layer in problem.layers[start:stop] for edge in layer.edges):
        to = tuple(sorted({bisect_right(stops, layer) for layer in edge.to if layer >= stop}))
        if to:
            _, outputs, gradients = found.get(to, OutputGroup(to, 0, 0))
            found[to] = OutputGroup(
                to, outputs + edge.output_bytes, gradients + edge.gradient_bytes
            )
    return tuple(found[to] for to in sorted(found))


def chain_ends(problem: Problem) -> tuple[int, ...]:
    """Where the model's chains begin and end, 0 and the number of layers included: a layer that
    does not simply go on with what the one before hands to it alone begins one.
    """
    n_layers, takers = len(problem.layers), [set[int]() for _ in problem.layers]
    givers = [set[int]() for _ in problem.layers]
    if not problem.branches:
        return 0, n_layers
    for i, layer in enumerate(problem.layers):
        for to in (to for edge in layer.edges for to in edge.to):
            takers[i].add(to)
            givers[to].add(i)
    ends = (i for i in range(1, n_layers) if givers[i] != {i - 1} or takers[i - 1] != {i})
    return (0, *ends, n_layers)


def before(handed: Sequence[Sequence[OutputGroup]]) -> Before:
    """Per stage, the stages that hand something to it."""
    return tuple(
        tuple(
            p for p, given in enumerate(handed) if any(q in b.to for b in given if b.output_bytes)
        )
        for q in range(len(handed))
    )


def learning(handed: Sequence[Sequence[OutputGroup]]) -> tuple[bool, ...]:
    """Whether a gradient comes back to each stage of a plan for training: from the last, through
    all in between.
    """
    return stage_graph.learning(
        [[group.to for group in given if group.gradient_bytes] for given in handed]
    )


def learning_layers(problem: Problem) -> tuple[bool, ...]:
    """Per layer, whether a gradient passes every cut behind it: then its backward is done in every
    plan.
    """
    if problem.branches:
        alone = [
            Stage(start=i, stop=i + 1, devices=("any",), shares=(1,))
            for i in range(len(problem.layers))
        ]
        return learning(output_groups(problem, alone))
    passes = [layer.gradient_bytes > 0 for layer in problem.layers[:-1]] + [True]
    return tuple(accumulate(reversed(passes), lambda a, b: a and b))[::-1]


def feed_bytes(problem: Problem, start: int, stop: int) -> int:
    """Bytes per row of the model's inputs that home sends to a stage of layers [start, stop).

    Parameters
    ----------
    problem
        Its layers and inputs.
    start, stop
        Layers [start, stop).
    """
    later = sum(layer.feed_bytes for layer in problem.layers[max(start, 1) : stop])
    if start:
        return later
    return problem.input_bytes - sum(layer.feed_bytes for layer in problem.layers[stop:])
