"""Two notebooks with something to send: each has a lane on the links of a device, and lanes take
turns by bytes.
"""

import json

from tests.agent.core.core_driver import (
    CAN,
    EIGHT,
    MEMBER_KEY,
    OTHER_SENDER,
    OWNER_SENDER,
    Talk,
    add,
    plan,
    recv,
    send,
    value,
)

from potluck_agent.core.events import Span, ToPeer, ToWorker
from potluck_agent.core.send_queue import CHUNK_COST_BYTES, SendQueue, Transfer
from potluck_wire.limits import CHUNK_BYTES, MIB
from potluck_wire.messages import (
    Chunk,
    Commit,
    Compute,
    Computed,
    Execute,
    Prepare,
    Value,
    WorkerReady,
)

BULK = [send(f"y{i}", "phone", name=f"b{i}", priority=-5) for i in range(40)]


def crowded(nbytes):
    """Both have something to send to `phone`: the other one 40 large and urgent values."""
    talk = Talk(inbound_bytes=64 * MIB, outbound_bytes=64 * MIB, memory_bytes=10**9)
    talk.begin().begin(OTHER_SENDER).roster().roster(OTHER_SENDER)
    talk.core.reach(MEMBER_KEY)
    rows = [recv("x"), *[add("x", "x", f"y{i}") for i in range(40)], *BULK]
    talk.load(recv("x"), add("x", "x", "y"), send("y", "phone"))
    talk.receive(Prepare(run="s", epoch=1), *plan(*rows), sender=OTHER_SENDER)
    talk.work(WorkerReady(), json.dumps(CAN).encode(), worker=1)
    talk.receive(Commit(run="s", epoch=1), sender=OTHER_SENDER)
    sent = []
    for sender, run, number in ((OTHER_SENDER, "s", 1), (OWNER_SENDER, "r", 0)):
        talk.receive(Execute(run=run, epoch=1, program="p"), sender=sender)
        orders = talk.receive(value(run=run), EIGHT, sender=sender)
        while orders:
            order = orders.pop(0)
            if isinstance(order, ToWorker) and isinstance(order.message, Compute):
                rows = [
                    [name, 2 * nbytes * index, nbytes, "uint8", [nbytes]]
                    for index, name in enumerate(order.message.exports)
                ]
                done = Computed(tag=order.message.tag, start_s=10.0, stop_s=10.0)
                orders += talk.work(done, json.dumps(rows).encode(), worker=number)
            elif isinstance(order, ToPeer) and isinstance(order.message, Value | Chunk):
                sent.append((run, order.message))
    return talk, sent


def test_a_window_that_another_notebooks_values_have_used_up_is_not_this_ones():
    _, sent = crowded(MIB)
    used = sum(isinstance(message, Value) for run, message in sent if run == "s")
    assert used < 40  # the other one waits for credit
    mine = [message for run, message in sent if run == "r"]
    assert len(mine) == MIB // CHUNK_BYTES  # none of it did


def queue(*transfers):
    """A send queue with a value of each (owner, bytes, priority, pace), all for one receiver."""
    out = SendQueue()
    out.reach(MEMBER_KEY)
    put(out, *transfers)
    return out


def put(out, *transfers):
    for owner, nbytes, priority, pace_bytes_per_s in transfers:
        transfer = Transfer(
            key=MEMBER_KEY,
            value=Value(run=owner, name="v", shape=(nbytes,), nbytes=nbytes),
            place=Span(arena="zeros", offset=0, nbytes=nbytes),
            priority=priority,
            about=owner,
            owner=owner,
            pace_bytes_per_s=pace_bytes_per_s,
        )
        out.add(transfer)


def pumped(out, now_s=0.0):
    """Whose chunks leave now, in order."""
    numbers = {}
    order = ""
    for action in out.pump(now_s):
        if isinstance(action.message, Value):
            numbers[action.message.transfer] = action.message.run
        order += numbers[action.message.transfer]
    return order


def test_lanes_take_turns_whatever_their_priorities():
    order = pumped(queue(*[("a", MIB, -9, 0.0)] * 4, ("b", MIB, 9, 0.0)))
    assert order.startswith("abababab")  # as long as both have something


def test_many_small_values_have_no_more_of_a_link_than_a_large_one():
    order = pumped(queue(*[("a", 0, 0, 0.0)] * 150, ("b", MIB, 0, 0.0)))
    per_chunk = (CHUNK_BYTES + CHUNK_COST_BYTES) // CHUNK_COST_BYTES
    assert [len(small) for small in order.split("b")[1:3]] == [per_chunk] * 2


def test_a_lane_that_was_quiet_has_no_more_than_its_turn_afterwards():
    out = queue(*[("a", 8, 0, 0.0)] * 100)
    assert pumped(out) == "a" * 100
    put(out, *[("b", 8, 0, 0.0)] * 20, *[("a", 8, 0, 0.0)] * 20)
    order = pumped(out)
    assert all(abs(order[:n].count("a") - order[:n].count("b")) <= 2 for n in range(len(order)))


def test_a_pace_holds_no_other_notebooks_values():
    out = queue(*[("a", 8, 0, 1.0)] * 3, *[("b", 8, 0, 0.0)] * 3)
    assert sorted(pumped(out)) == ["a", "b", "b", "b"]
    assert pumped(out, out.wake_s()) == "a"


def test_nothing_is_left_of_a_notebook_that_is_gone():
    out = queue(*[("a", MIB, 0, 0.0)] * 40, ("b", 8, 0, 0.0))
    assert pumped(out)
    out.leave("a")
    assert (out.n_leaving, out.busy) == (
        1,
        True,
    )  # what was sent for the other one, and not credited
    out.leave("b")
    assert (out.n_leaving, out.busy) == (0, False)
