"""The tasks of one step of a plan, straight from its shape, as `schedule.step` tells them in the
order of 1F1B.

Planners simulate thousands of plans. Plans that differ only in layers, devices and sizes have the
same tasks in the same order, so these are laid out once per shape. `schedule.instructions` takes
the same step down for agents; a test proves that both take the same time, energy and memory.

Glossary. A slot is a device of the plan; home is the slot behind them. Tasks of equal cost share an
`TaskSpec`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from potluck.schedule import policies
from potluck.schedule.ir import INPUT_GRADIENT, Action, Schedule
from potluck.schedule.micro_batches import MicroBatch
from potluck.schedule.step import HandedRows, StageOutput, StepSpec, walk
from potluck.schedule.validate import in_order

# home feeds an earlier step before a later one; devices go by priority, then by age
HOME_PRIORITY = 1 << 32
RUN, BACKWARD, COPY, STEP, SEND, INPUT_PART, WEIGHT_PART, NORMS = range(8)


class Handed(NamedTuple):
    """An output group that goes to the stages `to`: whether it has a tensor with a gradient, and
    one without.
    """

    to: tuple[int, ...]
    differentiable: bool
    non_differentiable: bool


class Shape(NamedTuple):
    """All that decides which tasks a step has."""

    slots: tuple[tuple[int, ...], ...]  # per stage
    shares: tuple[tuple[int, ...], ...]
    warm_up: tuple[int, ...]
    counts: tuple[int, ...]  # per stage: its micro-batches
    training: bool
    handed: tuple[tuple["Handed", ...], ...]  # per stage: what it hands on
    learns: tuple[bool, ...]  # per stage: whether a gradient comes back to it
    fed: tuple[bool, ...]  # per stage: whether home feeds it
    has_target: bool
    # per stage to update; where there are as many as replicas, no more are counted
    n_elements: tuple[int, ...]
    # rows of actions; none: 1F1B, or forward only
    schedule: Schedule = ()
    limited: bool = False  # the norm of all gradients is
    # per shared parameter: the stages that hold it; and those that learn nothing else
    shared: tuple[tuple[int, ...], ...] = ()
    only_shared: tuple[int, ...] = ()


class TaskSpec(NamedTuple):
    """What a task does on `slot`: `rows` of stage `stage`, or of the `tensor` that it makes.

    Or ring piece `rows`.

    Tensors: "input", "target", "loss" (of `rows` micro-batches), "output"; of output group `group`
    "y" with a gradient and "z" without; "vector" the flat gradient of a replicated stage and
    "piece" one of its pieces; "tied" the gradient of shared parameter `rows`, "rest" those
    that are not shared; "norms" of the gradients of a stage, "norm" of all, and "scale" them.
    """

    kind: int
    slot: int
    stage: int
    rows: int = 0
    tensor: str = ""
    to: int = -1  # the slot that a transfer goes to
    group: int = 0


class LayoutTensor(NamedTuple):
    """The tensor "y" or "z" of output group `group` of stage `stage`."""

    stage: int
    group: int
    name: str


class LaidOutValue(NamedTuple):
    """Bytes that `slot` holds from the start of task `made` to the end of the last of `uses`."""

    slot: int
    item: int
    made: int
    uses: list[int]


@dataclass(slots=True)
class StepLayout:
    """Per task: a number into `items`, priority, and what it waits for. Then what memory holds."""

    home: int
    items: list[TaskSpec] = field(default_factory=list)
    item: list[int] = field(default_factory=list)
    priority: list[int] = field(default_factory=list)
    waits: list[tuple[int, ...]] = field(default_factory=list)
    # as `LaidOutValue`, in plain tuples: Python's collector of cycles passes those by
    values: list[tuple[int, int, int, tuple[int, ...]]] = field(default_factory=list)
    # (item, run, backward or its first part or -1 for none, its second part or -1)
    kept: list[tuple[int, int, int, int]] = field(default_factory=list)
    # of each replica of an all-reduce: (item of the vector, the last pass before, what makes the
    # vector, what joins the sums, what brings the pieces that are added to its own)
    reductions: list[tuple[int, int, int, int, tuple[int, ...]]] = field(default_factory=list)


def lay_out(shape: Shape) -> StepLayout:
    """The tasks of one step of a plan of this shape.

    Those of one device are in the order of its program.

    Raises
    ------
    PlanError
        With these warm-up depths some stage waits for ever.
    """
    spec = _spec(shape)
    sink = _Tasks(shape, spec)
    walk(spec, sink)
    return sink.tasks.laid_out()


def _spec(shape: Shape) -> StepSpec[LayoutTensor]:
    n_stages = len(shape.slots)
    outputs = [
        [
            StageOutput(LayoutTensor(p, k, name), group.to, gradient=name == "y")
            for k, group in enumerate(given)
            for name in ["y"] * group.differentiable + ["z"] * group.non_differentiable
        ]
        for p, given in enumerate(shape.handed)
    ]
    inputs = [
        [(p, k) for p, made in enumerate(outputs) for k, o in enumerate(made) if q in o.to]
        for q in range(n_stages)
    ]
    before = tuple(tuple(sorted({p for p, _ in taken})) for taken in inputs)
    schedule = shape.schedule or (
        policies.one_f_one_b(n_stages, shape.counts, shape.warm_up)
        if shape.training
        else policies.forward_only(n_stages, shape.counts)
    )
    split = any(action.kind == INPUT_GRADIENT for row in schedule for action in row)
    return StepSpec(
        order=in_order(schedule, before, shape.counts, split=split),
        training=shape.training,
        devices=shape.slots,
        division=[
            [MicroBatch(m * sum(shares), (m + 1) * sum(shares), shares) for m in range(n)]
            for shares, n in zip(shape.shares, shape.counts, strict=True)
        ],
        outputs=outputs,
        inputs=inputs,
        learns=shape.learns,
        n_elements=shape.n_elements,
        followed=[False] * n_stages,
        limited=shape.limited,
        shared=shape.shared,
    )


class _TaskBuilder:
    """Collects tasks and values. The computing tasks of a slot follow each other as given."""

    def __init__(self, layout: StepLayout) -> None:
        self.layout = layout
        self._numbers: dict[TaskSpec, int] = {}
        self._last: dict[int, int] = {}  # per slot: the computing task before
        self._values: list[LaidOutValue] = []

    def laid_out(self) -> StepLayout:
        """All that was collected."""
        values = [(slot, item, made, tuple(uses)) for slot, item, made, uses in self._values]
        self.layout.values = values
        return self.layout

    def number(self, item: TaskSpec) -> int:
        """The place of an item in the layout."""
        number = self._numbers.get(item)
        if number is None:
            number = self._numbers[item] = len(self.layout.items)
            self.layout.items.append(item)
        return number

    def task(self, item: TaskSpec, inputs: Sequence[LaidOutValue], priority: int) -> int:
        """A task that waits for its inputs; returns its number."""
        layout, task = self.layout, len(self.layout.item)
        waits = {value.made for value in inputs}
        if item.kind != SEND:
            if item.slot in self._last:
                waits.add(self._last[item.slot])
            self._last[item.slot] = task
        for value in inputs:
            value.uses.append(task)
        layout.item.append(self.number(item))
        layout.priority.append(priority)
        layout.waits.append(tuple(sorted(waits)))
        return task

    def value(self, item: TaskSpec, made: int) -> LaidOutValue:
        """What task `made` leaves on the item's slot."""
        return self._kept(LaidOutValue(item.slot, self.number(item), made, []))

    def keep(self, item: TaskSpec, inputs: Sequence[LaidOutValue], priority: int) -> LaidOutValue:
        """A task that leaves its item on its own slot, a transfer on the other."""
        return self._kept(self.reduce(item, inputs, priority))

    def reduce(self, item: TaskSpec, inputs: Sequence[LaidOutValue], priority: int) -> LaidOutValue:
        """One of an all-reduce, whose values are counted as a whole."""
        made = self.task(item, inputs, priority)
        slot = item.to if item.kind == SEND else item.slot
        return LaidOutValue(slot, self.layout.item[made], made, [])

    def _kept(self, value: LaidOutValue) -> LaidOutValue:
        self._values.append(value)
        return value


class _Tasks:
    """Takes a step down as tasks."""

    def __init__(self, shape: Shape, spec: StepSpec[LayoutTensor]) -> None:
        self.shape, self.spec = shape, spec
        self.last = len(shape.slots) - 1
        self.home = 1 + max(max(slots) for slots in shape.slots)
        self.tasks = _TaskBuilder(StepLayout(self.home))
        self._runs: dict[tuple[int, int, int], int] = {}
        self._first_parts: dict[tuple[int, int, int], int] = {}
        self._passed: dict[tuple[int, int], int] = {}  # the last forward or backward
        self._slices: list[tuple[LaidOutValue, LaidOutValue]] = []
        self._fed = [["input"] * fed for fed in shape.fed]  # per stage: what home sends
        self._fed[-1] += ["target"] * shape.has_target
        self._back = [  # per stage: the inputs that have a gradient
            [spec.outputs[q][k].tensor for q, k in inputs if spec.outputs[q][k].gradient]
            for inputs in spec.inputs
        ]

    # --- actions ----------------------------------------------------------------------------------

    def _pass(
        self, item: TaskSpec, index: int, inputs: Sequence[LaidOutValue], priority: int
    ) -> int:
        self._passed[item.stage, index] = task = self.tasks.task(item, inputs, priority)
        return task

    def feed(self, action: Action, index: int, priority: int) -> list[LaidOutValue]:
        """Inputs, and targets for the loss."""
        p = action.stage
        slot, rows = self.shape.slots[p][index], self.shape.shares[p][index]
        return [
            self.tasks.keep(TaskSpec(SEND, self.home, p, rows, name, slot), (), priority)
            for name in self._fed[p]
        ]

    def forward(
        self, action: Action, index: int, inputs: list[LaidOutValue], priority: int
    ) -> list[LaidOutValue]:
        """A run, whose activations are kept where a backward follows."""
        p, shape = action.stage, self.shape
        slot, rows = shape.slots[p][index], shape.shares[p][index]
        layout = self.tasks.layout
        task = self._pass(TaskSpec(RUN, slot, p, rows), index, inputs, priority)
        if shape.learns[p]:
            self._runs[p, action.micro_batch, index] = task
        else:
            layout.kept.append((layout.item[task], task, -1, -1))
        if p < self.last:
            made = [_copied(slot, output.tensor, rows) for output in self.spec.outputs[p]]
        elif shape.training:
            made = [TaskSpec(COPY, slot, p, 1, "loss")]
        else:
            made = [TaskSpec(COPY, slot, p, rows, "output")]
        return [self.tasks.value(item, task) for item in made]

    def backward(
        self, action: Action, index: int, gradients: list[LaidOutValue], priority: int
    ) -> list[LaidOutValue]:
        """Its backward, or the first part."""
        p, m = action.stage, action.micro_batch
        slot, rows = self.shape.slots[p][index], self.shape.shares[p][index]
        is_part = action.kind == INPUT_GRADIENT
        kind = INPUT_PART if is_part else BACKWARD
        task = self._pass(TaskSpec(kind, slot, p, rows), index, gradients, priority)
        layout, run = self.tasks.layout, self._runs[p, m, index]
        if is_part:
            self._first_parts[p, m, index] = task
        else:
            layout.kept.append((layout.item[run], run, task, -1))
        return [self.tasks.value(_copied(slot, tensor, rows), task) for tensor in self._back[p]]

    def backward_weight(self, action: Action, index: int, priority: int) -> None:
        """Its second part."""
        p, m = action.stage, action.micro_batch
        slot, rows = self.shape.slots[p][index], self.shape.shares[p][index]
        task = self._pass(TaskSpec(WEIGHT_PART, slot, p, rows), index, (), priority)
        layout, run = self.tasks.layout, self._runs[p, m, index]
        layout.kept.append((layout.item[run], run, self._first_parts[p, m, index], task))

    def answer(
        self, action: Action, index: int, outputs: list[LaidOutValue], priority: int
    ) -> None:
        """One transfer."""
        p = action.stage
        slot, rows = self.shape.slots[p][index], self.shape.shares[p][index]
        self.tasks.task(TaskSpec(SEND, slot, p, rows, "output", self.home), outputs, priority)

    def send_losses(self, index: int, losses: list[LaidOutValue], priority: int) -> None:
        """One transfer of them all."""
        p, n = self.last, len(losses)
        slot = self.shape.slots[p][index]
        if n > 1:
            losses = [self.tasks.keep(TaskSpec(COPY, slot, p, n, "loss"), losses, priority)]
        self.tasks.task(TaskSpec(SEND, slot, p, n, "loss", self.home), losses, priority)

    # --- over a cut -------------------------------------------------------------------------------

    def cut(
        self, rows: HandedRows[LayoutTensor], value: LaidOutValue, priority: int
    ) -> LaidOutValue:
        """A copy of a part."""
        item = _copied(value.slot, rows.tensor, rows.stop - rows.start)
        return self.tasks.keep(item, (value,), priority)

    def send(
        self, rows: HandedRows[LayoutTensor], value: LaidOutValue, priority: int
    ) -> LaidOutValue:
        """A transfer."""
        tensor, to = rows.tensor, self.shape.slots[rows.target.stage][rows.right]
        n_rows = rows.stop - rows.start
        item = TaskSpec(SEND, value.slot, tensor.stage, n_rows, tensor.name, to, tensor.group)
        return self.tasks.keep(item, (value,), priority)

    def join(
        self,
        action: Action,
        index: int,
        tensor: LayoutTensor,
        source: int,
        pieces: list[LaidOutValue],
        priority: int,
    ) -> LaidOutValue:
        """A copy of all."""
        return self.add(action, index, tensor, pieces, priority)

    def add(
        self,
        action: Action,
        index: int,
        tensor: LayoutTensor,
        parts: list[LaidOutValue],
        priority: int,
    ) -> LaidOutValue:
        """It takes as long as a copy."""
        p = action.stage
        item = _copied(self.shape.slots[p][index], tensor, self.shape.shares[p][index])
        return self.tasks.keep(item, parts, priority)

    # --- the end of a step ------------------------------------------------------------------------

    def vector(self, p: int, index: int, priority: int) -> LaidOutValue:
        """A copy of all gradients."""
        slots = self.shape.slots[p]
        make = self.tasks.reduce if len(slots) > 1 else self.tasks.keep
        return make(TaskSpec(COPY, slots[index], p, 0, "vector"), (), priority)

    def ring(self, p: int) -> "_RingTasks":
        """Of the slots of the stage."""
        slots = self.shape.slots[p]
        return _RingTasks(self.tasks, p, slots, [self._passed[p, i] for i in range(len(slots))])

    def summed(self, p: int, vector: LaidOutValue, priority: int) -> None:
        """Nobody follows a plan that is only simulated."""

    def shared_part(
        self, k: int, p: int, index: int, vector: LaidOutValue, priority: int
    ) -> LaidOutValue:
        """It takes as long as a copy."""
        item = TaskSpec(COPY, self.shape.slots[p][index], p, k, "tied")
        return self._slice(item, vector, priority)

    def send_shared_part(
        self, k: int, p: int, q: int, index: int, part: LaidOutValue, priority: int
    ) -> LaidOutValue:
        """A transfer."""
        slots = self.shape.slots
        item = TaskSpec(SEND, slots[p][0], p, k, "tied", slots[q][index])
        return self.tasks.keep(item, [part], priority)

    def shared_sum(
        self, k: int, q: int, index: int, parts: list[LaidOutValue], priority: int
    ) -> LaidOutValue:
        """It takes as long as a copy."""
        item = TaskSpec(COPY, self.shape.slots[q][index], q, k, "tied")
        return self.tasks.keep(item, parts, priority)

    def with_shared(
        self, q: int, index: int, vector: LaidOutValue, sums: dict[int, LaidOutValue], priority: int
    ) -> LaidOutValue:
        """A copy of the rest, taken for one piece, and one of all."""
        slot, pieces = self.shape.slots[q][index], [*sums.values()]
        if q not in self.shape.only_shared:
            item = TaskSpec(COPY, slot, q, 0, "rest")
            pieces.append(self._slice(item, vector, priority))
        whole = self.tasks.keep(TaskSpec(COPY, slot, q, 0, "vector"), pieces, priority)
        for value, piece in self._slices:  # it is there as long as any piece of it
            value.uses.extend(piece.uses)
        self._slices.clear()
        return whole

    def _slice(self, item: TaskSpec, vector: LaidOutValue, priority: int) -> LaidOutValue:
        piece = self.tasks.keep(item, [vector], priority)
        if len(self.shape.slots[item.stage]) == 1:  # of gradients, not of their sum
            self._slices.append((vector, piece))
        return piece

    def norms(self, p: int, vectors: list[LaidOutValue], priority: int) -> LaidOutValue:
        """A look at all gradients."""
        slot = self.shape.slots[p][0]
        return self.tasks.keep(TaskSpec(NORMS, slot, p, tensor="norms"), vectors, priority)

    def send_norms(self, p: int, judge: int, norms: LaidOutValue, priority: int) -> LaidOutValue:
        """A transfer."""
        slots = self.shape.slots
        item = TaskSpec(SEND, slots[p][0], p, tensor="norms", to=slots[judge][0])
        return self.tasks.keep(item, [norms], priority)

    def limit(
        self, judge: int, stages: list[int], norms: list[LaidOutValue], priority: int
    ) -> LaidOutValue:
        """It takes as long as a small copy; the norm goes home."""
        slot = self.shape.slots[judge][0]
        made = self.tasks.task(TaskSpec(COPY, slot, judge, tensor="scale"), norms, priority)
        scale, norm = (
            self.tasks.value(TaskSpec(COPY, slot, judge, tensor=name), made)
            for name in ("scale", "norm")
        )
        self.tasks.task(TaskSpec(SEND, slot, judge, tensor="norm", to=self.home), [norm], priority)
        return scale

    def send_scale(
        self, judge: int, p: int, index: int, scale: LaidOutValue, priority: int
    ) -> LaidOutValue:
        """A transfer."""
        slots = self.shape.slots
        item = TaskSpec(SEND, slots[judge][0], judge, tensor="scale", to=slots[p][index])
        return self.tasks.keep(item, [scale], priority)

    def update(
        self,
        p: int,
        index: int,
        vectors: list[LaidOutValue],
        scales: list[LaidOutValue],
        priority: int,
    ) -> None:
        """An optimizer's step."""
        item = TaskSpec(STEP, self.shape.slots[p][index], p)
        self.tasks.task(item, [*vectors, *scales], priority)


class _RingTasks:
    """The tasks of an all-reduce over the slots of stage p; `passed`: of each, the last forward or
    backward.
    """

    def __init__(
        self, tasks: _TaskBuilder, p: int, slots: Sequence[int], passed: Sequence[int]
    ) -> None:
        self._tasks, self._p = tasks, p
        self._slots, self._passed = slots, passed
        self._vectors: dict[int, LaidOutValue] = {}
        self._arrived: list[list[int]] = [[] for _ in slots]

    def piece(self, i: int, k: int, vector: LaidOutValue, priority: int) -> LaidOutValue:
        """It takes as long as a copy, but is a look at the vector."""
        self._vectors[i] = vector
        item = TaskSpec(COPY, self._slots[i], self._p, k, "piece")
        return self._tasks.reduce(item, (vector,), priority)

    def send(
        self, i: int, k: int, value: LaidOutValue, ring_step: int, priority: int
    ) -> LaidOutValue:
        """To the next slot of the ring."""
        right = self._slots[(i + 1) % len(self._slots)]
        item = TaskSpec(SEND, self._slots[i], self._p, k, "piece", right)
        return self._tasks.reduce(item, (value,), priority)

    def add(
        self,
        i: int,
        k: int,
        own: LaidOutValue,
        arrived: LaidOutValue,
        ring_step: int,
        priority: int,
    ) -> LaidOutValue:
        """It takes as long as a copy."""
        self._arrived[i].append(arrived.made)
        item = TaskSpec(COPY, self._slots[i], self._p, k, "piece")
        return self._tasks.reduce(item, (own, arrived), priority)

    def join(self, i: int, pieces: list[LaidOutValue], priority: int) -> LaidOutValue:
        """A copy of all."""
        item = TaskSpec(COPY, self._slots[i], self._p, 0, "vector")
        joined, vector = self._tasks.keep(item, pieces, priority), self._vectors[i]
        self._tasks.layout.reductions.append(
            (vector.item, self._passed[i], vector.made, joined.made, tuple(self._arrived[i]))
        )
        return joined


@lru_cache(maxsize=4096)
def _copied(slot: int, tensor: LayoutTensor, rows: int) -> TaskSpec:
    return TaskSpec(COPY, slot, tensor.stage, rows, tensor.name, group=tensor.group)
