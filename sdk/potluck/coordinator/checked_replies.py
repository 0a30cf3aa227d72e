"""What a coordinator answers, as a notebook takes it: it may be any computer that has the key, so
that each answer is checked before it is believed or shown. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from potluck.coordinator.coordinator_group import MAX_SEATS, Seat, read_seats
from potluck.coordinator.job import MAX_BATCHES, SAVED, START
from potluck.coordinator.journal import STATES
from potluck.errors import HomeError
from potluck.sanitized_text import harmless

MAX_STEP = 2**53
MAX_TEXT = 20_000
MAX_JOBS = 1000  # in one answer, the latest
MAX_LOSSES = 4096  # in one answer
MAX_NOTES = 1000  # in one answer, the latest: devices may cause more for as long as it is trained
MAX_FILE_BYTES = 1 << 50


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """How far a job is. `losses`: those from the step on that was asked for. `seats`: who shares
    it; `copies`: those of them that could take over, beside the one that acts.
    """

    first_step: int
    n_batches: int
    step: int
    losses: tuple[float, ...]
    state: str
    why: str
    notes: tuple[str, ...]
    plan: str
    is_under_way: bool
    names: tuple[tuple[str, str], ...]
    seats: tuple[Seat, ...] = ()
    copies: tuple[Seat, ...] = ()

    @property
    def n_done(self) -> int:
        """Steps since it was handed over."""
        return self.step - self.first_step


def read_job_progress(answer: Mapping[str, Any], since: int) -> JobProgress:
    """The answer to "status".

    Parameters
    ----------
    answer
        As it came.
    since
        Losses were asked for from this one on.

    Raises
    ------
    HomeError
        No coordinator would say so.
    """
    match answer:
        case {
            "first_step": int(first),
            "n_batches": int(n_batches),
            "step": int(step),
            "losses": list(losses),
            "state": str(state),
            "why": str(why),
            "notes": list(notes),
            "plan": str(plan),
            "is_under_way": bool(is_under_way),
            "names": list(names),
        } if (
            0 <= first <= step <= first + n_batches <= MAX_STEP
            and 1 <= n_batches <= MAX_BATCHES
            and state in STATES
            and all(type(loss) in (float, int) for loss in losses)
            and len(losses) == min(MAX_LOSSES, max(0, step - first - since))
            and all(type(note) is str for note in notes)
            and all(map(_is_pair, names))
        ):
            return JobProgress(
                first_step=first,
                n_batches=n_batches,
                step=step,
                losses=tuple(map(float, losses)),
                state=state,
                why=_shown(why),
                notes=tuple(map(_shown, notes[-MAX_NOTES:])),
                plan="\n".join(map(_shown, plan[:MAX_TEXT].split("\n"))),
                is_under_way=is_under_way,
                names=tuple((own, name) for own, name in names),
                seats=_seats(answer.get("seats", [])),
                copies=_seats(answer.get("copies", [])),
            )
    raise _odd("how far it is")


def jobs(answer: Mapping[str, Any]) -> tuple[str, ...]:
    """The answer to "jobs": their names, the latest last.

    Parameters
    ----------
    answer
        As it came.

    Raises
    ------
    HomeError
        No coordinator would say so.
    """
    names = answer.get("jobs")
    if not isinstance(names, list) or not all(type(name) is str for name in names):
        raise _odd("which jobs there are")
    return tuple(map(_shown, names[-MAX_JOBS:]))


def part(answer: Mapping[str, Any], data: bytes, at: int) -> tuple[str, int]:
    """The answer to "read": the file, and how many bytes it has.

    Parameters
    ----------
    answer
        As it came.
    data
        The bytes that came with it.
    at
        From where on they were asked for.

    Raises
    ------
    HomeError
        No coordinator would say so.
    """
    match answer:
        case {"file": str(file), "nbytes": int(nbytes)} if (
            file in (START, *SAVED)
            and at < nbytes <= MAX_FILE_BYTES
            and 0 < len(data) <= nbytes - at
        ):
            return file, nbytes
    raise _odd("its state")


def _seats(rows: object) -> tuple[Seat, ...]:
    if isinstance(rows, list) and len(rows) > MAX_SEATS:
        raise _odd("who coordinates")
    try:
        return read_seats(rows)
    except ValueError as error:
        raise _odd("who coordinates") from error


def _is_pair(each: object) -> bool:
    return isinstance(each, list) and len(each) == 2 and all(type(name) is str for name in each)


def _shown(text: str) -> str:
    return harmless(text[:MAX_TEXT])


def _odd(what: str) -> HomeError:
    return HomeError(
        f"the coordinator's answer to {what} is none.",
        next_step="Is it of this version of potluck?",
    )
