"""`potluck agent status`: what the agent of this device does right now, asked of it from another
terminal.

Nothing is made or changed, but the question itself beside the agent's keys.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from potluck_agent import control_files, fault_log
from potluck_agent.cli import status_lines
from potluck_agent.errors import AgentError
from potluck_agent.log_file import FILE, printable

NOT_RUNNING = 3  # the exit code that service tools use for it
ANSWER_S = 3.0
LOOK_S = 0.02
N_FAULTS = 3


def run(state: Path, as_json: bool, say: Callable[[str], None]) -> int:
    """Say it; 0 where an agent runs, `NOT_RUNNING` where none does.

    Raises
    ------
    AgentError
        The directory is another user's, or the agent does not answer.
    """
    refuse_foreign(state)
    if control_files.running(state) is None:
        log = state / FILE
        faults = fault_log.latest(state, N_FAULTS)
        if as_json:
            known = {"log": str(log) if log.exists() else None, "last_faults": faults}
            say(json.dumps({"running": False, "state": str(state), **known}))
            return NOT_RUNNING
        say(f"no agent runs with {state}. Start one: potluck agent start")
        if log.exists():
            say(f"what the last one did is in {log}")
        return NOT_RUNNING
    answer = _ask(state)
    if as_json:
        say(json.dumps({"running": True, **answer}))
        return 0
    for line in status_of(answer):
        say(line)
    return 0


def refuse_foreign(state: Path) -> None:
    """AgentError where this directory is there and another user's, or closed to this one."""
    try:
        owner = state.stat().st_uid
    except FileNotFoundError:
        return
    except PermissionError:
        raise AgentError(
            f"{state} is closed to this user. Ask as the user whose agent it is, with sudo -u NAME."
        ) from None
    if os.name != "nt" and owner != os.geteuid():
        raise AgentError(
            f"{state} belongs to the user {_user(owner)}, whose agent it is. "
            f"Ask as that user: sudo -u {_user(owner)} potluck agent status --state {state}"
        )


def _user(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"#{number}"


def _ask(state: Path) -> dict[str, Any]:
    control_files.ask_status(state)
    deadline_s = time.monotonic() + ANSWER_S
    while (answer := control_files.status(state)) is None:
        if time.monotonic() > deadline_s:
            (state / control_files.ASK).unlink(missing_ok=True)
            raise AgentError(
                f"an agent runs with {state} and does not answer. Is it stopped, or older than "
                "this command?"
            )
        time.sleep(LOOK_S)
    return answer


def status_of(answer: Mapping[str, Any]) -> list[str]:
    """The answer for people: the facts as at the start, and what goes on."""
    width = status_lines.WIDTH
    runs = [
        f"{run['name']} of {_whose(run)}, {_gib(run['memory_bytes'])}" for run in answer["runs"]
    ]
    workers = [
        f"of {_whose(worker)}: {WORKER[worker['state']]}, has computed "
        f"{worker['computed_s']:.0f} s, may take {_gib(worker['limit_bytes'])}"
        for worker in answer["workers"]
    ]
    rows = [
        ("runs since", f"{answer['started']} (process {answer['pid']})"),
        *(("worker", worker) for worker in workers or [NO_WORKER]),
        *(("run", run) for run in runs or ["none"]),
        *(("fault", fault) for fault in answer["last_faults"]),
    ]
    current = [f"  {label:<{width}}{printable(text)}" for label, text in rows]
    return [*status_lines.facts_of(answer), *current]


def _whose(row: Mapping[str, Any]) -> str:
    return f"{row['notebook']} ({row['fingerprint']})"


def _gib(nbytes: int) -> str:
    return f"{nbytes / status_lines.GIB:.1f} GiB"


NO_WORKER = "none: one starts when a notebook connects"
WORKER = {"starting": "starts", "ready": "ready", "computing": "computes"}


def document(
    *,
    name: str,
    key: str,
    bind: str,
    port: int,
    backends: Mapping[str, str],
    chosen: bool,
    log: Path,
    state: Path,
    started: str,
    relay: str,
    loop: Mapping[str, Any],
) -> dict[str, Any]:
    """What is told of a running agent; `loop` is what `EventLoop.state` gives.

    `chosen`: its owner named the backends. `relay`: where it is reached through one; "" where
    nobody asked for that.
    """
    from potluck_agent.net.own_addresses import lan_addresses
    from potluck_wire.fingerprint import fingerprint

    return {
        "name": name,
        "fingerprint": fingerprint(key),
        "addresses": lan_addresses(bind),
        "port": port,
        "relay": relay,
        "pid": os.getpid(),
        "started": started,
        "state": str(state),
        "log": str(log),
        "backends": dict(backends),
        "chosen_backends": chosen,
        "last_faults": fault_log.latest(state, N_FAULTS),
        **loop,
    }
