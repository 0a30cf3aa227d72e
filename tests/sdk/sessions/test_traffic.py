"""Tensors as chunks under credit: two ends wired together move every size whole and never exceed
the window.
"""

import pytest

from potluck.sessions.traffic import Raw, Traffic, place_of
from potluck_wire.errors import WireError
from potluck_wire.limits import MAX_TRANSFERS, WINDOW_BYTES
from potluck_wire.messages import Chunk, Credit, Offer, Rejected, Value, Wanted

pytestmark = pytest.mark.usefixtures("small_chunks")

PLACE = ("r", 0, "p", 0)


def deliver(source, target, envelopes):
    """Carry envelopes back and forth until nobody has anything to say.

    Returns (arrived, most bytes under way).
    """
    arrived = []
    pending = [(target, envelope) for envelope in envelopes]
    most = 0
    while pending:
        most = max(
            most, sum(len(b) for to, (_, buffers) in pending if to is target for b in buffers)
        )
        to, (message, buffers) = pending.pop(0)
        replies, values = to.receive(message, buffers)
        arrived += values
        pending += [(source if to is target else target, envelope) for envelope in replies]
    return arrived, most


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 1000])
def test_every_size_arrives_whole(nbytes):
    source, target = Traffic(lambda value: ""), Traffic(lambda value: "", chunk_bytes=64)
    data = bytes(range(256)) * 4
    raw = Raw(dtype="uint8", shape=(nbytes,), data=data[:nbytes])
    ((value, got),), _ = deliver(source, target, source.send(PLACE, "x", raw))
    assert bytes(got.data) == data[:nbytes]
    assert place_of(value) == PLACE
    assert source.outstanding == 0


def test_the_window_is_never_exceeded_and_used_again():
    source, target = Traffic(lambda value: ""), Traffic(lambda value: "")
    size = WINDOW_BYTES + 123_456
    for name in ("x", "y"):
        raw = Raw(dtype="uint8", shape=(size,), data=bytes(size))
        arrived, most = deliver(source, target, source.send(PLACE, name, raw))
        assert [len(raw.data) for _, raw in arrived] == [size]
        assert 0 < most <= WINDOW_BYTES


def test_a_rejected_value_frees_its_window():
    source, target = Traffic(lambda value: ""), Traffic(lambda value: "unknown-run")
    raw = Raw(dtype="uint8", shape=(WINDOW_BYTES,), data=bytes(WINDOW_BYTES))
    arrived, _ = deliver(source, target, source.send(PLACE, "x", raw))
    assert not arrived
    assert [(value.name, no.code) for value, no in source.rejected] == [("x", "unknown-run")]
    envelopes = source.send(PLACE, "y", raw)
    assert sum(len(b) for _, buffers in envelopes for b in buffers) == WINDOW_BYTES


def test_dropping_a_run_stops_its_values():
    source = Traffic(lambda value: "")
    big = Raw(dtype="uint8", shape=(2 * WINDOW_BYTES,), data=bytes(2 * WINDOW_BYTES))
    source.send(PLACE, "x", big)
    assert source.drop("r") == []
    assert source.outstanding == 0
    assert source.receive(Credit(transfer=1, received_bytes=64), ()) == ([], [])
    assert source.receive(Rejected(transfer=1), ()) == ([], [])


@pytest.mark.parametrize(("run", "epoch"), [("r", -1), ("r", 0)], ids=["a run", "an epoch"])
def test_what_waits_behind_dropped_values_goes_out_at_once(run, epoch):
    source, target = Traffic(lambda value: ""), Traffic(lambda value: "")
    big = Raw(dtype="uint8", shape=(2 * WINDOW_BYTES,), data=bytes(2 * WINDOW_BYTES))
    source.send(PLACE, "x", big)
    assert source.send(("r2", 1, "p", 0), "y", big) == []
    ((value, _),), _ = deliver(source, target, source.drop(run, epoch))
    assert (value.run, value.name) == ("r2", "y")


@pytest.mark.parametrize(
    ("run", "epoch", "is_kept"), [("r", -1, False), ("r", 0, False), ("r", 1, True)]
)
def test_what_has_half_arrived_is_forgotten_with_its_run_or_epoch(run, epoch, is_kept):
    target = Traffic(lambda value: "")
    target.receive(
        Value(transfer=1, run="r", dtype="uint8", shape=(2,), nbytes=2, chunk_bytes=1), (b"a",)
    )
    target.drop(run, epoch)
    envelopes, arrived = target.receive(Chunk(transfer=1, index=1), (b"b",))
    assert (bool(envelopes), [bytes(raw.data) for _, raw in arrived]) == (
        is_kept,
        [b"ab"] * is_kept,
    )
    target.receive(
        Value(transfer=2, run="r2", dtype="uint8", shape=(2,), nbytes=2, chunk_bytes=1), (b"a",)
    )
    ((credit, _),), _ = target.receive(Chunk(transfer=2, index=1), (b"b",))
    # nothing is owed for what is gone
    assert credit == Credit(transfer=2, received_bytes=2, done=True)


@pytest.mark.parametrize(
    ("index", "nbytes"),
    [(1, 64), (0, 64), (3, 64), (2, 63)],
    ids=["repeated", "first again", "skipped", "short"],
)
def test_strict_about_chunks(index, nbytes):
    target = Traffic(lambda value: "")
    value = Value(transfer=1, name="x", dtype="uint8", shape=(256,), nbytes=256, chunk_bytes=64)
    target.receive(value, (bytes(64),))
    target.receive(Chunk(transfer=1, index=1), (bytes(64),))
    with pytest.raises(WireError):
        target.receive(Chunk(transfer=1, index=index), (bytes(nbytes),))


@pytest.mark.few(1)
@pytest.mark.parametrize("ended", ["acknowledged", "rejected", "dropped"])
def test_so_many_empty_values_are_under_way_and_no_more(ended):
    """They take no bytes of the window, and their messages wait in memory all the same."""
    source, n_values = Traffic(lambda value: ""), 3 * MAX_TRANSFERS
    raw = Raw(dtype="uint8", shape=(0,), data=b"")
    places = [("r", 0, "p", i) for i in range(n_values)]
    envelopes = [envelope for place in places for envelope in source.send(place, "x", raw)]
    sent, under_way = 0, []
    while envelopes:
        under_way += [message for message, _ in envelopes]
        sent += len(envelopes)
        assert len(under_way) <= MAX_TRANSFERS
        first, *under_way = under_way
        match ended:
            case "acknowledged":
                credit = Credit(transfer=first.transfer, received_bytes=0, done=True)
                envelopes, _ = source.receive(credit, ())
            case "rejected":
                envelopes, _ = source.receive(Rejected(transfer=first.transfer, code="memory"), ())
            case "dropped":
                envelopes = source.drop(*place_of(first))
    assert sent == n_values


CONTENT = b"c" * 32
OFFERED = Raw(dtype="uint8", shape=(1000,), data=bytes(1000), content=CONTENT)


def test_what_an_agent_may_have_is_offered_and_not_sent():
    source = Traffic(lambda value: "")
    ((offer, buffers),) = source.send(PLACE, "x", OFFERED)
    assert (type(offer), offer.content, offer.nbytes, buffers) == (Offer, CONTENT, 1000, ())
    done = Credit(transfer=offer.transfer, received_bytes=1000, done=True)
    assert source.receive(done, ()) == ([], [])
    assert [value.name for value in source.spared] == ["x"]
    assert source.outstanding == 0


def test_what_is_wanted_is_sent_whole_and_says_its_content():
    source, target = Traffic(lambda value: ""), Traffic(lambda value: "", chunk_bytes=64)
    ((offer, _),) = source.send(PLACE, "x", OFFERED)
    envelopes, _ = source.receive(Wanted(transfer=offer.transfer), ())
    assert envelopes[0][0].content == CONTENT
    arrived, _ = deliver(source, target, envelopes)
    assert [len(raw.data) for _, raw in arrived] == [1000]
    assert (source.spared, source.outstanding) == ([], 0)


@pytest.mark.parametrize("content", [b"", CONTENT])
def test_who_wants_what_was_not_offered_breaks_the_rules(content):
    source = Traffic(lambda value: "")
    ((first, _),) = source.send(PLACE, "x", Raw(dtype="uint8", shape=(8,), data=bytes(8),
                                                content=content))  # fmt: skip
    wanted = Wanted(transfer=first.transfer)
    if content:
        source.receive(wanted, ())
    with pytest.raises(WireError):
        source.receive(wanted, ())


def test_an_answer_to_what_was_given_up_is_passed_over():
    source = Traffic(lambda value: "")
    ((offer, _),) = source.send(PLACE, "x", OFFERED)
    source.drop("r")
    assert source.receive(Wanted(transfer=offer.transfer), ()) == ([], [])


def test_offers_are_values_that_have_begun():
    source = Traffic(lambda value: "")
    offers = [source.send(PLACE, f"v{i}", OFFERED) for i in range(MAX_TRANSFERS + 1)]
    assert [len(envelopes) for envelopes in offers] == [1] * MAX_TRANSFERS + [0]
    done = Credit(transfer=1, received_bytes=1000, done=True)
    envelopes, _ = source.receive(done, ())
    assert [type(message) for message, _ in envelopes] == [Offer]
