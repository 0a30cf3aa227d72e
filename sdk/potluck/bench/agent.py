"""How light the agent and the command are: time to import, to print help, to be ready.

Memory at rest.

Each figure is a median over processes of their own, started one after another. Python's own start
is part of `help_ms`, `agent_help_ms` and `ready_s`, as it is for whoever waits.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import psutil

from potluck.bench.harness import Result
from potluck.errors import DeviceError

SETTINGS: Mapping[str, float] = {"repeats": 7, "settle_s": 1.0}
GOALS = {
    "help_ms": ("<=", 100.0),
    "agent_help_ms": ("<=", 100.0),
    "ready_s": ("<=", 1.0),
    "idle_mib": ("<=", 40.0),
}
IMPORT = (
    "import time; t = time.perf_counter(); import potluck_agent.cli.main; "
    "print(time.perf_counter() - t)"
)
MIB = 2**20


def run(settings: Mapping[str, float]) -> Result:
    """Measure all figures."""
    repeats = int(settings["repeats"])
    imports = []
    agent_help = []
    command_help = []
    starts = []
    for _ in range(repeats):
        imports.append(float(_output("-c", IMPORT)))
        agent_help.append(_elapsed_s("-m", "potluck_agent", "--help"))
        command_help.append(_elapsed_s("-m", "potluck.cli", "--help"))
        starts.append(_start(settings["settle_s"]))
    figures = {
        "import_ms": 1e3 * median(imports),
        "help_ms": 1e3 * median(command_help),
        "agent_help_ms": 1e3 * median(agent_help),
        "ready_s": median(ready_s for ready_s, _, _ in starts),
        "idle_mib": median(nbytes for _, nbytes, _ in starts) / MIB,
        "idle_private_mib": median(nbytes for _, _, nbytes in starts) / MIB,
    }
    return Result(name="agent", figures=figures, settings=settings, goals=GOALS)


def _output(*arguments: str) -> str:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True
    ).stdout


def _elapsed_s(*arguments: str) -> float:
    start_s = time.perf_counter()
    _output(*arguments)
    return time.perf_counter() - start_s


def _start(settle_s: float) -> tuple[float, int, int]:
    """One agent: seconds until it says that it is ready.

    Then its resident and its private bytes, at rest.
    """
    with tempfile.TemporaryDirectory(prefix="potluck-bench-") as folder:
        command = [
            sys.executable,
            "-m",
            "potluck_agent",
            "start",
            "--json",
            "--no-mdns",
            "--name",
            "bench",
        ]
        command += ["--threads", "1", "--device", "cpu"]
        command += [
            "--bind",
            "127.0.0.1",
            "--port",
            "0",
            "--state",
            folder,
            "--parent-pid",
            str(os.getpid()),
        ]
        with (Path(folder) / "log").open("w") as log:
            start_s = time.perf_counter()
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            ready_s = time.perf_counter() - start_s
            if not line or "port" not in json.loads(line):
                raise DeviceError(
                    "the agent did not start.", next_step="Run `potluck agent` to see why."
                )
            time.sleep(settle_s)  # what it does once, such as opening its log, is over
            resting = psutil.Process(process.pid)
            return ready_s, resting.memory_info().rss, _private_bytes(resting)
        finally:
            process.terminate()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _private_bytes(process: psutil.Process) -> int:
    """Memory that would be free without the process: shared libraries are counted by whoever else
    uses them.
    """
    memory = process.memory_full_info()
    return int(getattr(memory, "uss", 0) or memory.rss)
