"""A cluster of cores in memory: a notebook, devices that hear each other, and workers that add.

Messages are delivered one after the other, in the order in which they were sent, and none is lost
unless a test takes it. Time stands still unless it is moved.
"""

import array
import json
from collections import deque
from typing import Any

from tests.agent.core.core_driver import CAN, OWNER_KEY, OWNER_SENDER, add, recv, send

from potluck_agent.core.events import (
    MEMBER,
    FromPeer,
    FromWorker,
    LinkReset,
    Report,
    Sender,
    Span,
    StartWorker,
    Store,
    Tick,
    ToPeer,
    ToWorker,
)
from potluck_agent.core.machine import Core
from potluck_agent.core.outbox import Settings
from potluck_wire import messages as m
from potluck_wire.limits import ANSWER, ASK

ARENA_BYTES = 1 << 16
SERVICE = "double-1"
DOUBLE = (recv("x"), add("x", "x", "y"), send("y"))
X = {"name": "x", "dtype": "float32", "shape": [2]}
RUN_S, LIMIT_S = 0.1, 1.0
PAIRS_S = 0.15  # that two rows take
PAIRS = {"rows": 2, "program": "pairs", "run_s": PAIRS_S, "inputs": [{**X, "shape": [2, 2]}]}


def floats(*numbers: float) -> bytes:
    return array.array("f", numbers).tobytes()


class AddingWorker:
    """Loads anything, and adds. `answers` False: it keeps its orders to itself."""

    def __init__(self) -> None:
        self.inbound, self.outbound = bytearray(ARENA_BYTES), bytearray(ARENA_BYTES)
        self.values: dict[str, bytes] = {}
        self.answers = True
        self.n_computed = self.offset = 0

    def carry_out(self, order: m.Message, now_s: float) -> list[FromWorker]:
        match order:
            case m.LoadSegment(slot=slot):
                return [FromWorker(m.SegmentLoaded(slot=slot))]
            case m.Put():
                data = self.inbound[order.offset : order.offset + order.nbytes]
                self.values[order.value] = bytes(data)
                return [FromWorker(m.Freed(offset=order.offset))]
            case m.Forget(prefix=prefix):
                self.values = {k: v for k, v in self.values.items() if not k.startswith(prefix)}
            case m.Compute():
                self.n_computed += 1
                return [self._add(order, now_s)] if self.answers else []
        return []

    def _add(self, order: m.Compute, now_s: float) -> FromWorker:
        first, second = (array.array("f", self.values[name]) for name in order.inputs)
        total = floats(*(a + b for a, b in zip(first, second, strict=True)))
        self.values[order.outputs[0]] = total
        rows = []
        for name in order.exports:
            self.offset = (self.offset + 64) % ARENA_BYTES
            self.outbound[self.offset : self.offset + len(total)] = total
            rows.append([name, self.offset, len(total), "float32", [len(total) // 4]])
        done = m.Computed(tag=order.tag, start_s=now_s, stop_s=now_s + RUN_S)
        return FromWorker(done, (json.dumps(rows).encode(),))


class CoreCluster:
    """Devices by name, `a`, `b` and so on; each has the service where `serves` says so."""

    def __init__(self, names: str = "ab", serves: str = "") -> None:
        self.now_s = 10.0
        self.keys = {name: name * 40 for name in names}
        self.name_of = {key: name for name, key in self.keys.items()}
        self.workers = {name: AddingWorker() for name in names}
        self.cores = {name: Core(self._settings(name)) for name in names}
        self.post: deque[tuple[str, str, m.Message, tuple[bytes, ...]]] = deque()
        self.home: list[tuple[str, m.Message, tuple[bytes, ...]]] = []  # what the notebook heard
        self.said: list[tuple[str, str, m.Message]] = []  # between devices
        self.lost: Any = lambda sender, to, message: False
        self.reports: list[str] = []
        self.taken_over: set[str] = set()  # a test speaks for these; they only take values
        self.n_asks = self.n_values = 0
        self.n_steps = 0
        for name in names:
            self.tell(name, m.Hello(major=1, minor=12, name="notebook"))
            self.tell(name, m.Roster(home="h"), json.dumps(self.roster()).encode())
        for name in serves or names:
            programs = [{"name": p, "instructions": list(DOUBLE)} for p in ("p", "pairs")]
            document = json.dumps({"segments": [], "programs": programs}).encode()
            self.tell(name, m.Prepare(run=f"r-{name}", epoch=0), document)
            self.tell(name, m.Commit(run=f"r-{name}", epoch=0))

    def _settings(self, name: str) -> Settings:
        return Settings(
            name=name,
            key=self.keys[name],
            memory_bytes=1 << 20,
            inbound_bytes=ARENA_BYTES,
            outbound_bytes=ARENA_BYTES,
            grace_s=1e6,
            hang_s=1e6,
        )

    def roster(self) -> list[dict[str, str]]:
        return [
            {"name": name, "key": key, "address": f"127.0.0.1:{47600 + 4 * index}"}
            for index, (name, key) in enumerate(self.keys.items())
        ]

    # --- what is said -----------------------------------------------------------------------------

    def tell(self, name: str, message: m.Message, *buffers: bytes) -> None:
        """The notebook says something to a device, and all that follows is done."""
        self._feed(name, FromPeer(sender=OWNER_SENDER, message=message, buffers=buffers))
        self.deliver()

    def as_member(self, sender: str, to: str, message: m.Message, *buffers: bytes) -> None:
        """A device that was taken over says something to another one."""
        self.taken_over.add(sender)
        self.post.append((sender, to, message, buffers))
        self.deliver()

    def reset(self, name: str, peer: str, **which: bool) -> None:
        """The connections between two devices are new ones, as one of them sees it."""
        self.happen(name, LinkReset(key=self.keys[peer], **which))

    def happen(self, name: str, event: Any) -> None:
        """Something happens to a device."""
        self._feed(name, event)
        self.deliver()

    def tick(self, after_s: float = 0.0) -> None:
        """Time passes, for all."""
        self.now_s += after_s
        for name in self.cores:
            self._feed(name, Tick())
        self.deliver()

    def deliver(self) -> None:
        """All that is on its way, and what follows from it."""
        while self.post:
            sender, to, message, buffers = self.post.popleft()
            if self.lost(sender, to, message):
                continue
            self.said.append((sender, to, message))
            if to in self.taken_over:
                if isinstance(message, m.Value):
                    done = m.Credit(
                        transfer=message.transfer, received_bytes=message.nbytes, done=True
                    )
                    self.post.append((to, sender, done, ()))
                continue
            who = Sender(key=self.keys[sender], role=MEMBER, name=sender)
            self._feed(to, FromPeer(sender=who, message=message, buffers=buffers))

    def _feed(self, name: str, event: Any) -> None:
        core, events = self.cores[name], deque([event])
        while events:
            for action in core.handle(events.popleft(), self.now_s):
                events += self._do(name, action)
            wake_s = core.wake_s()
            if not events and wake_s is not None and wake_s <= self.now_s:
                events.append(Tick())

    def _do(self, name: str, action: Any) -> list[Any]:
        worker = self.workers[name]
        match action:
            case StartWorker():
                return [FromWorker(m.WorkerReady(), (json.dumps(CAN).encode(),))]
            case Store():
                worker.inbound[action.offset : action.offset + len(action.data)] = action.data
            case ToWorker():
                return worker.carry_out(action.message, self.now_s)
            case Report():
                self.reports.append(action.text)
            case ToPeer():
                buffers = tuple(self._bytes(worker, part) for part in action.buffers)
                if action.key == OWNER_KEY:
                    self._came_home(name, action.message, buffers)
                else:
                    self.post.append((name, self.name_of[action.key], action.message, buffers))
        return []

    def _bytes(self, worker: AddingWorker, part: Any) -> bytes:
        if not isinstance(part, Span):
            return bytes(part)
        arena = worker.inbound if part.arena == "inbound" else worker.outbound
        return bytes(arena[part.offset : part.offset + part.nbytes])

    def _came_home(self, name: str, message: m.Message, buffers: tuple[bytes, ...]) -> None:
        self.home.append((name, message, buffers))
        if isinstance(message, m.Value):
            done = m.Credit(transfer=message.transfer, received_bytes=message.nbytes, done=True)
            self.post_home(name, done)

    def post_home(self, name: str, message: m.Message) -> None:
        """The notebook's word comes when the core has done what it is at."""
        event = FromPeer(sender=OWNER_SENDER, message=message)
        for action in self.cores[name].handle(event, self.now_s):
            self._do(name, action)

    # --- services ---------------------------------------------------------------------------------

    def grant(self, name: str, *peers: dict[str, Any], **changes: Any) -> m.Message:
        """Let these members ask; returns what the device answered."""
        fields = {
            "service": SERVICE,
            "run": f"r-{name}",
            "program": "p",
            "run_s": RUN_S,
            "limit_s": LIMIT_S,
        }
        known = {"inputs": [X], "sizes": [PAIRS], "peers": list(peers)}
        known |= {key: changes.pop(key) for key in ("inputs", "sizes") if key in changes}
        document = json.dumps(known).encode()
        n_heard = len(self.home)
        self.tell(name, m.GrantService(**{**fields, **changes}), document)
        return next(message for _, message, _ in self.home[n_heard:])

    def grant_all(self, asks_per_s: float = 100.0) -> "CoreCluster":
        """Everybody may ask everybody, and has heard how all of them stand."""
        for name in self.cores:
            others = [each for each in self.cores if each != name]
            self.grant(name, *(may(each, asks_per_s) for each in others))
        self.tick(1.0)
        return self

    def ask(self, name: str, *numbers: float, left_s: float = LIMIT_S) -> int:
        """The notebook asks a device as an entrance, with a row of two numbers or two of them;
        returns the request's number.
        """
        number, data = self.number(), floats(*(numbers or (1.0, 2.0)))
        pairs = {"shape": (2, 2), "nbytes": 16, "chunk_bytes": 16} if len(data) > 8 else {}
        ask = m.Ask(number=number, service=SERVICE, left_s=left_s, rows=1 + bool(pairs))
        self.tell(name, ask)
        self.tell(name, self.value(number, **pairs), data)
        return number

    def number(self) -> int:
        """Of one more request of the notebook."""
        self.n_asks += 1
        return self.n_asks

    def step(self, name: str) -> None:
        """The notebook has its own program executed there."""
        self.n_steps += 1
        step = {"run": f"r-{name}", "program": "p", "step": self.n_steps}
        self.tell(name, m.Execute(**step))
        self.tell(name, self.value(0, **step), floats(1.0, 2.0))

    def value(self, number: int, **changes: Any) -> m.Value:
        """The header of an input."""
        self.n_values += 1
        known = {
            "transfer": self.n_values,
            "program": ASK,
            "step": number,
            "name": "x",
            "shape": (2,),
            "nbytes": 8,
            "chunk_bytes": 8,
        }
        return m.Value(**{**known, **changes})

    def answer(self, number: int) -> tuple[m.AskEnded, bytes | None]:
        """How a request of the notebook ended, and its output."""
        (ended,) = [
            message
            for _, message, _ in self.home
            if isinstance(message, m.AskEnded) and message.number == number
        ]
        outputs = [
            buffers[0]
            for _, message, buffers in self.home
            if isinstance(message, m.Value) and (message.program, message.step) == (ANSWER, number)
        ]
        return ended, outputs[0] if outputs else None

    @property
    def n_computed(self) -> int:
        """Tasks that all workers had."""
        return sum(worker.n_computed for worker in self.workers.values())

    def ended_for(self, member: str) -> list[m.AskEnded]:
        """What a member heard of its requests."""
        return [
            message
            for _, to, message in self.said
            if to == member and isinstance(message, m.AskEnded)
        ]


def may(
    name: str, asks_per_s: float = 100.0, *, hands_on: bool = True, rows: int = 2
) -> dict[str, Any]:
    """A row of a grant."""
    return {"name": name, "asks_per_s": asks_per_s, "hands_on": hands_on, "rows": rows}
