"""`potluck agent relay`: runs a relay, and says whom it serves."""

import asyncio
import signal
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from potluck_agent import keys
from potluck_agent.errors import AgentError
from potluck_agent.relay import invitations
from potluck_wire.descriptors import NOFILE, allow_connections
from potluck_wire.limits import RELAY_MAX_ADMITTED, RELAY_MAX_PENDING, RELAY_PORT

SIGNAL_LOOK_S = 0.2
# two for each connection; strangers of its own ports, listeners and files
LEAST_NOFILE = 2 * (RELAY_MAX_ADMITTED + RELAY_MAX_PENDING) + 512


def run(given: Namespace, say: Callable[[str], None]) -> int:
    """Carry out the command; returns the exit code.

    Raises
    ------
    AgentError
        It could not be done.
    """
    chosen = Path(given.state) if given.state is not None else invitations.default_state_dir()
    state = keys.open_state_dir(chosen)
    if given.relay_command == "start":
        return _start(given, state, say)
    if given.relay_command == "invite":
        return _invite(given, state, say)
    if given.relay_command == "remove":
        invitations.remove(state, given.name)
        say(f"{given.name} is served no longer")
        return 0
    found = invitations.devices(state)
    for device in found:
        first = device.port(given.port)
        say(f"{device.name}  ports {first} to {first + 3}")
    if not found:
        say("nobody is invited. Invite a device: potluck agent relay invite NAME HOST")
    return 0


def _invite(given: Namespace, state: Path, say: Callable[[str], None]) -> int:
    colons = given.relay.count(":")
    has_port = colons == 1 or (given.relay.startswith("[") and not given.relay.endswith("]"))
    relay = given.relay if has_port else f"{given.relay}:{RELAY_PORT}"
    path = Path(given.to or f"{given.name}.relay.json").absolute()
    invitations.invite(
        state, given.name, relay, lambda made: invitations.write_invitation(path, made)
    )
    say(f"{path} lets {given.name} in, and whoever else has it: move it there, and start its")
    say("agent with it: potluck agent start --relay FILE")
    return 0


def _start(given: Namespace, state: Path, say: Callable[[str], None]) -> int:
    from potluck_agent.relay.server import RelayServer

    if (allowed := allow_connections()) < LEAST_NOFILE:
        raise AgentError(
            f"this process may have {allowed} files and connections open, and a relay needs "
            f"{LEAST_NOFILE}. Raise the limit (ulimit -Hn {NOFILE}) and start it again."
        )
    relay = RelayServer(
        state=state,
        identity=keys.identity(state),
        host=given.bind,
        port=given.port,
        bytes_per_s=given.rate,
        note=say,
    )

    def ready() -> None:
        rate = f"{given.rate * 8 / 1e6:g} Mbit/s"
        say(f"relay on {given.bind}, port {given.port}, at most {rate} of all devices together")

    async def serve() -> None:
        stop = asyncio.Event()
        ended = False

        def end(*_: object) -> None:
            nonlocal ended
            ended = True

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end)
        serving = asyncio.ensure_future(relay.serve(stop, ready))
        while not ended and not serving.done():
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(serving), SIGNAL_LOOK_S)
        stop.set()
        await serving

    loop = asyncio.SelectorEventLoop()  # the one that waits for ZeroMQ's sockets, everywhere
    try:
        loop.run_until_complete(serve())
    finally:
        loop.close()
    return 0
