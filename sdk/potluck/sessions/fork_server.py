"""One fork server for all agents that this process starts on its machine: their workers start at
once and share the memory of torch (`potluck_agent.worker.fork_server`). Linux; elsewhere they do
without.

It is there while anybody holds a lease of it.
"""

import select
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from pathlib import Path

from potluck_agent.worker import fork_server
from potluck_agent.worker.forked_worker import workers_of

READY_S = 30.0  # 2 s alone
PREFIX = "potluck-forks-"


class ForkServer:
    """A fork server of this process, or none where it cannot be."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._awaiting = threading.Lock()  # its one word is for whoever reads it first
        if sys.platform == "linux":
            self._path = Path(tempfile.mkdtemp(prefix=PREFIX)) / "socket"
            try:
                self._process = fork_server.start(self._path)
            except OSError:  # where temporary files are, its path may be too long for a socket
                shutil.rmtree(self._path.parent, ignore_errors=True)

    def arguments(self) -> list[str]:
        """What tells an agent of it."""
        return ["--fork-server", str(self._path)] if self._process is not None else []

    def await_ready(self) -> None:
        """Until it has loaded what workers need; one that cannot is ended, and nobody misses it."""
        with self._awaiting:
            process = self._process
            if process is None or process.stdout is None or process.stdout.closed:
                return
            if select.select([process.stdout], [], [], READY_S)[0] and process.stdout.read(1):
                process.stdout.close()
            else:
                self.close()

    def workers_of(self, agent: int) -> list[int]:
        """The processes of the workers that an agent's process has from here."""
        return workers_of(self._path, agent) if self._process is not None else []

    def close(self) -> None:
        """It ends, and its workers with it."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None
        shutil.rmtree(self._path.parent, ignore_errors=True)


_lock = threading.Lock()
_servers: list[ForkServer] = []  # one, while there are holders
_holders: "weakref.WeakSet[object]" = weakref.WeakSet()


def keep(holder: object) -> None:
    """Once it is there, it stays until this one gives it back, too."""
    with _lock:
        _holders.add(holder)


def lease(holder: object) -> ForkServer:
    """The one of this process; `give_back` is owed by whoever holds it."""
    keep(holder)
    with _lock:
        if not _servers:
            _servers.append(ForkServer())
        return _servers[0]


def give_back(holder: object) -> None:
    """This one needs it no more. Twice is fine."""
    with _lock:
        _holders.discard(holder)
        if not _holders and _servers:
            _servers.pop().close()
