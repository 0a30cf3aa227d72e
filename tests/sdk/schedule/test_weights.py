"""Moving the weights of a large model: however many states and however long their names, workers
can be told.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.core.core_driver import Talk, recv

from potluck.records import Plan, Segment, Stage
from potluck.schedule.program_builder import LATE
from potluck.schedule.weights import (
    AHEAD_BYTES,
    NamedState,
    SegmentTarget,
    compile_move,
    compile_pull,
)
from potluck_wire.messages import Prepare, Prepared


@pytest.mark.parametrize(("n_states", "length"), [(1, 5), (600, 60), (5000, 20), (1500, 150)])
def test_states_that_stay_on_their_device_are_moved_in_portions_that_its_agent_takes(
    n_states, length
):
    states = [NamedState(name=f"{index:0{length}}", nbytes=4) for index in range(n_states)]
    holders = {state.name: {"a": "1/s0"} for state in states}
    program = compile_move("move", holders, [SegmentTarget("s1", ("a",), states)]).programs["a"]
    moved = [name for i in program.instructions if i.op == "assign" for name in i.attrs["names"]]
    assert moved == [state.name for state in states]
    talk = Talk().begin().load(recv("x"), run="n" * 64)
    (answer,) = talk.receive(
        Prepare(run="n" * 64, epoch=2**53), b'{"segments":[],"programs":[%s]}' % program.dumps()
    )
    assert answer.message == Prepared(run="n" * 64, epoch=2**53)


def pull(sizes, *, in_background):
    """All of one device, states of these sizes."""
    plan = Plan(
        planner="by hand",
        model="test",
        stages=(Stage(start=0, stop=1, devices=("a",), shares=(1,)),),
        micro_batch=1,
        n_micro_batches=1,
        training=True,
    )
    states = [NamedState(name=f"s{index}", nbytes=size) for index, size in enumerate(sizes)]
    segment = Segment(name="all", start=0, stop=1)
    compiled = compile_pull(plan, [segment], {"all": states}, in_background=in_background)
    return compiled.programs["a"].instructions


@given(st.lists(st.integers(1, 3 * AHEAD_BYTES), min_size=1, max_size=20))
def test_in_the_background_states_are_sent_last_and_few_wait_to_be_sent(sizes):
    instructions = pull(sizes, in_background=True)
    sends = [i for i in instructions if i.op == "send"]
    assert [i.priority for i in sends] == [LATE] * len(sizes)
    size_of = {send.id: size for send, size in zip(sends, sizes, strict=True)}
    reads = [i for i in instructions if i.op == "state"]
    gone = set()
    for index, read in enumerate(reads):
        gone |= set(read.after) & set(size_of)
        held = [i.id for i in sends[:index] if i.id not in gone]
        waiting = sum(size_of[i] for i in held)
        assert waiting + sizes[index] <= AHEAD_BYTES or not held


def test_who_waits_for_a_pull_gets_it_at_once():
    instructions = pull([3 * AHEAD_BYTES] * 3, in_background=False)
    assert {i.priority for i in instructions} == {0}
    sends = {i.id for i in instructions if i.op == "send"}
    assert not any(sends & set(i.after) for i in instructions)
