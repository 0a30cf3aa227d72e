"""A controller under attack: devices that say what they like while a notebook works with them.

Every message that the controller wants sent is made as the edge would make it.
"""

import json
import random
from dataclasses import replace
from typing import Any

from tests.agent.core.core_attack import RUNS, document, message
from tests.fuzz import RAW, some
from tests.sdk.sessions.controller_driver import FEED, STATEMENT
from tests.sdk.sessions.held_bytes import check_held

from potluck.errors import DeviceGone
from potluck.sessions.controller import Controller
from potluck.sessions.events import (
    Address,
    AskService,
    CancelExecution,
    CloseSession,
    ConnectionLost,
    FeedExecution,
    OpenSession,
    Received,
    RequestAll,
    Resolve,
    Send,
    StartExecution,
    Tick,
    UplinkProbe,
)
from potluck_wire import messages as m
from potluck_wire.frames import encode
from potluck_wire.version import VERSION

DEVICES = ("a", "b")
OFFERED = replace(FEED, content=b"c" * 32)
SAID = [
    e
    for e in m.MESSAGES.values()
    if e.channel in (m.Channel.CONTROL, m.Channel.DATA, m.Channel.PULSE)
]
ASKED: tuple[type[m.Message], ...] = (
    m.Prepare,
    m.Commit,
    m.Drop,
    m.Measure,
    m.Probe,
    m.Roster,
    m.Meter,
    m.GrantService,
)
TIMELINE = [[0, 1.0, 2.0], [1, 2.0, 2.5]]


class ControllerPlay:
    """A controller with two devices that have been welcomed, and a step under way on both."""

    def __init__(self, rng: random.Random) -> None:
        self.controller = Controller()
        self.now_s = 100.0
        self._ticket = 0
        self.sent: list[Send] = []  # what devices were told lately
        for device in DEVICES:
            self._join(device)
            self.do(
                Received(
                    device=device,
                    message=m.Welcome(major=VERSION[0], minor=VERSION[1]),
                    buffers=(STATEMENT,),
                )
            )
        self.do(self._launch(rng))

    def do(self, event: Any) -> None:
        """Hand it over, and look at what it leads to."""
        for action in self.controller.handle(event, self.now_s):
            if isinstance(action, Send):
                encode(action.message, action.buffers)
                self.sent = [*self.sent[-7:], action]
            elif isinstance(action, Resolve):
                repr(action.result)
        check_held(self.controller)

    def _new(self) -> int:
        self._ticket += 1
        return self._ticket

    def _join(self, device: str) -> None:
        self.do(
            OpenSession(
                ticket=self._new(), device=device, address=Address(host="h", port=1), key="k"
            )
        )

    # --- moves ------------------------------------------------------------------------------------

    MOVES = (
        (45, "_answer"),
        (25, "_anything"),
        (10, "_ask"),
        (8, "_launch"),
        (8, "_service"),
        (6, "_tick"),
        (6, "_other"),
    )

    def move(self, rng: random.Random) -> None:
        """One event."""
        for device in DEVICES:
            if self.controller.session(device) is None and rng.random() < 0.5:
                self._join(device)
                welcome = m.Welcome(major=1, minor=rng.choice((0, 5)))
                statement = (
                    STATEMENT if rng.random() < 0.8 else document(json.loads(STATEMENT), rng)
                )
                self.do(Received(device=device, message=welcome, buffers=(statement,)))
        self.do(getattr(self, some(rng, self.MOVES))(rng))

    def _tick(self, rng: random.Random) -> Any:
        self.now_s += rng.choice((0.05, 0.3, 0.3, 3.0, 70.0))
        return Tick()

    def _other(self, rng: random.Random) -> Any:
        device, ticket = rng.choice(DEVICES), rng.randint(1, self._new())
        return rng.choice(
            (
                CloseSession(device=device),
                self._feed(device, rng),
                self._feed(device, rng),
                CancelExecution(ticket=ticket),
                CancelExecution(ticket=ticket),
                ConnectionLost(device=device, error=DeviceGone("why", device=device)),
                UplinkProbe(ticket=self._new(), device=device, nbytes=rng.choice((0, 1, 300_000))),
                UplinkProbe(ticket=self._new(), device=device, nbytes=8),
            )
        )

    def _feed(self, device: str, rng: random.Random) -> Any:
        place = (rng.choice(RUNS), 1, "p", rng.choice((0, 1, 2)))
        raw, is_last = rng.choice((FEED, OFFERED)), rng.random() < 0.5
        return FeedExecution(device=device, place=place, name="z", raw=raw, is_last=is_last)

    def _launch(self, rng: random.Random) -> Any:
        values = {device: rng.choice(({"x": 8}, {"x": 8, "y": 300}, {})) for device in DEVICES}
        return StartExecution(
            ticket=self._new(),
            run=rng.choice(RUNS),
            epoch=1,
            program="p",
            step=rng.choice((0, 1, 2)),
            devices=DEVICES,
            feeds={"a": {"x": rng.choice((FEED, OFFERED))}} if rng.random() < 0.7 else {},
            follows=rng.random() < 0.2,
            expects=values,
            stream=rng.choice(("", "train")),
            together=rng.random() < 0.3,
            request=rng.random() < 0.3,
        )

    def _service(self, rng: random.Random) -> Any:
        return AskService(
            ticket=self._new(),
            device=rng.choice(DEVICES),
            service="v",
            left_s=rng.choice((0.1, 1.0)),
            feeds={"x": FEED} if rng.random() < 0.7 else {},
            expects=rng.choice(({"y": 8}, {"x": 8, "y": 300}, {})),
        )

    def _ask(self, rng: random.Random) -> Any:
        kind = rng.choice(ASKED)
        known = {"epoch": 1} if kind in (m.Prepare, m.Commit) else {}
        request = message(kind, rng, **known)
        buffers = (b"{}",) * m.MESSAGES[m.NUMBER_OF[kind]].buffers[0]
        return RequestAll(ticket=self._new(), requests=dict.fromkeys(DEVICES, (request, buffers)))

    def _anything(self, rng: random.Random) -> Any:
        """Any message that decodes, from a side that may or may not send it."""
        entry = rng.choice(SAID)
        buffers = (rng.choice(RAW),) * entry.buffers[0]
        known = {"major": 1} if entry.type in (m.Hello, m.Welcome) else {}
        return Received(
            device=rng.choice(DEVICES), message=message(entry.type, rng, **known), buffers=buffers
        )

    def _answer(self, rng: random.Random) -> Any:
        """What fits the last things that were sent, right or wrong in one place."""
        sent = rng.choice(self.sent)
        reply, buffers = _reply(sent.message, rng)
        return Received(device=sent.device, message=reply, buffers=buffers)


def _reply(order: m.Message, rng: random.Random) -> tuple[m.Message, tuple[bytes, ...]]:
    match order:
        case m.Hello():
            return m.Welcome(major=1, minor=5, name="a"), (document(json.loads(STATEMENT), rng),)
        case m.Ping():
            return message(m.Pong, rng, seq=order.seq), ()
        case m.Execute() | m.Abort():
            where = {
                "run": order.run,
                "epoch": order.epoch,
                "program": order.program,
                "step": order.step,
            }
            return _outcome(where, rng)
        case m.Prepare() | m.Commit() | m.Drop():
            kind = {m.Prepare: m.Prepared, m.Commit: m.Committed, m.Drop: m.Dropped}[type(order)]
            refusal = message(
                m.Refused,
                rng,
                about=m.NUMBER_OF[type(order)],
                run=order.run,
                epoch=max(0, order.epoch),
            )
            return rng.choice((kind(run=order.run, epoch=order.epoch), refusal)), ()
        case m.Measure():
            n = len(order.rows)
            times, back = (0.1,) * n, (0.1,) * n if order.train else ()
            good = m.Measured(
                task=order.task,
                rows=order.rows,
                forward_s=times,
                backward_s=back,
                memory_bytes=(1,) * n,
            )
            return rng.choice((good, message(m.Measured, rng, task=order.task))), ()
        case m.Probe():
            return message(m.Probed, rng, task=order.task, peer=order.peer), ()
        case m.GrantService():
            return m.ServiceGranted(service=rng.choice((order.service, "x"))), ()
        case m.Ask() | m.Value(run="", program="ask") if rng.random() < 0.8:
            number = order.number if isinstance(order, m.Ask) else order.step
            return _ask_answered(number, rng)
        case m.Offer() if rng.random() < 0.5:
            return m.Wanted(transfer=order.transfer), ()
        case m.Value() | m.Offer():
            good = m.Credit(transfer=order.transfer, received_bytes=order.nbytes, done=True)
            wrong = message(rng.choice((m.Credit, m.Rejected)), rng, transfer=order.transfer)
            return rng.choice((good, wrong)), ()
    return message(m.Reading, rng), ()


def _ask_answered(number: int, rng: random.Random) -> tuple[m.Message, tuple[bytes, ...]]:
    """The end of a request for a service, or one of its outputs."""
    if rng.random() < 0.6:
        known = {"program": "answer", "step": number, "name": rng.choice("yyx"), "run": ""}
        known |= {"shape": (2,), "nbytes": 8, "chunk_bytes": 8, "dtype": "float32", "epoch": 0}
        known |= {"transfer": rng.randint(0, 2**20)} if rng.random() < 0.8 else {}
        return message(m.Value, rng, **known), (bytes(8),)
    paths: tuple[tuple[str, ...], ...] = (("a",), ("b",), ("a", "b"), ("b", "a"), ("b", "b"), ())
    path = rng.choice(paths)
    code = rng.choice(("", "", "late", "arithmetic"))
    hops_s = (0.1,) * rng.choice((len(path), len(path), 1))
    return m.AskEnded(number=number, code=code, path=path, hops_s=hops_s), ()


def _outcome(where: dict[str, Any], rng: random.Random) -> tuple[m.Message, tuple[bytes, ...]]:
    """The end of a step, or one of its values."""
    if rng.random() < 0.4:
        known = {"shape": (2,), "nbytes": 8, "chunk_bytes": rng.choice((4, 8)), "dtype": "float32"}
        known = known if rng.random() < 0.8 else {}
        value = message(m.Value, rng, **where, **{"name": rng.choice(("x", "y")), **known})  # type: ignore[arg-type]
        return value, (bytes(min(8, value.chunk_bytes)),)
    if rng.random() < 0.6:
        return message(m.Done, rng, **where), (document(TIMELINE, rng),)
    return message(m.Failed, rng, **where), ()
