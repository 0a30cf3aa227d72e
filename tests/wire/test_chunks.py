"""Chunks fill a tensor in order, each exactly once, and the sender never has more under way than it
was credited.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck_wire import chunks
from potluck_wire.chunks import CreditLedger, Reassembler, SendWindow, split
from potluck_wire.errors import WireCode, WireError
from potluck_wire.limits import (
    CHUNK_BYTES,
    CREDIT_BYTES,
    KIB,
    MAX_CHUNK_BYTES,
    MIB,
    MIN_CHUNK_BYTES,
)
from potluck_wire.messages import Value

pytestmark = pytest.mark.usefixtures("small_chunks")
SIZES = st.integers(0, 500), st.integers(1, 60)


def value(nbytes=10, chunk_bytes=4, **others):
    return Value(
        **{
            "dtype": "uint8",
            "shape": (nbytes,),
            "nbytes": nbytes,
            "chunk_bytes": chunk_bytes,
            **others,
        }
    )


@given(*SIZES)
def test_ranges_cover_every_byte_once_in_order(nbytes, chunk_bytes):
    ranges = split(nbytes, chunk_bytes)
    assert [at for start, stop in ranges for at in range(start, stop)] == list(range(nbytes))
    assert all(stop - start == chunk_bytes for start, stop in ranges[:-1])
    assert len(ranges) == max(1, -(-nbytes // chunk_bytes))


@given(*SIZES)
def test_the_receiver_accepts_exactly_what_the_sender_cuts(nbytes, chunk_bytes):
    assembly = Reassembler(value(nbytes, chunk_bytes))
    for index, (start, stop) in enumerate(split(nbytes, chunk_bytes)):
        assert not assembly.complete
        assert assembly.accept(index, stop - start) == (start, stop)
    assert assembly.complete
    assert assembly.received_bytes == nbytes


@given(*SIZES, st.lists(st.tuples(st.integers(0, 12), st.integers(0, 70)), max_size=30))
def test_whatever_else_comes_is_refused_and_changes_nothing(nbytes, chunk_bytes, arrivals):
    assembly = Reassembler(value(nbytes, chunk_bytes))
    ranges = split(nbytes, chunk_bytes)
    due = 0
    for index, size in arrivals:
        right = due < len(ranges) and index == due and size == ranges[due][1] - ranges[due][0]
        before = assembly.received_bytes
        if right:
            assert assembly.accept(index, size) == ranges[due]
            due += 1
        else:
            with pytest.raises(WireError) as raised:
                assembly.accept(index, size)
            assert raised.value.code == WireCode.CHUNK
            assert assembly.received_bytes == before


@pytest.mark.parametrize(
    ("arrivals", "refused"),
    [
        ([(0, 4), (1, 4), (2, 2)], (3, 0)),  # after the last
        ([(0, 4), (1, 4), (2, 2)], (2, 2)),  # the last again
        ([(0, 4)], (0, 4)),  # twice
        ([(0, 4)], (2, 2)),  # one left out
        ([], (1, 4)),  # before the first
        ([(0, 4)], (1, 3)),  # short
        ([(0, 4)], (1, 5)),  # long
        ([(0, 4), (1, 4)], (2, 4)),  # the last as long as the others
        ([], (-1, 4)),
    ],
)
def test_refuses_a_chunk(arrivals, refused):
    assembly = Reassembler(value())
    for arrival in arrivals:
        assembly.accept(*arrival)
    with pytest.raises(WireError) as raised:
        assembly.accept(*refused)
    assert raised.value.code == WireCode.CHUNK


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"dtype": "object"}, WireCode.TENSOR),
        ({"dtype": "O"}, WireCode.TENSOR),
        ({"dtype": "float32"}, WireCode.TENSOR),  # four times as many bytes as it says
        ({"shape": (11,)}, WireCode.TENSOR),
        ({"shape": (5, -2)}, WireCode.TENSOR),
        ({"shape": (2**60, 2**60)}, WireCode.TENSOR),
        ({"shape": (1,) * 17}, WireCode.TENSOR),
        ({"shape": (2**40,), "nbytes": 2**40}, WireCode.SIZE),
        ({"chunk_bytes": 0}, WireCode.CHUNK),
        ({"chunk_bytes": MAX_CHUNK_BYTES + 1}, WireCode.CHUNK),
    ],
)
def test_refuses_a_value_whose_numbers_do_not_fit(wrong, code):
    with pytest.raises(WireError) as raised:
        Reassembler(value(**wrong))
    assert raised.value.code == code


@given(*SIZES, st.integers(60, 200), st.randoms())
def test_a_window_is_never_overrun_and_everything_arrives(nbytes, chunk_bytes, window, random):
    departure = SendWindow(nbytes, chunk_bytes)
    assembly = Reassembler(value(nbytes, chunk_bytes))
    under_way = []
    while not departure.done:
        chunk = departure.advance(window - departure.outstanding_bytes)
        if chunk is not None:
            under_way.append(chunk)
        assert departure.outstanding_bytes <= window
        if under_way and (chunk is None or random.random() < 0.5):
            index, start, stop = under_way.pop(0)
            assert assembly.accept(index, stop - start) == (start, stop)
            departure.credit(assembly.received_bytes, assembly.complete)
    assert departure.all_sent
    assert assembly.complete


@pytest.mark.parametrize(("received", "done"), [(5, False), (3, False), (9, True), (8, True)])
def test_refuses_a_credit_that_cannot_be(received, done):
    departure = SendWindow(10, 4)
    departure.advance(100)
    departure.credit(4, False)
    with pytest.raises(WireError):
        departure.credit(received, done)


def test_a_receiver_that_has_the_value_already_may_say_so_at_once():
    departure = SendWindow(10, 4)
    departure.advance(100)
    assert departure.credit(10, True) == 4
    assert departure.done
    assert departure.outstanding_bytes == 0


PART = CREDIT_BYTES // 2


def taken(account, assembly, chunks):
    """What is due after each of these chunks of a value: (transfer, bytes, done)."""
    due = []
    for index in chunks:
        assembly.accept(index, assembly.value.chunk_bytes)
        due.append([(c.transfer, c.received_bytes, c.done) for c in account.take(assembly)])
    return due


def test_credit_is_due_for_all_values_of_a_sender_together():
    account = CreditLedger()
    first, second, third = (
        Reassembler(value(10 * PART, PART, transfer=number)) for number in (1, 2, 3)
    )
    assert taken(account, first, [0]) == [[]]
    assert taken(account, second, [0]) == [[(1, PART, False), (2, PART, False)]]
    assert taken(account, first, range(1, 3)) == [[], [(1, 3 * PART, False)]]
    assert taken(account, second, [1]) == [[]]
    account.forget(second)
    assert taken(account, third, [0]) == [[]]
    assert taken(account, first, range(3, 10))[-1] == [(1, 10 * PART, True)]


@pytest.mark.parametrize(
    ("chunk_bytes", "n_chunks"),
    [(16 * KIB, 4), (256 * KIB, 4), (MIB, 4), (3 * MIB // 2, 3), (2 * MIB, 2)],
)
def test_credit_is_due_sooner_where_chunks_are_small(chunk_bytes, n_chunks):
    assembly = Reassembler(value(64 * MIB, chunk_bytes, transfer=1))
    *before, due = taken(CreditLedger(), assembly, range(n_chunks))
    assert before == [[]] * (n_chunks - 1)
    assert due == [(1, n_chunks * chunk_bytes, False)]


# --- the smallest chunks --------------------------------------------------------------------------


@pytest.fixture
def real_chunks(monkeypatch):
    monkeypatch.setattr(chunks, "MIN_CHUNK_BYTES", MIN_CHUNK_BYTES)


EDGES = st.sampled_from([0, 1, 2, MIN_CHUNK_BYTES, CHUNK_BYTES, MAX_CHUNK_BYTES])
NEAR = st.tuples(EDGES, st.integers(-1, 1)).map(lambda drawn: max(0, sum(drawn)))


@pytest.mark.usefixtures("real_chunks")
def test_no_value_costs_more_messages_than_its_bytes_are_worth():
    """Neither chunks nor credit for them: of one byte each, a value made a message per byte."""

    @given(NEAR, NEAR)
    def check(nbytes, chunk_bytes):
        known = value(nbytes, chunk_bytes, transfer=1)
        if not min(max(nbytes, 1), MIN_CHUNK_BYTES) <= chunk_bytes <= MAX_CHUNK_BYTES:
            for refused in (lambda: Reassembler(known), lambda: SendWindow(nbytes, chunk_bytes)):
                with pytest.raises(WireError) as raised:
                    refused()
                assert raised.value.code == WireCode.CHUNK
            return
        assembly, account = Reassembler(known), CreditLedger()
        SendWindow(nbytes, chunk_bytes)  # what one side refuses the other does not send
        ranges = split(nbytes, chunk_bytes)
        n_credits = 0
        for index, (start, stop) in enumerate(ranges):
            assembly.accept(index, stop - start)
            n_credits += len(account.take(assembly))
        assert len(ranges) <= 1 + nbytes / MIN_CHUNK_BYTES
        assert n_credits <= 1 + nbytes / (4 * MIN_CHUNK_BYTES)

    check()
