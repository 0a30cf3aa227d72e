"""The stages of a plan as pieces of the model: what devices get of it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from potluck.errors import ModelError, PlanError
from potluck.graph.backends import document_for
from potluck.graph.traced import Type
from potluck.records import Plan, Segment, Stage
from potluck.schedule.stage_graph import StageGraph, wire
from potluck_wire.graph import FLOATS, Buffer, Graph, Parameter, cached
from potluck_wire.limits import MAX_BUFFER_BYTES

_ITEM_BYTES = {
    "float64": 8,
    "int64": 8,
    "float32": 4,
    "int32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int16": 2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePiece:
    """One stage's piece of the model: the segment, its documents by kind, and its state (`weights`
    by name).

    `weight_source`: the segment, as programs name it, whose state it has instead.
    """

    segment: Segment
    documents: Mapping[str, bytes]
    weights: Mapping[str, int] = field(default_factory=dict)  # parameters and buffers: bytes
    # the parameters among them that are trained
    trained: Mapping[str, Type] = field(default_factory=dict)
    # of micro-batches: what a forward changes and no mean over replicas brings in step
    counters: tuple[str, ...] = ()
    weight_source: str = ""
    cache_bytes: int = 0  # what requests leave to the next ones


def check_layers(model: Any, plan: Plan) -> None:
    """Refuse a plan that has another number of layers than the model.

    Raises
    ------
    PlanError
        The numbers differ.
    """
    n_layers = len(model.layers(plan.training))
    if plan.stages[-1].stop != n_layers:
        raise PlanError(
            f"the plan has {plan.stages[-1].stop} layers, the model {n_layers}.",
            next_step="Profile this model and plan again.",
        )


def cut(model: Any, plan: Plan, kinds: Mapping[str, str]) -> tuple[StagePiece, ...]:
    """The pieces of `model` for the stages of `plan`, of the `kinds` that its devices take.

    Parameters
    ----------
    model
        What is cut.
    plan
        Where.
    kinds
        Per device, "aten" or "onnx".
    """
    found = [model.segment(stage.start, stage.stop, train=plan.training) for stage in plan.stages]
    stage_graph = wire(plan, [segment for segment, _ in found], training=plan.training)
    pieces = []
    for p, (stage, (segment, graph)) in enumerate(zip(plan.stages, found, strict=True)):
        documents = {
            kind: model.document_of(_as_returned(graph, segment, stage_graph, p))
            if plan.training
            else document_for(model, device, kind, stage.start, stage.stop, train=False)
            for kind, device in {kinds[device]: device for device in stage.devices}.items()
        }
        pieces.append(_piece(stage, segment, graph, documents))
    return tuple(pieces)


def _as_returned(graph: Graph, segment: Segment, stage_graph: StageGraph, p: int) -> Graph:
    """The graph of stage p, whose outputs have a gradient where another stage returns one: those
    that take it may all be such that no gradient comes back to them.
    """
    if p == len(stage_graph.before) - 1:
        return graph  # the loss
    outputs = tuple(
        replace(output, gradient=bool(stage_graph.returning(p, tensor)))
        for output, tensor in zip(graph.outputs, segment.outputs, strict=True)
    )
    return replace(graph, outputs=outputs)


def _piece(
    stage: Stage, segment: Segment, graph: Graph, documents: Mapping[str, bytes]
) -> StagePiece:
    for document in documents.values():
        if len(document) > MAX_BUFFER_BYTES:
            raise ModelError(
                f"layers [{stage.start}, {stage.stop}) make a document of {len(document)} bytes; "
                f"at most {MAX_BUFFER_BYTES} can be sent.",
                next_step="Cut the model into more stages.",
            )
    states: tuple[Parameter | Buffer, ...] = (*graph.parameters, *graph.buffers)
    caches = cached(graph)  # are not sent
    sizes = {item.name: _nbytes(item) for item in states if item.name not in caches}
    return StagePiece(
        segment=segment,
        documents=documents,
        weights=sizes,
        cache_bytes=sum(_nbytes(item) for item in graph.buffers if item.name in caches),
        trained={
            item.name: Type(dtype=item.dtype, shape=item.shape)
            for item in graph.parameters
            if item.trainable
        },
        counters=tuple(
            item.name for item in graph.buffers if item.updated and item.dtype not in FLOATS
        ),
    )


def _nbytes(item: Any) -> int:
    n = _ITEM_BYTES.get(item.dtype, 1)
    for size in item.shape:
        n *= size
    return n
