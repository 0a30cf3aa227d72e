"""Which values a device may send home, and how large: what was asked of it, each once, and nothing
else. Pure.

So this notebook never holds more bytes of a device's values than its executions under way expect of
it. What it sends to measure a link is not held at all."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from potluck.sessions.traffic import Place, place_of
from potluck_wire.errors import WireCode, WireError
from potluck_wire.limits import ANSWER, PROBE
from potluck_wire.messages import HOME, Probe, RefusalCode, Value

# Values of executions that are over may still be under way, those of a session that broke are sent
# again in the next, and a process that was killed has left some to who comes next with its key: so
# many a session, and all that its own executions have left. More are sent by nobody who is honest.
LATE_VALUES = 1024


class HeldValues(NamedTuple):
    """Bytes of a device's values that are here, whole or not, and those that the executions under
    way expect of it: no more are kept.
    """

    here_bytes: int
    expected_bytes: int


@dataclass(slots=True)
class _Series:
    nbytes: int
    left: int


class ExpectedValues:
    """What one device may send in one session."""

    def __init__(self) -> None:
        # of executions under way: value -> its most bytes
        self._expected: dict[Place, dict[str, int]] = {}
        self._awaited: dict[Place, set[str]] = {}  # those that have not begun
        self._probes: dict[str, _Series] = {}  # by task
        self._n_late = LATE_VALUES

    def expect(self, place: Place, values: Mapping[str, int]) -> None:
        """An execution is to send these values of at most so many bytes each."""
        self._expected[place], self._awaited[place] = dict(values), set(values)

    def end(self, place: Place) -> None:
        """That execution is over; what has not come may be on its way."""
        self._expected.pop(place, None)
        self._n_late += len(self._awaited.pop(place, ()))

    def probe(self, probe: Probe) -> None:
        """The device was asked to send values that are thrown away."""
        if probe.peer == HOME:
            self._probes[probe.task] = _Series(probe.nbytes, probe.repeats)

    def probed(self, task: str) -> None:
        """It has said how long that took."""
        self._probes.pop(task, None)

    def code(self, value: Value) -> str:
        """Empty where a value that begins may come, or the code to reject it with.

        Raises
        ------
        WireError
            Where no honest device sends that: nobody asked for it, or it is larger than was
            predicted.
        """
        if not value.run and value.program != ANSWER:
            return self._code_of_probe(value)
        place = place_of(value)
        expected = self._expected.get(place)
        if expected is None:
            return self._late(value)
        if value.name not in expected:
            raise WireError(
                WireCode.STATE,
                f"the value {value.name!r:.80} of step {value.step}, which nobody expects",
            )
        _check_size(value, expected[value.name])
        if value.name not in self._awaited[place]:
            return self._late(value)
        self._awaited[place].remove(value.name)
        return ""

    def _code_of_probe(self, value: Value) -> str:
        series = self._probes.get(value.name) if value.program == PROBE else None
        if series is None or not series.left:
            return self._late(value)
        _check_size(value, series.nbytes)
        series.left -= 1
        return ""

    def _late(self, value: Value) -> str:
        if not self._n_late:
            raise WireError(
                WireCode.STATE, f"one more value that nobody waits for ({value.name!r:.80})"
            )
        self._n_late -= 1
        return RefusalCode.UNKNOWN_RUN


def _check_size(value: Value, most_bytes: int) -> None:
    if value.nbytes > most_bytes:
        text = (
            f"the value {value.name!r:.80} has {value.nbytes} bytes, at most {most_bytes} are "
            "expected"
        )
        raise WireError(WireCode.SIZE, text)
