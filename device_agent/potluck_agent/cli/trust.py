"""Whom this device trusts: `potluck agent pair`, `token`, `peers` and `forget`, beside a running
agent.
"""

import secrets
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from potluck_agent import control_files, keys
from potluck_agent.errors import AgentError
from potluck_wire.fingerprint import fingerprint
from potluck_wire.limits import PAIRING_TRIES, PAIRING_WINDOW_S

ANSWER_S = 3.0  # a running agent looks at its state directory some times a second
Say = Callable[[str], None]


def run(given: Namespace, directory: Path, say: Say) -> int:
    """Do what the command says; returns the exit code.

    Parameters
    ----------
    given
        The arguments.
    directory
        Of the agent's state.
    say
        Prints a line.

    Raises
    ------
    AgentError
        No agent runs there, nobody paired, or nobody is known by that name.
    """
    if given.command == "pair":
        _pair(directory, say)
    elif given.command == "token":
        _token(directory, say)
    elif given.command == "peers":
        say(f"this device    {fingerprint(keys.identity(directory).public)}")
        for peer in keys.load_peers(directory):
            say(f"{peer.name:14} {fingerprint(peer.key)}  {peer.role}  {peer.date}")
    else:
        keys.forget_peer(directory, given.who)
        say(f"forgot {given.who}")
    return 0


def _pair(directory: Path, say: Say) -> None:
    """Open a window in the running agent, and wait until somebody has paired or it is closed."""
    from potluck_wire.pairing import new_code, show_secret

    code = new_code()
    asker = _open_window(directory, code, PAIRING_WINDOW_S)
    say(
        f"pairing code {show_secret(code)} (3 minutes, 3 tries). Type it in the notebook: "
        "home.pair(...)"
    )
    try:
        _await_peer(directory, asker, say)
    finally:
        if control_files.window_asker(directory) == asker:
            control_files.ask_window(directory, "", None)


def _await_peer(directory: Path, asker: str, say: Say) -> None:
    """Wait until somebody has paired, and say each wrong try.

    AgentError where the code can pair nobody any more.
    """
    left = PAIRING_TRIES
    deadline_s = time.monotonic() + PAIRING_WINDOW_S
    while time.monotonic() < deadline_s:
        shown_by = control_files.window_asker(directory)
        if shown_by not in (asker, None):
            raise AgentError("another code or token was asked for meanwhile; this one is over.")
        key = control_files.paired(directory)
        for peer in keys.load_peers(directory):
            if peer.key == key:
                say(f"paired with {peer.name} ({fingerprint(peer.key)})")
                return
        left_before, left = left, control_files.tries_left(directory, otherwise=left)
        if left <= 0:
            raise AgentError(
                f"a wrong code was typed, and {control_files.tries(left)}. Was it you?"
            )
        if left < left_before:
            say(f"a wrong code was typed; {control_files.tries(left)}")
        if control_files.running(directory) is None:
            raise AgentError(
                "the agent has ended, and this code with it. Start it again: potluck agent start."
            )
        if shown_by is None:
            raise AgentError(
                "the code is over, and the running agent could not write how it ended. It printed "
                f"that; is there room in {directory}? Who is trusted: potluck agent peers."
            )
        time.sleep(0.2)
    raise AgentError("nobody paired in time. Run it again for a new code.")


def _token(directory: Path, say: Say) -> None:
    from potluck_wire.pairing import new_token

    token = new_token()
    _open_window(directory, token, None)
    say(token)


def _open_window(directory: Path, secret: str, window_s: float | None) -> str:
    """Ask, and see that it was heard; returns who has asked."""
    if control_files.running(directory) is None:
        raise AgentError(f"no agent runs with {directory}. Start one: potluck agent.")
    asker = secrets.token_hex(8)
    control_files.ask_window(directory, secret, window_s, asker)
    deadline_s = time.monotonic() + ANSWER_S
    while (directory / control_files.WINDOW).exists():
        if time.monotonic() > deadline_s:
            (directory / control_files.WINDOW).unlink(missing_ok=True)
            raise AgentError("the running agent does not answer. Is it stopped?")
        time.sleep(0.02)
    return asker
