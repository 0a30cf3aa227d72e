"""Maintenance of an accelerated model, in the background.

It lets helpers go that want to leave, and reaches those that were lost. It asks for the bandwidth
where no request shows it, and plans anew where sides turn out to be faster or slower. It takes over
the whole table when it is found.
"""

import threading
import time
from collections.abc import Callable

from potluck.errors import HomeError, PotluckError
from potluck.offload.deployment import OffloadDeployment
from potluck.offload.drift import DriftMonitor
from potluck.offload.link_bandwidth import LinkBandwidth
from potluck.offload.plan.lowering import HELPER
from potluck.offload.split_table import SplitCase, SplitTable
from potluck.offload.table_search import TableSearch
from potluck.sessions.link import SessionLink

LOOK_S = 0.25  # between two looks
RETRY_S = 2.0  # after a failed attempt to reach a helper


class Maintenance:
    """One thread; it does nothing while a request `is_late`.

    Parameters
    ----------
    link
        The home's connection.
    loaded
        What is on the devices.
    tables
        Finds tables.
    air
        The bandwidth.
    speeds
        Of the sides.
    is_late
        Whether a request is under way that is late.
    """

    def __init__(
        self,
        link: SessionLink,
        loaded: OffloadDeployment,
        tables: TableSearch,
        air: LinkBandwidth,
        speeds: DriftMonitor,
        is_late: Callable[[], bool],
    ) -> None:
        self._link = link
        self._loaded = loaded
        self._tables = tables
        self._air = air
        self._speeds = speeds
        self._is_late, self._retry_s = is_late, 0.0
        self.works, self._closed = threading.Lock(), threading.Event()
        self.thread = threading.Thread(target=self._look, name="potluck fast", daemon=True)
        self.thread.start()

    def end(self) -> None:
        """Do nothing from now on; a search under way ends soon.

        With `works` nothing is half done.
        """
        self._closed.set()

    def _look(self) -> None:
        while not self._closed.wait(LOOK_S):
            with self.works:
                try:
                    if not self._closed.is_set() and not self._is_late():
                        self._work(time.monotonic())
                except PotluckError as error:
                    self._loaded.failure = error

    def _work(self, now_s: float) -> None:
        """The most urgent thing that is to be done, if any."""
        if self._loaded.let_go():
            return
        if self._loaded.lacks_helpers and now_s >= self._retry_s:
            self._retry_s = now_s + RETRY_S
            self._restore()
        elif not self._loaded.is_helped:
            return
        elif self._should_ask(now_s):
            self._air.ask(
                self._link,
                f"{self._loaded.group.run}-{self._loaded.next_step()}",
                *self._loaded.case.names[: HELPER + 1],
            )
        elif wrong := self._speeds.wrong():
            self._correct(wrong)
        elif (case := self._loaded.case) and (table := self._tables.full_table(case)):
            self._loaded.go_over(case, table)

    def _should_ask(self, now_s: float) -> bool:
        alone = self._loaded.table.at(self._air.bytes_per_s).program is None
        return self._air.should_ask(now_s, alone=alone)

    def _restore(self) -> None:
        case = self._loaded.reach()
        if case is None:
            return
        same = case.names == self._loaded.case.names
        table = self._loaded.table if same else self._found(case)
        self._loaded.back(self._loaded.case if same else case, table)

    def _correct(self, times: dict[str, float]) -> None:
        """Plan anew by what the sides have shown, load that, and go over to it."""
        loaded = self._loaded
        case, loaded.full = loaded.case.corrected(times), loaded.full.corrected(times)
        loaded.go_over(case, self._found(case))
        self._speeds.forget()

    def _found(self, case: SplitCase) -> SplitTable:
        """A table for this case, unless the end comes first."""
        return self._tables.first(case, self._air.bytes_per_s, self._check)

    def _check(self, _done: int) -> None:
        if self._closed.is_set():
            raise HomeError("this accelerated model is closed.")
