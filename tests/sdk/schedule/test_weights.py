"""Moving the weights of a large model: however many states and however long their names, workers
can be told.
"""

import pytest
from tests.agent.core.core_talk import Talk, recv

from potluck.schedule.weights import State, Target, compile_move
from potluck_wire.messages import Prepare, Prepared


@pytest.mark.parametrize(("n_states", "length"), [(1, 5), (600, 60), (5000, 20), (1500, 150)])
def test_states_that_stay_on_their_device_are_moved_in_portions_that_its_agent_takes(
    n_states, length
):
    states = [State(name=f"{index:0{length}}", nbytes=4) for index in range(n_states)]
    holders = {state.name: {"a": "1/s0"} for state in states}
    program = compile_move("move", holders, [Target("s1", ("a",), states)]).programs["a"]
    moved = [name for i in program.instructions if i.op == "assign" for name in i.attrs["names"]]
    assert moved == [state.name for state in states]
    talk = Talk().begin().load(recv("x"), run="n" * 64)
    (answer,) = talk.hear(
        Prepare(run="n" * 64, epoch=2**53), b'{"segments":[],"programs":[%s]}' % program.dumps()
    )
    assert answer.message == Prepared(run="n" * 64, epoch=2**53)
