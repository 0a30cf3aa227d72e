"""Asks about a job whichever of its coordinators acts now: another one may have taken over."""

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from potluck.coordinator.coordinator_group import Seat, read_seats
from potluck.coordinator.endpoint import ANSWER_S, Endpoint
from potluck.documents import read_json, write_whole
from potluck.errors import FileError, HomeError
from potluck.sessions.connections import Keys
from potluck_wire.file_reading import read_file

FILE = "coordinators.json"  # beside the keys: where the latest job may be asked for
MAX_BYTES = 64 * 1024  # of that file
FIND_S = 30.0  # a lease, the steps since the last state, and a device that is slow to begin
PAUSE_S = 0.5


class LeaderClient:
    """One job's coordinators.

    Parameters
    ----------
    place
        The one to begin with.
    others
        Those that may have taken over.
    state
        The folder of the keys, where what is learned of them is kept.
    """

    def __init__(
        self, place: Endpoint, others: Sequence[Seat] = (), state: Path | None = None
    ) -> None:
        self.place = place
        self._others = tuple(others)
        self._state = state

    def ask(
        self, what: str, data: bytes = b"", *, within_s: float = ANSWER_S, **about: Any
    ) -> tuple[dict[str, Any], bytes]:
        """As `Endpoint.ask`; where that one does not answer, the others are asked.

        Parameters
        ----------
        what, data, within_s, **about
            As for `Endpoint.ask`.

        Raises
        ------
        HomeError
            None of them acts, or it refuses; says why.
        """
        end_s = time.monotonic() + FIND_S
        untried = self._rest()
        while True:
            try:
                answer, more = self.place.ask(what, data, within_s=within_s, **about)
            except HomeError as error:
                if not error.facts.get("is_silent") or not self._others:
                    raise
                if time.monotonic() > end_s:
                    raise
                if not untried:
                    time.sleep(PAUSE_S)
                    untried = self._rest()
                self._go_to(untried.pop(0))
                continue
            if "acts" not in answer:
                return answer, more
            if time.monotonic() > end_s:
                raise HomeError(
                    f"none of the coordinators of {about.get('job')} acts.",
                    next_step="A majority of its devices has to be there, and a coordinator with "
                    "all that was told.",
                )
            time.sleep(PAUSE_S)
            self._go_to(_seat(answer["acts"]))

    def _rest(self) -> list[Seat]:
        """All others, those first that come behind."""
        position = next((i for i, s in enumerate(self._others) if s.key == self.place.key), -1)
        return [*self._others[position + 1 :], *self._others[: max(0, position)]] or [*self._others]

    def _go_to(self, seat: Seat) -> None:
        self.place = replace(self.place, host=seat.host, port=seat.port, key=seat.key)

    def learn(self, seats: Sequence[Seat]) -> None:
        """These are its coordinators.

        Parameters
        ----------
        seats
            As the one that acts says.
        """
        if seats and tuple(seats) != self._others:
            self._others = tuple(seats)
            if self._state is not None:
                with suppress(FileError):
                    keep_seats(self._state, self._others)


def keep_seats(state: Path, seats: Sequence[Seat]) -> None:
    """Write down where the coordinators of the latest job are.

    Parameters
    ----------
    state
        The folder of the keys.
    seats
        Theirs.

    Raises
    ------
    FileError
        It cannot be written.
    """
    write_whole(state / FILE, json.dumps([seat.row() for seat in seats]))


def kept_seats(state: Path) -> tuple[Seat, ...]:
    """Those that were written down; none where none were.

    Parameters
    ----------
    state
        The folder of the keys.
    """
    path = state / FILE
    try:
        return read_seats(read_json(read_file(path, MAX_BYTES, is_own=True), str(path)))
    except (OSError, FileError, ValueError):
        return ()


def find_any(seats: Sequence[Seat], keys: Keys) -> Endpoint | None:
    """The first of them that answers.

    Parameters
    ----------
    seats
        Where they are.
    keys
        Of the notebook.
    """
    for seat in seats:
        place = Endpoint(host=seat.host, port=seat.port, key=seat.key, keys=keys)
        with suppress(HomeError):
            place.ask("jobs")
            return place
    return None


def _seat(row: Any) -> Seat:
    try:
        return read_seats([row])[0]
    except ValueError as error:
        raise HomeError("the coordinator's answer is none.") from error
