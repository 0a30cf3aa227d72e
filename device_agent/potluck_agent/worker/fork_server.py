"""A process with its libraries loaded that forks workers: each starts in some 20 ms of computing
instead of two seconds, and shares the libraries' memory with the others.

For agents that somebody starts on one Linux machine together: `start` it, and hand its path to
each (`--fork-server`). A worker is confined after the fork, as any other one. It ends when the
agent that asked for it does; the server, and with it all of them, when whoever started it does.
"""

import gc
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from potluck_agent.worker.forked_worker import MAX_REQUEST_BYTES
from potluck_agent.worker.launch import worker_command, worker_environment

BACKLOG = 128
LOOK_S = 0.5  # whether its owner is there
BREATH_S = 0.05  # where it can take no more
N_FDS = 4  # pipe, inbound, outbound, standard error


def start(path: Path) -> "subprocess.Popen[bytes]":
    """A fork server that listens at this path, in a folder of its own; it ends with this process.

    It writes to its standard output once its libraries are loaded (seconds), or ends where it can
    fork no worker. OSError where the path is too long, or taken.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(BACKLOG)
        return subprocess.Popen(
            worker_command("fork", str(listener.fileno()), str(os.getpid())),
            env=worker_environment(1),
            cwd="/",
            pass_fds=(listener.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def serve(listener: socket.socket, owner: int) -> int:
    """Fork workers for as long as the process that started this one is there.

    Returns the exit code.
    """
    try:
        _load()
        os.close(os.pidfd_open(os.getpid()))  # OSError where Linux is too old for it
        if len(os.listdir("/proc/self/task")) > 1:  # a fork would lose the others, with their locks
            return 1
        os.write(1, b"r")
        server = _Server(listener)
        while os.getppid() == owner:
            server.step()
    finally:
        shutil.rmtree(Path(listener.getsockname()).parent, ignore_errors=True)
    return 0


def _load() -> None:
    from potluck_agent.worker.arrays.backends import backends

    if "torch" in backends(()):
        from potluck_agent.worker import torch_setup

        torch_setup.prepare(1)
    from potluck_agent.worker import engine  # noqa: F401

    gc.collect()
    gc.freeze()  # looking for garbage would copy the pages of all that was loaded


class _Worker(NamedTuple):
    """A worker, the process that asked for it, and the connection by which it did."""

    pid: int
    agent: int
    connection: socket.socket


class _Server:
    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._poller = select.poll()
        self._poller.register(listener, select.POLLIN)
        self._asking: dict[int, socket.socket] = {}  # connections, by their descriptors
        self._workers: dict[int, _Worker] = {}  # by those of their connections
        self._ends: dict[int, _Worker] = {}  # by those of their processes, which show their ends

    def step(self) -> None:
        """Whatever is to be done next, in a while."""
        for fd, _ in self._poller.poll(LOOK_S * 1000):
            if fd == self._listener.fileno():
                self._accept()
            elif fd in self._ends:
                self._report(fd)
            elif fd in self._workers:  # its agent is gone, or wants no more of it
                self._poller.unregister(fd)
                with suppress(OSError):
                    os.killpg(self._workers[fd].pid, signal.SIGKILL)
            elif fd in self._asking:
                self._answer(fd, self._asking.pop(fd))

    def _accept(self) -> None:
        try:
            connection = self._listener.accept()[0]
        except OSError:  # too many descriptors: whoever asks waits, or does without
            time.sleep(BREATH_S)
            return
        self._asking[connection.fileno()] = connection
        self._poller.register(connection, select.POLLIN)

    def _answer(self, fd: int, connection: socket.socket) -> None:
        data, fds, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, N_FDS)
        try:
            request = _request(data)
            if "workers_of" in request:
                agent = request["workers_of"]
                _send(connection, [each.pid for each in self._ends.values() if each.agent == agent])
            else:
                _send(connection, self._started(fd, connection, request, fds))
        finally:
            for taken in fds:
                os.close(taken)
        if fd not in self._workers:
            self._drop(fd, connection)

    def _started(
        self, fd: int, connection: socket.socket, request: dict[str, Any], fds: list[int]
    ) -> int:
        """The process of a new worker; 0 where it cannot be one of this server's."""
        if not _has_loaded(request) or len(fds) != N_FDS:
            return 0
        try:
            pid, end = _fork(fds, request.get("affinity", []))
        except OSError:  # too many processes, or descriptors
            return 0
        worker = _Worker(pid, request.get("agent", 0), connection)
        self._workers[fd] = self._ends[end] = worker
        self._poller.register(end, select.POLLIN)
        return pid

    def _report(self, end: int) -> None:
        """A worker has ended: tell its agent how."""
        worker = self._ends.pop(end)
        self._poller.unregister(end)
        os.close(end)
        _, status = os.waitpid(worker.pid, 0)
        _send(worker.connection, os.waitstatus_to_exitcode(status))
        fd = worker.connection.fileno()
        del self._workers[fd]
        self._drop(fd, worker.connection)

    def _drop(self, fd: int, connection: socket.socket) -> None:
        with suppress(KeyError):
            self._poller.unregister(fd)
        connection.close()


def _request(data: bytes) -> dict[str, Any]:
    try:
        request = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return request if isinstance(request, dict) else {}


def _has_loaded(request: dict[str, Any]) -> bool:
    """Whether a process of its own would be such a one as this."""
    same = {"command": worker_command(), "environment": dict(os.environ)}
    return request.items() >= same.items()


def _send(connection: socket.socket, answer: Any) -> None:
    with suppress(OSError):  # it is gone, which its descriptor will show
        connection.send(json.dumps(answer).encode())


def _fork(fds: list[int], affinity: list[int]) -> tuple[int, int]:
    """A new worker on these descriptors (pipe, inbound, outbound, standard error) alone; its
    process, and a descriptor that shows its end.
    """
    pid = os.fork()
    if pid:
        with suppress(OSError):  # the child does the same; by now it may even have ended
            os.setpgid(pid, pid)
        try:
            return pid, os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
    code = 1
    try:
        os.setpgid(0, 0)
        os.sched_setaffinity(0, affinity)
        *handles, errors = fds
        nothing = os.open(os.devnull, os.O_RDWR)
        for number, taken in enumerate((nothing, nothing, errors)):
            os.dup2(taken, number)
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd > 2 and fd not in handles:
                with suppress(OSError):
                    os.close(fd)
        from potluck_agent.worker.process import main

        code = main([*map(str, handles), "", ""])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
