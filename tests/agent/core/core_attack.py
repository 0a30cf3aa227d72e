"""A core under attack: notebooks, members and a worker that say what they like, and a look at all
that it does.

Every message that the core wants sent is made as the edge would make it, and every place lies in
its memory.
"""

import json
import random
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from tests.agent.core.core_driver import (
    CAN,
    MEMBER_KEY,
    MEMBER_SENDER,
    OTHER_SENDER,
    OWNER_KEY,
    OWNER_SENDER,
    add,
    cut,
    recv,
    send,
    settings,
)
from tests.fuzz import NUMBERS, RAW, mutated, some

from potluck_agent.core.events import (
    DONE,
    FAILED,
    MOVES,
    FromDisk,
    FromPeer,
    FromWorker,
    KillWorker,
    LinkReset,
    MayStay,
    MemberLost,
    MustLeave,
    PeerRevoked,
    ReadKept,
    Span,
    StartWorker,
    Store,
    Tick,
    ToPeer,
    ToWorker,
    Undone,
    WorkerDied,
    WriteKept,
)
from potluck_agent.core.machine import Core
from potluck_agent.core.outbox import Settings
from potluck_wire import messages as m
from potluck_wire.frames import encode

ARENA_BYTES = 4096
RUNS = ("r", "r", "s")
PROGRAMS = ("p", "p", "q")
STEPS = (0, 0, 1, 2)
VALUES = ("x", "y", "a", "b")
TASKS, SEGMENTS = ("t", "u"), ("s0", "s1")
ROSTER = [{"name": "phone", "key": MEMBER_KEY, "address": "127.0.0.1:47600"}]
NAMES = {
    "run": RUNS,
    "program": (*PROGRAMS, "probe"),
    "name": VALUES,
    "task": TASKS,
    "peer": ("phone", "home", "x"),
}
NAMES |= {"service": ("v", "v", "v", "x")}
NAMES |= {
    "kind": ("aten", "onnx"),
    "dtype": ("float32", "int8", "bool", "x"),
    "home": ("h",),
    "source": ("measured",),
}
NAMES |= {"cause": ("out-of-memory", "bad-input", "x"), "code": ("memory", "state", "x")}
NAMES |= {"slot": ("r/1/s0", "r/1/s1", "s/1/s0", "t"), "prefix": ("r/1/",), "value": ("r/1/p/0/x",)}
CONTROLS = [e for e in m.MESSAGES.values() if e.channel is m.Channel.CONTROL]
FROM_WORKER = [e for e in m.MESSAGES.values() if e.channel is m.Channel.WORKER]
# what notebooks say, the usual more often
REQUESTS = (1, 4, 12, 12, 14, 16, 16, 16, 16, 19, 20, 20, 22, 24, 28, 28)
GRANT = {
    "inputs": [{"name": "x", "dtype": "float32", "shape": [2]}],
    "peers": [{"name": "phone", "asks_per_s": 1e3, "hands_on": True}],
}
# of three rows at once
SIZES = [{"rows": 3, "program": "g", "run_s": 0.7, "inputs": GRANT["inputs"]}]
# of a program that several share, the first part and a later one
THEN = {"peer": "phone", "service": "w", "devices": ["phone"], "inputs": ["x"], "outputs": ["b"]}
FIRST_PART = {**GRANT, "then": THEN}
LATER_PART = {"inputs": [{**GRANT["inputs"][0], "name": "b"}], "peers": GRANT["peers"]}
LATER_PART |= {"before": ["phone"]}
OF_ASKS = (m.Ask, m.Ask, m.Value, m.Value, m.AskEnded, m.Standing)
PATHS = ((), ("phone",), ("phone",), ("jetson",), ("x", "phone"), ("phone", "phone"), ("\x1b",))
CONTENTS = (b"", b"c" * 32, b"d" * 32)
RUN_ATTRS = {"segment": "s0", "key": "k", "train": True, "rows": [0, 1, 1], "micro_batch": 0}


def message(kind: type, rng: random.Random, **known: Any) -> m.Message:
    """A message of that type that may be sent, of small numbers and known names mostly."""
    values = {}
    for field in fields(kind):
        low = -1 if field.default == -1 else 0
        if field.type is int:
            values[field.name] = (
                rng.choice((low, 0, 1, 1, 1, 2)) if rng.random() < 0.9 else rng.choice(NUMBERS)
            )
        elif field.type is float:
            values[field.name] = rng.choice((0.0, 0.5, 1.0, -1.0, 2.0**53, -(2.0**53)))
        elif field.type is bool:
            values[field.name] = rng.random() < 0.5
        elif field.type is str:
            values[field.name] = (
                rng.choice(NAMES.get(field.name, ("", "x"))) if rng.random() < 0.95 else "n" * 512
            )
        elif field.type == tuple[int, ...]:
            values[field.name] = tuple(
                rng.choice((0, 1, 2, 8)) for _ in range(rng.choice((0, 1, 1, 2)))
            )
        elif field.type == tuple[str, ...]:
            values[field.name] = rng.choice(PATHS)
        elif field.type == tuple[float, ...]:
            values[field.name] = tuple(
                rng.choice((0.0, 1.0, -1.0)) for _ in range(rng.choice((0, 1, 2, 70)))
            )
    return kind(**(values | known))


class CorePlay:
    """A core with a session, a roster and a plan. `hostile`: its worker has been taken over."""

    def __init__(
        self, rng: random.Random, *, hostile: bool, make_core: Callable[[Settings], Core] = Core
    ) -> None:
        self.core = make_core(settings(inbound_bytes=ARENA_BYTES, grace_s=5.0, kept_bytes=100))
        self.now_s, self.hostile = 10.0, hostile
        self.orders: list[ToWorker] = []  # that the worker has not answered
        self.at_disk: list[ReadKept | WriteKept] = []
        self.sent: list[tuple[str, m.Value]] = []
        self.last: Any = StartWorker()
        self._n_transfers = self._n_asks = 0
        self._offset = 0
        self.do(FromPeer(sender=OWNER_SENDER, message=m.Hello(major=1)))
        self.do(FromWorker(m.WorkerReady(), (json.dumps(CAN).encode(),)))
        self.do(
            FromPeer(
                sender=OWNER_SENDER,
                message=m.Roster(home="h"),
                buffers=(json.dumps(ROSTER).encode(),),
            )
        )
        self.do(
            FromPeer(
                sender=OWNER_SENDER, message=m.Prepare(run="r", epoch=1), buffers=self.plan(rng)
            )
        )
        while self.orders:
            self.do(self._honest(rng))
        self.do(FromPeer(sender=OWNER_SENDER, message=m.Commit(run="r", epoch=1)))
        self.do(FromPeer(sender=OWNER_SENDER, message=m.Execute(run="r", epoch=1, program="p")))
        self.do(self._grant(rng, good=True))
        standing = m.Standing(service="v", capacity_per_s=2.0, idle_per_s=2.0, run_s=0.5)
        self.do(FromPeer(sender=MEMBER_SENDER, message=standing))
        for _ in range(rng.choice((0, 1, 2, 3, 4))):
            self._n_asks += 1
            rows = rng.choice((1, 1, 3))
            ask = m.Ask(number=self._n_asks, service="v", left_s=1.0, rows=rows)
            self.do(FromPeer(sender=OWNER_SENDER, message=ask))
            if rng.random() < 0.7:
                self.do(self._asked(rng, OWNER_SENDER, "ask", self._n_asks))
        if rng.random() < 0.8:
            for name, sender in (("x", OWNER_SENDER), ("y", MEMBER_SENDER)):
                value = m.Value(
                    transfer=0,
                    run="r",
                    epoch=1,
                    program="p",
                    name=name,
                    shape=(2,),
                    nbytes=8,
                    chunk_bytes=8,
                )
                self.do(FromPeer(sender=sender, message=value, buffers=(bytes(8),)))

    def do(self, event: Any) -> None:
        """Hand it over, and look at what it leads to."""
        for action in self.core.handle(event, self.now_s):
            self._look(action)

    def _look(self, action: Any) -> None:
        self.last = action
        match action:
            case ToPeer():
                encode(action.message, [self._bytes(part) for part in action.buffers])
                if isinstance(action.message, m.Value):
                    self.sent = [*self.sent[-5:], (action.key, action.message)]
            case ToWorker():
                encode(action.message, action.buffers)
                if isinstance(action.message, m.Compute | m.LoadSegment | m.MeasureTask):
                    self.orders.append(action)
            case Store():
                assert 0 <= action.offset <= ARENA_BYTES - len(action.data)
            case ReadKept() | WriteKept():
                self._bytes(action.place)
                self.at_disk.append(action)
            case KillWorker():
                self.orders.clear()

    def _bytes(self, part: Any) -> Any:
        if not isinstance(part, Span):
            return part
        assert 0 <= part.offset <= part.offset + part.nbytes
        assert part.arena == "zeros" or part.offset + part.nbytes <= ARENA_BYTES
        return bytes(part.nbytes)

    # --- moves ------------------------------------------------------------------------------------

    MOVES = (
        (40, "_worker"),
        (28, "_data"),
        (14, "_service"),
        (16, "_control"),
        (6, "_plan"),
        (3, "_edge"),
        (10, "_disk"),
        (7, "_time"),
    )

    def move(self, rng: random.Random) -> None:
        """One event."""
        self.do(getattr(self, some(rng, self.MOVES))(rng))

    def _time(self, rng: random.Random) -> Any:
        self.now_s += rng.choice((0.0, 0.01, 0.01, 0.3, 0.3, 6.0, 200.0))
        return Tick()

    def _disk(self, rng: random.Random) -> Any:
        """How it gets on with what it was asked for; if with nothing, a notebook offers."""
        state = rng.choice((MOVES, DONE, DONE, FAILED))
        if self.at_disk and rng.random() < 0.7:
            order = self.at_disk[0] if state == MOVES else self.at_disk.pop(0)
            return FromDisk(order.ticket, order.place.worker, state)
        if rng.random() < 0.1:
            return FromDisk(rng.choice((0, 1, 2, 3)), rng.choice((0, 1)), state)
        self._n_transfers += rng.random() < 0.9
        known: dict[str, Any] = {"dtype": "float32", "shape": (2,), "nbytes": 8}
        where = {"run": "r", "epoch": 1, "program": rng.choice(PROGRAMS), "name": "x"}
        offer = message(
            m.Offer,
            rng,
            **(known if rng.random() < 0.9 else {}),
            **(where if rng.random() < 0.9 else {}),
            step=rng.choice(STEPS),
            transfer=self._n_transfers,
            content=rng.choice(CONTENTS),
        )
        return FromPeer(sender=self._sender(rng), message=offer)

    def _edge(self, rng: random.Random) -> Any:
        key = rng.choice((OWNER_KEY, MEMBER_KEY))
        lost = LinkReset(key=key, incoming=rng.random() < 0.5, outgoing=rng.random() < 0.5)
        return rng.choice(
            (
                lost,
                MemberLost(MEMBER_KEY),
                PeerRevoked(OWNER_KEY),
                Undone(self.last, "why"),
                self._death(),
                MustLeave(reason="the battery", within_s=rng.choice((0.0, 0.3, 60.0))),
                MayStay(),
            )
        )

    def _death(self) -> WorkerDied:
        self.orders.clear()
        return WorkerDied(m.FailureCause.CRASHED, "SIGSEGV")

    def _sender(self, rng: random.Random) -> Any:
        return rng.choice((OWNER_SENDER, OWNER_SENDER, OWNER_SENDER, OTHER_SENDER, MEMBER_SENDER))

    def _control(self, rng: random.Random) -> Any:
        entry = rng.choice(CONTROLS) if rng.random() < 0.15 else m.MESSAGES[rng.choice(REQUESTS)]
        known: dict[str, Any] = {"major": 1} if entry.type is m.Hello else {}
        buffers = [b"{}"] * entry.buffers[0]
        if entry.type is m.Roster:
            buffers = [document(ROSTER, rng)]
        if entry.type is m.Prepare:
            return self._plan(rng)
        if entry.type is m.GrantService:
            return self._grant(rng)
        return FromPeer(
            sender=self._sender(rng),
            message=message(entry.type, rng, **known),
            buffers=tuple(buffers),
        )

    def _grant(self, rng: random.Random, *, good: bool = False) -> Any:
        """Two requests at once are in time; the next is handed on."""
        program, known = rng.choice((("g", GRANT), ("g", FIRST_PART), ("q", LATER_PART)))
        if rng.random() < 0.5:
            known = {**known, "sizes": SIZES}
        required = {"service": "v", "run": "r", "epoch": 1, "program": program, "run_s": 0.5}
        if good or rng.random() < 0.6:
            grant = m.GrantService(**required, limit_s=rng.choice((1.0, 6.0)))
        else:
            grant = message(m.GrantService, rng)
        document_ = json.dumps(known).encode() if good else document(known, rng)
        sender = OWNER_SENDER if good else self._sender(rng)
        return FromPeer(sender=sender, message=grant, buffers=(document_,))

    def _service(self, rng: random.Random) -> Any:
        """About a request for a service: from whoever may ask, and who was asked."""
        sender = rng.choice((MEMBER_SENDER, MEMBER_SENDER, OWNER_SENDER, OTHER_SENDER))
        kind, number = rng.choice(OF_ASKS), rng.randint(0, self._n_asks)
        path = () if sender is OWNER_SENDER else ("phone",)
        known: dict[str, Any] = {"number": number}
        if kind is m.Ask:
            self._n_asks += rng.random() < 0.9
            known = {"number": self._n_asks, "service": "v", "path": path, "left_s": 1.0}
            known["rows"] = rng.choice((1, 1, 3))
        if kind is m.Value:
            return self._asked(rng, sender, rng.choice(("ask", "ask", "answer")), number)
        if kind is m.AskEnded and rng.random() < 0.5:
            known |= {"code": "", "path": ("phone",), "hops_s": (0.1,)}
        if kind is m.Standing:
            known = {"service": "v"}
        elif rng.random() < 0.3:
            known["path"] = rng.choice(PATHS)
        return FromPeer(sender=sender, message=message(kind, rng, **known))

    def _asked(self, rng: random.Random, sender: Any, program: str, number: int) -> Any:
        """An input or an output of a request."""
        self._n_transfers += 1
        name = rng.choice("xxxxy" if program == "ask" else "xyyyy")
        value = m.Value(
            transfer=self._n_transfers,
            program=program,
            step=number,
            name=name,
            shape=(2,),
            nbytes=8,
            chunk_bytes=8,
        )
        return FromPeer(sender=sender, message=value, buffers=(bytes(8),))

    def _plan(self, rng: random.Random) -> Any:
        buffers = self.plan(rng)
        if rng.random() < 0.6:
            buffers = (document(json.loads(buffers[0]), rng), *buffers[1:])
        epoch = rng.choice((1, 2, 2, 3, 2**53))
        return FromPeer(
            sender=self._sender(rng), message=message(m.Prepare, rng, epoch=epoch), buffers=buffers
        )

    def plan(self, rng: random.Random) -> tuple[bytes, ...]:
        """The buffers of a `Prepare` that holds: values from home and a member, tasks, a segment,
        values out.
        """
        rows = [
            recv("x"),
            recv("y", "phone"),
            add("x", "y", "a"),
            cut("a", "b", priority=rng.choice((0, -1, 5))),
        ]
        rows.append(["run", ["a"], ["c"], [], 0, RUN_ATTRS | {"segment": rng.choice(SEGMENTS)}])
        rows.append(["backward", [], ["d"], [4], 0, {"segment": "s0", "key": "k", "scale": 1.0}])
        rows += [
            send("a", "phone"),
            send("a"),
            send("x", "phone", name="z"),
            send("b", to=rng.choice(("1/q", "9/p"))),
        ]
        rows = rows[: rng.choice((3, 4, 6, 8, 10))]
        other = [recv("b", "phone"), send("b")]
        programs = [{"name": "p", "instructions": rows}, {"name": "q", "instructions": other}]
        granted = [recv("x"), add("x", "x", "y"), send("y")]
        programs.append({"name": "g", "instructions": granted})
        if rng.random() < 0.3:
            programs[0]["release_s"] = [0.5] * len(rows)
            programs[0]["pace_bytes_per_s"] = [1e6] * len(rows)
        named = [{"name": name, "kind": "aten"} for name in SEGMENTS[: rng.choice((0, 1, 2))]]
        return (
            json.dumps({"segments": named, "programs": programs}).encode(),
            *[b"{}"] * len(named),
        )

    def _data(self, rng: random.Random) -> Any:
        sender = self._sender(rng)
        if self.sent and rng.random() < 0.5:
            key, value = rng.choice(self.sent)
            sender = next((s for s in (OWNER_SENDER, MEMBER_SENDER) if s.key == key), sender)
            if rng.random() < 0.8:
                return FromPeer(
                    sender=sender,
                    message=m.Credit(
                        transfer=value.transfer, received_bytes=value.nbytes, done=True
                    ),
                )
            return FromPeer(
                sender=sender,
                message=message(rng.choice((m.Credit, m.Rejected)), rng, transfer=value.transfer),
            )
        if rng.random() < 0.2:
            return FromPeer(
                sender=sender,
                message=message(m.Chunk, rng),
                buffers=(bytes(rng.choice((0, 4, 8))),),
            )
        self._n_transfers += rng.random() < 0.9
        name = rng.choice(VALUES)
        known = {
            "shape": (2,),
            "nbytes": 8,
            "chunk_bytes": rng.choice((4, 8)),
            "dtype": "float32",
            "name": name,
        }
        if rng.random() < 0.2:
            known = {}
        value = message(
            m.Value,
            rng,
            run="r",
            epoch=1,
            program=rng.choice(PROGRAMS),
            step=rng.choice(STEPS),
            **{"transfer": self._n_transfers, **known},
            content=rng.choice((b"", *CONTENTS)),
        )
        return FromPeer(
            sender=MEMBER_SENDER if name in "yb" else OWNER_SENDER,
            message=value,
            buffers=(bytes(min(8, value.chunk_bytes)),),
        )

    # --- the worker -------------------------------------------------------------------------------

    def _worker(self, rng: random.Random) -> Any:
        return self._taken_over(rng) if self.hostile and rng.random() < 0.5 else self._honest(rng)

    def _honest(self, rng: random.Random) -> Any:
        """The answer to the oldest order."""
        if not self.orders:
            offset = rng.choice((0, 64, 128, 4096))
            return rng.choice(
                (
                    FromWorker(m.WorkerReady(), (json.dumps(CAN).encode(),)),
                    FromWorker(m.Freed(offset=offset)),
                )
            )
        order = self.orders.pop(0).message
        match order:
            case m.LoadSegment() if rng.random() < 0.9:
                return FromWorker(m.SegmentLoaded(slot=order.slot))
            case m.Compute() if rng.random() < 0.9:
                rows = [[key, self._place(), 8, "float32", [2]] for key in order.exports]
                done = m.Computed(
                    tag=order.tag, start_s=self.now_s, stop_s=self.now_s + 0.01, memory_bytes=8
                )
                return FromWorker(done, (json.dumps(rows).encode(),))
            case m.MeasureTask():
                times = tuple(0.1 for _ in order.rows)
                measured = m.MeasuredTask(
                    task=order.task,
                    rows=order.rows,
                    forward_s=times,
                    backward_s=times if order.train else (),
                    memory_bytes=tuple(1 for _ in order.rows),
                )
                return FromWorker(measured)
        slot = getattr(order, "slot", "")
        return FromWorker(
            m.ComputeFailed(tag=getattr(order, "tag", -1), slot=slot, cause="bad-input", text="why")
        )

    def _place(self) -> int:
        self._offset = (self._offset + 64) % ARENA_BYTES
        return self._offset

    def _taken_over(self, rng: random.Random) -> Any:
        """Anything that decodes as a message of the worker's channel."""
        answer = self._honest(rng)
        if rng.random() < 0.5:
            entry = rng.choice(FROM_WORKER)
            return FromWorker(message(entry.type, rng), (rng.choice(RAW),) * entry.buffers[0])
        if answer.buffers:
            return FromWorker(answer.message, (document(json.loads(answer.buffers[0]), rng),))
        return FromWorker(message(type(answer.message), rng), answer.buffers)


def document(good: Any, rng: random.Random) -> bytes:
    """The document, wrong in one place or in all."""
    if rng.random() < 0.15:
        return rng.choice(RAW)
    return json.dumps(mutated(good, rng) if rng.random() < 0.8 else good).encode()
