"""A core to talk to in tests: an owner, a worker that does what it is told, and whole lists of
actions.

Whatever the core says to an owner is held against the session tables.
"""

import json
from contextlib import suppress
from typing import Any

from potluck_agent.core.events import (
    MEMBER,
    OWNER,
    Action,
    Event,
    FromPeer,
    FromWorker,
    LinkReset,
    Sender,
    Tick,
    ToPeer,
    ToWorker,
)
from potluck_agent.core.machine import Core
from potluck_agent.core.outbox import Settings
from potluck_wire.errors import WireError
from potluck_wire.messages import (
    MESSAGES,
    NUMBER_OF,
    Channel,
    Commit,
    Compute,
    Credit,
    Execute,
    Forget,
    Hello,
    Message,
    Prepare,
    Refused,
    Roster,
    SegmentLoaded,
    Value,
    WorkerReady,
)
from potluck_wire.session import AGENT, CONTROLLER, SessionMachine
from potluck_wire.version import VERSION

OWNER_KEY = "A" * 40
OTHER_KEY = "B" * 40
MEMBER_KEY = "C" * 40
OWN_KEY = "D" * 40
STRANGER_KEY = "E" * 40
OWNER_SENDER = Sender(key=OWNER_KEY, role=OWNER, name="notebook")
OTHER_SENDER = Sender(key=OTHER_KEY, role=OWNER, name="tablet")
MEMBER_SENDER = Sender(key=MEMBER_KEY, role=MEMBER, name="phone")
CAN = {"backends": {"torch": "2"}, "dtypes": ["float32"], "operators": ["aten.add"]}
READY = json.dumps(CAN).encode()
RUN = Execute(run="r", epoch=1, program="p")
EIGHT = b"12345678"


def settings(**changes: Any) -> Settings:
    known = {
        "name": "jetson",
        "key": OWN_KEY,
        "memory_bytes": 1000,
        "inbound_bytes": 4096,
        "outbound_bytes": 4096,
    }
    return Settings(**(known | changes))


class Talk:
    """A core and its clock, which stands still unless it is moved."""

    def __init__(self, **changes: Any) -> None:
        self.core = Core(settings(**changes))
        self.now_s = 10.0
        self._sessions = {sender.key: SessionMachine() for sender in (OWNER_SENDER, OTHER_SENDER)}

    def _handle(self, event: Event) -> list[Action]:
        actions = self.core.handle(event, self.now_s)
        for action in actions:
            session = self._sessions.get(action.key) if isinstance(action, ToPeer) else None
            if (
                session is not None
                and MESSAGES[NUMBER_OF[type(action.message)]].channel is Channel.CONTROL
            ):
                session.advance(action.message, AGENT)
        return actions

    def happen(self, event: Event) -> list[Action]:
        """What the core does about any other event."""
        return self._handle(event)

    def receive(
        self, message: Message, *buffers: Any, sender: Sender = OWNER_SENDER
    ) -> list[Action]:
        """What the core does about a message of a peer."""
        if (
            sender.key in self._sessions
            and MESSAGES[NUMBER_OF[type(message)]].channel is Channel.CONTROL
        ):
            with suppress(WireError):  # then the core has to refuse it, which the session allows
                self._sessions[sender.key].advance(message, CONTROLLER)
        return self._handle(FromPeer(sender=sender, message=message, buffers=buffers))

    def work(self, message: Message, *buffers: Any, worker: int = 0) -> list[Action]:
        """What it does about a message of this worker."""
        return self._handle(FromWorker(message, buffers, worker))

    def reset(self, key: str, **which: bool) -> list[Action]:
        """What it does when the data connections from and to this peer are new ones."""
        return self._handle(LinkReset(key=key, **which))

    def tick(self, after_s: float = 0.0) -> list[Action]:
        """What it does when time has passed."""
        self.now_s += after_s
        return self._handle(Tick())

    def rounds(self, actions: list[Action]) -> list[Action]:
        """These actions, and those of all rounds of the loop until nothing more is due now."""
        actions = list(actions)
        while (wake_s := self.core.wake_s()) is not None and wake_s <= self.now_s:
            actions += self.tick()
        return actions

    def begin(self, sender: Sender = OWNER_SENDER, minor: int = VERSION[1]) -> "Talk":
        """A session with a notebook of this minor version, and a worker that is ready."""
        self.receive(Hello(major=1, minor=minor, name="notebook"), sender=sender)
        self.work(WorkerReady(), json.dumps(CAN).encode())
        return self

    def roster(self, sender: Sender = OWNER_SENDER) -> "Talk":
        """A home with one other member, `phone`."""
        rows = [
            {"name": "phone", "key": MEMBER_KEY, "address": "127.0.0.1:47600"},
            {"name": "jetson", "key": OWN_KEY, "address": "127.0.0.1:47604"},
        ]
        self.receive(Roster(home="h"), json.dumps(rows).encode(), sender=sender)
        return self

    def load(
        self,
        *rows: list[Any],
        epoch: int = 1,
        run: str = "r",
        segments: tuple[str, ...] = (),
        sender: Sender = OWNER_SENDER,
        worker: int = 0,
        **more: Any,
    ) -> "Talk":
        """An epoch with one program `p` of these rows, in force.

        `more` is said in its `Prepare`.
        """
        prepare = Prepare(run=run, epoch=epoch, **more)
        self.receive(prepare, *plan(*rows, segments=segments), sender=sender)
        for name in segments:
            self.work(SegmentLoaded(slot=f"{run}/{epoch}/{name}"), worker=worker)
        self.receive(Commit(run=run, epoch=epoch), sender=sender)
        return self


def plan(*rows: list[Any], segments: tuple[str, ...] = (), name: str = "p") -> list[bytes]:
    """The buffers of a `Prepare`."""
    document = {
        "segments": [{"name": segment, "kind": "aten"} for segment in segments],
        "programs": [{"name": name, "instructions": list(rows)}],
    }
    return [json.dumps(document).encode(), *(b"{}" for _ in segments)]


def recv(value: str, peer: str = "home") -> list[Any]:
    return ["recv", [], [value], [], 0, {"peer": peer}]


def send(
    value: str,
    peer: str = "home",
    *,
    name: str = "",
    priority: int = 0,
    after: tuple[int, ...] = (),
    **more: str,
) -> list[Any]:
    return [
        "send",
        [value],
        [],
        list(after),
        priority,
        {"peer": peer, "name": name or value, **more},
    ]


def add(first: str, second: str, total: str) -> list[Any]:
    return ["add", [first, second], [total], [], 0, {}]


def cut(value: str, part: str, start: int = 0, stop: int = 1, *, priority: int = 0) -> list[Any]:
    return ["slice", [value], [part], [], priority, {"dim": 0, "start": start, "stop": stop}]


def value(name="x", *, transfer=1, epoch=1, step=0, nbytes=8, program="p", run="r", chunk_bytes=64):
    return Value(
        transfer=transfer,
        run=run,
        epoch=epoch,
        program=program,
        step=step,
        name=name,
        shape=(nbytes // 4,),
        nbytes=nbytes,
        chunk_bytes=chunk_bytes,
    )


def compute(tag, op, inputs, outputs, *, exports=(), frees=(), attrs=b"{}", step=0):
    prefix = f"r/1/p/{step}/"
    inputs, outputs, exports, frees = (
        [prefix + name for name in names] for names in (inputs, outputs, exports, frees)
    )
    order = Compute(
        tag=tag,
        op=op,
        step=step,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        exports=tuple(exports),
        frees=tuple(frees),
        scope=prefix,
    )
    return ToWorker(order, (attrs,))


def exported(*rows):
    return json.dumps(
        [[f"r/1/p/0/{name}", offset, 8, "float32", [2]] for name, offset in rows]
    ).encode()


def credit(transfer=1, nbytes=8, done=True):
    return Credit(transfer=transfer, received_bytes=nbytes, done=done)


def cut_attrs(start=0, stop=1):
    return json.dumps({"dim": 0, "start": start, "stop": stop}, separators=(",", ":")).encode()


def forget(step=0):
    return ToWorker(Forget(prefix=f"r/1/p/{step}/"))


def refused(request, code, text, *, key=OWNER_KEY, run="", epoch=0, **sizes):
    return ToPeer(
        key=key,
        message=Refused(
            about=NUMBER_OF[request], code=code, text=text, run=run, epoch=epoch, **sizes
        ),
    )
