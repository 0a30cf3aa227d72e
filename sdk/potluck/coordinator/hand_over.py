"""From a notebook to a coordinator, and back to look."""

import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from potluck.coordinator.checked_replies import jobs
from potluck.coordinator.detached_run import DetachedRun
from potluck.coordinator.endpoint import Endpoint
from potluck.coordinator.job_writer import pack
from potluck.coordinator.leader_client import LeaderClient, find_any, kept_seats
from potluck.coordinator.local_coordinator import find, find_or_start, folder_of
from potluck.coordinator.state_size import most_state_bytes, remember, remembered
from potluck.discover.addresses import parse_address
from potluck.errors import HomeError, UserError
from potluck.run.array_files import RemainingBatches
from potluck.sanitized_text import harmless
from potluck.sessions.connections import Keys
from potluck_wire.limits import is_key

if TYPE_CHECKING:
    from potluck.handle import Task
    from potluck.home import Home
    from potluck.run.run import Run


def hand_over(
    home: "Home",
    run: "Run",
    rest: Callable[[], Iterable[Any]],
    task: "Task",
    *,
    state: Path,
    keys: Keys,
    to: str = "",
    key: str = "",
    adapt: bool | None = None,
) -> DetachedRun:
    """Pack all that a run needs, send it to a coordinator, and have that go on with it.

    The run ends here once its files are there, and not before. So does the home, where the
    coordinator has the same keys. While none answers, or it has another job, no fit is ended.

    Parameters
    ----------
    home, run
        The notebook's.
    rest
        Ends what is under way, and gives the batches that are left; inputs, then targets.
    task
        Shows the progress.
    state
        The folder of the notebook's keys.
    keys
        Of the notebook.
    to, key
        The address and key of a coordinator elsewhere; default: the one of this computer.
    adapt
        As for `run.fit`.

    Raises
    ------
    HomeError
        There is no coordinator, or it refuses.
    """
    place = elsewhere(to, key, keys) if to else find_or_start(state, keys)
    if busy := place.ask("jobs")[0].get("under_way"):
        raise HomeError(
            f"{harmless(str(busy)[:80])} is trained there now.",
            next_step="Wait for it, or stop it.",
        )
    batches = rest()
    stem = re.sub(r"[^a-z0-9.-]+", "-", run.plan.model.lower()).strip("-.")[:50] or "run"
    name = f"{stem}-{time.strftime('%m%d-%H%M%S')}"
    with TemporaryDirectory(prefix="potluck-") as folder:
        task.update(0.0, "writing the job")
        pack(Path(folder), run, batches, adapt=adapt)
        reads = ""
        if isinstance(batches, RemainingBatches) and not to:
            reads = str(batches.folder.resolve())
        place.hand_over(name, Path(folder), task, reads=reads)
        max_bytes = most_state_bytes(Path(folder))
    remember(state, name, max_bytes)
    run.close()
    if not to:
        home.close()
    place.ask("start", job=name)
    return DetachedRun(LeaderClient(place, state=state), name, max_bytes)


def attach(job: str, *, state: Path, keys: Keys, at: str = "", key: str = "") -> DetachedRun:
    """A training that was handed over before; by default the latest.

    Parameters
    ----------
    job
        Its name; empty: the latest.
    state
        The folder of the notebook's keys.
    keys
        Of the notebook.
    at, key
        The address and key of a coordinator elsewhere; default: the one of this computer, which is
        started again where it has ended.

    Raises
    ------
    HomeError
        Nothing was handed over, or the coordinator does not answer.
    """
    if at:
        place, others = elsewhere(at, key, keys), kept_seats(state)
        others = others if any(seat.key == key for seat in others) else ()
    else:
        others = kept_seats(state)
        found = find(state, keys) or find_any(others, keys)
        if found is None and not any(folder_of(state).glob("*/journal")):
            raise HomeError(
                "nothing was handed over on this computer.",
                next_step="`run.detach()` does that; for a coordinator elsewhere give its address "
                "and key, at= and key=.",
            )
        place = found or find_or_start(state, keys)
    names = jobs(place.ask("jobs")[0])
    if not names:
        raise HomeError(
            f"nothing was handed over to the coordinator at {place}.", next_step="run.detach()"
        )
    job = job or names[-1]
    return DetachedRun(LeaderClient(place, others, state), job, remembered(state, job))


def elsewhere(address: str, key: str, keys: Keys) -> Endpoint:
    """A coordinator at this address.

    Parameters
    ----------
    address
        "192.168.1.7:47700".
    key
        Its public key, as it prints it.
    keys
        Of the notebook.

    Raises
    ------
    UserError
        The key is no key, or the address has no port.
    """
    if not is_key(key):
        raise UserError(
            f"the key of the coordinator at {address} is 40 characters of Z85.",
            next_step="`potluck coordinate` prints it as it starts.",
        )
    if not re.search(r":\d+$", address):
        raise UserError(
            f"{address!r} does not say a port.",
            next_step="`potluck coordinate` prints address and port as it starts.",
        )
    place = parse_address(address)
    return Endpoint(host=place.host, port=place.port, key=key, keys=keys)
