"""A worker that a fork server started (`fork_server.py`), as its agent sees it."""

import json
import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

MAX_REQUEST_BYTES = 1 << 16
ANSWER_S = 5.0  # 20 ms alone; one that takes longer is stopped, or stuck


class ForkedWorker:
    """A worker that a fork server started, as `subprocess.Popen` shows a child.

    Raises ConnectionError where the server starts none for this request, another OSError where
    nobody answers there in time; it may start one on these descriptors later.
    """

    stdin = None

    def __init__(self, path: Path, request: dict[str, Any], fds: list[int]) -> None:
        self.returncode: int | None = None
        self.stderr: Any = None
        reading, writing = os.pipe2(os.O_CLOEXEC)
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.settimeout(ANSWER_S)
        try:
            self._connection.connect(str(path))
            socket.send_fds(self._connection, [json.dumps(request).encode()], [*fds, writing])
            answer = self._connection.recv(MAX_REQUEST_BYTES)
            self.pid = int(answer or 0)
            if not self.pid:
                raise ConnectionError("the fork server starts no such worker")
        except BaseException:
            self._connection.close()
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self.stderr = os.fdopen(reading, "rb")

    def poll(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it is there."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        """The same, once it has ended; `subprocess.TimeoutExpired` after so many seconds."""
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                code = self._connection.recv(MAX_REQUEST_BYTES)
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout or 0) from None
            except OSError:
                code = b""
            self.returncode = int(code or -signal.SIGKILL)  # a server takes its workers with it
            self._connection.close()
        return self.returncode


def workers_of(path: Path, agent: int) -> list[int]:
    """The processes of the workers that this process asked for; none where nobody answers there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(ANSWER_S)
        try:
            connection.connect(str(path))
            connection.send(json.dumps({"workers_of": agent}).encode())
            found: list[int] = json.loads(connection.recv(MAX_REQUEST_BYTES) or b"[]")
        except OSError:
            return []
    return found
