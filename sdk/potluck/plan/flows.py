"""Which stage hands how many bytes to which, and what home feeds it: read off the layers and their edges. Pure.

Tensors that go from one stage to the same other stages are one bundle.
"""

from collections.abc import Sequence
from typing import NamedTuple

from potluck.records import Layer, Problem, Stage
from potluck.schedule.wiring import Before


class Bundle(NamedTuple):
    """What a stage hands to the stages `to`, the same to each: bytes per row, and the part with a gradient."""

    to: tuple[int, ...]
    output_bytes: int
    gradient_bytes: int


def bundles(problem: Problem, stages: Sequence[Stage]) -> tuple[tuple[Bundle, ...], ...]:
    """Per stage what it hands on; nothing for the last. In a chain: all that is alive at the cut, to the next."""
    layers = problem.layers
    if not problem.branches:
        cuts = [layers[stage.stop - 1] for stage in stages[:-1]]
        return (*((Bundle((p + 1,), cut.output_bytes, cut.gradient_bytes),) for p, cut in enumerate(cuts)), ())
    stage_of = [p for p, stage in enumerate(stages) for _ in range(stage.start, stage.stop)]
    return tuple(_bundled(layers, stage, stage_of) for stage in stages)


def _bundled(layers: Sequence[Layer], stage: Stage, stage_of: Sequence[int]) -> tuple[Bundle, ...]:
    found: dict[tuple[int, ...], Bundle] = {}
    for edge in (edge for layer in layers[stage.start : stage.stop] for edge in layer.edges):
        to = tuple(sorted({stage_of[layer] for layer in edge.to} - {stage_of[stage.start]}))
        if to:
            _, outputs, gradients = found.get(to, Bundle(to, 0, 0))
            found[to] = Bundle(to, outputs + edge.output_bytes, gradients + edge.gradient_bytes)
    return tuple(found[to] for to in sorted(found))


def before(handed: Sequence[Sequence[Bundle]]) -> Before:
    """Per stage, the stages that hand something to it."""
    return tuple(
        tuple(p for p, given in enumerate(handed) if any(q in b.to for b in given if b.output_bytes))
        for q in range(len(handed))
    )


def learning(handed: Sequence[Sequence[Bundle]]) -> tuple[bool, ...]:
    """Whether a gradient comes back to each stage of a plan for training: from the last, through all in between."""
    learns = [False] * (len(handed) - 1) + [True]
    for p in reversed(range(len(handed) - 1)):
        learns[p] = any(learns[q] for bundle in handed[p] if bundle.gradient_bytes for q in bundle.to)
    return tuple(learns)


def feed_bytes(problem: Problem, start: int, stop: int) -> int:
    """Bytes per row of the model's inputs that home sends to a stage of layers [start, stop)."""
    later = sum(layer.feed_bytes for layer in problem.layers[max(start, 1) : stop])
    if start:
        return later
    return problem.input_bytes - sum(layer.feed_bytes for layer in problem.layers[stop:])
