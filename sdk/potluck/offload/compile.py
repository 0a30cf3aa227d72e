"""A shared request as programs: the pieces of all sides become segments that borrow their weights,
and ordinary instructions run, send, receive and slice. Pure.

Values keep the names of their parts on all sides. Each side does its pieces in the order in which
they were drawn up; what is sent first is needed first.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from potluck.offload.plan.lowering import DEVICE, LoweredRequest, SentPart, Shareable, SharedPiece
from potluck.offload.plan.problem import OffloadProblem
from potluck.offload.rows.tiles import Interval, TensorSlice, part_type
from potluck.records import HOME, Segment
from potluck.run.compiled_plan import Request, request
from potluck.run.stage_pieces import StagePiece
from potluck.schedule.program_builder import (
    Annotation,
    Compiled,
    InputBinding,
    ProgramBuilder,
    ReceivedValue,
)
from potluck.sessions.events import ExecutionResult
from potluck.simulate.time_spans import union_s
from potluck_wire.graph import BATCH
from potluck_wire.messages import Prepare


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Who the sides are, by device name, what kind of piece each takes, and what every operator
    costs them.
    """

    names: tuple[str, ...]  # of the devices, by side
    kinds: Mapping[str, str]  # device -> kind
    sharing: OffloadProblem
    batch: int

    def piece_s(self, shareable: Shareable, piece: SharedPiece) -> float:
        """Seconds of a piece: of each operator the overhead and its share of the rest, as the
        planner has it.
        """
        rows = {shareable.place[value]: rows for value, rows in piece.computes.items()}
        return sum(
            self.sharing.seconds(piece.side, place, stop - start)
            for place, (start, stop) in rows.items()
        )

    def part_bytes(self, shareable: Shareable, part: TensorSlice) -> int:
        """What a part takes for the batch of a request."""
        sizes = {**shareable.line.traced.hints, BATCH: self.batch}
        return part_type(shareable.line, shareable.localities, part).nbytes(sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedProgram:
    """One way to share a request: its programs, and the pieces that each device needs for them.

    `rows[device][place]`: the rows that it computes of an operator.
    """

    compiled: Compiled
    pieces: Mapping[str, tuple[StagePiece, ...]]  # by device
    rows: Mapping[str, Mapping[int, Interval]]

    @property
    def name(self) -> str:
        """What both sides call it: the agreement on who does what is this name in `Execute`."""
        return next(iter(self.compiled.programs.values())).name


def compile_shared(
    shareable: Shareable,
    shared: LoweredRequest,
    sides: Sides,
    model: Any,
    *,
    name: str,
    weight_source: str,
) -> SharedProgram:
    """The programs of `shared`; its pieces have the weights of the segment `weight_source`, as
    programs name it.

    Parameters
    ----------
    shareable
        The model.
    shared
        Its pieces and transfers.
    sides
        Who they are.
    model
        Gives the documents of the pieces.
    name
        Of the program.
    weight_source
        The segment whose weights the pieces use.
    """
    part = {DEVICE, *(step.side for step in shared.steps)}  # a helper without rows has no program
    devices = tuple(device for side, device in enumerate(sides.names) if side in part)
    build = _ProgramCompilation(shareable, sides, ProgramBuilder(name, devices, HOME))
    build.feed(shareable.line.traced.graph.inputs[0].name)
    pieces: dict[str, dict[str, StagePiece]] = {device: {} for device in sides.names}
    rows: dict[str, dict[int, Interval]] = {device: {} for device in sides.names}
    for turn, step in enumerate(shared.steps):
        if isinstance(step, SharedPiece):
            device = sides.names[step.side]
            piece = _piece(step, model, weight_source, sides.kinds[device])
            pieces[device][piece.segment.name] = piece
            build.run(step, piece.segment.name, turn)
            for value, (start, stop) in step.computes.items():
                known = rows[sides.names[step.side]].get(shareable.place[value], (start, stop))
                rows[sides.names[step.side]][shareable.place[value]] = (
                    min(known[0], start),
                    max(known[1], stop),
                )
        else:
            build.send(step, turn)
    build.results(shared.results)
    loaded = {device: tuple(found.values()) for device, found in pieces.items()}
    return SharedProgram(compiled=build.programs.finish(), pieces=loaded, rows=rows)


def shared_requests(
    run: str, epoch: int, programs: Sequence[SharedProgram], memory: Mapping[str, int]
) -> dict[str, Request]:
    """What each device is asked to prepare so that any of these programs can be executed.

    Every piece goes once.

    Parameters
    ----------
    run
        Its name.
    epoch
        Its number.
    programs
        That may be executed.
    memory
        Bytes per device.
    """
    requests = {}
    for device, memory_bytes in memory.items():
        pieces = {
            piece.segment.name: piece
            for program in programs
            for piece in program.pieces.get(device, ())
        }
        order = Prepare(run=run, epoch=epoch, memory_bytes=memory_bytes)
        compiled: Iterable[Compiled] = (program.compiled for program in programs)
        kind = next((kind for piece in pieces.values() for kind in piece.documents), "")
        requests[device] = request(device, order, tuple(pieces.values()), compiled, kind)
    return requests


def transfers(
    execution: ExecutionResult, compiled: Compiled, device: str
) -> list[tuple[int, float]]:
    """Bytes that a device sent in one request, and got of its helpers, and the seconds in which any
    were under way.

    Parameters
    ----------
    execution
        What was measured.
    compiled
        The programs that it followed.
    device
        Its name.
    """
    sent: list[tuple[float, float, int]] = []
    received: list[tuple[float, float, int]] = []
    for source, compiled_program in compiled.programs.items():
        program, notes = compiled_program.instructions, compiled.notes[source]
        for index, start_s, stop_s in execution.timelines[source].rows:
            peer = program[index].attrs["peer"] if program[index].op == "send" else None
            if peer in compiled.programs and device in (source, peer):
                (sent if source == device else received).append(
                    (start_s, stop_s, notes[index].nbytes)
                )
    found = []
    for rows in (sent, received):
        if rows:
            found.append(
                (
                    sum(n for *_, n in rows),
                    union_s([(start_s, stop_s) for start_s, stop_s, _ in rows]),
                )
            )
    return found


def computed_s(execution: ExecutionResult, compiled: Compiled, device: str) -> float:
    """Seconds in which a device ran anything of one request.

    Parameters
    ----------
    execution
        What was measured.
    compiled
        The programs that it followed.
    device
        Its name.
    """
    program = compiled.programs[device].instructions
    return sum(
        stop - start
        for index, start, stop in execution.timelines[device].rows
        if program[index].op == "run"
    )


def computing(compiled: Compiled) -> tuple[str, ...]:
    """The devices that run anything."""
    programs = compiled.programs.items()
    return tuple(
        name for name, program in programs if any(item.op == "run" for item in program.instructions)
    )


def _piece(step: SharedPiece, model: Any, weight_source: str, kind: str) -> StagePiece:
    """Called by what is in it, so that a piece that several programs run is loaded once."""
    document = model.document_of(step.graph, kind)
    name = f"rows-{hashlib.sha256(document).hexdigest()[:16]}"
    return StagePiece(
        segment=Segment(name=name, start=0, stop=1),
        documents={kind: document},
        weight_source=weight_source,
    )


class _ProgramCompilation:
    def __init__(self, shareable: Shareable, sides: Sides, programs: ProgramBuilder) -> None:
        self.model = shareable
        self.sides = sides
        self.programs = programs
        self.held: list[set[str]] = [set() for _ in sides.names]  # the values of each side

    def feed(self, tensor: str) -> None:
        """The input comes from home to the device."""
        part = self.model.input_part
        feed = InputBinding(
            device=self.sides.names[DEVICE],
            value=part.name,
            tensor=tensor,
            stop=self.sides.batch,
            nbytes=self._bytes(part),
        )
        self.programs.feed(feed, label="in")
        self.held[DEVICE].add(part.name)

    def run(self, step: SharedPiece, segment: str, turn: int) -> None:
        """One piece."""
        side = step.side
        outputs = {part.name: self._bytes(part) for part in step.gives}
        note = Annotation(
            label=_label(step, self.model),
            seconds=self.sides.piece_s(self.model, step),
            nbytes=self._working(step),
        )
        self.programs.compute(
            self.sides.names[side],
            "run",
            [part.name for part in step.takes],
            outputs,
            note=note,
            priority=turn,
            segment=segment,
            key=segment,
            train=False,
            rows=[0, self.sides.batch, self.sides.batch],
            micro_batch=0,
        )
        self.held[side].update(outputs)

    def send(self, step: SentPart, turn: int) -> None:
        """Rows go over; those of the input are cut out of it first."""
        side, part = step.side, step.part
        source, target = self.sides.names[side], self.sides.names[step.to]
        if part.name not in self.held[side]:
            input_part, axis = self.model.input_part, self.model.rows_of(part.value)[0]
            nbytes = self._bytes(part)
            self.programs.compute(
                source,
                "slice",
                [input_part.name],
                {part.name: nbytes},
                note=Annotation(label="cut", nbytes=nbytes),
                priority=turn,
                dim=axis,
                start=part.start - input_part.start,
                stop=part.stop - input_part.start,
            )
            self.held[side].add(part.name)
        self.programs.send(source, part.name, target, part.name, label=_rows(part), priority=turn)
        self.held[step.to].add(part.name)

    def results(self, parts: Sequence[TensorSlice]) -> None:
        """The outputs go home."""
        graph = self.model.line.traced.graph
        by_ref = {part.ref: part for part in parts}
        for ref in dict.fromkeys(output.ref for output in graph.outputs):
            part = by_ref[ref]
            name = next(output.name for output in graph.outputs if output.ref == ref)
            result = ReceivedValue(
                device=self.sides.names[DEVICE],
                value=part.name,
                tensor=name,
                kind="output",
                stop=self.sides.batch,
                nbytes=self._bytes(part),
            )
            self.programs.result(result, label="out")

    def _bytes(self, part: TensorSlice) -> int:
        return self.sides.part_bytes(self.model, part)

    def _working(self, step: SharedPiece) -> int:
        """The most bytes of its own values that a piece holds at once, where each goes after its
        last use.
        """
        ends: dict[int, int] = {}
        for turn, value in enumerate(step.computes):
            ends |= {ref.value: turn for ref in self.model.reads(value)} | {value: turn}
        held = peak = 0
        for turn, (value, rows) in enumerate(step.computes.items()):
            held += self._bytes(TensorSlice(value, *rows))
            peak = max(peak, held)
            gone = [other for other, end in ends.items() if end == turn and other in step.computes]
            held -= sum(self._bytes(TensorSlice(other, *step.computes[other])) for other in gone)
        return peak


def _rows(part: TensorSlice) -> str:
    return f"{part.start}-{part.stop}"


def _label(step: SharedPiece, model: Shareable) -> str:
    """Which operators it computes, by their places: first to last."""
    places = [model.place[value] for value in step.computes]
    return f"{places[0]}" if len(places) == 1 else f"{places[0]}-{places[-1]}" if places else "join"
