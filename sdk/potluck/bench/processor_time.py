"""Processor time by kind of process: what a step costs beside computing, and where."""

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress

import psutil

from potluck_agent.worker.launch import PROGRAM

WITH_IO = ("agents", "ranks")  # kinds whose first thread decides, while others send and receive


class ProcessorTime:
    """This process and all that it has started until now: agents, their workers, ranks."""

    def __init__(self) -> None:
        notebook = psutil.Process()
        self._kinds = {notebook: "notebook"}
        for child in notebook.children():
            self._kinds[child] = _kind(child.cmdline())
            self._kinds.update(dict.fromkeys(child.children(recursive=True), "workers"))

    def spent_s(self) -> Mapping[str, float]:
        """Processor seconds so far, by kind.

        `_io`: of agents and ranks, all threads but the first.
        """
        spent: defaultdict[str, float] = defaultdict(float)
        for process, kind in self._kinds.items():
            with suppress(psutil.Error):
                times = process.cpu_times()
                others_s = _others_s(process) if kind in WITH_IO else 0.0
                spent[kind] += times.user + times.system - others_s
                if kind in WITH_IO:
                    spent[f"{kind}_io"] += others_s
        return spent


def _kind(command: list[str]) -> str:
    if "potluck.bench.torch_ranks" in command:
        return "ranks"
    return "agents" if PROGRAM[0] not in command else "workers"  # what forks them


def _others_s(process: psutil.Process) -> float:
    """Of all threads but the first; 0 where the system does not tell."""
    try:
        others = [thread for thread in process.threads() if thread.id != process.pid]
        return float(sum(thread.user_time + thread.system_time for thread in others))
    except psutil.AccessDenied:
        return 0.0
