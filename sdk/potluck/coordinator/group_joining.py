"""A coordinator that joins another one: what that trains is copied here, ready to go on with."""

import threading
from collections.abc import Callable
from contextlib import suppress

from potluck.coordinator.coordinator import Coordinator
from potluck.coordinator.coordinator_group import read_group
from potluck.coordinator.job import JOURNAL, is_job_name
from potluck.coordinator.job_files import check_files
from potluck.coordinator.shared_job import CoordinatorCall, fetch
from potluck.errors import HomeError, PotluckError

LOOK_S = 1.0


class GroupFollower:
    """Asks again and again, in the background, while nothing is done here.

    Parameters
    ----------
    coordinator
        That joins; its seat is known.
    ask
        Asks the one that is joined.
    report
        Hears why it does not come to that, once.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        ask: CoordinatorCall,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._coordinator = coordinator
        self._ask = ask
        self._report = report
        self._why = ""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="potluck join", daemon=True)

    def start(self) -> None:
        """Ask from now on."""
        self._thread.start()

    def close(self) -> None:
        """Ask no more."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def _loop(self) -> None:
        while not self._ending.wait(LOOK_S):
            if self._coordinator.under_way or self._coordinator.followed:
                continue
            try:
                self.look()
                why = ""
            except (PotluckError, OSError) as error:
                why = str(error)
            if why and why != self._why:
                with suppress(OSError):
                    self._report(why)
            self._why = why

    def look(self) -> bool:
        """Ask once: whether there is something that is copied here from now on.

        Raises
        ------
        PotluckError
            Nobody answers, or what is answered does not hold.
        HomeError
            The answer is none.
        """
        coordinator = self._coordinator
        seat = coordinator.seat
        assert seat is not None
        answer, _ = self._ask("join", host=seat.host, port=seat.port)
        job = answer.get("job")
        if not job:
            return False
        try:
            group = read_group(answer.get("group", {}))
        except ValueError as error:
            raise HomeError(f"the coordinator's answer is none: {error}.") from error
        if not is_job_name(job) or group.seat(seat.key) is None:
            raise HomeError("the coordinator's answer is none.")
        folder = coordinator.folder / job
        if not folder.exists():
            coordinator.folder.mkdir(parents=True, exist_ok=True)
            fetch(coordinator.folder, job, self._ask)
        if not (folder / JOURNAL).exists():  # who cannot train it does not stand in line for it
            check_files(folder, coordinator.reads)
            (folder / JOURNAL).touch()
        coordinator.follow(job, group=group)
        return True
