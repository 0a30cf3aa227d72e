"""What one program may ask of the network queue: however it is written, every other value
leaves."""

import random
from collections import Counter

import pytest
from tests.agent.core.test_release import FAR, NEAR, names, outgoing, sending

from potluck_agent.core.send_queue import MAX_AT_ONCE, MAX_PACED_S, SendQueue
from potluck_wire.limits import CHUNK_BYTES, MAX_TRANSFERS
from potluck_wire.messages import Credit, Value


def take(out: SendQueue, sent, now_s):
    """The receivers take all of this; returns what leaves because of that."""
    for action in sent:
        if isinstance(action.message, Value):
            nbytes = action.message.nbytes
            done = Credit(transfer=action.message.transfer, received_bytes=nbytes, done=True)
            out.credited(action.key, done, now_s)
    return out.pump(now_s)


@pytest.mark.parametrize("pace", [1e-300, 5e-324, 1e-3, 1.0, 1e5])
def test_a_pace_keeps_the_lane_for_so_long_and_no_longer(pace):
    out, now_s = outgoing(), 100.0
    out.add(sending("bulky", nbytes=4 * CHUNK_BYTES, pace_bytes_per_s=pace), now_s)
    out.add(sending("other", key=FAR, priority=9), now_s)
    n_chunks = len(out.pump(now_s))
    for _ in range(4):
        wake_s = out.wake_s()
        if wake_s is None:
            break
        assert wake_s <= now_s + MAX_PACED_S
        now_s = wake_s
        n_chunks += len(out.pump(now_s))
    assert n_chunks == 5


def test_many_small_values_do_not_add_up_to_more():
    out = outgoing()
    for i in range(100):
        out.add(sending(f"{i}", pace_bytes_per_s=1e-300), 0.0)
    sent = out.pump(0.0)
    while sent:
        sent = take(out, sent, 0.0)
    out.add(sending("last", nbytes=2 * CHUNK_BYTES, pace_bytes_per_s=1e6), 0.0)
    out.add(sending("other", key=FAR, priority=9), 0.0)
    out.pump(0.0)
    wake_s = out.wake_s()
    assert wake_s is None or wake_s <= MAX_PACED_S


@pytest.mark.parametrize("how", ["acknowledged", "cancelled", "forgotten", "rejected"])
def test_a_pace_does_not_outlive_what_it_was_for(how):
    out = outgoing()
    out.add(sending("bulky", nbytes=4 * CHUNK_BYTES, pace_bytes_per_s=1.0), 0.0)
    out.add(sending("later", key=FAR, nbytes=CHUNK_BYTES, priority=9), 0.0)
    (sent,) = out.pump(0.0)
    transfer = sent.message.transfer
    match how:
        case "acknowledged":
            out.arrived(NEAR, transfer, 0.0)
        case "cancelled":
            out.cancel({"bulky"})
        case "forgotten":
            out.forget(NEAR)
        case "rejected":
            out.rejected(NEAR, transfer)
    assert names(out.pump(0.0)) == ["later"]


@pytest.mark.long
@pytest.mark.parametrize("nbytes", [0, 1, 8])
def test_so_many_values_are_under_way_and_no_more(nbytes):
    """All leave in the order of priorities, however the receiver acknowledges them."""
    rng, n_values = random.Random(nbytes), 3 * MAX_TRANSFERS
    out = outgoing()
    now_s = 0.0
    in_order = []
    under_way = []
    for i in rng.sample(range(n_values), n_values):
        out.add(sending(f"{i}", nbytes=nbytes, priority=i), now_s)
    while out.busy:
        sent = out.pump(now_s)
        assert len(sent) <= MAX_AT_ONCE
        in_order += [int(action.message.name) for action in sent]
        under_way += sent
        assert len(under_way) <= MAX_TRANSFERS
        if not sent:
            assert len(under_way) == min(MAX_TRANSFERS, n_values - len(in_order) + len(under_way))
            some = rng.randrange(1, len(under_way) + 1)
            acknowledged, under_way = under_way[:some], under_way[some:]
            for action in acknowledged:
                out.arrived(NEAR, action.message.transfer, now_s)
    assert in_order == list(range(n_values))


@pytest.mark.long
def test_values_that_begin_anew_are_no_more_under_way_than_before():
    out = outgoing()
    for i in range(2 * MAX_TRANSFERS):
        out.add(sending(f"{i}", nbytes=0), 0.0)
    for _ in range(5):
        out.restart(NEAR)
        sent = [action for _ in range(20) for action in out.pump(0.0)]
        assert names(sent) == [f"{i}" for i in range(MAX_TRANSFERS)]


def test_values_overtaken_in_the_midst_go_on_although_no_more_may_begin():
    """Of each one chunk has left when a more urgent one comes."""
    out = SendQueue(window_bytes=CHUNK_BYTES)
    out.reach(NEAR)
    received = Counter()

    def acknowledge(sent):
        for transfer in [action.message.transfer for action in sent]:
            received[transfer] += CHUNK_BYTES
            is_whole = received[transfer] == 2 * CHUNK_BYTES
            credit = Credit(transfer=transfer, received_bytes=received[transfer], done=is_whole)
            out.credited(NEAR, credit, 100.0)  # slow: no larger chunks than the window

    sent = []
    for i in range(MAX_TRANSFERS + 100):
        out.add(sending(f"{i}", nbytes=2 * CHUNK_BYTES, priority=-i), 0.0)
        acknowledge(sent)
        sent = out.pump(0.0)
    while sent:
        acknowledge(sent)
        sent = out.pump(0.0)
    assert not out.busy


def test_many_values_due_at_once_leave_in_their_order_a_few_at_a_time():
    out, n_values = outgoing(), 3 * MAX_AT_ONCE
    for i in reversed(range(n_values)):
        out.add(sending(f"{i}", nbytes=0, priority=i, release_s=5.0), 1.0)
    in_order = []
    while out.wake_s() is not None:
        assert out.wake_s() <= 5.0
        sent = out.pump(5.0)
        in_order += names(sent)
    assert in_order == [f"{i}" for i in range(n_values)]
