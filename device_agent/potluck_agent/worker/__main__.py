"""Start of the worker process; `launch.start` runs this file by its path, without the agent's
environment.
"""

import importlib.util
import os
import socket
import sys
import traceback
from pathlib import Path

if not getattr(sys.flags, "safe_path", False):  # Python 3.10: the folder of this file
    del sys.path[0]
if importlib.util.find_spec("potluck_agent") is None:  # run from a source folder
    sys.path.append(str(Path(__file__).resolve().parents[2]))

from potluck_agent.worker.process import main


def fork_server(listener: str, owner: str) -> int:
    """The process that workers are forked from."""
    from potluck_agent.worker import fork_server

    return fork_server.serve(socket.socket(fileno=int(listener)), int(owner))


if __name__ == "__main__":
    code = 1
    try:
        code = fork_server(*sys.argv[2:]) if sys.argv[1] == "fork" else main(sys.argv[1:])
    except BaseException:
        traceback.print_exc()
    # at once: the pipe closes when the exit code is known, and tearing torch down takes 100 ms
    finally:
        os._exit(code)
