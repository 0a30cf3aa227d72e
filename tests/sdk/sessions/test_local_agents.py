"""Agents that this process starts leave nothing behind, whatever interrupts their end."""

import _thread
import os
import signal
import threading
from collections.abc import Callable

import psutil
import pytest

from potluck.sessions.agent_specs import Spec
from potluck.sessions.local_agents import LocalAgents


def test_nothing_is_left_when_ctrl_c_comes_while_they_end():
    agents = LocalAgents([Spec(name="one")], trust=None)
    (agent,) = agents.agents
    os.kill(agent.pid, signal.SIGSTOP)  # so that its end is waited for
    try:
        with pytest.raises(KeyboardInterrupt):
            _interrupted(agents.close)
        assert not agents.directory.exists()
    finally:
        os.kill(agent.pid, signal.SIGCONT)
        agents.close()  # at exit, say
    assert not psutil.pid_exists(agent.pid)


def _interrupted(step: Callable[[], None]) -> None:
    threading.Timer(0.1, _thread.interrupt_main).start()
    step()
