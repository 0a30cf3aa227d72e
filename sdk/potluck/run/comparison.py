"""Predicted against measured, side by side: steps, devices, transfers, and the terms on the way
that decided. Pure.

A step lasts as long as its critical path: back from its last event, always to what was waited for
last. The path's time is computing, bytes on a link, latency, and overhead: what lies between the
end of one event and the start of the next.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import mean, median

from potluck.display_hooks import Tabular
from potluck.records import Event, Network, Trace
from potluck.simulate.time_spans import pace_s
from potluck_wire.program import Program

TERMS = ("compute", "link", "latency", "overhead")
Pair = tuple[float, float]  # predicted, measured
Place = tuple[int, str, int]  # step, device, instruction


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """All that one device sends another in a step: how many values, bytes of all, and seconds of
    one on average, and of the one in the middle.
    """

    source: str
    target: str
    n: int
    nbytes: int
    seconds: Pair
    median_s: Pair


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison(Tabular):
    """Pairs of predicted and measured: seconds, joules and bytes of a step.

    `terms` of a typical one add up to it.
    """

    predicted: Trace
    measured: Trace
    terms: Mapping[str, Pair] = field(default_factory=dict)
    transfers: tuple[Transfers, ...] = ()

    @property
    def predicted_step_s(self) -> float:
        """The usual one of the predicted steps."""
        return pace_s(self.predicted)

    @property
    def measured_step_s(self) -> float:
        """The usual one of the measured steps."""
        return pace_s(self.measured)

    @property
    def error_frac(self) -> float:
        """|predicted - measured| / measured, of the step's time."""
        return abs(self.predicted_step_s - self.measured_step_s) / self.measured_step_s

    @property
    def busy_s(self) -> Mapping[str, Pair]:
        """Seconds of computing per step of each device."""
        return self._per_step(self.predicted.busy_s, self.measured.busy_s)

    @property
    def energy_j(self) -> Mapping[str, Pair]:
        """Joules per step of each device whose energy is known on both sides."""
        return self._per_step(self.predicted.energy_j, self.measured.energy_j)

    @property
    def peak_bytes(self) -> Mapping[str, tuple[int, int]]:
        """The most bytes that each device held."""
        expected = self.predicted.peak_bytes
        return {
            name: (expected.get(name, 0), nbytes)
            for name, nbytes in self.measured.peak_bytes.items()
        }

    @property
    def cause(self) -> str:
        """The term that differs most."""
        return max(
            self.terms, key=lambda term: abs(self.terms[term][1] - self.terms[term][0]), default=""
        )

    def _per_step(
        self, expected: Mapping[str, float], found: Mapping[str, float]
    ) -> dict[str, Pair]:
        n, m = len(self.predicted.step_s), len(self.measured.step_s)
        return {
            name: (expected[name] / n, value / m)
            for name, value in found.items()
            if name in expected
        }


def compare(
    predicted: Trace, measured: Trace, programs: Mapping[str, Program], network: Network
) -> Comparison:
    """Both traces of these programs against each other.

    Parameters
    ----------
    predicted
        From the simulator.
    measured
        Of the same programs; of any number of steps.
    programs
        Per device, what both followed.
    network
        Tells latency from transfer time.
    """
    sides = [_Steps(trace, programs) for trace in (predicted, measured)]
    found = [side.terms(network) for side in sides]
    taken = [side.transfers() for side in sides]
    return Comparison(
        predicted=predicted,
        measured=measured,
        terms={term: (found[0][term], found[1][term]) for term in TERMS},
        transfers=tuple(
            Transfers(
                source=pair[0],
                target=pair[1],
                n=round(len(rows) / len(measured.step_s)),
                nbytes=round(sum(nbytes for nbytes, _ in rows) / len(measured.step_s)),
                seconds=(mean(s for _, s in taken[0][pair]), mean(s for _, s in rows)),
                median_s=(median(s for _, s in taken[0][pair]), median(s for _, s in rows)),
            )
            for pair, rows in taken[1].items()
            if pair in taken[0]
        ),
    )


class _Steps:
    """The events of a trace by place, and what each had to wait for."""

    def __init__(self, trace: Trace, programs: Mapping[str, Program]) -> None:
        self.trace, self.programs = trace, programs
        self.events: dict[Place, Event] = {
            (e.step, e.device, e.instruction): e for e in trace.events
        }
        self.makers = {
            (device, value): item.id
            for device, program in programs.items()
            for item in program.instructions
            for value in item.outputs
        }
        self.sends = {
            (item.attrs["peer"], item.attrs["name"]): (device, item.id)
            for device, program in programs.items()
            for item in program.instructions
            if item.op == "send"
        }
        self.lanes: dict[tuple[str, str], list[Event]] = {}
        for event in sorted(trace.events, key=lambda event: event.stop_s):
            self.lanes.setdefault((event.device, event.lane), []).append(event)

    def send_of(self, event: Event) -> Event | None:
        """The sending that a receive belongs to; None for one from home."""
        (value,) = self.programs[event.device].instructions[event.instruction].outputs
        device, index = self.sends.get((event.device, value), ("", -1))
        return self.events.get((event.step, device, index))

    def transfers(self) -> dict[tuple[str, str], list[tuple[int, float]]]:
        """(source, target) -> (bytes, seconds from the start of sending until all is there) of
        every value.
        """
        found: dict[tuple[str, str], list[tuple[int, float]]] = {}
        for event in self.trace.events:
            send = self.send_of(event) if event.op == "recv" else None
            if send is not None:
                row = event.nbytes, event.stop_s - send.start_s
                found.setdefault((send.device, event.device), []).append(row)
        return found

    def terms(self, network: Network) -> dict[str, float]:
        """Seconds of each term on the critical path of the step whose time is nearest to the
        median.
        """
        middle_s = median(self.trace.step_s)
        step = min(
            range(len(self.trace.step_s)),
            key=lambda number: abs(self.trace.step_s[number] - middle_s),
        )
        found = dict.fromkeys(TERMS, 0.0)
        for event, begin_s, end_s in self._path(step):
            if event.lane == "compute":
                found["compute"] += end_s - begin_s
                continue
            ends = (event.peer, event.device) if event.op == "recv" else (event.device, event.peer)
            lag_s = min(network.latency(*ends) if ends in network.paths else 0.0, end_s - begin_s)
            found["latency"] += lag_s
            found["link"] += end_s - begin_s - lag_s
        found["overhead"] = max(0.0, self.trace.step_s[step] - sum(found.values()))
        return found

    def _path(self, step: int) -> Iterator[tuple[Event, float, float]]:
        """Back from the end of a step to the end of the one before: (event, from, to)."""
        mine = [event for event in self.trace.events if event.step == step]
        event: Event | None = max(mine, key=lambda event: event.stop_s, default=None)
        since_s = max((e.stop_s for e in self.trace.events if e.step < step), default=float("-inf"))
        reached_s = event.stop_s if event else 0.0
        while event is not None and reached_s > since_s:
            send = self.send_of(event) if event.op == "recv" else None
            start_s = max(since_s, send.start_s if send else event.start_s)
            stop_s = min(event.stop_s, reached_s)
            if stop_s > start_s:
                yield event, start_s, stop_s
            reached_s = min(reached_s, start_s)
            event = self._before(send or event)

    def _before(self, event: Event) -> Event | None:
        """What this event waited for last: its inputs, what it comes after, or its lane."""
        item = self.programs[event.device].instructions[event.instruction]
        numbers = {*item.after, *(self.makers[event.device, value] for value in item.inputs)}
        waits = [self.events.get((event.step, event.device, number)) for number in numbers]
        lane = self.lanes[event.device, event.lane] if event.op != "recv" else []
        waits.append(
            next((e for e in reversed(lane) if e.stop_s <= event.start_s and e is not event), None)
        )
        return max((e for e in waits if e is not None), key=lambda e: e.stop_s, default=None)
