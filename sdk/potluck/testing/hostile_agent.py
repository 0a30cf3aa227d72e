"""An agent that was taken over, on this machine. It works as it should until a moment comes, and
then does one row of `DOES`.

    with TakenOver("timeline: infinite") as agent:
        link.ask(Join(device="a", address=agent.address, key=agent.key))
"""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import zmq

from potluck.sessions.events import Address
from potluck.testing.malformed_bytes import DOCUMENTS, header, nested_header
from potluck_wire.errors import WireError
from potluck_wire.frames import decode, encode
from potluck_wire.limits import CONTROL_OFFSET, DATA_OFFSET, LINGER_MS, PULSE_OFFSET
from potluck_wire.messages import (
    NUMBER_OF,
    Channel,
    Chunk,
    Commit,
    Committed,
    Credit,
    Done,
    Drop,
    Dropped,
    Execute,
    Failed,
    Goodbye,
    Hello,
    Measure,
    Measured,
    Message,
    Ping,
    Pong,
    Prepare,
    Prepared,
    Probe,
    Probed,
    Refused,
    Rejected,
    Roster,
    RosterSet,
    Value,
    Welcome,
)
from potluck_wire.version import VERSION

HONEST = "honest"
POLL_MS = 50
_OFFSETS = {Channel.CONTROL: CONTROL_OFFSET, Channel.DATA: DATA_OFFSET, Channel.PULSE: PULSE_OFFSET}
_NO_RUN: dict[str, Any] = {"run": "", "program": "probe"}
_STATEMENT: dict[str, Any] = {
    "name": "a",
    "memory_bytes": 2**20,
    "backends": {},
    "dtypes": [],
    "operators": [],
}

Frames = list[Any]
Said = tuple[Channel, Frames]


@dataclass(frozen=True, slots=True)
class AgentMisbehaviour:
    """Instead of answering a message of the type `at`, these frames."""

    at: type[Message]
    says: Callable[[Any], list[Said]]


def _control(*frames: Any) -> list[Said]:
    return [(Channel.CONTROL, list(frames))]


def _data(message: Message, *buffers: bytes) -> Said:
    return Channel.DATA, list(encode(message, buffers))


def _pong(clock_s: float) -> AgentMisbehaviour:
    return AgentMisbehaviour(
        Ping,
        lambda ping: [(Channel.PULSE, [header(NUMBER_OF[Pong], seq=ping.seq, clock_s=clock_s)])],
    )


def _timeline(document: bytes) -> AgentMisbehaviour:
    return AgentMisbehaviour(
        Execute, lambda order: _control(*encode(Done(**_place(order)), [document]))
    )


def _statement(document: bytes) -> AgentMisbehaviour:
    return AgentMisbehaviour(
        Hello, lambda _: _control(*encode(Welcome(major=VERSION[0], minor=VERSION[1]), [document]))
    )


def _place(order: Execute) -> dict[str, Any]:
    return {"run": order.run, "epoch": order.epoch, "program": order.program, "step": order.step}


def _value(order: Execute, **changes: Any) -> Value:
    known: dict[str, Any] = {"name": "y", "shape": (2,), "nbytes": 8, "chunk_bytes": 8}
    return Value(**(_place(order) | known | changes))


def _measured(**fields: Any) -> AgentMisbehaviour:
    return AgentMisbehaviour(
        Measure, lambda order: _control(*encode(Measured(task=order.task, **fields)))
    )


DOES: dict[str, AgentMisbehaviour] = {
    **{f"statement: {name}": _statement(document) for name, document in DOCUMENTS.items()},
    "statement: a million operators": _statement(
        json.dumps(_STATEMENT | {"operators": ["x"] * 10**6}).encode()
    ),
    **{f"timeline: {name}": _timeline(document) for name, document in DOCUMENTS.items()},
    "timeline: infinite times": _timeline(b"[[0,1e999,1e999]]"),
    "timeline: infinite instructions": _timeline(b"[[1e999,0,1]]"),
    "timeline: of objects": _timeline(b'[{"0":1}]'),
    "timeline: of two columns": _timeline(b"[[0,1.0]]"),
    "clock: infinite": _pong(float("inf")),
    "clock: at the end of time": _pong(2.0**53),
    "timeline: eight megabytes of lists": _timeline(b"[" + b"[]," * 2_600_000 + b"[]]"),
    "failed in hidden words": AgentMisbehaviour(
        Execute,
        lambda o: _control(
            *encode(Failed(**_place(o), cause="\u202e", text="\u202e\u2066\u200b" * 20))
        ),
    ),
    "header: nested": AgentMisbehaviour(
        Prepare, lambda _: _control(nested_header(NUMBER_OF[Prepared], "epoch"))
    ),
    "header: no msgpack": AgentMisbehaviour(Prepare, lambda _: _control(b"\xc1" * 100)),
    "a message of the notebook's": AgentMisbehaviour(
        Prepare, lambda _: _control(*encode(Commit(run="r")))
    ),
    "refused in a terminal's words": AgentMisbehaviour(
        Prepare,
        lambda o: _control(
            *encode(
                Refused(
                    about=NUMBER_OF[Prepare],
                    code="\x1b[2J",
                    text="\x1b]0;mine\x07" * 20,
                    run=o.run,
                    epoch=o.epoch,
                )
            )
        ),
    ),
    "goodbye in a terminal's words": AgentMisbehaviour(
        Prepare, lambda _: _control(*encode(Goodbye(reason="\x1b[2J")))
    ),
    "measured: other batch sizes": _measured(rows=(7, 8)),
    "measured: nothing": _measured(),
    "probed: nothing": AgentMisbehaviour(
        Probe, lambda order: _control(*encode(Probed(task=order.task, peer=order.peer)))
    ),
    "value: other bytes than its shape": AgentMisbehaviour(
        Execute, lambda o: [_data(_value(o, shape=(3,)), bytes(8))]
    ),
    "value: of four gigabytes": AgentMisbehaviour(
        Execute, lambda o: [_data(_value(o, shape=(2**30,), nbytes=2**32), bytes(8))]
    ),
    "value: begun twice, and a chunk too many": AgentMisbehaviour(
        Execute,
        lambda o: [
            _data(_value(o, chunk_bytes=4), bytes(4)),
            _data(_value(o, chunk_bytes=4), bytes(4)),
            _data(Chunk(index=1), bytes(4)),
            _data(Chunk(index=2), bytes(4)),
            _data(_value(o, chunk_bytes=0), bytes(8)),
        ],
    ),
    "value: of no run, a hundred of four gigabytes": AgentMisbehaviour(
        Execute,
        lambda o: [
            _data(
                _value(o, **_NO_RUN, transfer=t, shape=(2**30,), nbytes=2**32, chunk_bytes=8),
                bytes(8),
            )
            for t in range(100)
        ],
    ),
    "value: of no run, more than anybody waits for": AgentMisbehaviour(
        Execute, lambda o: [_data(_value(o, **_NO_RUN, transfer=t), bytes(8)) for t in range(2000)]
    ),
    "value: of a run that nobody has": AgentMisbehaviour(
        Execute, lambda o: [_data(_value(o, run="another"), bytes(8))]
    ),
    "value: larger than was predicted": AgentMisbehaviour(
        Execute,
        lambda o: [_data(_value(o, shape=(2**20,), nbytes=2**22, chunk_bytes=2**21), bytes(2**21))],
    ),
    "value: nobody asked for it": AgentMisbehaviour(
        Execute, lambda o: [_data(_value(o, name="z"), bytes(8)), _data(Chunk(), bytes(8))]
    ),
    "credit: more than was sent": AgentMisbehaviour(
        Value, lambda v: [_data(Credit(transfer=v.transfer, received_bytes=2**53))]
    ),
    "credit: done without anything": AgentMisbehaviour(
        Value, lambda v: [_data(Credit(transfer=v.transfer, done=True))]
    ),
    "rejected: what it may not reject": AgentMisbehaviour(
        Value, lambda v: [_data(Rejected(transfer=v.transfer, code="\x1b", text="no"))]
    ),
}


def honest(order: Message, buffers: Any) -> list[Said]:
    """What an agent says that does nothing and does it right: its values are zeros."""
    match order:
        case Hello():
            welcome = Welcome(major=VERSION[0], minor=VERSION[1], name="a")
            return _control(*encode(welcome, [json.dumps(_STATEMENT).encode()]))
        case Ping():
            return [(Channel.PULSE, list(encode(Pong(seq=order.seq, clock_s=time.monotonic()))))]
        case Roster():
            return _control(*encode(RosterSet(home=order.home)))
        case Prepare():
            return _control(*encode(Prepared(run=order.run, epoch=order.epoch)))
        case Commit():
            return _control(*encode(Committed(run=order.run, epoch=order.epoch)))
        case Drop():
            return _control(*encode(Dropped(run=order.run, epoch=order.epoch)))
        case Measure():
            times = (0.1,) * len(order.rows)
            measured = Measured(
                task=order.task,
                rows=order.rows,
                forward_s=times,
                memory_bytes=(1,) * len(times),
                backward_s=times if order.train else (),
            )
            return _control(*encode(measured))
        case Probe():
            return _control(
                *encode(Probed(task=order.task, peer=order.peer, seconds=(0.1,) * order.repeats))
            )
        case Execute():
            done = encode(Done(**_place(order)), [b"[[0,1.0,2.0]]"])
            return [_data(_value(order), bytes(8)), *_control(*done)]
        case Value() if order.nbytes == len(buffers[0]):
            return [_data(Credit(transfer=order.transfer, received_bytes=order.nbytes, done=True))]
    return []


class TakenOver:
    """Such an agent in a thread of this process; it lets every notebook in.

    `row`: what it does, or `HONEST`.

    `did` is set once it has done that.
    """

    def __init__(self, row: str = HONEST) -> None:
        self._does, self.did = DOES.get(row), threading.Event()
        public, secret = zmq.curve_keypair()
        self.key = public.decode()
        self._context: Any = zmq.Context()
        self._stopping = threading.Event()
        self._routers, port = self._bind(public, secret)
        self.address = Address(host="127.0.0.1", port=port)
        self._thread = threading.Thread(target=self._serve, name="an agent taken over", daemon=True)

    def __enter__(self) -> "TakenOver":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join()
        self._context.destroy(LINGER_MS)

    def _bind(self, public: bytes, secret: bytes) -> tuple[dict[Channel, Any], int]:
        """Three sockets at the offsets of an agent, wherever there is room for them."""
        while True:
            routers = {channel: self._context.socket(zmq.ROUTER) for channel in _OFFSETS}
            for router in routers.values():
                router.linger = LINGER_MS
                router.curve_server = 1
                router.curve_secretkey = secret
                router.curve_publickey = public
            port = routers[Channel.CONTROL].bind_to_random_port("tcp://127.0.0.1")
            try:
                for channel in (Channel.DATA, Channel.PULSE):
                    routers[channel].bind(f"tcp://127.0.0.1:{port + _OFFSETS[channel]}")
            except zmq.ZMQError:
                for router in routers.values():
                    router.close(0)
            else:
                return routers, port

    def _serve(self) -> None:
        poller, routes = zmq.Poller(), dict[Channel, bytes]()
        for router in self._routers.values():
            poller.register(router, zmq.POLLIN)
        while not self._stopping.is_set():
            ready = dict(poller.poll(POLL_MS))
            for channel, router in self._routers.items():
                if router in ready:
                    routes[channel], *frames = router.recv_multipart()
                    self._receive(channel, frames, routes)

    def _receive(self, channel: Channel, frames: Frames, routes: dict[Channel, bytes]) -> None:
        try:
            order, buffers = decode(frames, channel)
        except WireError:  # the greeting of a data connection
            return
        does = self._does if self._does is not None and isinstance(order, self._does.at) else None
        for to, reply in does.says(order) if does is not None else honest(order, buffers):
            if to in routes:
                self._routers[to].send_multipart([routes[to], *reply])
        if does is not None:
            self.did.set()
