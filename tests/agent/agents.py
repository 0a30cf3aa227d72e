"""Real agents on loopback for tests, and raw peers that talk to them.

Whatever is started is ended. Workers have onnxruntime alone, which is there in an eighth of the
time that torch takes, unless a test needs torch.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import zmq
from tests.timeouts import TIMEOUT_S

from potluck_agent import fault_log
from potluck_wire.frames import decode, encode
from potluck_wire.limits import CONTROL_OFFSET, DATA_OFFSET, LINGER_MS, PAIRING_OFFSET, PULSE_OFFSET
from potluck_wire.messages import MESSAGES, NUMBER_OF, Channel, Message
from potluck_wire.pairing import ControllerSide
from potluck_wire.stream import StreamReader, pack

SILENCE_MS = 300  # how long to listen for what must not come
OFFSETS = {Channel.CONTROL: CONTROL_OFFSET, Channel.DATA: DATA_OFFSET, Channel.PULSE: PULSE_OFFSET}


class Keys:
    """A CURVE key pair."""

    def __init__(self) -> None:
        self.public, self.secret = (part.decode() for part in zmq.curve_keypair())


class RunningAgent:
    """An agent's process."""

    def __init__(
        self, process: subprocess.Popen[str], facts: dict[str, Any], directory: Path
    ) -> None:
        self.process, self.directory = process, directory
        self.port = int(facts["port"])
        self.key = str(facts["key"])
        self.code = str(facts["code"])

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """`potluck agent ...` beside it, with its state directory."""
        return command(*arguments, "--state", str(self.directory))

    @property
    def alive(self) -> bool:
        return self.process.poll() is None


def command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-m", "potluck_agent", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


@contextmanager
def agent(
    directory: Path,
    *arguments: str,
    name: str = "jetson",
    port: int = 0,
    program: Sequence[str] = ("potluck_agent",),
    tries: bool = False,
    backends: str = "onnxruntime",
) -> Iterator[RunningAgent]:
    """An agent that is ready; afterwards it is stopped, nothing of it may be left, and no fault may
    have happened.
    """
    fixed = [
        "--name",
        name,
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--state",
        str(directory),
        "--json",
    ]
    # one thread without a trial: several share this machine
    fixed += [] if tries else ["--threads", "1", "--device", "cpu"]
    fixed += ["--backends", backends] if backends else []
    mdns = [] if "--mdns" in arguments else ["--no-mdns"]
    module = [] if program[0].endswith(".py") else ["-m"]
    line = [
        sys.executable,
        *module,
        *program,
        "start",
        *fixed,
        *mdns,
        *(a for a in arguments if a != "--mdns"),
    ]
    process = subprocess.Popen(
        [*line, "--die-with-parent"], stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    assert process.stdout is not None
    try:
        ready = process.stdout.readline()
        assert ready, "the agent did not start"
        yield RunningAgent(process, json.loads(ready), directory)
    finally:
        children = []
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(process.pid).children(recursive=True)
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(TIMEOUT_S)
        finally:
            process.kill()
            process.stdout.close()
        _, survivors = psutil.wait_procs(children, TIMEOUT_S)
        assert not survivors
    assert not faults_of(directory), faults_of(directory)


def faults_of(directory: Path) -> str:
    """What an agent with this state directory has reported that must not happen."""
    path = directory / fault_log.FILE
    return path.read_text() if path.exists() else ""


class RawPeer:
    """A peer with three DEALERs, that can also say what it must not.

    `keys` None: without encryption.
    """

    def __init__(self, port: int, server_key: str, keys: Keys | None) -> None:
        self.context: Any = zmq.Context()
        self.sockets: dict[Channel, Any] = {}
        for channel, offset in OFFSETS.items():
            dealer = self.context.socket(zmq.DEALER)
            dealer.linger = LINGER_MS
            if keys is not None:
                dealer.curve_serverkey = server_key.encode()
                dealer.curve_publickey, dealer.curve_secretkey = (
                    keys.public.encode(),
                    keys.secret.encode(),
                )
            dealer.probe_router = channel is Channel.DATA
            dealer.connect(f"tcp://127.0.0.1:{port + offset}")
            self.sockets[channel] = dealer

    def __enter__(self) -> "RawPeer":
        return self

    def __exit__(self, *_: object) -> None:
        self.context.destroy(LINGER_MS)

    def say(self, message: Message, *buffers: bytes) -> None:
        channel = MESSAGES[NUMBER_OF[type(message)]].channel
        # whoever was refused by now has no connection left to say it over
        with suppress(zmq.Again):
            self.sockets[channel].send_multipart(encode(message, buffers), zmq.DONTWAIT)

    def receive(self, channel: Channel = Channel.CONTROL) -> tuple[Message, tuple[Any, ...]]:
        assert self.sockets[channel].poll(TIMEOUT_S * 1000), f"nothing came on {channel.value}"
        return decode(self.sockets[channel].recv_multipart(), channel)

    def ask(self, message: Message, *buffers: bytes) -> Message:
        self.say(message, *buffers)
        return self.receive(MESSAGES[NUMBER_OF[type(message)]].channel)[0]

    def hears_nothing(self, wait_ms: int = SILENCE_MS) -> bool:
        poller = zmq.Poller()
        for dealer in self.sockets.values():
            poller.register(dealer, zmq.POLLIN)
        return not poller.poll(wait_ms)


def pair(port: int, code: str, keys: Keys, name: str = "ada") -> ControllerSide:
    """Pair over the real port; raises PairingFailed as the notebook would."""
    side = ControllerSide(secret=code, name=name, key=keys.public)
    with socket.create_connection(("127.0.0.1", port + PAIRING_OFFSET), TIMEOUT_S) as connection:
        connection.sendall(pack(side.first()))
        reader = StreamReader(Channel.PAIRING)
        while side.paired is None:
            data = connection.recv(4096)
            assert data, "the agent hung up"
            for message, _ in reader.feed(data):
                answer = side.receive(message)
                if answer is not None:
                    connection.sendall(pack(answer))
    return side
