"""An emulated device that is busy with something else takes longer, and says so when measured."""

import pytest

from potluck_agent.core.events import ToPeer, ToWorker
from potluck_agent.net.emulated_load import loaded
from potluck_wire.messages import Compute, Measured, Probed


def test_tasks_that_are_told_their_time_and_measurements_take_so_many_times_longer():
    task = loaded(ToWorker(Compute(lasts_s=0.2), ()), 3.0)
    assert task.message.lasts_s == pytest.approx(0.6)
    measured = Measured(rows=(1, 4), forward_s=(0.1, 0.2), backward_s=(0.3, 0.4), update_s=0.5)
    reply = loaded(ToPeer(key="key", message=measured), 2.0).message
    assert (reply.forward_s, reply.backward_s) == ((0.2, 0.4), (0.6, 0.8))
    assert reply.rows == measured.rows


@pytest.mark.parametrize(
    "action", [ToWorker(Compute(), ()), ToPeer(key="key", message=Probed(seconds=(1.0,)))], ids=str
)
def test_all_else_stays_as_it_is(action):
    assert loaded(action, 3.0) is action
