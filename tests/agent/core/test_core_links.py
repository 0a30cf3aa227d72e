"""Two cores over links that break at random: every value arrives once, whole, and every place is
given back.
"""

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.core.core_driver import OWNER_KEY, Talk, plan, recv, send, settings

from potluck_agent.core.events import (
    MEMBER,
    OWNER,
    FromPeer,
    FromWorker,
    LinkReset,
    Sender,
    Span,
    Store,
    ToPeer,
)
from potluck_agent.core.machine import Core
from potluck_agent.core.resource_usage import ResourceUsage
from potluck_wire.documents import dump
from potluck_wire.frames import decode, encode
from potluck_wire.messages import (
    MESSAGES,
    NUMBER_OF,
    Channel,
    Chunk,
    Credit,
    Done,
    Execute,
    Hello,
    Prepare,
    Probe,
    Roster,
    Value,
    WorkerReady,
)

pytestmark = pytest.mark.usefixtures("small_chunks")

HOME = "H" * 40
LEFT = "L" * 40
RIGHT = "R" * 40
NAMES = {LEFT: "left", RIGHT: "right"}
N_STEPS = 5
ARENA_BYTES = 2**20


class World:
    """A notebook and two devices; `links[a, b]` holds the data messages on their way from a to
    b.
    """

    def __init__(self, seed: int, nbytes: int) -> None:
        self.rng = random.Random(seed)
        self.nbytes = nbytes
        self.now_s = 0.0
        self.cores = {
            key: Core(settings(name=NAMES[key], key=key, inbound_bytes=ARENA_BYTES))
            for key in (LEFT, RIGHT)
        }
        self.arenas = {key: bytearray(ARENA_BYTES) for key in self.cores}
        self.links: dict[tuple[str, str], deque] = {}
        self.done: dict[tuple[str, int], int] = {}
        self.home: dict[int, bytearray] = {}
        self.coming: dict[int, tuple[Value, bytearray]] = {}
        self.data = {step: self.rng.randbytes(nbytes) for step in range(N_STEPS)}
        rows = [
            {"name": name, "key": key, "address": "127.0.0.1:47600"} for key, name in NAMES.items()
        ]
        for key, core in self.cores.items():
            self.control(key, Hello(major=1))
            self.act(key, core.handle(FromWorker(WorkerReady(), (b"{}",)), self.now_s))
            self.control(key, Roster(home="h"), dump(rows))
            core.reach(HOME)
        self.control(LEFT, Prepare(run="r", epoch=1), *plan(recv("x"), send("x", "right")))
        self.control(RIGHT, Prepare(run="r", epoch=1), *plan(recv("x", "left"), send("x")))

    def control(self, key, message, *buffers):
        self.act(
            key,
            self.cores[key].handle(
                FromPeer(sender=Sender(key=HOME, role=OWNER), message=message, buffers=buffers),
                self.now_s,
            ),
        )

    def act(self, key, actions):
        """Carry out a core's actions; what it sends goes through real frames."""
        for action in actions:
            match action:
                case Store(offset=offset, data=data):
                    self.arenas[key][offset : offset + len(data)] = data
                case ToPeer(key=to, message=Done() as done):
                    self.done[key, done.step] = self.done.get((key, done.step), 0) + 1
                case ToPeer(key=to, message=message) if (
                    MESSAGES[NUMBER_OF[type(message)]].channel is Channel.DATA
                ):
                    frames = encode(message, [self.read(key, part) for part in action.buffers])
                    self.links.setdefault((key, to), deque()).append(frames)

    def read(self, key, part):
        assert isinstance(part, Span)
        return bytes(self.arenas[key][part.offset : part.offset + part.nbytes])

    def start(self):
        for step in range(N_STEPS):
            value = Value(
                transfer=step + 1,
                run="r",
                epoch=1,
                program="p",
                step=step,
                name="x",
                dtype="uint8",
                shape=(self.nbytes,),
                nbytes=self.nbytes,
                chunk_bytes=2**20,
            )
            self.links.setdefault((HOME, LEFT), deque()).append(encode(value, [self.data[step]]))
            for key in self.rng.sample([LEFT, RIGHT], 2):
                self.control(key, Execute(run="r", epoch=1, program="p", step=step))

    def deliver(self):
        """One message arrives somewhere; False where none is on its way."""
        waiting = [link for link, queue in self.links.items() if queue]
        if not waiting:
            return False
        source, to = self.rng.choice(waiting)
        message, buffers = decode(self.links[source, to].popleft(), Channel.DATA)
        self.now_s += 0.001
        if to == HOME:
            self.arrive_home(source, message, buffers)
        else:
            sender = Sender(key=source, role=OWNER if source == HOME else MEMBER)
            self.act(
                to,
                self.cores[to].handle(
                    FromPeer(sender=sender, message=message, buffers=buffers), self.now_s
                ),
            )
        return True

    def arrive_home(self, source, message, buffers):
        if isinstance(message, Value):
            self.coming[message.transfer] = (message, bytearray(buffers[0]))
        elif isinstance(message, Chunk) and message.transfer in self.coming:
            self.coming[message.transfer][1].extend(buffers[0])
        if isinstance(message, Value | Chunk) and message.transfer in self.coming:
            value, data = self.coming[message.transfer]
            if len(data) == value.nbytes:
                del self.coming[message.transfer]
                self.home[value.step] = data
                credit = Credit(transfer=message.transfer, received_bytes=len(data), done=True)
                self.links.setdefault((HOME, source), deque()).append(encode(credit))

    def break_link(self):
        """The connection from left to right is a new one.

        Everything on the old one, both ways, is lost.
        """
        self.links.pop((LEFT, RIGHT), None)
        self.links.pop((RIGHT, LEFT), None)
        self.act(RIGHT, self.cores[RIGHT].handle(LinkReset(key=LEFT, outgoing=False), self.now_s))
        self.act(LEFT, self.cores[LEFT].handle(LinkReset(key=RIGHT, incoming=False), self.now_s))


@pytest.mark.long
@given(
    seed=st.integers(0, 2**32),
    nbytes=st.sampled_from([0, 1, 100_000, 300_000]),
    n_breaks=st.integers(0, 8),
)
def test_every_value_arrives_once_and_whole_however_often_a_link_breaks(seed, nbytes, n_breaks):
    world = World(seed, nbytes)
    world.start()
    while world.deliver() or n_breaks:
        if n_breaks and world.rng.random() < 0.2:
            n_breaks -= 1
            world.break_link()
    assert world.home == world.data
    assert world.done == {(key, step): 1 for key in (LEFT, RIGHT) for step in range(N_STEPS)}
    for core in world.cores.values():
        assert core.held == ResourceUsage()


@pytest.mark.parametrize("link_bytes_per_s", [1e5, 1e6, 1e8])
def test_a_paced_link_is_as_fast_as_it_says(link_bytes_per_s):
    nbytes = 400_000
    talk = Talk(link_bytes_per_s=link_bytes_per_s).begin()
    talk.core.reach(OWNER_KEY)
    start_s, arrived = talk.now_s, 0
    talk.receive(Probe(task="t", peer="home", nbytes=nbytes))
    while (wake_s := talk.core.wake_s()) is not None:
        arrived += sum(action.buffers[0].nbytes for action in talk.tick(wake_s - talk.now_s))
        assert talk.receive(Credit(transfer=1, received_bytes=arrived, done=False)) == []
    assert arrived == nbytes
    assert talk.now_s - start_s == pytest.approx(nbytes / link_bytes_per_s)
