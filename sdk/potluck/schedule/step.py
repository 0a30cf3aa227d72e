"""One step of a plan, laid out once: in which order devices compute, cut, send, join and sum what,
and how urgent each of these is.

A walk over all actions tells it to a sink. `schedule.instructions` writes what agents carry out,
`simulate.layout` tasks for planners. The sink names values (`V`) as it likes and knows the tensors
(`T`); the walk knows which device holds which rows.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Generic, Protocol, TypeVar

from potluck.schedule.all_reduce import RingSink, ring_all_reduce
from potluck.schedule.ir import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Action
from potluck.schedule.micro_batches import MicroBatch
from potluck.schedule.rows import Overlap, meeting, overlaps
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
    """Rows [start, stop) of the micro-batch of `target`: device `left` of the stage of `source`
    made them, device `right` of the stage of `target` takes them.
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
    division: Sequence[Sequence[MicroBatch]]  # per stage
    outputs: Sequence[Sequence[StageOutput[T]]]  # per stage; those of the last go home
    # per stage: for each input the stage that makes it, and its number there
    inputs: Sequence[Sequence[tuple[int, int]]]
    learns: Sequence[bool]  # per stage: whether a gradient comes back to it
    n_elements: Sequence[int]  # per stage: of the vector of a step; 0: nothing to update
    followed: Sequence[bool]  # per stage: whether others want its vector
    limited: bool = False  # whether the norm of all gradients is
    scaled: bool = False  # whether the last stage knows by what the loss was multiplied
    # of each parameter that several stages hold, these
    shared: Sequence[tuple[int, ...]] = ()

    @property
    def split(self) -> bool:
        """Whether backwards come in two parts."""
        return any(action.kind == INPUT_GRADIENT for _, action in self.order)


class StepSink(Protocol[T, V]):
    """Takes a step down: what device `index` of a stage does in an action.

    Words that its methods share: `action` is what is done, with its stage and micro-batch; `index`
    is a device's place in its stage; `p` and `q` are stages, `k` a shared parameter, `judge` the
    stage that weighs the norms of all; of two priorities the smaller goes first. Values (`V`) are
    named by the sink, tensors (`T`) by the plan.
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

    def send_losses(self, index: int, losses: list[V], priority: int) -> None:
        """The losses of all micro-batches go home as one value."""

    def vector(self, p: int, index: int, priority: int) -> V:
        """Gradients and statistics of a step of stage p as one flat vector."""

    def ring(self, p: int) -> RingSink[V]:
        """Takes the all-reduce of stage p down."""

    def summed(self, p: int, vector: V, priority: int) -> None:
        """Who follows stage p gets its vector."""

    def shared_part(self, k: int, p: int, index: int, vector: V, priority: int) -> V:
        """The gradient of shared parameter k in the vector of a device of stage p."""

    def send_shared_part(self, k: int, p: int, q: int, index: int, part: V, priority: int) -> V:
        """What arrives of that of the first device of stage p, at a device of stage q."""

    def shared_sum(self, k: int, q: int, index: int, parts: list[V], priority: int) -> V:
        """The sum of all, on a device of stage q."""

    def with_shared(self, q: int, index: int, vector: V, sums: dict[int, V], priority: int) -> V:
        """The vector of a device of stage q with these sums in their places."""

    def norms(self, p: int, vectors: list[V], priority: int) -> V:
        """The norms of the gradients of stage p, on its first device."""

    def send_norms(self, p: int, judge: int, norms: V, priority: int) -> V:
        """What arrives of them at the first device of stage `judge`."""

    def limit(self, judge: int, stages: list[int], norms: list[V], priority: int) -> V:
        """What all gradients are multiplied by, on the first device of stage `judge`."""

    def send_scale(self, judge: int, p: int, index: int, scale: V, priority: int) -> V:
        """What arrives of it at a device of stage p."""

    def update(self, p: int, index: int, vectors: list[V], scales: list[V], priority: int) -> None:
        """The optimizer's step of stage p, with the vector and the scale where there are any."""


def walk(spec: StepSpec[T], sink: StepSink[T, V]) -> None:
    """Tell a whole step to `sink`; what one device does comes in the order in which it is done."""
    step = StepWalk(spec, sink)
    for timestep, action in spec.order:
        step.take(action, timestep)
    # A device that is in several stages does the pieces of all of them in this one order.
    if spec.training:
        step.send_losses()
        step.update()


class StepWalk(Generic[T, V]):
    """Knows which values are on their way from stage to stage.

    Parameters
    ----------
    spec
        What decides the step.
    sink
        Takes it down.
    """

    def __init__(self, spec: StepSpec[T], sink: StepSink[T, V]) -> None:
        self.spec, self.sink = spec, sink
        # the priority of what an action waits for
        self.timestep = {action: timestep for timestep, action in spec.order}
        self.n_timesteps = spec.order[-1][0] + 1
        self.last = len(spec.devices) - 1
        self.gradient = INPUT_GRADIENT if spec.split else BACKWARD  # what a gradient is sent for
        self.losses: list[list[V]] = [[] for _ in spec.devices[-1]]
        # (action that takes them, number of the output, stage they come from, device that takes
        # them) -> (first row, value)
        self.pieces: dict[tuple[Action, int, int, int], list[tuple[int, V]]] = {}
        self.returning = [
            [returning(output.to, output.gradient, spec.learns) for output in outputs]
            for outputs in spec.outputs
        ]
        self.back = [  # the inputs that have a gradient
            [(p, k) for p, k in inputs if spec.outputs[p][k].gradient] for inputs in spec.inputs
        ]

    def take(self, action: Action, timestep: int) -> None:
        """What the devices of its stage do in an action.

        Parameters
        ----------
        action
            The next one of the order.
        timestep
            Its own.
        """
        spec = self.spec
        for index, share in enumerate(spec.division[action.stage][action.micro_batch].shares):
            if share and action.kind == FORWARD:
                self._forward(action, index, timestep)
            elif share and spec.learns[action.stage] and action.kind == WEIGHT_GRADIENT:
                self.sink.backward_weight(action, index, timestep)
            elif share and spec.learns[action.stage]:
                self._backward(action, index, timestep)

    def _forward(self, action: Action, index: int, timestep: int) -> None:
        """One micro-batch forward through a stage, on its device `index`."""
        spec, sink = self.spec, self.sink
        p = action.stage
        inputs = sink.feed(action, index, timestep)
        inputs += [self._joined(action, index, k, q, q) for q, k in spec.inputs[p]]
        made = sink.forward(action, index, inputs, timestep)
        if p < self.last:
            for k, (output, value) in enumerate(zip(spec.outputs[p], made, strict=True)):
                for taker in output.to:
                    self._hand_on(action, taker, FORWARD, index, k, output, value)
        elif spec.training:
            self.losses[index].append(made[0])
        else:
            sink.answer(action, index, made, timestep)

    def _backward(self, action: Action, index: int, timestep: int) -> None:
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
                output = self.spec.outputs[source][k]
                self._hand_on(action, source, self.gradient, index, k, output, value)

    def _hand_on(
        self,
        source: Action,
        q: int,
        kind: str,
        index: int,
        k: int,
        output: StageOutput[T],
        value: V,
    ) -> None:
        """Hand `value`, made by device `index` in `source`, to the devices of stage q that need
        rows of it in actions of this kind: output k of the earlier stage, or its gradient.

        Its micro-batch may be part of one there, or have several of them.
        """
        spec, sink = self.spec, self.sink
        own, theirs = spec.division[source.stage], spec.division[q]
        part, device = own[source.micro_batch], spec.devices[source.stage][index]
        for m in meeting(len(own), len(theirs), source.micro_batch):
            target = Action(q, kind, m)
            timestep = self.timestep[target]
            lead = part.start - theirs[m].start
            for piece in _overlaps_of(part.shares, theirs[m].shares, lead, index):
                pieces = self.pieces.setdefault((target, k, source.stage, piece.right), [])
                if pieces and not output.has_rows:
                    continue
                rows, handed = HandedRows(source, target, output.tensor, *piece), value
                if output.has_rows and piece.stop - piece.start < part.shares[index]:
                    handed = sink.cut(rows, handed, timestep)
                if spec.devices[q][piece.right] != device:
                    handed = sink.send(rows, handed, timestep)
                pieces.append((piece.start, handed))

    def _joined(self, action: Action, index: int, k: int, maker: int, source: int) -> V:
        """Output k of stage `maker`, or its gradient, for this device and action: put together from
        what `source` handed on.
        """
        pieces = self.pieces.pop((action, k, source, index))
        if len(pieces) == 1:
            return pieces[0][1]
        tensor = self.spec.outputs[maker][k].tensor
        values = [value for _, value in sorted(pieces, key=itemgetter(0))]
        return self.sink.join(action, index, tensor, source, values, self.timestep[action])

    def send_losses(self) -> None:
        """They are for display, and go home at the end."""
        for index, losses in enumerate(self.losses):
            if losses:
                self.sink.send_losses(index, losses, self.n_timesteps)

    def update(self) -> None:
        """All-reduce gradients and statistics, and take the optimizer's steps: stage by stage, or
        where the norm of all gradients is limited when all are there.
        """
        spec = self.spec
        stages = [p for p, n_elements in enumerate(spec.n_elements) if n_elements]
        learning = [p for p in stages if spec.learns[p]]
        if not ((spec.limited and learning) or any(spec.shared)):
            for p in stages:
                vectors = self._summed(p)
                self._send_sums(p, vectors)
                self._update(p, vectors, {})
            return
        summed = {p: self._summed(p) for p in stages}
        self._share(summed)
        for p in stages:
            self._send_sums(p, summed[p])
        scales = self._scales(learning, summed) if spec.limited and learning else {}
        for p in stages:
            self._update(p, summed[p], scales)

    def _summed(self, p: int) -> list[V]:
        """The sums of stage p, one on each of its devices; none where nobody needs a vector."""
        spec, sink = self.spec, self.sink
        priority = self.n_timesteps + 1
        n, vectors = len(spec.devices[p]), list[V]()
        if n > 1 or spec.followed[p] or any(p in holders for holders in spec.shared):
            vectors = [sink.vector(p, index, priority) for index in range(n)]
            if n > 1:
                vectors = ring_all_reduce(sink.ring(p), vectors, spec.n_elements[p], priority)
        return vectors

    def _send_sums(self, p: int, vectors: list[V]) -> None:
        """Who follows stage p gets its sum."""
        if vectors:
            self.sink.summed(p, vectors[0], self.n_timesteps + 1)

    def _share(self, vectors: dict[int, list[V]]) -> None:
        """Every device that holds a shared parameter gets the parts of all its holders, and adds
        them up, the last stage first: as autograd does within one backward.
        """
        spec, sink = self.spec, self.sink
        priority = self._end(max(map(len, spec.devices)))
        sums: dict[tuple[int, int], dict[int, V]] = {}
        for k, holders in enumerate(spec.shared):
            parts = {
                (p, index): sink.shared_part(k, p, index, vector, priority)
                for p in holders
                for index, vector in enumerate(vectors[p])
            }
            present = {(p, spec.devices[p][index]): part for (p, index), part in parts.items()}
            for q in holders:
                for index, device in enumerate(spec.devices[q]):
                    for p in holders:
                        if (p, device) not in present:
                            part = parts[p, 0]
                            received = sink.send_shared_part(k, p, q, index, part, priority)
                            present[p, device] = received
                    found = [present[p, device] for p in reversed(holders)]
                    summed = sink.shared_sum(k, q, index, found, priority)
                    sums.setdefault((q, index), {})[k] = summed
        for (q, index), mine in sums.items():
            vectors[q][index] = sink.with_shared(q, index, vectors[q][index], mine, priority)

    def _scales(self, stages: list[int], vectors: dict[int, list[V]]) -> dict[Hashable, V]:
        """What gradients are multiplied by, on each device that has some: judged by the device
        whose backward ends last, or that has the factor of the loss, of all norms in the order of
        the stages.
        """
        spec, sink = self.spec, self.sink
        priority = self._end(max(len(spec.devices[p]) for p in stages))
        judge = stages[-1] if spec.scaled else stages[0]
        place, norms = spec.devices[judge][0], list[V]()
        for p in stages:
            norm = sink.norms(p, vectors[p][:1], priority)
            is_there = spec.devices[p][0] == place
            norms.append(norm if is_there else sink.send_norms(p, judge, norm, priority))
        scales = {place: sink.limit(judge, stages, norms, priority)}
        for p in stages:
            for index, device in enumerate(spec.devices[p]):
                if device not in scales:
                    scale = sink.send_scale(judge, p, index, scales[place], priority)
                    scales[device] = scale
        return scales

    def _update(self, p: int, vectors: list[V], scales: dict[Hashable, V]) -> None:
        """The steps of stage p; the statistics of a single device are what they should be."""
        spec, n = self.spec, len(self.spec.devices[p])
        if not (spec.learns[p] or n > 1):
            return
        for index, device in enumerate(spec.devices[p]):
            scale = [scales[device]] if scales and spec.learns[p] else []
            self.sink.update(p, index, vectors[index : index + 1], scale, self._end(n))

    def _end(self, n: int) -> int:
        """The priority of what comes behind the all-reduce of n devices."""
        return self.n_timesteps + 2 * n + 2


@lru_cache(maxsize=1024)
def _overlaps_of(
    left: tuple[int, ...], right: tuple[int, ...], lead: int, index: int
) -> tuple[Overlap, ...]:
    """The rows that device `index` of `left` hands to devices of `right`."""
    return tuple(piece for piece in overlaps(left, right, lead) if piece.left == index)
