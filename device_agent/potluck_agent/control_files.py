"""How commands reach a running agent: small files in its state directory, which only its owner can
read and write.

`agent.json` says that an agent runs, which holds a lock on the directory; `window.json` asks it to
open or close the pairing window; `shown.json` says by whom it was asked for, `tries.json` how many
tries that window has left, `paired.json` who has paired in it; `ask.json` asks what goes on, and
`status.json` is the answer; `load.json` tells an emulated device how many times longer its tasks
take, as if something else ran on it. Trust itself is in the peers file, which a running agent reads
again when it changes.
"""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from potluck_agent.errors import AgentError
from potluck_agent.keys import read_private, unfinished, write_private
from potluck_wire.process_identity import identity

RUNNING = "agent.json"
WINDOW = "window.json"
SHOWN = "shown.json"
TRIES = "tries.json"
PAIRED = "paired.json"
LOAD = "load.json"
ASK = "ask.json"
STATUS = "status.json"
ASKED = (WINDOW, SHOWN, TRIES, PAIRED, ASK, STATUS)
MAX_LOAD = 1000.0
# an agent that was told to stop gives its ports and its worker back in well under a second
ENDING_S = 2.0
LOOK_S = 0.05


def refuse_second(state: Path, *, timeout_s: float = ENDING_S) -> None:
    """AgentError where another process is the agent of this state directory, and does not end
    within `timeout_s`.
    """
    until_s = time.monotonic() + timeout_s
    other = running(state)
    while other is not None and other["pid"] != os.getpid() and time.monotonic() < until_s:
        time.sleep(LOOK_S)
        other = running(state)
    if other is not None and other["pid"] != os.getpid():
        raise AgentError(
            f"an agent already uses {state} (process {other['pid']}, port {other.get('port')}). "
            "Give this one its own directory with --state."
        )


class DirectoryClaim:
    """This process is the agent of a state directory. Where the system locks files (not on
    Windows), of two that start in the same instant one is.
    """

    def __init__(self, state: Path, lock: int | None) -> None:
        self._state, self._lock = state, lock

    def release(self) -> None:
        """It is no more. What is another agent's stays: the directory may be a new one."""
        document = _read(self._state / RUNNING)
        if not isinstance(document, dict) or document.get("pid") == os.getpid():
            _remove(self._state, RUNNING, LOAD, *ASKED)
        if self._lock is not None:
            os.close(self._lock)


def claim(state: Path, facts: dict[str, Any]) -> DirectoryClaim:
    """Say that this process is the agent of this state directory. What was asked of one that was
    killed before it looked is not asked of this one: no window is open that nobody knows of. What
    killed processes have left half written goes.

    Raises
    ------
    AgentError
        Another one is.
    """
    refuse_second(state)
    lock = _locked(state)
    _remove(state, *ASKED)
    _remove(state, *(part.name for part in unfinished(state)))
    pid = os.getpid()
    write_private(state / RUNNING, {**facts, "pid": pid, "identity": identity(pid)})
    return DirectoryClaim(state, lock)


def _remove(state: Path, *names: str) -> None:
    for name in names:
        with suppress(OSError):  # nothing can be removed from a disk that is read-only now
            (state / name).unlink(missing_ok=True)


def _locked(state: Path) -> int | None:
    """The descriptor of the directory that holds the lock; it is let go when this process ends,
    however it does.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        held = os.open(state, os.O_RDONLY)
    except OSError as error:
        raise AgentError(f"cannot read {state}: {error.strerror}.") from error
    until_s = time.monotonic() + ENDING_S
    while True:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return held
        except OSError as error:
            if time.monotonic() >= until_s:
                os.close(held)
                refuse_second(state, timeout_s=0.0)  # which names it, where it said so already
                raise AgentError(
                    f"an agent already uses {state}. Give this one its own directory with --state."
                ) from error
            time.sleep(LOOK_S)


def running(state: Path) -> dict[str, Any] | None:
    """What the running agent of this directory said of itself; None where there is none."""
    document = _read(state / RUNNING)
    if not isinstance(document, dict) or type(document.get("pid")) is not int:
        return None
    known = identity(document["pid"])
    return document if known and known == document.get("identity") else None


def ask_window(state: Path, secret: str, window_s: float | None, asker: str = "") -> None:
    """Ask the running agent for a pairing window in the place of any other one, for `asker`; an
    empty secret closes it.
    """
    write_private(state / SHOWN, asker)
    for name in (TRIES, PAIRED):  # they were about another window
        (state / name).unlink(missing_ok=True)
    write_private(state / WINDOW, {"secret": secret, "window_s": window_s})


def give_window_up(state: Path) -> None:
    """Let whoever shows the code know that it pairs nobody any more.

    To remove a file takes no room, so this can be said on a disk that is full, too.
    """
    with suppress(OSError):
        (state / SHOWN).unlink(missing_ok=True)


def window_asker(state: Path) -> str | None:
    """Who asked for a pairing window last; None: nobody since the agent began, or the agent has
    given that window up.
    """
    asker = _read(state / SHOWN) if (state / SHOWN).exists() else None
    return asker if isinstance(asker, str) else None


def requested_window(state: Path) -> tuple[str, float | None] | None:
    """What was asked for, once: (secret, seconds)."""
    path = state / WINDOW
    if not path.is_file():
        return None
    document = _read(path)
    path.unlink(missing_ok=True)
    if not isinstance(document, dict) or not isinstance(document.get("secret"), str):
        return None
    window_s = document.get("window_s")
    return document["secret"], float(window_s) if isinstance(window_s, int | float) else None


def publish_tries(state: Path, n_left: int) -> None:
    """Let whoever shows the code know how many tries it has left; none: the window is closed."""
    write_private(state / TRIES, n_left)


def publish_paired(state: Path, key: str) -> None:
    """Let whoever shows the code know that it has been used, and by whom: it may be a peer that was
    known before.
    """
    write_private(state / PAIRED, key)


def paired(state: Path) -> str:
    """The key of whoever has paired in the window that was asked for last; empty: nobody has."""
    key = _read(state / PAIRED) if (state / PAIRED).exists() else ""
    return key if isinstance(key, str) else ""


def tries(n_left: int) -> str:
    """How many tries a code has left, in words."""
    if n_left <= 0:
        return "that was the last try, and the code is dead: `potluck agent pair` makes a new one"
    return "1 try is left" if n_left == 1 else f"{n_left} tries are left"


def tries_left(state: Path, otherwise: int) -> int:
    """What the running agent said last of its pairing window.

    `otherwise` where it has said nothing yet.
    """
    n_left = _read(state / TRIES) if (state / TRIES).exists() else None
    return n_left if type(n_left) is int else otherwise


def ask_status(state: Path) -> None:
    """Ask the running agent what goes on; an older answer is gone."""
    (state / STATUS).unlink(missing_ok=True)
    write_private(state / ASK, {})


def requested_status(state: Path) -> bool:
    """Whether somebody asks, once."""
    if not (state / ASK).is_file():
        return False
    (state / ASK).unlink(missing_ok=True)
    return True


def publish_status(state: Path, document: dict[str, Any]) -> None:
    """Answer."""
    write_private(state / STATUS, document)


def status(state: Path) -> dict[str, Any] | None:
    """The answer, once; None: not yet."""
    document = _read(state / STATUS) if (state / STATUS).exists() else None
    if not isinstance(document, dict):
        return None
    (state / STATUS).unlink(missing_ok=True)
    return document


def load(state: Path) -> float:
    """How many times longer the tasks of an emulated device take now; 1 where nobody says."""
    times = _read(state / LOAD) if (state / LOAD).exists() else None
    return float(times) if isinstance(times, int | float) and 1 <= times <= MAX_LOAD else 1.0


def _read(path: Path) -> Any:
    """What somebody asks or says there; None where that does not hold, as if nobody did."""
    with suppress(AgentError):
        return read_private(path)
    return None
