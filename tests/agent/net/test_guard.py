"""What raises in the loop beside the core's events costs nobody the agent."""

from unittest.mock import MagicMock

import pytest

from potluck_agent.net.event_loop import EventLoop

PARTS = {"_reception": "tick", "_links": "tick", "_inflow": "check", "_workplace": "listen"}


@pytest.mark.parametrize("broken", PARTS)
def test_a_part_that_cannot_do_its_tick_keeps_no_other_from_it(broken):
    loop = EventLoop.__new__(EventLoop)
    loop._core, loop._sources = MagicMock(), MagicMock()
    loop._look_at_peers, loop._feed = MagicMock(), MagicMock()
    for part, step in PARTS.items():
        setattr(loop, part, MagicMock(**{f"{step}.return_value": 0}))
    error = OSError(24, "Too many open files")
    getattr(getattr(loop, broken), PARTS[broken]).side_effect = error
    loop._tick(1.0)
    for part, step in PARTS.items():
        getattr(getattr(loop, part), step).assert_called_once()
    loop._feed.assert_called_once()
    ((_, told),) = [call.args for call in loop._core.fault.call_args_list]
    assert told is error
