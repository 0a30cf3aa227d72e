"""One execution of a program: which instructions are ready, which values are where, what has been
done when. Pure.

The worker carries out its tasks in the order they are queued. So a computing instruction may be
queued as soon as everything it reads is there or is made by a task queued before it. A send has to
wait until its value really exists."""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from potluck_agent.core.dependencies import DependencyGraph
from potluck_agent.core.events import Buffer, PeerDevice, Span
from potluck_agent.core.send_queue import Transfer
from potluck_wire.errors import WireCode, WireError
from potluck_wire.frames import encode
from potluck_wire.limits import MAX_INT, MAX_WORKER_HEADER_BYTES, MAX_WORKER_ITEMS
from potluck_wire.messages import HOME, Compute, Done, Failed, Put, Value
from potluck_wire.program import NAMES_AT_ONCE, Instruction
from potluck_wire.replies import read_exports

# of msgpack before a name; all that an order says beside values
_NAME_BYTES, _FIELDS_BYTES = 3, 2048
ASKED_STEP = 2**52  # steps from here on are of requests for services: no notebook counts so far
MAX_HOLD_S = 10.0  # a release time is a hint: whatever the clocks say, no value waits longer for it


class Name(NamedTuple):
    """Which execution: a program of an epoch of a run, at a step."""

    run: str
    epoch: int
    program: str
    step: int

    @classmethod
    def of(cls, message: Any) -> "Name":
        """That which a message is about: `Execute`, `Done`, `Value`, ..."""
        return cls(message.run, message.epoch, message.program, message.step)

    @property
    def prefix(self) -> str:
        """How the worker calls everything of it."""
        return f"{self.run}/{self.epoch}/{self.program}/{self.step}/"

    def towards(self, target: tuple[int, str] | None) -> "Name":
        """The execution of this (epoch, program) at the same step.

        None: this very execution, over there.
        """
        return self if target is None else self._replace(epoch=target[0], program=target[1])

    def value(self, value: Value) -> Value:
        """A value of a request for a service, as one of this execution."""
        return replace(value, **self._asdict())

    def failed(self, cause: str, text: str, instruction: int = -1) -> Failed:
        """How it is told that it failed."""
        return Failed(**self._asdict(), instruction=instruction, cause=cause, text=text)


class Correspondent(NamedTuple):
    """Who stands for a peer of a program that was asked for, and how values are called there: of no
    run, of this program, at step `number`.
    """

    key: str
    program: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """A value that can be sent: where its bytes are."""

    span: Span
    dtype: str
    shape: tuple[int, ...]


class Unwanted(Exception):
    """A value that is not taken: `code` as in `Rejected`."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyValue:
    """A value that came before its execution began."""

    located: Located | None  # where its place is held, as it is to be sent on
    worker_bytes: int  # that the worker holds, as it computes with it
    start_s: float
    stop_s: float


@dataclass(frozen=True, slots=True)
class OneWay:
    """All one-way sends of a notebook."""

    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOf:
    """Which send a transfer is of. `one_way`: it is for another program, and its own one does not
    wait for it.
    """

    name: Name
    index: int
    one_way: bool = False

    def group(self, owner: str) -> Hashable:
        """What it is cancelled with: its execution, which a one-way send outlives."""
        return OneWay(owner) if self.one_way else self.name


@dataclass(slots=True)
class Ready:
    """What has become ready: instructions for the worker, sends for the network."""

    tasks: list[int] = field(default_factory=list)
    sends: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)  # receives that are over, for the record


class Execution:
    """The state of one execution. `owner` is the key of the notebook that asked for it.

    `order` is its age.

    `begin_s`: when all devices begin it together, by our clock; 0: nobody knows.
    """

    def __init__(
        self, name: Name, layout: DependencyGraph, owner: str, order: int, begin_s: float = 0.0
    ) -> None:
        self.name = name
        self.layout = layout
        self.owner = owner
        self.order = order
        self.begin_s = begin_s
        self.places: dict[str, Located] = {}  # values that are to be sent
        self.busy_s = self._done_s = 0.0
        self.peak_bytes = 0
        self.early: dict[
            str, EarlyValue
        ] = {}  # values that came before it began and are not used yet
        # of a request for a service: who its peers are, and who hears how it ends
        self.peers: Mapping[str, Correspondent] = {}
        self.ends: Callable[[Done | Failed, float], None] | None = None
        self.over = False
        self.closing = False  # all is done, and its answer is being written
        self._uses_left = dict(layout.uses)
        self._sends_left = dict(layout.sends)
        self._exchanges_left = Counter(layout.exchanged)
        self._posted: set[int] = set()
        self._times: dict[int, tuple[float, float]] = {}
        self._n_left = len(layout.waits)
        self._n_with_worker = 0
        self._waits = list(layout.waits)
        self._arrived: dict[int, tuple[float, float]] = {}

    @property
    def complete(self) -> bool:
        """Whether every instruction is done."""
        return self._n_left == 0

    @property
    def only_computing(self) -> bool:
        """Whether nothing is left but tasks that the worker has: what is queued now comes behind
        them.
        """
        return self._n_left == self._n_with_worker

    def instruction(self, index: int) -> Instruction:
        """Instruction `index`."""
        return self.layout.program.instructions[index]

    def start(self) -> Ready:
        """What is ready at once."""
        return self._sort(list(self.layout.first))

    def queued(self, index: int) -> tuple[Ready, tuple[str, ...]]:
        """Task `index` goes to the worker: what may follow it there, and the values that die with
        it.
        """
        self._n_with_worker += 1
        instruction = self.instruction(index)
        frees = []
        for value in sorted(set(instruction.inputs)):
            self._uses_left[value] -= 1
            if not self._uses_left[value]:
                frees.append(value)
        frees += [value for value in instruction.outputs if not self._uses_left.get(value)]
        followers = [
            other for other in self.layout.followers[index] if not self.layout.is_network(other)
        ]
        return self._release(followers), tuple(frees)

    def computed(self, index: int, start_s: float, stop_s: float) -> Ready:
        """Task `index` is done: what was waiting for that and is not done by the worker."""
        # tasks are done one after the other
        self.busy_s += max(0.0, stop_s - max(start_s, self._done_s))
        self._done_s = stop_s
        self._n_with_worker -= 1
        self._record(index, start_s, stop_s)
        return self._release(
            [other for other in self.layout.followers[index] if self.layout.is_network(other)]
        )

    def arrived(self, value: str, start_s: float, stop_s: float) -> Ready:
        """A value has come in from another device."""
        index, peer = self.layout.receives[value]
        self._exchanges_left[peer] -= 1
        self._arrived[index] = (start_s, stop_s)
        return self._release([index])

    def has_arrived(self, value: str) -> bool:
        """Whether this value has come in."""
        return value in self.early or self.layout.receives[value][0] in self._arrived

    def sent(self, index: int, start_s: float, stop_s: float) -> tuple[Ready, bool]:
        """Send `index` is acknowledged: what may follow, and whether its value has no more sends
        before it.
        """
        self._record(index, start_s, stop_s)
        (value,) = self.instruction(index).inputs
        self._sends_left[value] -= 1
        last = not self._sends_left[value]
        return self._release(list(self.layout.followers[index])), last

    def posted(self, index: int) -> None:
        """Send `index` is with the send queue."""
        self._posted.add(index)
        self._exchanges_left[self.instruction(index).attrs["peer"]] -= 1

    def unsent(self, peer: str) -> list[int]:
        """The sends to this peer that were posted: they are not, and wait to be posted again."""
        found = [i for i in sorted(self._posted) if self.instruction(i).attrs["peer"] == peer]
        for index in found:
            self._posted.remove(index)
            if self._times.pop(index, None) is not None:
                self._n_left += 1
                (value,) = self.instruction(index).inputs
                self._sends_left[value] += 1
        return found

    def goes_on_after(self, value: str) -> bool:
        """Whether, in training, more goes to and fro between us and the device that this value is
        coming from.
        """
        _, peer = self.layout.receives[value]
        return self._exchanges_left[peer] > 1

    def release_s(self, index: int) -> float:
        """When send `index` had better leave, by our clock; 0: at once."""
        after_s = self.layout.release_s(index)
        return self.begin_s + after_s if self.begin_s and after_s else 0.0

    def exports(self, index: int) -> tuple[str, ...]:
        """Outputs of a task that are to be sent."""
        return tuple(
            value for value in self.instruction(index).outputs if value in self.layout.sends
        )

    def exported(
        self, index: int, document: Buffer, arena_bytes: int, worker: int = 0
    ) -> dict[str, Located]:
        """Where its worker, of that number, says that it has put the exports of a task.

        WireError where it cannot have.
        """
        prefix = self.name.prefix
        rows = read_exports(
            document, tuple([prefix + value for value in self.exports(index)]), arena_bytes
        )
        return {
            key.removeprefix(prefix): Located(
                span=Span(arena="outbound", offset=offset, nbytes=nbytes, worker=worker),
                dtype=dtype,
                shape=shape,
            )
            for key, offset, nbytes, dtype, shape in rows
        }

    def events(self, start: int, stop: int) -> list[list[Any]]:
        """[instruction, start_s, stop_s] of these instructions; all of them are done."""
        return [
            [index, *[round(moment_s, 6) for moment_s in self._times[index]]]
            for index in range(start, stop)
        ]

    def done(self) -> Done:
        """How it is told that it went well."""
        return Done(**self.name._asdict(), busy_s=self.busy_s, peak_bytes=self.peak_bytes)

    def _release(self, indices: list[int]) -> Ready:
        free = []
        for index in indices:
            self._waits[index] -= 1
            if not self._waits[index]:
                free.append(index)
        return self._sort(free)

    def _sort(self, indices: list[int]) -> Ready:
        """Ready instructions by queue. A receive whose value is here is done on the spot, and frees
        others.
        """
        ready = Ready()
        pending = list(indices)
        while pending:
            index = pending.pop()
            op = self.instruction(index).op
            if op == "send":
                ready.sends.append(index)
            elif op == "recv":
                self._record(index, *self._arrived[index])
                ready.done.append(index)
                for other in self.layout.followers[index]:
                    self._waits[other] -= 1
                    if not self._waits[other]:
                        pending.append(other)
            else:
                ready.tasks.append(index)
        ready.tasks.sort()
        ready.sends.sort()
        return ready

    def _record(self, index: int, start_s: float, stop_s: float) -> None:
        self._times[index] = (start_s, stop_s)
        self._n_left -= 1


def key_of(
    peer: str,
    owner: str,
    members: Callable[[str], dict[str, PeerDevice]],
    execution: Execution | None,
) -> str:
    """Who that peer of a program of notebook `owner` is; empty: nobody."""
    if execution is not None and execution.peers:
        known = execution.peers.get(peer)
        return known.key if known is not None else ""
    member = members(owner).get(peer)
    return owner if peer == HOME else member.key if member else ""


def transfer_of(
    execution: Execution, index: int, located: Located, key: str, now_s: float
) -> Transfer:
    """Send `index`, of a value that lies there, as the send queue takes it.

    `key`: whom it goes to.
    """
    instruction = execution.instruction(index)
    target = execution.layout.targets.get(index)
    name = execution.name.towards(target)
    if (to := execution.peers.get(instruction.attrs["peer"])) is not None:
        name = Name("", 0, to.program, to.number)
    value = Value(
        **name._asdict(),
        name=instruction.attrs["name"],
        dtype=located.dtype,
        shape=located.shape,
        nbytes=located.span.nbytes,
    )
    about = SendOf(name=execution.name, index=index, one_way=target is not None)
    return Transfer(
        key=key,
        value=value,
        place=located.span,
        priority=instruction.priority,
        about=about,
        group=about.group(execution.owner),
        owner=execution.owner,
        release_s=min(execution.release_s(index), now_s + MAX_HOLD_S),
        pace_bytes_per_s=execution.layout.pace_bytes_per_s(index),
    )


def put_of(value: Value, span: Span) -> Put:
    """How the worker is told of a value that lies there."""
    name = Name.of(value)
    return Put(
        value=name.prefix + value.name,
        offset=span.offset,
        nbytes=span.nbytes,
        dtype=value.dtype,
        shape=value.shape,
    )


def compute_of(
    execution: Execution, index: int, tag: int, frees: tuple[str, ...], *, is_told_times: bool
) -> Compute:
    """Task `index` as the worker is told it; the values `frees` die with it."""
    instruction, prefix = execution.instruction(index), execution.name.prefix
    return Compute(
        tag=tag,
        op=instruction.op,
        slot=slot_of(execution.name, instruction.attrs.get("segment")),
        step=execution.name.step,
        inputs=tuple(prefix + value for value in instruction.inputs),
        outputs=tuple(prefix + value for value in instruction.outputs),
        exports=tuple(prefix + value for value in execution.exports(index)),
        frees=tuple(prefix + value for value in frees),
        scope=prefix,
        lasts_s=execution.layout.lasts_s(index) if is_told_times else 0.0,
    )


def slot_of(name: Name, segment: Any) -> str:
    """What the worker calls a segment: of this epoch by its name, of another as `EPOCH/NAME`.

    None is the empty one.
    """
    if not segment:
        return ""
    return f"{name.run}/{segment}" if "/" in segment else f"{name.run}/{name.epoch}/{segment}"


def check_tellable(run: str, epoch: int, layout: DependencyGraph) -> None:
    """WireError where the worker could not be told an instruction of this program, whatever the
    step.

    Names come to it with those of run, epoch, program and step, up to three times each. So a
    program may hold and still have more of them in one instruction than fit into a message."""
    execution = Execution(Name(run, epoch, layout.name, MAX_INT), layout, "", 0)
    for instruction in layout.program.instructions:
        values = (*instruction.inputs, *instruction.outputs)
        if layout.is_network(instruction.id) or len(values) <= NAMES_AT_ONCE:
            continue
        if (
            _most_bytes(execution, instruction) <= MAX_WORKER_HEADER_BYTES
            and len(values) <= MAX_WORKER_ITEMS
        ):
            continue
        order = compute_of(
            execution, instruction.id, MAX_INT, tuple(dict.fromkeys(values)), is_told_times=True
        )
        try:
            encode(order, (layout.attrs[instruction.id],))
        except WireError as error:
            where = f"program {layout.name}, instruction {instruction.id} ({instruction.op})"
            text = (
                f"{where}: its {len(values)} values are more than a worker can be told at once "
                f"({error.text})"
            )
            raise WireError(WireCode.DOCUMENT, text) from None


def _most_bytes(execution: Execution, instruction: Instruction) -> int:
    """More than the names of an instruction take in the message to the worker.

    Much sooner known than made.
    """
    n_inputs, n_outputs = len(instruction.inputs), len(instruction.outputs)
    prefix_bytes = len(execution.name.prefix) + _NAME_BYTES
    names_bytes = 2 * sum(map(len, instruction.inputs)) + 3 * sum(map(len, instruction.outputs))
    return names_bytes + (2 * n_inputs + 3 * n_outputs) * prefix_bytes + _FIELDS_BYTES
