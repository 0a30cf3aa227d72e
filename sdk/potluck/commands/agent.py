"""`potluck agent ...`: becomes `python -m potluck_agent ...`, the agent in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Hand over to the agent with the same arguments.

    It keeps our process id, so that services can watch it.
    """
    command = [sys.executable, "-m", "potluck_agent", *arguments]
    if os.name != "nt":
        sys.stdout.flush()
        os.execv(sys.executable, command)  # noqa: S606 - our own interpreter, fixed module
    # exec on Windows starts another process and ends ours: the console would not wait
    return subprocess.call(command)
