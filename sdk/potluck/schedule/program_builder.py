"""What compiling gives: a Program per device, what home sends and receives, and notes for people
and simulator.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from potluck.errors import PlanError
from potluck.records import HOME
from potluck_wire.program import MAX_INSTRUCTIONS, Instruction, Program

LATE = 2**31  # the priority of what has time: behind everything that a step waits for


@dataclass(frozen=True, slots=True, kw_only=True)
class InputBinding:
    """A value that home sends to `device` under the name `value`.

    kind "input": entries [start, stop) of the first dimension of the batch's tensor `tensor`
    (counted over the whole batch), needed by micro-batch `micro_batch`; `whole`: all of a tensor
    without a batch dimension. kind "state": the state `tensor` of `segment`.
    """

    device: str
    value: str
    tensor: str
    kind: str = "input"
    micro_batch: int = 0
    start: int = 0
    stop: int = 0
    whole: bool = False
    segment: str = ""
    nbytes: int = 0
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedValue:
    """A value that home receives from `device` under the name `value`.

    kind "loss": the mean losses of so many `rows` each, one micro-batch after the other, or where
    it `sums` their sums; of step `step` of the program. "norm": that of all gradients. "output":
    entries [start, stop) of the first dimension of output `tensor` over the whole batch. "state":
    the state `tensor` of `segment`.
    """

    device: str
    value: str
    tensor: str
    kind: str
    micro_batch: int = 0
    start: int = 0
    stop: int = 0
    rows: tuple[int, ...] = ()
    sums: bool = False
    step: int = 0
    whole: bool = False
    segment: str = ""
    nbytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """What people and the simulator want to know about one instruction.

    `label` for timelines (`2F0`). For run and backward: layers [start, stop) on `rows` rows.
    `nbytes` are sent, received, copied or updated. A run of a piece that is no run of layers takes
    `seconds` and works in `nbytes`. `recompute`: the backward computes the forward again.
    """

    label: str = ""
    start: int = 0
    stop: int = 0
    rows: int = 0
    nbytes: int = 0
    seconds: float | None = None
    recompute: bool = False


class Reduction(NamedTuple):
    """An all-reduce, as one of its replicas has it: the `vector` that it begins with and what it is
    `joined` to at the end; the `values` that it holds meanwhile, of which those that `arrived` are
    added to its own.
    """

    vector: str
    joined: str
    values: frozenset[str]
    arrived: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """One program per device and what belongs to it. `notes[device][instruction id]`.

    `value_bytes[device][value]`, `reductions[device]`.
    """

    programs: Mapping[str, Program]
    feeds: tuple[InputBinding, ...] = ()
    results: tuple[ReceivedValue, ...] = ()
    notes: Mapping[str, tuple[Annotation, ...]] = field(default_factory=dict)
    value_bytes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    reductions: Mapping[str, Sequence[Reduction]] = field(default_factory=dict)
    home: str = HOME

    @property
    def n_steps(self) -> int:
        """Steps of training that one execution takes."""
        return max((result.step for result in self.results), default=0) + 1

    @property
    def together(self) -> bool:
        """Whether all devices must begin at one moment: some send counts its release from there."""
        return any(any(program.release_s) for program in self.programs.values())

    def most_received_bytes(self, device: str, place_bytes: int = 1) -> int:
        """What a device must have room for at once at least: the most bytes of values from others
        that one of its instructions takes.

        Parameters
        ----------
        device
            Of the programs.
        place_bytes
            Each value takes whole places of so many bytes.
        """
        if device not in self.programs:
            return 0
        instructions, nbytes = self.programs[device].instructions, self.value_bytes[device]
        received = {name for each in instructions if each.op == "recv" for name in each.outputs}
        return max(
            (
                sum(
                    -(-nbytes[name] // place_bytes) * place_bytes
                    for name in set(each.inputs) & received
                )
                for each in instructions
            ),
            default=0,
        )

    @property
    def labels(self) -> dict[str, tuple[str, ...]]:
        """Per device, the label of each instruction."""
        return {device: tuple(note.label for note in notes) for device, notes in self.notes.items()}


class ProgramBuilder:
    """Collects the instructions of all devices.

    The compute instructions of a device are chained in the order given.

    Parameters
    ----------
    name
        Of the program, on every device.
    devices
        Who gets one.
    home
        What the notebook is called as a peer.
    """

    def __init__(self, name: str, devices: Sequence[str], home: str) -> None:
        self.name, self.home = name, home
        self._rows: dict[str, list[Instruction]] = {device: [] for device in devices}
        self._notes: dict[str, list[Annotation]] = {device: [] for device in devices}
        self._bytes: dict[str, dict[str, int]] = {device: {} for device in devices}
        self._last: dict[str, int] = {}
        self.reductions: dict[str, list[Reduction]] = {}
        self.feeds: list[InputBinding] = []
        self.results: list[ReceivedValue] = []

    def compute(
        self,
        device: str,
        op: str,
        inputs: Sequence[str],
        outputs: Mapping[str, int],
        *,
        note: Annotation,
        priority: int = 0,
        behind: Sequence[int] = (),
        in_turn: bool = True,
        **attrs: Any,
    ) -> None:
        """Add an instruction to the compute resource; `outputs` gives each new value's bytes.

        It also waits for the instructions `behind` which it stands, and where it is not `in_turn`
        for nothing else but its inputs.

        Parameters
        ----------
        device
            Where it runs.
        op
            An operation of `potluck_wire.program`.
        inputs
            Names of values there.
        outputs
            Name and bytes of each new value.
        note
            What people and the simulator want to know of it.
        priority
            Smaller goes first, of what is ready.
        behind
            Ids of instructions to wait for.
        in_turn
            It waits for those of the device that were added before, and others for it.
        **attrs
            The operation's own attributes.
        """
        after = (self._last[device],) if in_turn and device in self._last else ()
        added = self._add(device, op, inputs, outputs, (*after, *behind), priority, attrs, note)
        if in_turn:
            self._last[device] = added

    def send(
        self, device: str, value: str, peer: str, name: str, *, label: str, priority: int = 0
    ) -> int:
        """Send `value` to `peer`, where it is called `name`, and receive it there (unless `peer` is
        home).

        Parameters
        ----------
        device
            Who has the value.
        value
            Its name there.
        peer
            Who gets it.
        name
            Its name at the peer.
        label
            For timelines.
        priority
            Smaller goes first.

        Returns
        -------
        int
            The id of the send.
        """
        nbytes = self._bytes[device][value]
        note = Annotation(label=label, nbytes=nbytes)
        sent = self._add(
            device, "send", (value,), {}, (), priority, {"peer": peer, "name": name}, note
        )
        if peer != self.home:
            self.receive(peer, name, nbytes, device, label=label, priority=priority)
        return sent

    def receive(
        self, device: str, name: str, nbytes: int, peer: str, *, label: str, priority: int = 0
    ) -> str:
        """Receive a value that `peer` sends, in this program or from another one; returns its name.

        Parameters
        ----------
        device
            Who gets the value.
        name
            Its name there.
        nbytes
            Its size.
        peer
            Who sends it.
        label
            For timelines.
        priority
            Smaller goes first.
        """
        note = Annotation(label=label, nbytes=nbytes)
        self._add(device, "recv", (), {name: nbytes}, (), priority, {"peer": peer}, note)
        return name

    def post(
        self, device: str, value: str, peer: str, name: str, *, to: str, label: str, priority: int
    ) -> None:
        """Send a copy of `value` to another program, `to` = "EPOCH/PROGRAM" of `peer`.

        Nothing here waits for it.

        Parameters
        ----------
        device
            Who has the value.
        value
            Its name there.
        peer
            Who gets it.
        name
            Its name in that program.
        to
            "EPOCH/PROGRAM" of the peer.
        label
            For timelines.
        priority
            Smaller goes first.
        """
        copy, nbytes = f"{name}>{peer}", self._bytes[device][value]
        note = Annotation(label=label, nbytes=nbytes)
        self.compute(device, "concat", [value], {copy: nbytes}, note=note, priority=priority, dim=0)
        self._add(
            device, "send", (copy,), {}, (), LATE, {"peer": peer, "name": name, "to": to}, note
        )

    def feed(self, feed: InputBinding, *, label: str) -> str:
        """Receive a value from home; returns its name."""
        note = Annotation(label=label, nbytes=feed.nbytes)
        self._add(
            feed.device,
            "recv",
            (),
            {feed.value: feed.nbytes},
            (),
            feed.priority,
            {"peer": self.home},
            note,
        )
        self.feeds.append(feed)
        return feed.value

    def result(self, result: ReceivedValue, *, label: str, priority: int = 0) -> int:
        """Send a value home; it has the same name there.

        Parameters
        ----------
        result
            Which value, and what it is.
        label
            For timelines.
        priority
            Smaller goes first.

        Returns
        -------
        int
            The id of the send.
        """
        self.results.append(result)
        return self.send(
            result.device, result.value, self.home, result.value, label=label, priority=priority
        )

    def _add(
        self,
        device: str,
        op: str,
        inputs: Sequence[str],
        outputs: Mapping[str, int],
        after: tuple[int, ...],
        priority: int,
        attrs: Mapping[str, Any],
        note: Annotation,
    ) -> int:
        rows = self._rows[device]
        if len(rows) >= MAX_INSTRUCTIONS:
            raise PlanError(
                f"this plan needs more than {MAX_INSTRUCTIONS} instructions.",
                device=device,
                next_step="Use fewer micro-batches per step.",
            )
        for value in outputs:
            if value in self._bytes[device]:
                raise PlanError(f"the value {value!r} would be made twice.", device=device)
        self._bytes[device].update(outputs)
        rows.append(
            Instruction(
                id=len(rows),
                op=op,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                after=after,
                priority=priority,
                attrs=dict(attrs),
            )
        )
        self._notes[device].append(note)
        return len(rows) - 1

    def finish(self) -> Compiled:
        """Everything collected."""
        return Compiled(
            programs={
                d: Program(name=self.name, instructions=tuple(rows))
                for d, rows in self._rows.items()
            },
            feeds=tuple(self.feeds),
            results=tuple(self.results),
            notes={device: tuple(notes) for device, notes in self._notes.items()},
            value_bytes=self._bytes,
            reductions=self.reductions,
            home=self.home,
        )
