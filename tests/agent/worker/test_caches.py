"""Buffers that a request leaves to the next one: written in place, in slots of their own, and in
nothing else.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from potluck_agent.worker.operators import OWN
from potluck_agent.worker.training import TrainingSegment
from potluck_wire.graph import (
    BATCH,
    Buffer,
    Graph,
    Input,
    Node,
    Output,
    Ref,
    SegmentError,
    Symbol,
    cached,
    validate,
)

OP = "potluck.cache_scatter.default"
SLOTS, LENGTH = 3, 5
SIZE = 2
GRAPH = Graph(
    inputs=(
        Input(name="index", dtype="int64", shape=(BATCH, 1, SIZE)),
        Input(name="source", dtype="float32", shape=(BATCH, 1, SIZE)),
    ),
    buffers=(Buffer(name="cache", dtype="float32", shape=(SLOTS, LENGTH, SIZE), updated=True),),
    nodes=(Node(number=0, op=OP, args=(Ref(2), 1, Ref(0), Ref(1))),),
    outputs=(Output(name="y", ref=Ref(3), dtype="float32", shape=(BATCH, LENGTH, SIZE)),),
    symbols=(Symbol(name=BATCH, input=0, dim=0),),
)


def request(rows, place, value):
    return torch.full((rows, 1, SIZE), place), torch.full((rows, 1, SIZE), float(value))


@given(
    st.lists(
        st.tuples(st.integers(1, SLOTS), st.integers(0, LENGTH - 1), st.integers(1, 99)),
        min_size=1,
        max_size=8,
    )
)
def test_each_row_finds_what_earlier_requests_left_in_its_slot(requests):
    segment, held = TrainingSegment(GRAPH), torch.zeros(SLOTS, LENGTH, SIZE)
    for rows, place, value in requests:
        held[:rows, place] = value
        (answer,) = segment.forward(request(rows, place, value))
        assert torch.equal(answer, held[:rows])


def test_nothing_is_there_before_the_first_request_even_where_weights_are_made_up():
    for made_up in (True, False):
        segment = TrainingSegment(GRAPH, made_up=made_up)
        assert not segment.read("cache").any()


@pytest.mark.parametrize(
    ("index", "source"),
    [
        (torch.zeros(4, 1, SIZE, dtype=torch.int64), torch.zeros(4, 1, SIZE)),  # no slot
        (torch.full((2, 1, SIZE), LENGTH), torch.zeros(2, 1, SIZE)),  # behind its end
        (torch.full((2, 1, SIZE), -1), torch.zeros(2, 1, SIZE)),
    ],
    ids=["more rows than slots", "behind", "before"],
)
def test_what_has_no_place_is_refused_and_changes_nothing(index, source):
    segment = TrainingSegment(GRAPH)
    segment.forward(request(SLOTS, 1, 7))
    before = segment.read("cache").clone()
    with pytest.raises(SegmentError, match="cache_scatter"):
        segment.forward((index, source))
    assert torch.equal(segment.read("cache"), before)


@pytest.mark.parametrize(
    ("cache", "dim", "index", "source"),
    [
        ((3, 5), 0, (2, 1), (2, 1)),
        ((3, 5), -2, (2, 1), (2, 1)),
        ((3, 5), 1, (2, 1), (3, 1)),
        ((3, 5), 1, (), (2, 1)),
        ((), 0, (), ()),
    ],
)
def test_rows_are_never_mixed(cache, dim, index, source):
    with pytest.raises((ValueError, IndexError)):
        OWN[OP](torch.zeros(cache), dim, torch.zeros(index, dtype=torch.int64), torch.zeros(source))


def test_it_changes_buffers_that_are_said_to_change_and_nothing_else():
    validate(GRAPH)
    assert cached(GRAPH) == {"cache"}
    still = replace(GRAPH, buffers=(replace(GRAPH.buffers[0], updated=False),))
    node = GRAPH.nodes[0]
    of_input = replace(GRAPH, nodes=(replace(node, args=(Ref(1), *node.args[1:])),))
    for graph in (still, of_input):
        with pytest.raises(SegmentError) as caught:
            validate(graph)
        assert caught.value.cause == "document"


def test_a_thousand_requests_take_no_more_memory_than_one():
    segment = TrainingSegment(GRAPH)
    place = segment.read("cache").data_ptr()
    for i in range(1000):
        segment.forward(request(SLOTS, i % LENGTH, i))
    assert segment.read("cache").data_ptr() == place
