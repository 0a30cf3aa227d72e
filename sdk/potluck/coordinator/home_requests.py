"""One process asks another for the home that it has: a file beside the keys asks, another answers.

Only who owns the keys can write there. Whoever has the home looks for a question four times a
second, also while its notebook's cell runs. Impure: files and clocks; of homes it knows nothing.
"""

import json
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from potluck.documents import read_json_file, write_whole
from potluck.errors import FileError, HomeError
from potluck.sanitized_text import harmless
from potluck_wire.process_identity import identity

ASKED, ANSWER = "asked.json", "answer.json"
SHOW, TAKE_OVER = "show", "take over"
UNDER_WAY = "under way"
DONE, REFUSED = "done", "refused"
LOOK_S = 0.25
# the first sign comes within 0.3 s; a kernel that holds Python's lock for seconds is late
SIGN_S = 10.0
MOST_BYTES = 64 << 10
MOST_SAVED = 64
LONGEST = 2000  # letters of what the other process says


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeRequest:
    """What a process asks for: to see the home, or to have it."""

    what: str
    number: str
    process: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderAnswer:
    """What the process that has the home says to the question of this number.

    `saved`: files of trainings that ended for it.
    """

    number: str
    state: str
    words: str = ""
    saved: tuple[str, ...] = ()


def question(folder: Path) -> HomeRequest | None:
    """What is asked for now; None: nothing, or whoever asked has ended.

    Parameters
    ----------
    folder
        Of the keys.
    """
    match _read(folder / ASKED):
        case {"what": str(what), "number": str(number), "process": int(process)} if process > 0:
            if what in (SHOW, TAKE_OVER) and identity(process):
                return HomeRequest(what=what, number=number, process=process)
    return None


def answer(folder: Path, content: HolderAnswer) -> None:
    """Say this to whoever asked.

    Parameters
    ----------
    folder
        Of the keys.
    content
        The answer.

    Raises
    ------
    FileError
        It cannot be written.
    """
    write_whole(folder / ANSWER, json.dumps(asdict(content)))


def answered(folder: Path, number: str) -> HolderAnswer | None:
    """What was said to the question of this number so far.

    Parameters
    ----------
    folder
        Of the keys.
    number
        Of the question.
    """
    match _read(folder / ANSWER):
        case {
            "number": str(replied),
            "state": str(state),
            "words": str(words),
            "saved": list(saved),
        }:
            if replied == number and state in (UNDER_WAY, DONE, REFUSED):
                files = tuple(path for path in saved[:MOST_SAVED] if isinstance(path, str))
                words = harmless(words)[:LONGEST]
                return HolderAnswer(number=number, state=state, words=words, saved=files)
    return None


def ask(
    folder: Path,
    what: str,
    *,
    within_s: float,
    holder: int = 0,
    say: Callable[[str], object] = lambda words: None,
) -> HolderAnswer:
    """Ask the process that has the home, and wait for what it says in the end.

    Parameters
    ----------
    folder
        Of the keys.
    what
        `SHOW` or `TAKE_OVER`.
    within_s
        Then nobody waits any more, and the question is taken back.
    holder
        The process that has the home, for errors.
    say
        Called with what the other does meanwhile.

    Raises
    ------
    HomeError
        It refuses, does not answer, or is not done in time; or another process asks already.
    FileError
        The question cannot be written.
    """
    earlier = question(folder)
    if earlier is not None and earlier.process != os.getpid():
        raise HomeError(
            f"process {earlier.process} asks for this home already.",
            next_step="Wait until it has it, or end it.",
        )
    who = f"the process that has this home open{f' ({holder})' if holder else ''}"
    number, last_words = secrets.token_hex(8), ""
    begun_s = time.monotonic()
    write_whole(
        folder / ASKED, json.dumps({"what": what, "number": number, "process": os.getpid()})
    )
    try:
        while (waited_s := time.monotonic() - begun_s) < within_s:
            reply = answered(folder, number)
            if reply is not None and reply.state == DONE:
                return reply
            if reply is not None and reply.state == REFUSED:
                raise HomeError(
                    f"{who} keeps it: {reply.words}",
                    next_step="Ask again later, or close it there.",
                )
            if reply is not None and reply.words != last_words:
                last_words = reply.words
                say(last_words)
            if reply is None and waited_s > SIGN_S:
                break
            time.sleep(LOOK_S / 2)
        if last_words:
            raise HomeError(
                f"{who} has not given it up within {within_s:.0f} s. It says: {last_words}",
                next_step="It goes on there. Ask again, with more time.",
            )
        raise HomeError(
            f"{who} does not answer: it is stopped, hangs, or is of an older potluck.",
            next_step="Close the home there, or end that process: its devices drop its run then.",
        )
    finally:
        with suppress(OSError):
            (folder / ASKED).unlink()


def _read(path: Path) -> object:
    with suppress(FileError, OSError):
        return read_json_file(path, most_bytes=MOST_BYTES, most_values=1000)
    return None
