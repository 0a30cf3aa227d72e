"""Start real agents on this machine and make sure that none outlives us; the one file that knows how an agent starts.

Each agent is a process of its own with its own sockets, state directory and key. It dies with us, even if we are
killed: it watches our process id, and then removes the directory of us all.
"""

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING

import psutil

import potluck_agent
from potluck.errors import DeviceError
from potluck.lab.specs import Spec
from potluck.run.events import Address

if TYPE_CHECKING:
    from potluck.lab.namespaces import Namespaces

READY_S = 30.0  # under 1 s alone; ten at once on two busy cores took 6 s
STOP_S = 5.0
PREFIX = "potluck-lab-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """An agent that is up: where it listens, its key, and its pairing code where a window was opened."""

    name: str
    address: Address
    key: str
    pid: int
    code: str = ""


class LocalAgents:
    """Agents of this process, one per spec; `close` ends them and removes `directory`, where all that they write is.

    Parameters
    ----------
    trust
        (name, key) of the notebook that they are paired with from the start.
    announce
        Whether they announce themselves by mDNS.
    inside
        Networks of their own for the devices; without them all are on loopback.
    """

    def __init__(
        self,
        specs: Iterable[Spec],
        trust: tuple[str, str] | None,
        *,
        announce: bool = False,
        extra: Sequence[str] = (),
        inside: "Namespaces | None" = None,
    ) -> None:
        self._inside = inside
        sweep()
        self.directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._pid = os.getpid()
        _open.add(self)
        try:
            for spec in specs:
                self._processes[spec.name] = self._start(spec, trust, announce, extra)
            self.agents = tuple(self._await_ready(name, process) for name, process in self._processes.items())
        except BaseException:
            self.close()
            raise

    def _start(
        self, spec: Spec, trust: tuple[str, str] | None, announce: bool, extra: Sequence[str]
    ) -> "subprocess.Popen[bytes]":
        command = self._inside.command(spec.name) if self._inside is not None else []
        command += [sys.executable, "-m", "potluck_agent", "start", *spec.arguments(), *extra]
        command += [
            "--port",
            "0",
            "--bind",
            self._host(spec.name),
            "--state",
            str(self.directory / spec.name),
            "--json",
        ]
        command += ["--parent-pid", str(os.getpid()), "--scratch", str(self.directory)]
        # one word: a key may begin with a hyphen
        command += [f"--trust={trust[1]}:{trust[0]}"] if trust else []
        command += [] if announce else ["--no-mdns"]
        package = Path(potluck_agent.__file__ or "").parent.parent
        path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
        environment = os.environ | {"PYTHONPATH": path}
        with (self.directory / f"{spec.name}.log").open("wb") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=environment,
                start_new_session=os.name != "nt",  # Ctrl-C is ours to handle: it must not end them under our feet
            )  # fmt: skip

    def _host(self, name: str) -> str:
        return self._inside.address(name) if self._inside is not None else "127.0.0.1"

    def _await_ready(self, name: str, process: "subprocess.Popen[bytes]") -> Started:
        lines: Queue[bytes] = Queue()
        stdout = process.stdout
        assert stdout is not None
        threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True).start()
        try:
            ready = json.loads(lines.get(timeout=READY_S))
            address = Address(host=self._host(name), port=int(ready["port"]))
            code = str(ready.get("code", ""))
            return Started(name=name, address=address, key=str(ready["key"]), pid=process.pid, code=code)
        except (Empty, ValueError, KeyError, TypeError) as error:
            said = self.log(name).strip().splitlines()[-1:] or ["it said nothing"]
            raise DeviceError(f"its agent did not start: {said[0]}", device=name) from error

    def log(self, name: str) -> str:
        """What an agent has written to its log."""
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def process(self, name: str) -> "subprocess.Popen[bytes]":
        """The process of an agent."""
        return self._processes[name]

    def close(self) -> None:
        """End all agents and remove their files; safe to call twice, and in a forked child (where it does nothing)."""
        if self._pid != os.getpid():
            return
        _open.discard(self)
        for process in self._processes.values():
            with suppress(OSError):
                process.terminate()
        for process in self._processes.values():
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout:
                process.stdout.close()
        self._processes.clear()
        if self._inside is not None:
            self._inside.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def sweep(root: Path | None = None) -> None:
    """Remove what processes that were killed could not: directories whose number is of no process any more."""
    for directory in (root or Path(tempfile.gettempdir())).glob(f"{PREFIX}*-*"):
        number = directory.name.removeprefix(PREFIX).partition("-")[0]
        if number.isdecimal() and not psutil.pid_exists(int(number)):
            shutil.rmtree(directory, ignore_errors=True)


_open: "weakref.WeakSet[LocalAgents]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for agents in tuple(_open):
        agents.close()
