"""How fast the sides of shared requests turn out to be, against what was thought. Pure."""

from collections import deque
from collections.abc import Iterable
from statistics import median

from potluck.offload.compile import computed_s
from potluck.offload.split_table import SplitCase
from potluck.schedule import Compiled
from potluck.sessions.events import ExecutionResult

SHOWN = 5  # requests that show how fast a side is
WRONG = 1.5  # times as long, or as short, as was thought: then all is planned anew


class DriftMonitor:
    """The latest times of every side, as shares of what it was to take."""

    def __init__(self, names: Iterable[str]) -> None:
        self._times: dict[str, deque[float]] = {name: deque(maxlen=SHOWN) for name in names}

    def learn(self, case: SplitCase, execution: ExecutionResult, compiled: Compiled) -> None:
        """What one request shows; emulated devices take what they were told to take.

        Parameters
        ----------
        case
            What is divided, between whom.
        execution
            What was measured.
        compiled
            The programs that it followed.
        """
        for name in compiled.programs:
            expected_s = 0.0 if name in case.emulated else case.computing_s(compiled, name)
            if expected_s > 0:
                self._times[name].append(computed_s(execution, compiled, name) / expected_s)

    def wrong(self) -> dict[str, float]:
        """The sides that take another time than was thought, request after request: how many times
        as long.
        """
        shown = {name: median(times) for name, times in self._times.items() if len(times) == SHOWN}
        return {name: times for name, times in shown.items() if not 1 / WRONG < times < WRONG}

    def forget(self) -> None:
        """Begin anew: all was planned by what these times showed."""
        for times in self._times.values():
            times.clear()
