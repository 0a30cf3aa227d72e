"""The tasks of one step of a plan, laid out straight from its shape: the order of 1F1B, cuts,
all-reduce; no programs.

Planners simulate thousands of plans. Plans that differ only in layers, devices and sizes have the
same tasks in the same order, so these are laid out once per shape. `schedule.programs` writes the
same step as instructions; a test proves that both take the same time, energy and memory.

Glossary. A slot is a device of the plan; home is the slot behind them. Tasks of equal cost share an
`Item`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from potluck.errors import PlanError
from potluck.schedule.rows import overlaps
from potluck.schedule.stage_graph import Before, behind, chain

# home feeds an earlier step before a later one; devices go by priority, then by age
HOME_PRIORITY = 1 << 32
RUN, BACKWARD, COPY, STEP, SEND = range(5)


class Handed(NamedTuple):
    """A bundle that goes to the stages `to`: whether it has a tensor with a gradient, and one
    without.
    """

    to: tuple[int, ...]
    smooth: bool
    rough: bool


class Shape(NamedTuple):
    """All that decides which tasks a step has."""

    slots: tuple[tuple[int, ...], ...]  # per stage
    shares: tuple[tuple[int, ...], ...]
    warm_up: tuple[int, ...]
    n_micro_batches: int
    training: bool
    handed: tuple[tuple["Handed", ...], ...]  # per stage: what it hands on
    learns: tuple[bool, ...]  # per stage: whether a gradient comes back to it
    fed: tuple[bool, ...]  # per stage: whether home feeds it
    has_target: bool
    # per stage to update; where there are as many as replicas, no more are counted
    n_elements: tuple[int, ...]


class Item(NamedTuple):
    """What a task does on `slot`: `rows` of stage `stage`, or of the `tensor` that it makes.

    Or ring piece `rows`.

    Tensors: "input", "target", "loss" (of `rows` micro-batches), "output"; of bundle `bundle` "y"
    with a gradient and "z" without; "vector" the flat gradient of a replicated stage and "piece"
    one of its pieces.
    """

    kind: int
    slot: int
    stage: int
    rows: int = 0
    tensor: str = ""
    to: int = -1  # the slot that a transfer goes to
    bundle: int = 0


class Tensor(NamedTuple):
    """The tensor "y" or "z" of bundle `bundle` of stage `stage`."""

    stage: int
    bundle: int
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
    items: list[Item] = field(default_factory=list)
    item: list[int] = field(default_factory=list)
    priority: list[int] = field(default_factory=list)
    waits: list[tuple[int, ...]] = field(default_factory=list)
    values: list[LaidOutValue] = field(default_factory=list)
    # (item, run, backward or -1 for none)
    kept: list[tuple[int, int, int]] = field(default_factory=list)


def turns(
    warm_up: Sequence[int], n_micro_batches: int, *, before: Before | None = None, training: bool
) -> list[tuple[int, int, int, int]]:
    """Every action (turn, stage, kind, micro-batch) of 1F1B, or of inference, in the order of
    `schedule.validate`.

    An action's turn is one after those of what it waits for and of the one before it on its stage.
    `before`: the graph of stages; a chain unless given.

    Parameters
    ----------
    warm_up
        Per stage, forwards before its first backward.
    n_micro_batches
        M.
    before
        The graph of stages; default: a chain.
    training
        Backwards belong to it.

    Raises
    ------
    PlanError
        With these depths some stage waits for ever.
    """
    before = chain(len(warm_up)) if before is None else before
    rows = []
    for depth in warm_up:
        depth = min(depth, n_micro_batches) if training else n_micro_batches
        row = [(RUN, m) for m in range(depth)]
        for m in range(n_micro_batches if training else 0):
            row.append((BACKWARD, m))
            if m + depth < n_micro_batches:
                row.append((RUN, m + depth))
        rows.append(row)
    n_stages, found = len(rows), dict[tuple[int, int, int], int]()
    position, last = [0] * n_stages, [-1] * n_stages
    needed = {RUN: before, BACKWARD: behind(before)}
    moved = True
    while moved:
        moved = False
        for p in (*range(n_stages), *reversed(range(n_stages - 1))):
            while position[p] < len(rows[p]):
                kind, m = rows[p][position[p]]
                done = [found.get((q, kind, m)) for q in needed[kind][p]]
                if None in done:
                    break
                last[p] = found[p, kind, m] = (
                    max([last[p], *(turn for turn in done if turn is not None)]) + 1
                )
                position[p] += 1
                moved = True
    if any(position[p] < len(rows[p]) for p in range(n_stages)):
        raise PlanError(
            f"With the warm-up depths {tuple(warm_up)} some stage waits for ever for a gradient.",
            next_step="A stage needs at least the depth of the stage behind it.",
        )
    return sorted((turn, p, kind, m) for (p, kind, m), turn in found.items())


def lay_out(shape: Shape) -> StepLayout:
    """The tasks of one step of a plan of this shape.

    Those of one device are in the order of its program.
    """
    step = _Step(shape)
    for _, p, kind, m in step.order:
        for index in range(len(shape.slots[p])):
            if kind == RUN:
                step.forward(p, m, index)
            elif step.learns[p]:
                step.backward(p, m, index)
    if shape.training:
        step.tell_losses()
    for p, n_elements in enumerate(shape.n_elements):
        if shape.training and n_elements and (step.learns[p] or len(shape.slots[p]) > 1):
            step.update(p)
    return step.layout


class _Step:
    """Walks the actions and adds their tasks, as `schedule.programs` adds instructions."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.n_stages = shape, len(shape.slots)
        self.home = 1 + max(max(slots) for slots in shape.slots)
        self.layout = StepLayout(self.home)
        before: Before = tuple(
            tuple(
                p
                for p, given in enumerate(shape.handed)
                if any(q in b.to for b in given if b.smooth or b.rough)
            )
            for q in range(self.n_stages)
        )
        self.order = turns(
            shape.warm_up, shape.n_micro_batches, before=before, training=shape.training
        )
        self.turn = {(p, kind, m): turn for turn, p, kind, m in self.order}
        self.n_turns = self.order[-1][0] + 1
        self.learns = shape.learns
        self._numbers: dict[Item, int] = {}
        self._last: dict[int, int] = {}  # per slot: the computing task before
        self._runs: dict[tuple[int, int, int], int] = {}
        self._losses: dict[int, list[LaidOutValue]] = {}  # per slot of the last stage
        self._pieces: dict[
            tuple[int, int, int, Tensor, int, int], list[tuple[int, LaidOutValue]]
        ] = {}
        joined = [
            pair for q, sources in enumerate(before) for p in sources for pair in ((p, q), (q, p))
        ]
        self._overlaps = {(p, q): overlaps(shape.shares[p], shape.shares[q]) for p, q in joined}
        # Per stage: the tensors that it makes and who takes each, and those that it takes.
        self._made = [
            [
                (Tensor(p, k, name), bundle.to)
                for k, bundle in enumerate(given)
                for name in _names(bundle)
            ]
            for p, given in enumerate(shape.handed)
        ]
        self._taken = [
            [tensor for made in self._made for tensor, takers in made if q in takers]
            for q in range(self.n_stages)
        ]

    # --- tasks and values -------------------------------------------------------------------------

    def _number(self, item: Item) -> int:
        number = self._numbers.setdefault(item, len(self.layout.items))
        if number == len(self.layout.items):
            self.layout.items.append(item)
        return number

    def _task(self, item: Item, inputs: Sequence[LaidOutValue], priority: int) -> int:
        layout, task = self.layout, len(self.layout.item)
        waits = {value.made for value in inputs}
        if item.kind != SEND:
            waits.update((self._last[item.slot],) if item.slot in self._last else ())
            self._last[item.slot] = task
        for value in inputs:
            value.uses.append(task)
        layout.item.append(self._number(item))
        layout.priority.append(priority)
        layout.waits.append(tuple(sorted(waits)))
        return task

    def _value(self, item: Item, made: int, slot: int) -> LaidOutValue:
        value = LaidOutValue(slot, self._number(item), made, [])
        self.layout.values.append(value)
        return value

    def _copy(self, item: Item, inputs: Sequence[LaidOutValue], priority: int) -> LaidOutValue:
        return self._value(item, self._task(item, inputs, priority), item.slot)

    def _move(self, item: Item, inputs: Sequence[LaidOutValue], priority: int) -> LaidOutValue:
        return self._value(item, self._task(item, inputs, priority), item.to)

    # --- actions ----------------------------------------------------------------------------------

    def forward(self, p: int, m: int, index: int) -> None:
        """One micro-batch forward through stage p, on its device `index`."""
        shape, slot, rows = self.shape, self.shape.slots[p][index], self.shape.shares[p][index]
        priority, last = self.turn[p, RUN, m], p == self.n_stages - 1
        inputs = []
        for name, wanted in (("input", shape.fed[p]), ("target", shape.has_target and last)):
            if wanted:
                inputs.append(self._move(Item(SEND, self.home, p, rows, name, slot), (), priority))
        inputs += [
            self._gather(RUN, p, m, index, tensor, tensor.stage) for tensor in self._taken[p]
        ]
        run = Item(RUN, slot, p, rows)
        task = self._task(run, inputs, priority)
        if self.learns[p]:
            self._runs[p, m, index] = task
        else:
            self.layout.kept.append((self._number(run), task, -1))
        if not last:
            for tensor, takers in self._made[p]:
                value = self._value(self._copy_of(slot, tensor, rows), task, slot)
                for taker in takers:
                    self._pass(p, taker, RUN, m, index, tensor, value)
            return
        if shape.training:
            self._losses.setdefault(slot, []).append(
                self._value(Item(COPY, slot, p, 1, "loss"), task, slot)
            )
        else:
            value = self._value(Item(COPY, slot, p, rows, "output"), task, slot)
            self._task(Item(SEND, slot, p, rows, "output", self.home), (value,), priority)

    def tell_losses(self) -> None:
        """The losses of all micro-batches go home as one value."""
        p = self.n_stages - 1
        for slot in self.shape.slots[p]:
            losses = self._losses[slot]
            item = Item(COPY, slot, p, len(losses), "loss")
            value = self._copy(item, losses, self.n_turns) if len(losses) > 1 else losses[0]
            self._task(Item(SEND, slot, p, len(losses), "loss", self.home), (value,), self.n_turns)

    def backward(self, p: int, m: int, index: int) -> None:
        """Its gradient back through stage p."""
        slot, rows = self.shape.slots[p][index], self.shape.shares[p][index]
        inputs = []
        for tensor, takers in self._made[p]:
            if tensor.name == "y":
                parts = [
                    self._gather(BACKWARD, p, m, index, tensor, q)
                    for q in reversed(takers)
                    if self.learns[q]
                ]
                if len(parts) > 1:
                    parts = [
                        self._copy(
                            self._copy_of(slot, tensor, rows), parts, self.turn[p, BACKWARD, m]
                        )
                    ]
                inputs += parts
        task = self._task(Item(BACKWARD, slot, p, rows), inputs, self.turn[p, BACKWARD, m])
        self.layout.kept.append(
            (self._number(Item(RUN, slot, p, rows)), self._runs[p, m, index], task)
        )
        back = [tensor for tensor in self._taken[p] if tensor.name == "y"]
        values = [self._value(self._copy_of(slot, tensor, rows), task, slot) for tensor in back]
        for tensor, value in zip(back, values, strict=True):
            if self.learns[tensor.stage]:
                self._pass(p, tensor.stage, BACKWARD, m, index, tensor, value)

    def _copy_of(self, slot: int, tensor: Tensor, rows: int) -> Item:
        return Item(COPY, slot, tensor.stage, rows, tensor.name, bundle=tensor.bundle)

    def _pass(
        self, p: int, q: int, kind: int, m: int, index: int, tensor: Tensor, value: LaidOutValue
    ) -> None:
        """Hand a value of stage p to the devices of stage q that need rows of it."""
        shape, slot, priority = self.shape, self.shape.slots[p][index], self.turn[q, kind, m]
        for piece in self._overlaps[p, q]:
            if piece.left != index:
                continue
            rows, peer, part = piece.stop - piece.start, shape.slots[q][piece.right], value
            if rows != shape.shares[p][index]:
                part = self._copy(self._copy_of(slot, tensor, rows), (value,), priority)
            if peer != slot:
                item = Item(SEND, slot, tensor.stage, rows, tensor.name, peer, tensor.bundle)
                part = self._move(item, (part,), priority)
            self._pieces.setdefault((kind, q, p, tensor, m, piece.right), []).append(
                (piece.start, part)
            )

    def _gather(
        self, kind: int, p: int, m: int, index: int, tensor: Tensor, source: int
    ) -> LaidOutValue:
        pieces = [
            value
            for _, value in sorted(
                self._pieces[kind, p, source, tensor, m, index], key=lambda piece: piece[0]
            )
        ]
        if len(pieces) == 1:
            return pieces[0]
        item = self._copy_of(self.shape.slots[p][index], tensor, self.shape.shares[p][index])
        return self._copy(item, pieces, self.turn[p, kind, m])

    # --- the end of a step ------------------------------------------------------------------------

    def update(self, p: int) -> None:
        """All-reduce gradients and statistics of stage p, as `schedule.reduce`, and take the
        optimizer's step.
        """
        slots, priority = self.shape.slots[p], self.n_turns + 1
        n = len(slots)
        sums = self._reduced(p, priority) if n > 1 else [()] * n
        for index, slot in enumerate(slots):
            self._task(Item(STEP, slot, p), sums[index], priority + 2 * n + 1)

    def _reduced(self, p: int, priority: int) -> list[tuple[LaidOutValue, ...]]:
        slots, n_elements = self.shape.slots[p], self.shape.n_elements[p]
        n = len(slots)
        full = [k for k in range(n) if (k + 1) * n_elements // n > k * n_elements // n]
        vectors = [self._copy(Item(COPY, slot, p, 0, "vector"), (), priority) for slot in slots]
        held = [
            {k: self._copy(Item(COPY, slot, p, k, "piece"), (vector,), priority) for k in full}
            for slot, vector in zip(slots, vectors, strict=True)
        ]
        looking = [tuple(pieces.values()) for pieces in held]
        for turn in range(2 * (n - 1)):
            gathering = turn >= n - 1
            arriving = []
            for i, slot in enumerate(slots):
                k, right = (
                    (i + 1 - (turn - n + 1)) % n if gathering else (i - turn) % n,
                    (i + 1) % n,
                )
                if k in full:
                    item = Item(SEND, slot, p, k, "piece", slots[right])
                    arriving.append((right, k, self._move(item, (held[i][k],), priority + turn)))
            for i, k, value in arriving:
                own = Item(COPY, slots[i], p, k, "piece")
                held[i][k] = (
                    value if gathering else self._copy(own, (held[i][k], value), priority + turn)
                )
        # it is there as long as any piece of it
        for vector, pieces in zip(vectors, looking, strict=True):
            vector.uses.extend(use for piece in pieces for use in piece.uses)
        return [
            (
                self._copy(
                    Item(COPY, slot, p, 0, "vector"),
                    [held[i][k] for k in sorted(full)],
                    priority + 2 * n,
                ),
            )
            for i, slot in enumerate(slots)
        ]


def _names(bundle: Handed) -> list[str]:
    return ["y"] * bundle.smooth + ["z"] * bundle.rough
