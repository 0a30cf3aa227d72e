"""Start real agents on this machine and make sure that none outlives us.

The one file that knows how an agent starts.

Each agent is a process of its own with its own sockets, state directory and key. It dies with us,
even if we are killed: it watches our process id, and then removes the directory of us all.
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
from typing import Protocol

import psutil

import potluck_agent
from potluck.errors import DeviceError, HomeError
from potluck.sessions import fork_server
from potluck.sessions.agent_specs import Spec
from potluck.sessions.events import Address
from potluck_wire.limits import PORT
from potluck_wire.process_identity import identity

READY_S = 30.0  # under 1 s alone; ten at once on two busy cores took 6 s
STOP_S = 5.0
PREFIX = "potluck-lab-"


class Networks(Protocol):
    """Networks of their own for the devices of a home."""

    def command(self, device: str) -> list[str]:
        """What to put before a command so that it runs in the network of a device."""

    def address(self, device: str) -> str:
        """The host of a device."""

    def close(self) -> None:
        """All of them are gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """An agent that is up: where it listens, its key, and its pairing code where a window was
    opened.
    """

    name: str
    address: Address
    key: str
    pid: int
    code: str = ""


class LocalAgents:
    """Agents of this process, one per spec.

    `close` ends them and removes `directory`, where all that they write is.

    Parameters
    ----------
    trust
        (name, key) of the notebook that they are paired with from the start.
    announce
        Whether they announce themselves by mDNS.
    inside
        Networks of their own for the devices; without them all are on `bind`.
    """

    def __init__(
        self,
        specs: Iterable[Spec],
        trust: tuple[str, str] | None,
        *,
        announce: bool = False,
        extra: Sequence[str] = (),
        inside: Networks | None = None,
        bind: str = "127.0.0.1",
    ) -> None:
        self._bind = bind
        self._inside = inside
        self._trust = trust
        self._announce = announce
        self._extra = tuple(extra)
        sweep()
        self.directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self._forks = fork_server.lease(self)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._frozen: dict[str, subprocess.Popen[bytes]] = {}
        # killed or told to stop: others see it before we have waited for it
        self._ending: set[str] = set()
        self._specs = {spec.name: spec for spec in specs}
        self._pid = os.getpid()
        _open.add(self)
        try:
            for name in self._specs:
                self._processes[name] = self._start(name)
            self.agents = tuple(
                self._await_ready(name, process) for name, process in self._processes.items()
            )
            self._forks.await_ready()
        except BaseException:
            self.close()
            raise

    def _start(self, name: str, port: int = 0) -> "subprocess.Popen[bytes]":
        port = PORT if self._inside is not None else port
        command = self._inside.command(name) if self._inside is not None else []
        command += [
            sys.executable,
            "-m",
            "potluck_agent",
            "start",
            *self._specs[name].arguments(),
            *self._extra,
        ]
        command += [
            "--port",
            str(port),
            "--bind",
            self._host(name),
            "--state",
            str(self.directory / name),
            "--json",
        ]
        command += ["--parent-pid", str(os.getpid()), "--scratch", str(self.directory)]
        command += self._forks.arguments()
        # one word: a key may begin with a hyphen
        command += [f"--trust={self._trust[1]}:{self._trust[0]}"] if self._trust else []
        command += [] if self._announce else ["--no-mdns"]
        package = Path(potluck_agent.__file__ or "").parent.parent
        path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
        environment = os.environ | {"PYTHONPATH": path}
        with (self.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                # Ctrl-C is ours to handle: it must not end them under our feet
                start_new_session=os.name != "nt",
            )

    def _host(self, name: str) -> str:
        return self._inside.address(name) if self._inside is not None else self._bind

    def _await_ready(self, name: str, process: "subprocess.Popen[bytes]") -> Started:
        lines: Queue[bytes] = Queue()
        stdout = process.stdout
        assert stdout is not None
        threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True).start()
        try:
            ready = json.loads(lines.get(timeout=READY_S))
            address = Address(host=self._host(name), port=int(ready["port"]))
            code = str(ready.get("code", ""))
            return Started(
                name=name, address=address, key=str(ready["key"]), pid=process.pid, code=code
            )
        except (Empty, ValueError, KeyError, TypeError) as error:
            last_line = self.log(name).strip().splitlines()[-1:] or ["it said nothing"]
            raise DeviceError(f"its agent did not start: {last_line[0]}", device=name) from error

    def log(self, name: str) -> str:
        """What an agent has written to its log."""
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def process(self, name: str) -> "subprocess.Popen[bytes]":
        """The process of an agent."""
        return self._processes[name]

    def is_there(self, name: str) -> bool:
        """Whether an agent has not ended, and does not end just now."""
        return name not in self._ending and self._processes[name].poll() is None

    def _need(self, name: str) -> None:
        if not self.is_there(name):
            raise HomeError("it is gone.", device=name)

    def workers(self, name: str) -> list[psutil.Process]:
        """What an agent has started, whoever forked it; HomeError where the agent is gone."""
        agent = self._processes[name].pid
        try:
            found: list[psutil.Process] = psutil.Process(agent).children(recursive=True)
        except psutil.Error as error:
            raise HomeError("it is gone.", device=name) from error
        for pid in self._forks.workers_of(agent):
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid))
        return found

    # --- what happens to devices ------------------------------------------------------------------

    def kill(self, name: str) -> None:
        """End an agent without a word."""
        self._need(name)
        self._ending.add(name)
        self._processes[name].kill()
        self._processes[name].wait()

    def stop(self, name: str) -> None:
        """End an agent in good order."""
        self._need(name)
        self.thaw(name)
        self._ending.add(name)
        self._end(self._processes[name])

    def restart(self, name: str) -> None:
        """Start an agent that ended again: at the same address, with the same key."""
        if self.is_there(name):
            raise HomeError("it is there already.", device=name)
        (before,) = (agent for agent in self.agents if agent.name == name)
        self._processes[name].wait()
        self._ending.discard(name)
        self._close_pipe(self._processes[name])
        self._processes[name] = self._start(name, before.address.port)
        self._await_ready(name, self._processes[name])

    def freeze(self, name: str) -> None:
        """Let an agent and its worker stand still until `thaw`, or until this process is gone."""
        self._need(name)
        self.thaw(name)
        workers = [worker.pid for worker in self.workers(name)]
        pids = " ".join(map(str, (self._processes[name].pid, *workers)))
        script = f"kill -STOP {pids}; cat >/dev/null; kill -CONT {pids}"
        self._frozen[name] = subprocess.Popen(
            ["sh", "-c", script],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Ctrl-C would end it, and nobody would wake the device
            start_new_session=os.name != "nt",
        )

    def thaw(self, name: str) -> None:
        """Let a frozen agent go on."""
        if name in self._frozen:
            self._frozen.pop(name).communicate()

    def load(self, name: str, times: float) -> None:
        """Let the tasks of an emulated device take so many times longer from now on."""
        (self.directory / name / "load.json").write_text(f"{times:g}")

    # --- closing ----------------------------------------------------------------------------------

    def close(self) -> None:
        """End all agents and remove their files.

        Safe to call twice, and in a forked child (where it does nothing).
        """
        if self._pid != os.getpid():
            return
        try:
            self._end_all()
        finally:  # a second Ctrl-C ends the waiting, and leaves no keys behind
            fork_server.give_back(self)
            shutil.rmtree(self.directory, ignore_errors=True)
        _open.discard(self)

    def _end_all(self) -> None:
        for name in tuple(self._frozen):
            self.thaw(name)
        for process in self._processes.values():
            with suppress(OSError):
                process.terminate()
        for process in self._processes.values():
            self._end(process)
            self._close_pipe(process)
        self._processes.clear()
        if self._inside is not None:
            self._inside.close()

    @staticmethod
    def _end(process: "subprocess.Popen[bytes]") -> None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    @staticmethod
    def _close_pipe(process: "subprocess.Popen[bytes]") -> None:
        if process.stdout:
            process.stdout.close()


def sweep(root: Path | None = None) -> None:
    """Remove what processes that were killed could not: directories whose number is of no process
    any more.
    """
    for directory in (root or Path(tempfile.gettempdir())).glob(f"{PREFIX}*-*"):
        number = directory.name.removeprefix(PREFIX).partition("-")[0]
        # anybody may make something of that name: no number is too large, and a pipe is waited for
        if directory.is_dir() and number.isdecimal() and not identity(int(number)):
            shutil.rmtree(directory, ignore_errors=True)


_open: "weakref.WeakSet[LocalAgents]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for agents in tuple(_open):
        agents.close()
