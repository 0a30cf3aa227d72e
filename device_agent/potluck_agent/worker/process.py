"""The worker's process: one message after the other from the pipe, strictly in order, on one
thread.

Whatever a task does wrong ends that task (`ComputeFailed`), not the worker. The process ends when
the pipe does.
"""

import faulthandler
import functools
import socket
import sys

from potluck_agent.worker import sandbox
from potluck_agent.worker.arena import Arena
from potluck_agent.worker.pipe import Pipe
from potluck_wire.messages import Configure, TryProcessor

EXIT_MEMORY = 65  # the exit code when memory ran out where no task could be blamed


def main(arguments: list[str]) -> int:
    """Run a worker on the descriptors in `arguments` (pipe, inbound, outbound), which computes on
    those accelerators, if any are named (onnxruntime's, torch's).

    Returns the exit code.
    """
    faulthandler.enable()
    end, inbound_handle, outbound_handle, *uses = arguments
    connection = _inherited(end)
    folder = sandbox.nowhere()
    bounds = sandbox.isolate(connection, uses)
    pipe = Pipe(connection)
    try:
        configure, _ = pipe.next()
        if isinstance(configure, TryProcessor):
            from potluck_agent.worker.trial import attempt

            n_threads, most_bytes = max(configure.threads, default=1), configure.memory_bytes
            confine = functools.partial(
                sandbox.confine, most_bytes, folder, n_threads, uses, bounds["reading"]
            )
            pipe.send(attempt(configure, confine))
            pipe.flush()
            return 0
        if not isinstance(configure, Configure):
            raise ValueError(
                f"the first message is a {type(configure).__name__}, expected Configure"
            )
        from potluck_agent.worker.engine import (
            WorkerEngine,  # loads torch, which takes a second or two
        )

        inbound = Arena(configure.inbound_bytes, inbound_handle)
        outbound = Arena(configure.outbound_bytes, outbound_handle)
        engine = WorkerEngine(configure, inbound, outbound, pipe)
        confined = sandbox.confine(
            configure.memory_bytes, folder, configure.threads, uses, bounds["reading"]
        )
        engine.ready(bounds | confined)
        while True:
            engine.handle(*pipe.next())
    except (EOFError, ConnectionError):
        return 0
    except MemoryError:
        return EXIT_MEMORY


def _inherited(end: str) -> socket.socket:
    """The socket that the agent passed on: a descriptor, or on Windows its description on standard
    input.
    """
    if sys.platform == "win32":
        return socket.fromshare(sys.stdin.buffer.read())
    return socket.socket(fileno=int(end))
