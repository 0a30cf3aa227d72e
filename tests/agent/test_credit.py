"""Credit always comes back: whatever overtakes whatever, a sender never waits for bytes that were taken in long ago."""

import pytest

from potluck_agent.events import Span, ToPeer
from potluck_agent.incoming import Incoming
from potluck_agent.outgoing import PARTS, Outgoing, Parcel
from potluck_wire.limits import CHUNK_BYTES, MAX_CHUNK_BYTES, MIB, WINDOW_BYTES, WINDOW_CHUNKS
from potluck_wire.messages import Chunk, Credit, Value

RECEIVER, SENDER = "R" * 40, "S" * 40
RATE = 1e8  # paced: one chunk is on the air at a time, so that a more urgent value overtakes at any chunk
NBYTES = 4 * MIB


class Pair:
    """A sender and a receiver with nothing between them but the air."""

    def __init__(self, link_bytes_per_s=RATE):
        self.outgoing, self.incoming = Outgoing(link_bytes_per_s=link_bytes_per_s), Incoming(1024 * MIB)
        self.now_s, self.credits, self.arrived, self.chunk_bytes = 0.0, [], [], []
        self.outgoing.reach(RECEIVER)

    def post(self, name, priority, nbytes=NBYTES):
        """Send this value when its turn comes."""
        value = Value(run="r", name=name, dtype="uint8", shape=(nbytes,), nbytes=nbytes)
        place = Span("zeros", 0, nbytes)
        self.outgoing.add(Parcel(key=RECEIVER, value=value, place=place, priority=priority, about="r"))

    def carry(self):
        """One chunk crosses the air and credit comes back at once; False where nothing was to be sent."""
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
    sizes = {"large": PARTS * MAX_CHUNK_BYTES, "small": MIB + 1, "middle": PARTS * MIB, "odd": 3 * MIB - 7}
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
    assert [credit.received_bytes for credit in pair.credits] == [k * window_bytes // 2 for k in range(1, 5)]
    assert [credit.done for credit in pair.credits] == [False, False, False, True]


@pytest.mark.parametrize(("bytes_per_s", "window_bytes"), [(1e6, WINDOW_CHUNKS * CHUNK_BYTES), (1e12, WINDOW_BYTES)])
def test_the_window_is_some_chunks_of_what_the_link_carries(bytes_per_s, window_bytes):
    outgoing, nbytes = Outgoing(), 4 * WINDOW_BYTES
    outgoing.reach(RECEIVER)
    seen = Value(name="seen", dtype="uint8", shape=(MIB,), nbytes=MIB)
    outgoing.add(Parcel(key=RECEIVER, value=seen, place=Span("zeros", 0, MIB), priority=0, about="r"))
    outgoing.pump(0.0)
    outgoing.credited(RECEIVER, Credit(transfer=1, received_bytes=MIB, done=True), MIB / bytes_per_s)
    bulky = Value(name="bulky", dtype="uint8", shape=(nbytes,), nbytes=nbytes)
    outgoing.add(Parcel(key=RECEIVER, value=bulky, place=Span("zeros", 0, nbytes), priority=0, about="r"))
    assert sum(action.buffers[0].nbytes for action in outgoing.pump(1.0)) == window_bytes
