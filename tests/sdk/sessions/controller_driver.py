"""A controller to play with in tests: a clock, devices that answer, and what it does about each
event.
"""

import json

from potluck.sessions.controller import Controller
from potluck.sessions.events import (
    Address,
    OpenSession,
    Received,
    Reject,
    Resolve,
    Send,
    StartExecution,
    Tick,
)
from potluck.sessions.traffic import Raw
from potluck_wire import messages as m
from potluck_wire.version import VERSION

STATEMENT = json.dumps(
    {
        "name": "a",
        "memory_bytes": 1000,
        "backends": {"torch": "2"},
        "dtypes": ["float32"],
        "operators": [],
    }
).encode()


class Play:
    """A controller and a clock; `sent` are the messages of the last event by device.

    `play`: one to go on with.
    """

    def __init__(self, *devices, play=None):
        self.controller = play.controller if play else Controller()
        self.now_s = 100.0
        self.actions = []
        for ticket, device in enumerate(devices, 900):
            self.do(
                OpenSession(
                    ticket=ticket, device=device, address=Address(host="h", port=1), key="k"
                )
            )
            self.receive(
                device, m.Welcome(major=VERSION[0], minor=VERSION[1], name=device), STATEMENT
            )

    def do(self, event):
        self.actions = self.controller.handle(event, self.now_s)
        return self.actions

    def receive(self, device, message, *buffers):
        return self.do(Received(device=device, message=message, buffers=buffers))

    def tick(self, seconds, answer=(), *, busy=False):
        """Let time pass in small steps, pongs from those in `answer`."""
        seen = []
        for _ in range(round(seconds / 0.1)):
            self.now_s += 0.1
            seen += self.do(Tick())
            for action in tuple(self.actions):
                if (
                    isinstance(action, Send)
                    and isinstance(action.message, m.Ping)
                    and action.device in answer
                ):
                    pong = m.Pong(
                        seq=action.message.seq,
                        clock_s=self.now_s - 50,
                        progress=len(seen),
                        busy=busy,
                    )
                    seen += self.receive(action.device, pong)
        return seen

    def launch(self, ticket=1, devices=("a", "b"), step=0, stream="", **more):
        names = {"run": "r", "epoch": 0, "program": "p"}
        return self.do(
            StartExecution(ticket=ticket, step=step, devices=devices, stream=stream, **names | more)
        )

    def sent(self, kind, actions=None):
        found = self.actions if actions is None else actions
        return [
            (x.device, x.message)
            for x in found
            if isinstance(x, Send) and isinstance(x.message, kind)
        ]

    def ended(self, actions=None):
        found = self.actions if actions is None else actions
        return {x.ticket: x for x in found if isinstance(x, (Resolve, Reject))}


def place(**more):
    return {"run": "r", "epoch": 0, "program": "p", "step": 0} | more


FEED = Raw(dtype="float32", shape=(2,), data=bytes(8))


def finish(play, device, *, start_s=0.0, **more):
    rows = json.dumps([[0, start_s, start_s + 1]]).encode()
    return play.receive(device, m.Done(**place(**more), busy_s=0.5, peak_bytes=7), rows)


def join(*devices, minor):
    """Devices of a minor version."""
    play = Play()
    for device in devices:
        play.do(OpenSession(ticket=1, device=device, address=Address(host="h", port=1), key="k"))
        play.receive(device, m.Welcome(major=1, minor=minor, name=device), STATEMENT)
    return play
