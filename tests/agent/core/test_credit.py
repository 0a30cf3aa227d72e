"""Credit always comes back: whatever overtakes whatever, a sender never waits for bytes that were
taken in long ago.
"""

import pytest
from tests.agent.core.core_driver import MEMBER_KEY, MEMBER_SENDER, Talk, recv, send

from potluck_agent.core.events import Span, ToPeer, ToWorker
from potluck_agent.core.receive_buffers import CREDIT_DELAY_S, ReceiveBuffers
from potluck_agent.core.send_queue import SendQueue, Transfer
from potluck_wire.chunks import PARTS
from potluck_wire.limits import CHUNK_BYTES, MAX_CHUNK_BYTES, MIB, WINDOW_BYTES, WINDOW_CHUNKS
from potluck_wire.messages import Chunk, Compute, Computed, Credit, Execute, Release, Value

RECEIVER, SENDER = "R" * 40, "S" * 40
# paced: one chunk is on the air at a time, so that a more urgent value overtakes at any chunk
RATE = 1e8
NBYTES = 4 * MIB


class Pair:
    """A sender and a receiver with nothing between them but the air."""

    def __init__(self, link_bytes_per_s=RATE):
        self.outgoing, self.incoming = (
            SendQueue(link_bytes_per_s=link_bytes_per_s),
            ReceiveBuffers(1024 * MIB),
        )
        self.now_s = 0.0
        self.credits = []
        self.arrived = []
        self.chunk_bytes = []
        self.outgoing.reach(RECEIVER)

    def post(self, name, priority, nbytes=NBYTES):
        """Send this value when its turn comes."""
        value = Value(run="r", name=name, dtype="uint8", shape=(nbytes,), nbytes=nbytes)
        place = Span(arena="zeros", offset=0, nbytes=nbytes)
        self.outgoing.add(
            Transfer(key=RECEIVER, value=value, place=place, priority=priority, about="r")
        )

    def carry(self):
        """One chunk crosses the air and credit comes back at once.

        False where nothing was to be sent.
        """
        sent = self.outgoing.pump(self.now_s)
        if not sent and self.outgoing.wake_s() is not None:
            self.now_s = self.outgoing.wake_s()
            sent = self.outgoing.pump(self.now_s)
        for action in sent:
            self._take(action)
        return bool(sent)

    def _take(self, action):
        message, data = action.message, bytes(action.buffers[0].nbytes)
        if isinstance(message, Chunk):
            step = self.incoming.chunk(SENDER, message, data)
        else:
            self.chunk_bytes.append(message.chunk_bytes)
            step = self.incoming.begin(SENDER, message, data, "r", sink=False, now_s=self.now_s)
        self.arrived += [arrival.value.name for arrival in step.complete]
        for reply in step.actions:
            if isinstance(reply, ToPeer):
                assert isinstance(reply.message, Credit)
                self.credits.append(reply.message)
                self.outgoing.credited(RECEIVER, reply.message, self.now_s)


def test_large_chunks_of_overtaking_values_never_wait_for_credit_that_nobody_owes():
    pair = Pair(link_bytes_per_s=0.0)
    pair.post("first", priority=0, nbytes=MIB)  # shows how fast the link is
    assert pair.carry()
    sizes = {
        "large": PARTS * MAX_CHUNK_BYTES,
        "small": MIB + 1,
        "middle": PARTS * MIB,
        "odd": 3 * MIB - 7,
    }
    for priority, (name, nbytes) in enumerate(sizes.items()):
        pair.post(name, priority=-priority, nbytes=nbytes)
        assert pair.carry()
    while pair.carry():
        pass
    assert sorted(pair.arrived) == sorted(["first", *sizes])
    assert max(pair.chunk_bytes) == MAX_CHUNK_BYTES
    assert not pair.outgoing.busy


@pytest.mark.parametrize("chunks_between", [1, 2, 3, 5, 7])
def test_values_that_overtake_one_another_all_arrive_the_most_urgent_first(chunks_between):
    pair = Pair()
    depth = 2 * WINDOW_BYTES // (chunks_between * CHUNK_BYTES)
    names = [f"v{level}" for level in range(depth)]
    for level, name in enumerate(names):
        pair.post(name, priority=-level)
        for _ in range(chunks_between):
            assert pair.carry()
    while pair.carry():
        pass
    assert pair.arrived == names[::-1]
    assert not pair.outgoing.busy


def test_credit_is_one_message_for_half_of_the_window():
    pair = Pair()
    window_bytes = WINDOW_CHUNKS * CHUNK_BYTES
    pair.post("v", priority=0, nbytes=2 * window_bytes)
    while pair.carry():
        pass
    assert [credit.received_bytes for credit in pair.credits] == [
        k * window_bytes // 2 for k in range(1, 5)
    ]
    assert [credit.done for credit in pair.credits] == [False, False, False, True]


@pytest.mark.parametrize(
    ("bytes_per_s", "window_bytes"), [(1e6, WINDOW_CHUNKS * CHUNK_BYTES), (1e12, WINDOW_BYTES)]
)
def test_the_window_is_some_chunks_of_what_the_link_carries(bytes_per_s, window_bytes):
    outgoing, nbytes = SendQueue(), 4 * WINDOW_BYTES
    outgoing.reach(RECEIVER)
    seen = Value(name="seen", dtype="uint8", shape=(MIB,), nbytes=MIB)
    outgoing.add(
        Transfer(
            key=RECEIVER,
            value=seen,
            place=Span(arena="zeros", offset=0, nbytes=MIB),
            priority=0,
            about="r",
        )
    )
    outgoing.pump(0.0)
    outgoing.credited(
        RECEIVER, Credit(transfer=1, received_bytes=MIB, done=True), MIB / bytes_per_s
    )
    bulky = Value(name="bulky", dtype="uint8", shape=(nbytes,), nbytes=nbytes)
    outgoing.add(
        Transfer(
            key=RECEIVER,
            value=bulky,
            place=Span(arena="zeros", offset=0, nbytes=nbytes),
            priority=0,
            about="r",
        )
    )
    assert sum(action.buffers[0].nbytes for action in outgoing.pump(1.0)) == window_bytes


def small(transfer, **more):
    return Value(transfer=transfer, dtype="uint8", shape=(CHUNK_BYTES,), nbytes=CHUNK_BYTES, **more)


class Patient:
    """A receiver whose credit may wait."""

    def __init__(self):
        self.incoming = ReceiveBuffers(1024 * MIB)

    def take(self, value, now_s=0.0, may_wait=True):
        """Which transfers credit comes back for."""
        data = bytes(min(value.nbytes, value.chunk_bytes))
        step = self.incoming.begin(
            SENDER, value, data, "r", sink=False, now_s=now_s, may_wait=may_wait
        )
        return credited(step.actions)


def credited(actions):
    replies = [action.message for action in actions if isinstance(action, ToPeer)]
    return [reply.transfer for reply in replies if isinstance(reply, Credit)]


def test_credit_that_waits_goes_along_with_what_its_sender_is_sent_next():
    patient = Patient()
    assert patient.take(small(1, chunk_bytes=CHUNK_BYTES)) == []
    assert patient.take(small(2, chunk_bytes=CHUNK_BYTES)) == []
    assert patient.incoming.along(RECEIVER) == ()
    assert patient.incoming.along(SENDER) == (1, 2)
    assert patient.incoming.along(SENDER) == ()
    assert patient.incoming.wake_s() is None
    assert credited(patient.incoming.credit(1.0)) == []


def test_credit_waits_for_a_while_at_most():
    patient = Patient()
    patient.take(small(1, chunk_bytes=CHUNK_BYTES), now_s=1.0)
    patient.take(small(2, chunk_bytes=CHUNK_BYTES), now_s=1.0 + CREDIT_DELAY_S / 2)
    assert patient.incoming.wake_s() == 1.0 + CREDIT_DELAY_S
    assert credited(patient.incoming.credit(1.0 + CREDIT_DELAY_S / 2)) == []
    assert credited(patient.incoming.credit(1.0 + CREDIT_DELAY_S)) == [1, 2]


def test_credit_for_half_of_the_window_does_not_wait():
    patient = Patient()
    got = [
        patient.take(small(transfer, chunk_bytes=CHUNK_BYTES))
        for transfer in range(1, WINDOW_CHUNKS // 2 + 1)
    ]
    assert got == [[], [], [], [1, 2, 3, 4]]
    assert patient.incoming.wake_s() is None


def test_credit_that_waits_goes_with_credit_that_does_not():
    patient = Patient()
    patient.take(small(1, chunk_bytes=CHUNK_BYTES))
    assert patient.take(small(2, chunk_bytes=CHUNK_BYTES), may_wait=False) == [2, 1]


def test_credit_for_a_value_in_chunks_does_not_wait():
    patient = Patient()
    patient.take(small(1, chunk_bytes=CHUNK_BYTES // 2))
    assert credited(
        patient.incoming.chunk(SENDER, Chunk(transfer=1, index=1), bytes(CHUNK_BYTES // 2)).actions
    ) == [1]


def test_credit_that_waits_is_forgotten_with_its_connection():
    patient = Patient()
    patient.take(small(1, chunk_bytes=CHUNK_BYTES))
    patient.incoming.reset(SENDER)
    assert patient.incoming.along(SENDER) == ()
    assert credited(patient.incoming.credit(1.0)) == []


def training(value, gradient):
    """A middle stage: what comes from the phone goes through, and a gradient goes back to it."""
    run = [
        "run",
        [value],
        ["y"],
        [],
        0,
        {"segment": "s", "key": "k", "train": True, "rows": [0, 1, 1], "micro_batch": 0},
    ]
    back = ["backward", [], [gradient], [1], 0, {"segment": "s", "key": "k", "scale": 1.0}]
    return recv(value, "phone"), run, back, send(gradient, "phone")


PLACE = {"run": "r", "epoch": 1, "program": "p", "step": 0}
X = Value(transfer=7, shape=(1,), nbytes=4, chunk_bytes=64, name="x", **PLACE)
DX = b'[["r/1/p/0/dx",0,4,"float32",[1]]]'


def begun(rows, *, along=True, **settings):
    """A device that has begun a step of these rows, and knows the phone."""
    talk = Talk(**settings).begin().roster().load(*rows, segments=("s",), credit_along=along)
    talk.receive(Execute(run="r", epoch=1, program="p", step=0))
    return talk


def to_phone(actions):
    return [
        action.message
        for action in actions
        if isinstance(action, ToPeer) and action.key == MEMBER_KEY
    ]


@pytest.mark.parametrize(
    ("rows", "settings", "waits"),
    [
        (training("x", "dx"), {}, True),
        (training("x", "dx"), {"along": False}, False),
        (training("x", "dx"), {"is_told_times": True}, False),
        (training("x", "dx"), {"link_bytes_per_s": 1e6}, False),
        ((recv("x", "phone"), ["add", ["x"], ["dx"], [], 0, {}], send("dx", "phone")), {}, False),
        (training("x", "dx")[:-1], {}, False),
    ],
    ids=[
        "training",
        "an older phone",
        "told times",
        "a link of its own",
        "no training",
        "nothing goes back",
    ],
)
def test_credit_waits_in_training_while_more_goes_to_and_fro(rows, settings, waits):
    talk = begun(rows, **settings)
    assert credited(talk.receive(X, b"1234", sender=MEMBER_SENDER)) == ([] if waits else [7])
    if not waits:
        return
    assert credited(talk.work(Computed(tag=1), b"[]")) == []
    (gradient,) = to_phone(talk.work(Computed(tag=2), DX))
    assert (gradient.name, gradient.received) == ("dx", (7,))


@pytest.mark.parametrize(
    ("reset", "again"),
    [({"incoming": False}, (7,)), ({"outgoing": False}, None), ({}, ())],
    ids=["ours", "theirs", "both"],
)
def test_credit_that_went_with_a_value_is_told_again_as_long_as_the_sender_waits_for_it(
    reset, again
):
    talk = begun(training("x", "dx"))
    talk.receive(X, b"1234", sender=MEMBER_SENDER)
    talk.work(Computed(tag=1), b"[]")
    assert len(to_phone(talk.work(Computed(tag=2), DX))) == 1
    repeated = to_phone(talk.reset(MEMBER_KEY, **reset))
    assert [value.received for value in repeated] == ([] if again is None else [again])


def test_a_value_acknowledges_what_went_the_other_way():
    forth = [
        "run",
        ["a"],
        ["y"],
        [],
        0,
        {"segment": "s", "key": "k", "train": True, "rows": [0, 1, 1], "micro_batch": 0},
    ]
    back = ["backward", ["dy"], [], [1], 0, {"segment": "s", "key": "k", "scale": 1.0}]
    talk = begun((recv("a", "home"), forth, send("y", "phone"), recv("dy", "phone"), back))
    a = Value(transfer=1, shape=(1,), nbytes=4, chunk_bytes=64, name="a", **PLACE)
    talk.receive(a, b"1234")
    (y,) = to_phone(talk.work(Computed(tag=1), b'[["r/1/p/0/y",0,4,"float32",[1]]]'))
    dy = Value(
        transfer=3,
        shape=(1,),
        nbytes=4,
        chunk_bytes=64,
        name="dy",
        received=(y.transfer, 99),
        **PLACE,
    )
    actions = talk.receive(dy, b"1234", sender=MEMBER_SENDER)
    assert [action.message.offset for action in actions if is_to_worker(action, Release)] == [0]
    assert [action.message.op for action in actions if is_to_worker(action, Compute)] == [
        "backward"
    ]


def is_to_worker(action, kind):
    return isinstance(action, ToWorker) and isinstance(action.message, kind)
