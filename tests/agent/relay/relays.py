"""Real relays on loopback for tests, and the agents behind them."""

import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.agent.agents import RunningAgent, agent, command
from tests.timeouts import TIMEOUT_S

from potluck_wire.limits import RELAY_DEVICES_OFFSET

HOST = "127.0.0.1"
N_PORTS = 24  # its own, and those of five devices


class RunningRelay:
    """A relay's process; `port` is the first of its ports."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory, self.port = directory, port
        self.process = self._begin()

    def _begin(self) -> "subprocess.Popen[str]":
        line = [sys.executable, "-m", "potluck_agent", "relay", "start", "--bind", HOST]
        line += ["--port", str(self.port), "--rate", "1e9", "--state", str(self.directory)]
        process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert "relay on" in process.stdout.readline()
        return process

    def first_port(self, place: int = 0) -> int:
        """Of the device that was invited first, second, ..."""
        return self.port + RELAY_DEVICES_OFFSET + 4 * place

    def invite(self, name: str) -> Path:
        """The file that lets a device in."""
        path = self.directory / f"{name}.json"
        place = f"{HOST}:{self.port}"
        done = self.command("invite", name, place, "--to", str(path))
        assert done.returncode == 0, done.stderr
        return path

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """`potluck agent relay ...` with its state directory."""
        return command("relay", *arguments, "--state", str(self.directory))

    def line_with(self, text: str) -> str:
        """The next line that it prints with this text."""
        assert self.process.stdout is not None
        timeout = threading.Timer(TIMEOUT_S, self.process.kill)
        timeout.start()
        try:
            for line in self.process.stdout:
                if text in line:
                    return line
        finally:
            timeout.cancel()
        raise AssertionError(f"the relay ended before it said {text!r}")

    def kill(self) -> None:
        """As the power does."""
        self.process.kill()
        self.process.communicate()

    def again(self) -> None:
        """Start it anew."""
        self.process = self._begin()

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.communicate(timeout=TIMEOUT_S)
        finally:
            self.process.kill()


def free_ports(count: int = N_PORTS) -> int:
    """The first of so many in a row that nobody has."""
    while True:
        first = 12_000 + secrets.randbelow(7_000)
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.create_server((HOST, port)))
            return first


@contextmanager
def relay(directory: Path) -> Iterator[RunningRelay]:
    """A relay that is ready."""
    directory.mkdir(parents=True, exist_ok=True)
    running = RunningRelay(directory, free_ports())
    try:
        yield running
    finally:
        running.end()


@contextmanager
def behind(
    relay: RunningRelay, directory: Path, *arguments: str, name: str = "jetson", **options: str
) -> Iterator[RunningAgent]:
    """An agent that is reached through this relay."""
    invitation = relay.invite(name)
    with agent(directory, *arguments, "--relay", str(invitation), name=name, **options) as running:
        relay.line_with(f"{name} is reached")
        yield running
