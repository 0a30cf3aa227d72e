"""What is loaded here: runs, their plan epochs, and the documents of a `Prepare`.

Records and checks only.
"""

import gc
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from potluck_agent.core.dependencies import DependencyGraph, lay_out
from potluck_agent.core.events import Buffer
from potluck_agent.core.execution import Name, check_tellable
from potluck_wire.checks import anything, one_of, record, rows, which
from potluck_wire.documents import parse
from potluck_wire.errors import WireCode, WireError
from potluck_wire.limits import MIB, is_identifier
from potluck_wire.messages import MESSAGES, NUMBER_OF, Message, Prepare
from potluck_wire.program import from_json, is_segment
from potluck_wire.statement import BACKEND_OF

MAX_SEGMENTS = MESSAGES[NUMBER_OF[Prepare]].buffers[1] - 1  # each has a buffer
MAX_PROGRAMS = 1024  # of one epoch; a plan has a handful
MAX_RUNS = 16
MAX_EPOCHS = 4  # of one run at once: the one that runs, the next one, and one to spare
KEPT_ANSWERS = 32  # whole answers to executions, for repeated requests; fewer where they are long
KEPT_ANSWERS_BYTES = 8 * MIB
KEPT_NAMES = 8192  # names of finished executions, for repeated values and requests


@dataclass(slots=True, kw_only=True)
class Epoch:
    """One plan of a run. It is prepared once `loading` is empty: slots that the worker has not
    filled -> segments.
    """

    number: int
    document_bytes: int
    memory_bytes: int
    layouts: dict[str, DependencyGraph]
    loading: dict[str, str]
    credit_along: bool = False  # its devices know `Value.received`

    def need_alone(self, memory_bytes: int) -> None:
        """Once it is in force: give back what was only for the time beside the plan before; 0:
        nothing.
        """
        self.memory_bytes = min(self.memory_bytes, memory_bytes or self.memory_bytes)


Answer = tuple[Message, tuple[Buffer, ...]]


@dataclass(slots=True, kw_only=True)
class LoadedRun:
    """A run of one notebook. `committed` is the epoch in force, -1 before the first commit.

    `lease`, `term`: under which a coordinator trains it.
    """

    name: str
    owner: str
    lease: str = ""
    term: int = 0
    committed: int = -1
    epochs: dict[int, Epoch] = field(default_factory=dict)
    answers: OrderedDict[Name, Answer | None] = field(default_factory=OrderedDict)
    _whole: deque[Name] = field(default_factory=deque)  # whose answers are kept, oldest first
    _whole_bytes: int = 0

    @property
    def memory_bytes(self) -> int:
        """What its largest epoch needs: on a switch the new plan takes the place of the old one."""
        return max((epoch.memory_bytes for epoch in self.epochs.values()), default=0)

    def answered(self, name: Name, answer: Answer) -> None:
        """That execution is over; remember what was said."""
        before = self.answers.get(name)
        if before is None:
            self._whole.append(name)
        self._whole_bytes += _bytes_of(answer) - _bytes_of(before)
        self.answers[name] = answer
        while len(self._whole) > KEPT_ANSWERS or (
            len(self._whole) > 1 and self._whole_bytes > KEPT_ANSWERS_BYTES
        ):
            older = self._whole.popleft()
            self._whole_bytes -= _bytes_of(self.answers.get(older))
            self.answers[older] = None
        while len(self.answers) > KEPT_NAMES:
            self.answers.popitem(last=False)


def _bytes_of(answer: Answer | None) -> int:
    return sum(map(len, answer[1])) if answer is not None else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSpec:
    """A segment to be loaded. `weights`: the segment whose state it has, as programs name it.

    Empty: its own.
    """

    name: str
    kind: str
    weights: str
    document: Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareRequest:
    """What a `Prepare` asks for: the segments and the programs."""

    segments: tuple[SegmentSpec, ...]
    layouts: dict[str, DependencyGraph]


_LOAD = record(
    segments=rows(
        record(
            ("weights",),
            name=which(is_identifier, "an identifier"),
            kind=one_of(BACKEND_OF),
            weights=which(is_segment, "those of NAME or EPOCH/NAME"),
        ),
        max_entries=MAX_SEGMENTS,
    ),
    programs=rows(anything, max_entries=MAX_PROGRAMS),  # each is checked by `from_json`
)


def read_load(buffers: Sequence[Buffer], run: str, epoch: int) -> PrepareRequest:
    """The documents of a `Prepare` for this epoch of a run; WireError where they do not hold."""
    with _uncollected():
        return _read_load(buffers, run, epoch)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without looking for garbage: each of many new objects is in use, and looking took half of the
    time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _read_load(buffers: Sequence[Buffer], run: str, epoch: int) -> PrepareRequest:
    document = parse(buffers[0], "the plan", _LOAD)
    named = document["segments"]
    if len(named) != len(buffers) - 1:
        raise WireError(
            WireCode.DOCUMENT, f"{len(named)} segments are named, {len(buffers) - 1} came"
        )
    segments = tuple(
        SegmentSpec(
            name=piece["name"], kind=piece["kind"], weights=piece.get("weights", ""), document=data
        )
        for piece, data in zip(named, buffers[1:], strict=True)
    )
    layouts = [lay_out(from_json(program)) for program in document["programs"]]
    for what in ([piece.name for piece in segments], [layout.name for layout in layouts]):
        if len(set(what)) < len(what):
            raise WireError(WireCode.DOCUMENT, "two segments or two programs have one name")
    for layout in layouts:
        check_tellable(run, epoch, layout)
    return PrepareRequest(segments=segments, layouts={layout.name: layout for layout in layouts})
