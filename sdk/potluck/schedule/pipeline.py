"""Compile a plan: the schedule's actions become instructions, cuts become slices, transfers and
concatenations.

Glossary of value names, all local to one device: `in` fed by home, `x` input of a stage, `y`
output, `dy` and `dx` their gradients, `f` and `b` pieces passed over a cut forward and backward
(`b` and `dy` with the stage they come from); then stage, tensor, micro-batch, row.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from potluck.errors import PlanError
from potluck.records import HOME, Plan, Segment, Tensor
from potluck.schedule import policies
from potluck.schedule.all_reduce import FLOAT_BYTES, STILL, ring_all_reduce, vector_elements
from potluck.schedule.ir import BACKWARD, FORWARD, Action, Schedule
from potluck.schedule.micro_batches import Division, divide
from potluck.schedule.program_builder import (
    Annotation,
    Compiled,
    InputBinding,
    ProgramBuilder,
    Result,
)
from potluck.schedule.rows import intervals, overlaps
from potluck.schedule.stage_graph import wire
from potluck.schedule.standby import COPY, REPLAY, Standby, gradient_value, shadow_value
from potluck.schedule.validate import check

LOSS_BYTES = 4
# what is fed in a step up to this goes as one value: it is there until the last micro-batch
WHOLE_BYTES = 2 * 1024**2


def compile_training(
    plan: Plan,
    segments: tuple[Segment, ...],
    optimizer: Mapping[str, Any],
    *,
    home: str = HOME,
    schedule: Schedule | None = None,
    division: Division | None = None,
    shadows: Sequence[Standby] = (),
    to: str = "",
    fed_whole: bool = False,
) -> Compiled:
    """The program `train` of every device of `plan`: one step on one batch. Default schedule: 1F1B.

    `division`: the micro-batches, as many as the schedule has; default: those of the plan. The
    losses of each share come home; their mean weighted by rows is the batch's loss. What `shadows`
    need to stay in step is posted to their program `to` = "EPOCH/PROGRAM". `fed_whole`: what home
    feeds a stage of one device, and is small, comes once per step, and every micro-batch takes its
    rows of it.

    Parameters
    ----------
    plan
        Which layers run where, in what shares.
    segments
        One per stage, in order.
    optimizer
        As `to_json` of an optimizer gives it.
    home
        What the notebook is called as a peer.
    schedule
        Per stage (or device), its actions in order; default: 1F1B with the plan's warm-ups.
    division
        The micro-batches, as many as the schedule has; default: the plan's.
    shadows
        Standbys that follow these stages.
    to
        Their program, as "EPOCH/PROGRAM".
    fed_whole
        Small inputs of a stage of one device come once per step.

    Raises
    ------
    PlanError
        The segments are not the plan's stages, or the schedule is not legal.
    """
    if schedule is None:
        schedule = policies.POLICIES["1f1b"](plan)
    pipeline = _Pipeline(
        "train",
        plan,
        segments,
        schedule,
        home,
        training=True,
        division=division,
        shadows=shadows,
        to=to,
        fed_whole=fed_whole,
    )
    pipeline.actions()
    pipeline.tell_losses()
    for p in range(len(plan.stages)):
        pipeline.update(p, dict(optimizer))
    return pipeline.programs.finish()


def compile_inference(
    plan: Plan, segments: tuple[Segment, ...], *, home: str = HOME, schedule: Schedule | None = None
) -> Compiled:
    """The program `infer` of every device of `plan`: one request of `plan.batch` rows.

    The outputs come home.

    Parameters
    ----------
    plan
        Which layers run where, in what shares.
    segments
        One per stage, in order.
    home
        What the notebook is called as a peer.
    schedule
        Per stage, its actions in order; default: forward only.

    Raises
    ------
    PlanError
        The segments are not the plan's stages, or the schedule is not legal.
    """
    if schedule is None:
        schedule = policies.POLICIES["forward-only"](plan)
    pipeline = _Pipeline("infer", plan, segments, schedule, home, training=False)
    pipeline.actions()
    return pipeline.programs.finish()


class _Pipeline:
    """One compilation: walks a legal order of all actions and appends to the devices' programs."""

    def __init__(
        self,
        name: str,
        plan: Plan,
        segments: Sequence[Segment],
        schedule: Schedule,
        home: str,
        *,
        training: bool,
        division: Division | None = None,
        shadows: Sequence[Standby] = (),
        to: str = "",
        fed_whole: bool = False,
    ) -> None:
        self.wiring = wire(plan, segments, training=training)
        self.plan, self.segments, self.home, self.training = plan, segments, home, training
        self.division = division or divide(plan, segments, plan.batch)
        self.batch = self.division[-1].stop
        self.order = check(
            schedule, len(self.division), before=self.wiring.before, training=training
        )
        halves = [str(action) for _, action in self.order if action.kind not in (FORWARD, BACKWARD)]
        if halves:
            raise PlanError(
                f"{halves[0]}: agents do a backward whole.", next_step="Use a schedule of F and B."
            )
        self.programs = ProgramBuilder(name, plan.devices, home)
        # the priority of what an action waits for
        self.turn = {action: turn for turn, action in self.order}
        self.n_turns = max(self.turn.values()) + 1
        # rows[micro-batch][stage][device index]: [first, stop) of the micro-batch
        self.rows = [[intervals(shares) for shares in part.shares] for part in self.division]
        self.shadows, self.to, self.fed_whole = shadows, to, fed_whole
        self.fed: set[tuple[str, str]] = set()  # (device, value)
        self.learns = self.wiring.learns
        # (action, tensor, device index, sending stage) -> pieces (value, first row, bytes)
        self.pieces: dict[tuple[Action, str, int, int], list[tuple[str, int, int]]] = {}

    def actions(self) -> None:
        for _, action in self.order:
            for index in self._takers(action):
                if action.kind == FORWARD:
                    self._forward(action, index)
                elif self.learns[action.stage]:
                    self._backward(action, index)
        # A device that is in several stages does the pieces of all of them in this one order.

    def _takers(self, action: Action) -> list[int]:
        """The devices of its stage that have rows of its micro-batch."""
        shares = self.division[action.micro_batch].shares[action.stage]
        return [index for index, share in enumerate(shares) if share]

    # --- one action -------------------------------------------------------------------------------

    def _forward(self, action: Action, index: int) -> None:
        p, m = action.stage, action.micro_batch
        segment, device, (start, stop) = (
            self.segments[p],
            self.plan.stages[p].devices[index],
            self.rows[m][p][index],
        )
        feeds = [self._feed(action, device, tensor, start, stop) for tensor in segment.feeds]
        inputs = [value for value, _ in feeds]
        sources = zip(segment.inputs, self.wiring.suppliers[p], strict=True)
        inputs += [self._gather(action, index, tensor, source) for tensor, source in sources]
        if vector_elements(segment, self.learns[p]):
            for tensor, given in zip(segment.inputs, inputs[len(segment.feeds) :], strict=True):
                self._show(
                    p, device, given, shadow_value(p, "x", tensor, m), REPLAY, self.turn[action]
                )
        names = [f"y{p}.{i}.{m}" for i in range(len(segment.outputs))]
        sizes = [_nbytes(tensor, stop - start) for tensor in segment.outputs]
        takes = [take for _, take in feeds] + [None] * len(segment.inputs)
        parts: dict[str, Any] = {"takes": takes} if any(takes) else {}
        if self.training and p == len(self.segments) - 1:
            sizes[0] = LOSS_BYTES
        self.programs.compute(
            device,
            "run",
            inputs,
            dict(zip(names, sizes, strict=True)),
            note=Annotation(
                label=str(action), start=segment.start, stop=segment.stop, rows=stop - start
            ),
            priority=self.turn[action],
            segment=segment.name,
            key=f"{p}.{m}",
            train=self.training,
            rows=[start, stop, self.division[m].rows],
            micro_batch=m,
            **parts,
        )
        if p < len(self.segments) - 1:
            for tensor, name in zip(segment.outputs, names, strict=True):
                for taker in self.wiring.takers[p].get(tensor.name, ()):
                    self._pass(action, Action(taker, FORWARD, m), index, tensor, name)
        elif not self.training:
            self._results(action, device, names, start, stop)

    def _backward(self, action: Action, index: int) -> None:
        p, m = action.stage, action.micro_batch
        segment, device, (start, stop) = (
            self.segments[p],
            self.plan.stages[p].devices[index],
            self.rows[m][p][index],
        )
        last = p == len(self.segments) - 1
        returned = [] if last else [t for t in segment.outputs if self.wiring.returning(p, t)]
        inputs = [self._returned(action, index, tensor) for tensor in returned]
        for tensor, value in zip(returned, inputs, strict=True):
            self._show(
                p, device, value, shadow_value(p, "dy", tensor, m), REPLAY, self.turn[action]
            )
        pairs = zip(segment.inputs, self.wiring.suppliers[p], strict=True)
        back = [(tensor, source) for tensor, source in pairs if tensor.gradient]
        names = [f"dx{p}.{i}.{m}" for i in range(len(back))]
        self.programs.compute(
            device,
            "backward",
            inputs,
            {
                name: _nbytes(tensor, stop - start)
                for name, (tensor, _) in zip(names, back, strict=True)
            },
            note=Annotation(
                label=str(action), start=segment.start, stop=segment.stop, rows=stop - start
            ),
            priority=self.turn[action],
            segment=segment.name,
            key=f"{p}.{m}",
            scale=(stop - start) / self.batch if last else 1.0,
        )
        for name, (tensor, source) in zip(names, back, strict=True):
            if self.learns[source]:
                self._pass(action, Action(source, action.kind, m), index, tensor, name)

    def _returned(self, action: Action, index: int, tensor: Tensor) -> str:
        """The gradient of an output: the sum of what comes back from all stages that took it, in a
        fixed order.
        """
        givers = self.wiring.returning(action.stage, tensor)
        parts = [self._gather(action, index, tensor, giver) for giver in givers]
        if len(parts) == 1:
            return parts[0]
        start, stop = self.rows[action.micro_batch][action.stage][index]
        name, nbytes = (
            f"dy{action.stage}.{tensor.name}.{action.micro_batch}",
            _nbytes(tensor, stop - start),
        )
        self.programs.compute(
            self.plan.stages[action.stage].devices[index],
            "add",
            parts,
            {name: nbytes},
            note=Annotation(label=f"{action} add", nbytes=nbytes),
            priority=self.turn[action],
        )
        return name

    def _feed(
        self, action: Action, device: str, tensor: Tensor, start: int, stop: int
    ) -> tuple[str, list[int] | None]:
        """The name of what is fed, and which entries of it are meant; None: all of them."""
        first = self.division[action.micro_batch].start  # feeds are counted over the whole batch
        value, take = f"in{action.stage}.{tensor.name}.{action.micro_batch}", None
        start, stop = first + start, first + stop
        if self._comes_whole(action.stage, tensor):
            value, take = (
                f"in{action.stage}.{tensor.name}.all",
                [start * tensor.multiple, stop * tensor.multiple],
            )
            start, stop = 0, self.batch
        if (device, value) not in self.fed:
            self.fed.add((device, value))
            feed = InputBinding(
                device=device,
                value=value,
                tensor=tensor.name,
                micro_batch=action.micro_batch,
                start=start * tensor.multiple,
                stop=stop * tensor.multiple,
                whole=tensor.multiple == 0,
                nbytes=_nbytes(tensor, stop - start),
                priority=self.turn[action],
            )
            self.programs.feed(feed, label=f"{self.home}>{action}")
        return value, take

    def _comes_whole(self, p: int, tensor: Tensor) -> bool:
        """Whether one value has the rows of all micro-batches: they belong to one device, and are
        few bytes.
        """
        is_all = len(self.plan.stages[p].devices) == 1 < len(self.division) and tensor.multiple > 0
        return self.fed_whole and is_all and _nbytes(tensor, self.batch) <= WHOLE_BYTES

    def _results(
        self, action: Action, device: str, names: Sequence[str], start: int, stop: int
    ) -> None:
        first = self.division[action.micro_batch].start
        for name, tensor in zip(names, self.segments[-1].outputs, strict=True):
            result = Result(
                device=device,
                value=name,
                tensor=tensor.name,
                kind="output",
                micro_batch=action.micro_batch,
                start=(first + start) * tensor.multiple,
                stop=(first + stop) * tensor.multiple,
                whole=tensor.multiple == 0,
                nbytes=_nbytes(tensor, stop - start),
            )
            self.programs.result(result, label=f"{action}>{self.home}", priority=self.turn[action])

    def tell_losses(self) -> None:
        """The losses of all micro-batches go home at the end, as one value: they are for
        display.
        """
        p = len(self.segments) - 1
        for index, device in enumerate(self.plan.stages[p].devices):
            rows = {
                m: part.shares[p][index]
                for m, part in enumerate(self.division)
                if part.shares[p][index]
            }
            losses = [f"y{p}.0.{m}" for m in rows]
            if not losses:
                continue
            value, nbytes = losses[0], len(losses) * LOSS_BYTES
            if len(losses) > 1:
                value = "losses"
                self.programs.compute(
                    device,
                    "concat",
                    losses,
                    {value: nbytes},
                    note=Annotation(label=f"{p} losses", nbytes=nbytes),
                    priority=self.n_turns,
                    dim=0,
                )
            result = Result(
                device=device,
                value=value,
                tensor=self.segments[p].outputs[0].name,
                kind="loss",
                rows=tuple(rows.values()),
                nbytes=nbytes,
            )
            self.programs.result(result, label=f"{p}>{self.home}", priority=self.n_turns)

    # --- over a cut -------------------------------------------------------------------------------

    def _pass(self, source: Action, target: Action, index: int, tensor: Tensor, value: str) -> None:
        """Hand `value`, made by device `index` in `source`, to the devices that need rows of it in
        `target`.
        """
        left, right = self.plan.stages[source.stage], self.plan.stages[target.stage]
        device, (first, stop) = (
            left.devices[index],
            self.rows[source.micro_batch][source.stage][index],
        )
        shares = self.division[source.micro_batch].shares
        direction = "f" if target.kind == FORWARD else f"b{source.stage}."
        for piece in overlaps(shares[source.stage], shares[target.stage]):
            key = (target, tensor.name, piece.right, source.stage)
            if piece.left != index or (tensor.multiple == 0 and key in self.pieces):
                continue
            sent, nbytes, peer = (
                value,
                _nbytes(tensor, piece.stop - piece.start),
                right.devices[piece.right],
            )
            tag = f"{target.stage}.{tensor.name}.{target.micro_batch}.{piece.start}"
            if tensor.multiple and (piece.start, piece.stop) != (first, stop):
                sent = f"cut.{direction}{tag}"
                self.programs.compute(
                    device,
                    "slice",
                    [value],
                    {sent: nbytes},
                    note=Annotation(label=f"{source} slice", nbytes=nbytes),
                    priority=self.turn[target],
                    dim=0,
                    start=(piece.start - first) * tensor.multiple,
                    stop=(piece.stop - first) * tensor.multiple,
                )
            if peer != device:
                name = direction + tag
                self.programs.send(
                    device, sent, peer, name, label=f"{source}>{target}", priority=self.turn[target]
                )
                sent = name
            self.pieces.setdefault(key, []).append((sent, piece.start, nbytes))

    def _gather(self, action: Action, index: int, tensor: Tensor, source: int) -> str:
        """The name of `tensor` for this device and action, put together in row order from what
        `source` passed on.
        """
        pieces = self.pieces[action, tensor.name, index, source]
        if len(pieces) == 1:
            return pieces[0][0]
        pieces.sort(key=lambda piece: piece[1])
        kind = "x" if action.kind == FORWARD else f"dy{source}."
        name, nbytes = (
            f"{kind}{action.stage}.{tensor.name}.{action.micro_batch}",
            sum(piece[2] for piece in pieces),
        )
        self.programs.compute(
            self.plan.stages[action.stage].devices[index],
            "concat",
            [piece[0] for piece in pieces],
            {name: nbytes},
            note=Annotation(label=f"{action} concat", nbytes=nbytes),
            priority=self.turn[action],
            dim=0,
        )
        return name

    # --- the end of a step ------------------------------------------------------------------------

    def update(self, p: int, optimizer: Mapping[str, Any]) -> None:
        """All-reduce gradients and statistics of stage p over its replicas, and take the
        optimizer's step.
        """
        segment, stage = self.segments[p], self.plan.stages[p]
        n_elements = vector_elements(segment, self.learns[p])
        if n_elements == 0:
            return
        reduced: list[str] = []
        priority = self.n_turns + 1
        nbytes = n_elements * FLOAT_BYTES
        if len(stage.devices) > 1 or any(s.stage == p and s.way == COPY for s in self.shadows):
            for index, device in enumerate(stage.devices):
                rows = sum(part.shares[p][index] for part in self.division)
                self.programs.compute(
                    device,
                    "gradients",
                    [],
                    {f"grad{p}": nbytes},
                    note=Annotation(label=f"{p} gradients", nbytes=nbytes),
                    priority=priority,
                    segment=segment.name,
                    share_frac=rows / self.batch,
                )
            reduced = [f"grad{p}"]
        if len(stage.devices) > 1:
            reduced = [
                ring_all_reduce(
                    self.programs,
                    stage.devices,
                    f"grad{p}",
                    n_elements,
                    tag=f"ring{p}",
                    priority=priority,
                )
            ]
        for value in reduced:
            self._show(p, stage.devices[0], value, gradient_value(p), COPY, priority)
        if not self.learns[p] and len(stage.devices) == 1:  # its statistics are what they should be
            return
        for device in stage.devices:
            self.programs.compute(
                device,
                "step",
                reduced,
                {},
                note=Annotation(
                    label=f"{p} step",
                    start=segment.start,
                    stop=segment.stop,
                    nbytes=segment.parameter_count * FLOAT_BYTES,
                ),
                priority=priority + 2 * len(stage.devices) + 1,
                segment=segment.name,
                optimizer=dict(optimizer if self.learns[p] else STILL),
            )

    # --- those who stay in step -------------------------------------------------------------------

    def _show(self, p: int, device: str, value: str, name: str, way: str, priority: int) -> None:
        """Post `value` of stage p to its shadows of that way."""
        for shadow in self.shadows:
            if shadow.stage == p and shadow.way == way:
                for peer in shadow.devices:
                    self.programs.post(
                        device,
                        value,
                        peer,
                        name,
                        to=self.to,
                        label=f"{name}>{peer}",
                        priority=priority,
                    )


def _nbytes(tensor: Tensor, rows: int) -> int:
    return tensor.row_bytes * (rows if tensor.multiple else 1)
