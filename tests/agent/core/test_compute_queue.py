"""How many tasks the queue lets the worker have: two, and more where they are known to be short."""

import dataclasses

import pytest

from potluck_agent.core.compute_queue import AHEAD_S, DEPTH, ComputeQueue
from potluck_agent.core.dependencies import lay_out
from potluck_agent.core.execution import Execution, Name
from potluck_wire.program import Instruction, Program

N = 20


def execution(layout, step=0):
    return Execution(Name("r", 0, "p", step), layout, "owner", step)


def make():
    """A queue and a program of so many slices."""
    attrs = {"dim": 0, "start": 0, "stop": 1}
    rows = [Instruction(id=0, op="recv", outputs=("x",), attrs={"peer": "home"})]
    rows += [
        Instruction(id=i, op="slice", inputs=("x",), outputs=(f"y{i}",), attrs=attrs)
        for i in range(1, N + 1)
    ]
    return ComputeQueue(), lay_out(Program(name="p", instructions=tuple(rows)))


def offer(queue, work):
    for index in range(1, N + 1):
        queue.offer(work, index)


def taken(queue):
    tags = []
    while (pick := queue.next()) is not None:
        tags.append(pick[0])
    return tags


def do(queue, seconds):
    """Everything, one task after the other."""
    tags = taken(queue)
    while tags:
        assert queue.finish(tags.pop(0), seconds) is not None
        tags += taken(queue)


@pytest.mark.long
def test_gives_two_until_it_knows_how_long_they_take():
    queue, layout = make()
    offer(queue, execution(layout))
    assert len(taken(queue)) == DEPTH


@pytest.mark.parametrize(
    ("seconds", "n"),
    [(1.0, DEPTH), (AHEAD_S, DEPTH), (AHEAD_S / 4, 4), (AHEAD_S / 10.5, 11), (0.0, N)],
)
def test_gives_as_many_short_ones_as_keep_the_worker_busy_for_a_moment(seconds, n):
    queue, layout = make()
    offer(queue, execution(layout))
    do(queue, seconds)
    offer(queue, execution(layout, step=1))
    assert len(taken(queue)) == n


def test_a_task_that_failed_tells_nothing_of_its_time():
    queue, layout = make()
    offer(queue, execution(layout))
    do(queue, None)
    offer(queue, execution(layout, step=1))
    assert len(taken(queue)) == DEPTH


class Counted(list):
    """A list that counts how often something is looked up in it."""

    n_lookups = 0

    def __getitem__(self, index):
        self.n_lookups += 1
        return super().__getitem__(index)


def test_each_order_is_weighed_once_however_many_are_with_the_worker():
    """Of thousands that are very short, the agent would be deaf for seconds."""
    queue, layout = make()
    offer(queue, execution(layout))
    do(queue, 0.0)
    weighed = dataclasses.replace(layout, attrs=Counted(layout.attrs))
    offer(queue, execution(weighed, step=1))
    tags = taken(queue)
    assert len(tags) == N
    for tag in tags:
        assert queue.finish(tag, 0.0) is not None
        assert queue.next() is None
    assert weighed.attrs.n_lookups == N


def test_what_was_with_a_worker_that_is_gone_takes_no_room_of_the_next():
    queue, layout = make()
    offer(queue, execution(layout))
    assert len(taken(queue)) == DEPTH
    queue.clear()
    offer(queue, execution(layout, step=1))
    do(queue, 0.0)
    offer(queue, execution(layout, step=2))
    assert len(taken(queue)) == N
