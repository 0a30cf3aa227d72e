"""One step of a plan, laid out once: in which order devices compute, cut, send, join and sum what,
and how urgent each of these is.

A walk over all actions tells it to a sink. `schedule.instructions` writes what agents carry out,
`simulate.layout` tasks for planners. The sink names values (`V`) as it likes and knows the tensors
(`T`); the walk knows which device holds which rows.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, Protocol, TypeVar

from potluck.schedule.all_reduce import RingSink, ring_all_reduce
from potluck.schedule.ir import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Action
from potluck.schedule.rows import Overlap, overlaps
from potluck.schedule.stage_graph import returning

LOSS_BYTES = 4  # of a micro-batch

T = TypeVar("T")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class StageOutput(Generic[T]):
    """What a stage hands to the stages `to`: whether a gradient comes back for it, and whether it
    has rows to cut.
    """

    tensor: T
    to: tuple[int, ...]
    gradient: bool
    has_rows: bool = True


@dataclass(frozen=True, slots=True)
class HandedRows(Generic[T]):
    """Rows [start, stop) of a micro-batch: device `left` of the stage of `source` made them, device
    `right` of the stage of `target` takes them.
    """

    source: Action
    target: Action
    tensor: T
    left: int
    right: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec(Generic[T]):
    """What decides a step. `order`: all actions with their timesteps, by timestep."""

    order: Sequence[tuple[int, Action]]
    training: bool
    devices: Sequence[Sequence[Hashable]]  # per stage
    shares: Sequence[Sequence[tuple[int, ...]]]  # per micro-batch and stage
    outputs: Sequence[Sequence[StageOutput[T]]]  # per stage; those of the last go home
    # per stage: for each input the stage that makes it, and its number there
    inputs: Sequence[Sequence[tuple[int, int]]]
    learns: Sequence[bool]  # per stage: whether a gradient comes back to it
    n_elements: Sequence[int]  # per stage: of the vector of a step; 0: nothing to update
    followed: Sequence[bool]  # per stage: whether others want its vector

    @property
    def split(self) -> bool:
        """Whether backwards come in two parts."""
        return any(action.kind == INPUT_GRADIENT for _, action in self.order)


class StepSink(Protocol[T, V]):
    """Takes a step down: what device `index` of a stage does in an action, with priorities (smaller
    goes first).
    """

    def feed(self, action: Action, index: int, priority: int) -> list[V]:
        """What home sends for a forward."""

    def forward(self, action: Action, index: int, inputs: list[V], priority: int) -> list[V]:
        """The outputs of a forward; of the last stage in training, the loss first."""

    def backward(self, action: Action, index: int, gradients: list[V], priority: int) -> list[V]:
        """The gradients of the inputs that have one, of a whole backward or its first part."""

    def backward_weight(self, action: Action, index: int, priority: int) -> None:
        """The second part of a backward: gradients of weights that waited."""

    def cut(self, rows: HandedRows[T], value: V, priority: int) -> V:
        """These rows of the value."""

    def send(self, rows: HandedRows[T], value: V, priority: int) -> V:
        """What arrives at the device that takes the rows."""

    def join(
        self, action: Action, index: int, tensor: T, source: int, pieces: list[V], priority: int
    ) -> V:
        """One value of what came from stage `source` in pieces, in the order of their rows."""

    def add(self, action: Action, index: int, tensor: T, parts: list[V], priority: int) -> V:
        """The gradient of an output, as the sum of what comes back from all that took it."""

    def answer(self, action: Action, index: int, outputs: list[V], priority: int) -> None:
        """The outputs of the last stage go home."""

    def tell_losses(self, index: int, losses: list[V], priority: int) -> None:
        """The losses of all micro-batches go home as one value."""

    def vector(self, p: int, index: int, priority: int) -> V:
        """Gradients and statistics of a step of stage p as one flat vector."""

    def ring(self, p: int) -> RingSink[V]:
        """Takes the all-reduce of stage p down."""

    def summed(self, p: int, vector: V, priority: int) -> None:
        """Who follows stage p gets its vector."""

    def update(self, p: int, index: int, vectors: list[V], priority: int) -> None:
        """The optimizer's step of stage p, with the vector where there is one."""


def walk(spec: StepSpec[T], sink: StepSink[T, V]) -> None:
    """Tell a whole step to `sink`; what one device does comes in the order in which it is done."""
    step = _Walk(spec, sink)
    for timestep, action in spec.order:
        for index, share in enumerate(spec.shares[action.micro_batch][action.stage]):
            if share and action.kind == FORWARD:
                step.forward(action, index, timestep)
            elif share and spec.learns[action.stage] and action.kind == WEIGHT_GRADIENT:
                sink.backward_weight(action, index, timestep)
            elif share and spec.learns[action.stage]:
                step.backward(action, index, timestep)
    # A device that is in several stages does the pieces of all of them in this one order.
    if spec.training:
        step.tell_losses()
        for p, n_elements in enumerate(spec.n_elements):
            if n_elements:
                step.update(p)


class _Walk(Generic[T, V]):
    """Knows which values are on their way from stage to stage."""

    def __init__(self, spec: StepSpec[T], sink: StepSink[T, V]) -> None:
        self.spec, self.sink = spec, sink
        # the priority of what an action waits for
        self.timestep = {action: timestep for timestep, action in spec.order}
        self.n_timesteps = spec.order[-1][0] + 1
        self.last = len(spec.devices) - 1
        self.gradient = INPUT_GRADIENT if spec.split else BACKWARD  # what a gradient is sent for
        self.losses: list[list[V]] = [[] for _ in spec.devices[-1]]
        # (action that takes them, number of the output, stage they come from, device that takes
        # them) -> in the order of their rows
        self.pieces: dict[tuple[Action, int, int, int], list[V]] = {}
        self.returning = [
            [returning(output.to, output.gradient, spec.learns) for output in outputs]
            for outputs in spec.outputs
        ]
        self.back = [  # the inputs that have a gradient
            [(p, k) for p, k in inputs if spec.outputs[p][k].gradient] for inputs in spec.inputs
        ]

    def forward(self, action: Action, index: int, timestep: int) -> None:
        """One micro-batch forward through a stage, on its device `index`."""
        spec, sink = self.spec, self.sink
        p = action.stage
        inputs = sink.feed(action, index, timestep)
        inputs += [self._joined(action, index, k, q, q) for q, k in spec.inputs[p]]
        made = sink.forward(action, index, inputs, timestep)
        if p < self.last:
            for k, (output, value) in enumerate(zip(spec.outputs[p], made, strict=True)):
                for taker in output.to:
                    target = Action(taker, FORWARD, action.micro_batch)
                    self._hand_on(action, target, index, k, output, value)
        elif spec.training:
            self.losses[index].append(made[0])
        else:
            sink.answer(action, index, made, timestep)

    def backward(self, action: Action, index: int, timestep: int) -> None:
        """Its gradient back through the stage."""
        sink, p = self.sink, action.stage
        gradients = []
        for k, givers in enumerate(self.returning[p]):
            parts = [self._joined(action, index, k, p, giver) for giver in givers]
            if len(parts) > 1:
                tensor = self.spec.outputs[p][k].tensor
                parts = [sink.add(action, index, tensor, parts, timestep)]
            gradients += parts
        made = sink.backward(action, index, gradients, timestep)
        for (source, k), value in zip(self.back[p], made, strict=True):
            if self.spec.learns[source]:
                target = Action(source, self.gradient, action.micro_batch)
                self._hand_on(action, target, index, k, self.spec.outputs[source][k], value)

    def _hand_on(
        self, source: Action, target: Action, index: int, k: int, output: StageOutput[T], value: V
    ) -> None:
        """Hand `value`, made by device `index` in `source`, to the devices that need rows of it in
        `target`: output k of the earlier stage, or its gradient.
        """
        spec, sink = self.spec, self.sink
        timestep = self.timestep[target]
        tensor, has_rows = output.tensor, output.has_rows
        shares = spec.shares[source.micro_batch]
        left, right = shares[source.stage], shares[target.stage]
        device, peers = spec.devices[source.stage][index], spec.devices[target.stage]
        for piece in _overlaps_of(left, right, index):
            key = target, k, source.stage, piece.right
            if not has_rows and key in self.pieces:
                continue
            rows, part = HandedRows(source, target, tensor, *piece), value
            if has_rows and piece.stop - piece.start < left[index]:
                part = sink.cut(rows, part, timestep)
            if peers[piece.right] != device:
                part = sink.send(rows, part, timestep)
            self.pieces.setdefault(key, []).append(part)

    def _joined(self, action: Action, index: int, k: int, maker: int, source: int) -> V:
        """Output k of stage `maker`, or its gradient, for this device and action: put together from
        what `source` handed on.
        """
        pieces = self.pieces.pop((action, k, source, index))
        if len(pieces) == 1:
            return pieces[0]
        tensor = self.spec.outputs[maker][k].tensor
        return self.sink.join(action, index, tensor, source, pieces, self.timestep[action])

    def tell_losses(self) -> None:
        """They are for display, and go home at the end."""
        for index, losses in enumerate(self.losses):
            if losses:
                self.sink.tell_losses(index, losses, self.n_timesteps)

    def update(self, p: int) -> None:
        """All-reduce gradients and statistics of stage p over its replicas, and take the
        optimizer's step.
        """
        spec, sink = self.spec, self.sink
        priority = self.n_timesteps + 1
        n = len(spec.devices[p])
        vectors = list[V]()
        if n > 1 or spec.followed[p]:
            vectors = [sink.vector(p, index, priority) for index in range(n)]
            if n > 1:
                vectors = ring_all_reduce(sink.ring(p), vectors, spec.n_elements[p], priority)
            sink.summed(p, vectors[0], priority)
        # the statistics of a single device are what they should be
        if spec.learns[p] or n > 1:
            for index in range(n):
                sink.update(p, index, vectors[index : index + 1], priority + 2 * n + 1)


@lru_cache(maxsize=1024)
def _overlaps_of(left: tuple[int, ...], right: tuple[int, ...], index: int) -> tuple[Overlap, ...]:
    """The rows that device `index` of `left` hands to devices of `right`."""
    return tuple(piece for piece in overlaps(left, right) if piece.left == index)
