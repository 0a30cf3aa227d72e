"""A step as the instructions that agents carry out: cuts become slices, transfers and
concatenations.

Glossary of value names, all local to one device: `in` fed by home, `x` input of a stage, `y`
output, `dy` and `dx` their gradients, `f` and `b` pieces passed over a cut forward and backward.
`b` and `dy` come with the stage they are from. Then stage, tensor, micro-batch, row.
"""

from typing import Any

from potluck.records import Tensor
from potluck.schedule.ir import FORWARD, INPUT_GRADIENT, Action
from potluck.schedule.program_builder import Annotation, InputBinding, ReceivedValue
from potluck.schedule.stage_graph import returning
from potluck.schedule.standby import REPLAY, loss_scale, standby_value
from potluck.schedule.step import LOSS_BYTES, HandedRows
from potluck.schedule.update_instructions import UpdateInstructions

# what is fed in a step up to this goes as one value: it is there until the last micro-batch
WHOLE_BYTES = 2 * 1024**2


class StepInstructions(UpdateInstructions):
    """Takes a step down as instructions; a value is its name on the device that has it."""

    # --- one action -------------------------------------------------------------------------------

    def feed(self, action: Action, index: int, priority: int) -> list[str]:
        """Whole micro-batches of inputs, or all of a batch once."""
        device = self._device(action, index)
        return [
            self._feed(action, device, tensor, *self._rows(action, index), priority)
            for tensor in self.segments[action.stage].feeds
        ]

    def forward(self, action: Action, index: int, inputs: list[str], priority: int) -> list[str]:
        """A `run`; standbys that replay the stage get its inputs."""
        p, m = action.stage, action.micro_batch
        segment, device = self.segments[p], self._device(action, index)
        start, stop = self._rows(action, index)
        if self.spec.n_elements[p]:
            for tensor, given in zip(segment.inputs, inputs[len(segment.feeds) :], strict=True):
                self._show(p, device, given, standby_value(p, "x", tensor, m), REPLAY, priority)
        names = [f"y{p}.{i}.{m}" for i in range(len(segment.outputs))]
        sizes = [_nbytes(tensor, stop - start) for tensor in segment.outputs]
        if self.spec.training and p == len(self.segments) - 1:
            sizes[0] = LOSS_BYTES
        takes = [self._take(action, tensor, start, stop) for tensor in segment.feeds]
        takes += [None] * len(segment.inputs)
        more: dict[str, Any] = {"takes": takes} if any(takes) else {}
        if self.plan.stages[p].recompute and self.spec.learns[p]:
            more["recompute"] = True
        if self.spec.split and self.spec.learns[p]:
            more["split"] = True
        self.programs.compute(
            device,
            "run",
            inputs,
            dict(zip(names, sizes, strict=True)),
            note=self._note(action, index),
            priority=priority,
            segment=segment.name,
            key=f"{p}.{m}",
            train=self.spec.training,
            rows=[start, stop, self.division[p][m].rows],
            micro_batch=m,
            **more,
        )
        return names

    def backward(
        self, action: Action, index: int, gradients: list[str], priority: int
    ) -> list[str]:
        """A `backward`, or its first part; standbys that replay the stage get the gradients of its
        outputs.
        """
        p, m = action.stage, action.micro_batch
        segment, device = self.segments[p], self._device(action, index)
        start, stop = self._rows(action, index)
        returned = [
            output.tensor
            for output in self.spec.outputs[p]
            if returning(output.to, output.gradient, self.spec.learns)
        ]
        for tensor, value in zip(returned, gradients, strict=True):
            self._show(p, device, value, standby_value(p, "dy", tensor, m), REPLAY, priority)
        back = [tensor for tensor in segment.inputs if tensor.gradient]
        made = {f"dx{p}.{i}.{m}": _nbytes(tensor, stop - start) for i, tensor in enumerate(back)}
        self.programs.compute(
            device,
            "backward_input" if action.kind == INPUT_GRADIENT else "backward",
            gradients,
            made,
            note=self._note(action, index),
            priority=priority,
            segment=segment.name,
            key=f"{p}.{m}",
            scale=loss_scale(
                segment, p == len(self.segments) - 1, stop - start, self._batch_of(action)
            ),
        )
        return [*made]

    def backward_weight(self, action: Action, index: int, priority: int) -> None:
        """A `backward_weight`."""
        self.programs.compute(
            self._device(action, index),
            "backward_weight",
            [],
            {},
            note=self._note(action, index),
            priority=priority,
            segment=self.segments[action.stage].name,
            key=f"{action.stage}.{action.micro_batch}",
        )

    def answer(self, action: Action, index: int, outputs: list[str], priority: int) -> None:
        """Every output of the last stage is a result."""
        first = self._first(action)
        start, stop = self._rows(action, index)
        for name, tensor in zip(outputs, self.segments[-1].outputs, strict=True):
            result = ReceivedValue(
                device=self._device(action, index),
                value=name,
                tensor=tensor.name,
                kind="output",
                micro_batch=action.micro_batch,
                start=(first + start) * tensor.multiple,
                stop=(first + stop) * tensor.multiple,
                whole=tensor.multiple == 0,
                nbytes=_nbytes(tensor, stop - start),
            )
            self.programs.result(result, label=f"{action}>{self.programs.home}", priority=priority)

    def send_losses(self, index: int, losses: list[str], priority: int) -> None:
        """One result of them all."""
        p, nbytes = len(self.segments) - 1, len(losses) * LOSS_BYTES
        device, value = self.plan.stages[p].devices[index], losses[0]
        if len(losses) > 1:
            value = self.named("losses")
            note = Annotation(label=f"{p} {value}", nbytes=nbytes)
            self.programs.compute(
                device, "concat", losses, {value: nbytes}, note=note, priority=priority, dim=0
            )
        result = ReceivedValue(
            device=device,
            value=value,
            tensor=self.segments[p].outputs[0].name,
            kind="loss",
            rows=tuple(share for part in self.division[p] if (share := part.shares[index])),
            sums=self.segments[p].sums_rows,
            step=self.late_step or 0,
            nbytes=nbytes,
        )
        self.programs.result(result, label=f"{p}>{self.programs.home}", priority=priority)

    def _batch_of(self, action: Action) -> int:
        """The rows of the step that an action belongs to."""
        return self.batch

    def _fed_as(self, action: Action, tensor: Tensor) -> str:
        """What home calls a tensor that is fed for an action."""
        return tensor.name

    def _device(self, action: Action, index: int) -> str:
        return self.plan.stages[action.stage].devices[index]

    def _rows(self, action: Action, index: int) -> tuple[int, int]:
        return self.rows[action.stage][action.micro_batch][index]

    def _first(self, action: Action) -> int:
        """The row of the batch with which its micro-batch begins."""
        return self.division[action.stage][action.micro_batch].start

    def _note(self, action: Action, index: int) -> Annotation:
        segment, (start, stop) = self.segments[action.stage], self._rows(action, index)
        return Annotation(
            label=str(action),
            start=segment.start,
            stop=segment.stop,
            rows=stop - start,
            recompute=self.plan.stages[action.stage].recompute and self.spec.learns[action.stage],
        )

    # --- what home feeds --------------------------------------------------------------------------

    def _feed(
        self, action: Action, device: str, tensor: Tensor, start: int, stop: int, priority: int
    ) -> str:
        """The name of what is fed: of a whole batch it comes once."""
        first = self._first(action)  # feeds are counted over the whole batch
        value = f"in{action.stage}.{tensor.name}.{action.micro_batch}"
        start, stop = first + start, first + stop
        if self._comes_whole(action.stage, tensor):
            value, start = f"in{action.stage}.{tensor.name}.all", 0
            stop = self.batch
        if (device, value) not in self.fed:
            self.fed.add((device, value))
            feed = InputBinding(
                device=device,
                value=value,
                tensor=self._fed_as(action, tensor),
                micro_batch=action.micro_batch,
                start=start * tensor.multiple,
                stop=stop * tensor.multiple,
                whole=tensor.multiple == 0,
                nbytes=_nbytes(tensor, stop - start),
                priority=priority,
            )
            self.programs.feed(feed, label=f"{self.programs.home}>{action}")
        return value

    def _take(self, action: Action, tensor: Tensor, start: int, stop: int) -> list[int] | None:
        """Which entries of what is fed are meant; None: all of them."""
        if not self._comes_whole(action.stage, tensor):
            return None
        first = self._first(action)
        return [(first + start) * tensor.multiple, (first + stop) * tensor.multiple]

    def _comes_whole(self, p: int, tensor: Tensor) -> bool:
        """Whether one value has the rows of all micro-batches: they belong to one device, and are
        few bytes.
        """
        is_all = (
            len(self.plan.stages[p].devices) == 1 < len(self.division[p]) and tensor.multiple > 0
        )
        return self.fed_whole and is_all and _nbytes(tensor, self.batch) <= WHOLE_BYTES

    # --- over a cut -------------------------------------------------------------------------------

    def cut(self, rows: HandedRows[Tensor], value: str, priority: int) -> str:
        """A slice, named after what is sent of it."""
        first, _ = self._rows(rows.source, rows.left)
        first += self._first(rows.source) - self._first(rows.target)
        name, nbytes = f"cut.{_name(rows)}", _nbytes(rows.tensor, rows.stop - rows.start)
        self.programs.compute(
            self._device(rows.source, rows.left),
            "slice",
            [value],
            {name: nbytes},
            note=Annotation(label=f"{rows.source} slice", nbytes=nbytes),
            priority=priority,
            dim=0,
            start=(rows.start - first) * rows.tensor.multiple,
            stop=(rows.stop - first) * rows.tensor.multiple,
        )
        return name

    def send(self, rows: HandedRows[Tensor], value: str, priority: int) -> str:
        """A `send` and its `recv`."""
        device, peer = self._device(rows.source, rows.left), self._device(rows.target, rows.right)
        label = f"{rows.source}>{rows.target}"
        self.programs.send(device, value, peer, _name(rows), label=label, priority=priority)
        return _name(rows)

    def join(
        self,
        action: Action,
        index: int,
        tensor: Tensor,
        source: int,
        pieces: list[str],
        priority: int,
    ) -> str:
        """A `concat` of pieces."""
        kind = "x" if action.kind == FORWARD else f"dy{source}."
        name = f"{kind}{action.stage}.{tensor.name}.{action.micro_batch}"
        return self._merge("concat", action, index, tensor, name, pieces, priority, dim=0)

    def add(
        self, action: Action, index: int, tensor: Tensor, parts: list[str], priority: int
    ) -> str:
        """A sum in a fixed order."""
        name = f"dy{action.stage}.{tensor.name}.{action.micro_batch}"
        return self._merge("add", action, index, tensor, name, parts, priority)

    def _merge(
        self,
        op: str,
        action: Action,
        index: int,
        tensor: Tensor,
        name: str,
        values: list[str],
        priority: int,
        **attrs: Any,
    ) -> str:
        """One value with all rows of the device."""
        start, stop = self._rows(action, index)
        nbytes = _nbytes(tensor, stop - start)
        self.programs.compute(
            self._device(action, index),
            op,
            values,
            {name: nbytes},
            note=Annotation(label=f"{action} {op}", nbytes=nbytes),
            priority=priority,
            **attrs,
        )
        return name


def _name(rows: HandedRows[Tensor]) -> str:
    """What these rows are called where they arrive."""
    kind = "f" if rows.target.kind == FORWARD else f"b{rows.source.stage}."
    p, _, m = rows.target
    return f"{kind}{p}.{rows.tensor.name}.{m}.{rows.start}"


def _nbytes(tensor: Tensor, rows: int) -> int:
    return tensor.row_bytes * (rows if tensor.multiple else 1)
