"""How commands reach a running agent: small files in its state directory, which only its owner can read and write.

`agent.json` says that an agent runs; `window.json` asks it to open or close the pairing window; `load.json` tells an
emulated device how many times longer its tasks take, as if something else ran on it. Trust itself is in the
peers file, which a running agent reads again when it changes.
"""

import os
from pathlib import Path
from typing import Any

from potluck_agent.errors import AgentError
from potluck_agent.keys import write_private

RUNNING, WINDOW, LOAD = "agent.json", "window.json", "load.json"
MAX_LOAD = 1000.0


def refuse_second(state: Path) -> None:
    """AgentError where another process is the agent of this state directory."""
    other = running(state)
    if other is not None and other["pid"] != os.getpid():
        raise AgentError(
            f"an agent already uses {state} (process {other['pid']}, port {other.get('port')}). "
            "Give this one its own directory with --state."
        )


def claim(state: Path, facts: dict[str, Any]) -> None:
    """Say that this process is the agent of this state directory."""
    refuse_second(state)
    write_private(state / RUNNING, {**facts, "pid": os.getpid(), "born_s": _born_s(os.getpid())})


def release(state: Path) -> None:
    """This process is the agent no more."""
    for name in (RUNNING, WINDOW, LOAD):
        (state / name).unlink(missing_ok=True)


def running(state: Path) -> dict[str, Any] | None:
    """What the running agent of this directory said of itself; None where there is none."""
    document = _read(state / RUNNING)
    if not isinstance(document, dict) or type(document.get("pid")) is not int:
        return None
    born_s = _born_s(document["pid"])
    return document if born_s is not None and born_s == document.get("born_s") else None


def _born_s(pid: int) -> float | None:
    """When that process started, so that a number that was given to another process is told apart."""
    import psutil

    try:
        return float(psutil.Process(pid).create_time())
    except (psutil.Error, ValueError):
        return None


def ask_window(state: Path, secret: str, window_s: float | None) -> None:
    """Ask the running agent for a pairing window; an empty secret closes it."""
    write_private(state / WINDOW, {"secret": secret, "window_s": window_s})


def asked_window(state: Path) -> tuple[str, float | None] | None:
    """What was asked for, once: (secret, seconds)."""
    path = state / WINDOW
    if not path.exists():
        return None
    document = _read(path)
    path.unlink(missing_ok=True)
    if not isinstance(document, dict) or not isinstance(document.get("secret"), str):
        return None
    window_s = document.get("window_s")
    return document["secret"], float(window_s) if isinstance(window_s, int | float) else None


def load(state: Path) -> float:
    """How many times longer the tasks of an emulated device take now; 1 where nobody says."""
    times = _read(state / LOAD) if (state / LOAD).exists() else None
    return float(times) if isinstance(times, int | float) and 1 <= times <= MAX_LOAD else 1.0


def _read(path: Path) -> Any:
    import json  # --help does not need it

    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
