"""Start the relay and talk to it: the links of a lab where there are no namespaces."""

import json
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from potluck.errors import HomeError
from potluck.lab.relay import HOST, network_document
from potluck.records import Network
from potluck.sessions.events import Address
from potluck.sessions.local_agents import Started

STOP_S = 5.0


class RelayClient:
    """The agents as they are reached through the relay (`agents`); `close` ends it."""

    def __init__(self, network: Network, agents: Iterable[Started]) -> None:
        agents = tuple(agents)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "potluck.lab.relay"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._send(
            {
                "network": network_document(network),
                "agents": {agent.name: agent.address.port for agent in agents},
            }
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.close()
            raise HomeError("the relay between the agents did not start.")
        ports = json.loads(line)
        self.agents = tuple(
            replace(a, address=Address(host=HOST, port=ports[a.name])) for a in agents
        )

    def shape(self, medium: str, bytes_per_s: float) -> None:
        """Let this medium carry so much from now on."""
        self._send(["shape", medium, bytes_per_s])

    def lose(self, medium: str, loss_frac: float) -> None:
        """Let this medium lose such a part of what crosses it; see `airtime`."""
        self._send(["lose", medium, loss_frac])

    def flow(self, source: str, target: str, lasts_s: float) -> None:
        """Let somebody else send from one device to another, as much as gets through."""
        self._send(["flow", source, target, lasts_s])

    def calm(self) -> None:
        """End what somebody else sends."""
        self._send(["calm"])

    def close(self) -> None:
        """End it; safe to call twice."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, document: object) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(document) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise HomeError("the relay between the agents is gone.") from error
