"""A home that one process has open, looked at from another: the process that has it serves the page
and leaves its address in a file beside the keys, which only their owner can read.
"""

import json
import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from potluck.coordinator.home_requests import SHOW, SIGN_S, ask
from potluck.discover.key_claim import holder_of
from potluck.display.cockpit.observed_home import ObservedHome
from potluck.display.cockpit.observer import CockpitObserver
from potluck.display.cockpit.server import PageServer
from potluck.documents import write_whole
from potluck.errors import HomeError
from potluck_wire.file_reading import read_file
from potluck_wire.process_identity import identity

if TYPE_CHECKING:
    from potluck.home import Home

FILE = "window.json"
MAX_BYTES = 64 * 1024  # an address and two words


class Window:
    """The page of a home, and the file that names it.

    Parameters
    ----------
    home
        Which is shown.
    folder
        Of its keys; None: a lab's, which only its address leads to.
    may_act
        Whether the page may change anything.

    Raises
    ------
    FileError
        Nobody can be told where it is: then it is not there.
    """

    def __init__(self, home: "Home", folder: Path | None, may_act: bool) -> None:
        self._watching = CockpitObserver(ObservedHome(home))
        self._folder = folder
        self.may_act = may_act
        with ExitStack() as undo:  # where nobody can be told of the page, there is none
            undo.callback(self._watching.close)
            self._server = PageServer(self._watching, may_act=may_act)
            undo.callback(self._server.close)
            if folder is not None:
                leave(folder, self._server)
            undo.pop_all()

    @property
    def url(self) -> str:
        """Its address, token and all."""
        return self._server.url

    def close(self) -> None:
        """Nobody looks through it any more."""
        if self._folder is not None:
            forget(self._folder)
        self._server.close()
        self._watching.close()


def leave(folder: Path, server: PageServer) -> None:
    """Tell others of this user where the page is.

    Raises
    ------
    FileError
        It cannot be written; nothing is left behind.
    """
    document = {"url": server.url, "process": os.getpid(), "may_act": server.may_act}
    write_whole(folder / FILE, json.dumps(document))


def forget(folder: Path) -> None:
    """It is no longer there, if it was this process's."""
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        path = folder / FILE
        if json.loads(read_file(path, MAX_BYTES, is_own=True))["process"] == os.getpid():
            path.unlink()


def find(folder: Path) -> tuple[str, int]:
    """The address of the page that another process serves, and its number.

    Raises
    ------
    HomeError
        None does.
    """
    try:
        document = json.loads(read_file(folder / FILE, MAX_BYTES, is_own=True))
        url, process = str(document["url"]), int(document["process"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        url, process = "", 0
    if process <= 0 or not identity(process):
        raise HomeError(
            "the process that has this home open shows it nowhere.",
            next_step="Call home.window() there, or close that home.",
        )
    if not url.startswith("http://127.0.0.1:"):
        raise HomeError(f"{folder / FILE} names an address that is not on this machine.")
    return url, process


def through(folder: Path) -> tuple[str, int]:
    """The same; where no page is served yet, whoever has the home is asked for one.

    Raises
    ------
    HomeError
        Nobody has it, or they do not answer.
    """
    with suppress(HomeError):
        return find(folder)
    holder = holder_of(folder)
    if holder is None:
        raise HomeError("nobody has this home open.", next_step="Home.discover() opens it.")
    ask(folder, SHOW, within_s=2 * SIGN_S, holder=holder)
    return find(folder)
