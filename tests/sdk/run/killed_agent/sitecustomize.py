"""Python runs this file first where this folder is on its path.

In an agent: count its events, and kill when told.

`kill-order` in the agent's state directory says "agent 7" or "worker 7": from then on, at its
seventh event (a message, a task that is done), that process is killed; `killed` says that it was.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

FREQUENT = {"Tick"}  # comes by the clock


def _arm(directory: Path, forks: Path) -> None:
    from potluck_agent.core.machine import Core
    from potluck_agent.worker.forked_worker import workers_of
    from potluck_wire.messages import Ping

    order = directory / "kill-order"
    handle = Core.handle
    remaining = list[int]()

    def counted(core: Core, event: Any, now_s: float) -> Any:
        if not order.exists():
            remaining.clear()
        elif type(event).__name__ not in FREQUENT and not isinstance(
            getattr(event, "message", None), Ping
        ):
            victim, number = order.read_text().split()
            remaining[:] = [(remaining[0] if remaining else int(number)) - 1]
            if remaining == [0]:
                order.rename(directory / "killed")
                victims = [os.getpid()] if victim == "agent" else workers_of(forks, os.getpid())
                for pid in victims:
                    os.kill(pid, signal.SIGKILL)
        return handle(core, event, now_s)

    Core.handle = counted


def _given(option: str) -> Path:
    return Path(sys.orig_argv[sys.orig_argv.index(option) + 1])


if "potluck_agent" in sys.orig_argv and "--state" in sys.orig_argv:
    _arm(_given("--state"), _given("--fork-server"))
