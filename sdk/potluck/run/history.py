"""What training has shown: the loss of every step. And what was measured, as the same Trace that
the simulator makes. Pure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile, takewhile

from potluck import units
from potluck.adapt.adapter import Decision
from potluck.display_hooks import Shown
from potluck.provenance import MEASURED, reckoned
from potluck.records import Device, Event, Trace
from potluck.schedule import Compiled
from potluck.sessions.events import ExecutionResult
from potluck.simulate.time_spans import in_turn_s, union_s
from potluck_wire.program import NETWORK

_LANES = {"send": "send", "recv": "receive"}
MAX_NOTES = 1000  # of one run: a device may give reasons for more of them for ever
NO_MORE = "More is not noted of this run."


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A device was lost and the run went on.

    After `step` steps `device` failed for this `cause`. The run went on with `devices`, after
    `seconds`, and computed `n_again` steps again. `planner`: who made the new plan; empty where the
    old one went on. `predicted_s`: when that plan was chosen, the seconds from the loss to the end
    of the next new step; None where nobody has profiled. `what` is "request" of a run for
    inference: how many had been handed out, and were handed out again.
    """

    step: int
    device: str
    cause: str
    devices: tuple[str, ...]
    planner: str
    n_again: int
    seconds: float
    what: str = "step"
    predicted_s: float | None = None

    @property
    def words(self) -> str:
        """For people."""
        who = f" with {', '.join(self.devices)} ({self.planner})" if self.planner else ""
        again = f", {units.number(self.n_again, self.what)} again" if self.n_again else ""
        return (
            f"{self.what} {self.step}: {self.cause} The run goes on{who} after "
            f"{units.duration(self.seconds)}{again}."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesLeft:
    """Devices wanted to leave and the run went on without them, by a live switch.

    After `step` steps it was on `devices` instead of those of `left`, for this `reason`, `seconds`
    after it was heard. `planner`: who made the new plan.
    """

    step: int
    left: tuple[str, ...]
    reason: str
    devices: tuple[str, ...]
    planner: str
    seconds: float

    @property
    def words(self) -> str:
        """For people."""
        return (
            f"step {self.step}: {self.reason} The run goes on with {', '.join(self.devices)} "
            f"({self.planner}), {units.duration(self.seconds)} later; nothing is computed again."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesReturned:
    """Devices that were lost, or wanted to leave, are used again, by a live switch.

    After `step` steps the run was on `devices`, those of `back` among them, `seconds` after that
    was begun.
    """

    step: int
    back: tuple[str, ...]
    devices: tuple[str, ...]
    seconds: float

    @property
    def words(self) -> str:
        """For people."""
        verb = "is" if len(self.back) == 1 else "are"
        return (
            f"step {self.step}: {' and '.join(self.back)} {verb} back. The run goes on with "
            f"{', '.join(self.devices)}, {units.duration(self.seconds)} later."
        )


def left_out(step: int) -> str:
    """What is noted of a step in float16 whose gradients are not finite.

    Parameters
    ----------
    step
        Its number, from 1.
    """
    return (
        f"step {step} was left out, as its gradients are beyond float16; the loss is multiplied by "
        "half as much from now on."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class History(Shown):
    """Losses per step, in order: each the mean over the rows of its batch (or their sum, as the
    model's loss is). `rows` per step; `gradient_norms` per step, before a limit (NaN where there is
    none); `notes` for people, one for every batch concerned, 1000 at most; `recoveries`: where
    devices were lost;
    `departures`: where they wanted to leave; `arrivals`: where they were back and used again;
    `decisions`: what the adapter made of changes of the home.
    """

    losses: tuple[float, ...] = ()
    rows: tuple[int, ...] = ()
    step_s: tuple[float, ...] = ()
    gradient_norms: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    departures: tuple[DevicesLeft, ...] = ()
    arrivals: tuple[DevicesReturned, ...] = ()
    decisions: tuple[Decision, ...] = ()

    def with_step(
        self, loss: float, *, rows: int, step_s: float, gradient_norm: float
    ) -> "History":
        """And one more step.

        Parameters
        ----------
        loss
            Its loss.
        rows
            Of its batch.
        step_s
            How long it took.
        gradient_norm
            Before a limit; NaN where there is none.
        """
        return replace(
            self,
            losses=(*self.losses, loss),
            rows=(*self.rows, rows),
            step_s=(*self.step_s, step_s),
            gradient_norms=(*self.gradient_norms, gradient_norm),
        )

    def with_note(self, words: str) -> "History":
        """And one more note, where there is room.

        Parameters
        ----------
        words
            For people.
        """
        n_left = MAX_NOTES - len(self.notes)
        note = (words if n_left > 1 else NO_MORE,) if n_left > 0 else ()
        return replace(self, notes=(*self.notes, *note))

    def since(self, before: "History", n_steps: int) -> "History":
        """What came after that.

        Parameters
        ----------
        before
            As it was then.
        n_steps
            That were taken by then, or under way.
        """
        parts = ("notes", "recoveries", "departures", "arrivals", "decisions")
        news = {name: getattr(self, name)[len(getattr(before, name)) :] for name in parts}
        return replace(
            self,
            losses=self.losses[n_steps:],
            rows=self.rows[n_steps:],
            step_s=self.step_s[n_steps:],
            gradient_norms=self.gradient_norms[n_steps:],
            **news,
        )

    def __repr__(self) -> str:
        notes = "".join(f"\n{note}" for note in dict.fromkeys(self.notes))
        if not self.losses:
            return f"<History: no steps>{notes}"
        steps = f"{len(self.losses)} step{'s' if len(self.losses) > 1 else ''}"
        return f"<History: {steps}, loss {self.losses[0]:.4g} to {self.losses[-1]:.4g}>{notes}"


def measured_trace(
    steps: Sequence[tuple[ExecutionResult, Compiled]],
    devices: Mapping[str, Device],
    energy_j: Callable[[Device, float, float, float], float | None],
    metered: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> Trace:
    """The trace of these executions, oldest first; time 0 is the start of the first.

    Energy is what a device's meter read (`metered`: time and joules so far), where it has one that
    read often enough. The meter of a machine that several devices share measures them all: each has
    the part that is reckoned for it, which is assumed. Else reckoned from busy and radio time,
    where the powers are known: such joules are assumed, not measured.

    Parameters
    ----------
    steps
        What each step did, and the programs that it followed.
    devices
        What is known of them, by name: their powers.
    energy_j
        Called as energy_j(device, elapsed_s, busy_s, radio_s): joules, or None where its powers are
        not known.
    metered
        Per device, readings (time, joules so far), in order.
    """
    if not steps:
        return Trace(source="measured")
    zero_s = steps[0][0].start_s
    events = tuple(
        event
        for number, (execution, compiled) in enumerate(steps)
        for event in _events(execution, compiled, number, zero_s)
    )
    names = dict.fromkeys(name for execution, _ in steps for name in execution.timelines)
    busy = {n: sum(e.timelines[n].busy_s for e, _ in steps if n in e.timelines) for n in names}
    peak = {n: max(e.timelines[n].peak_bytes for e, _ in steps if n in e.timelines) for n in names}
    elapsed_s = steps[-1][0].stop_s - zero_s
    energy: dict[str, float] = {}
    source: dict[str, str] = {}

    def reckoned_j(name: str) -> float | None:
        if name not in devices:
            return None
        radio_s = union_s(
            [(e.start_s, e.stop_s) for e in events if e.device == name and e.lane != "compute"]
        )
        return energy_j(devices[name], elapsed_s, busy.get(name, 0.0), radio_s)

    for name in names:
        read_j = metered_j((metered or {}).get(name, ()), zero_s, zero_s + elapsed_s)
        joules = reckoned_j(name)
        if read_j is not None:
            beside = _beside(name, devices)
            part = _part(joules, [reckoned_j(other) for other in beside])
            energy[name] = part * read_j
            source[name] = reckoned(MEASURED) if beside else MEASURED
        elif joules is not None:
            energy[name], source[name] = joules, reckoned(devices[name].power_mark)
    return Trace(
        source="measured",
        events=events,
        step_s=in_turn_s([(execution.start_s, execution.stop_s) for execution, _ in steps]),
        busy_s=busy,
        energy_j=energy,
        energy_source=source,
        peak_bytes=peak,
    )


def _beside(name: str, devices: Mapping[str, Device]) -> list[str]:
    """The other devices of its machine."""
    host = devices[name].host if name in devices else ""
    return [other for other in devices if host and other != name and devices[other].host == host]


def _part(own_j: float | None, others_j: Sequence[float | None]) -> float:
    """Of what a meter of them all counted, by what is reckoned for each; alike where that is not
    known.

    >>> _part(3.0, [1.0]), _part(None, [1.0, None]), _part(2.0, [])
    (0.75, 0.3333333333333333, 1.0)
    """
    known = [joules for joules in (own_j, *others_j) if joules is not None]
    if own_j is None or len(known) <= len(others_j) or sum(known) <= 0:
        return 1 / (1 + len(others_j))
    return own_j / sum(known)


def metered_j(
    readings: Sequence[tuple[float, float]], start_s: float, stop_s: float
) -> float | None:
    """Joules in [start_s, stop_s] by readings (time, joules so far): the mean power of those
    inside, all the time.

    None where these cover less than half of it.

    >>> metered_j([(0.0, 0.0), (1.0, 5.0), (2.0, 7.0), (3.0, 9.0)], 1.0, 4.0)
    6.0

    Parameters
    ----------
    readings
        (seconds, joules so far), in order.
    start_s, stop_s
        Seconds by the same clock.
    """
    inside = [reading for reading in readings if start_s <= reading[0] <= stop_s]
    covered_s = inside[-1][0] - inside[0][0] if inside else 0.0
    if covered_s <= 0 or covered_s < (stop_s - start_s) / 2:
        return None
    return (inside[-1][1] - inside[0][1]) / covered_s * (stop_s - start_s)


def _events(
    execution: ExecutionResult, compiled: Compiled, step: int, zero_s: float
) -> list[Event]:
    events = []
    there_s = _arrivals(execution, compiled)
    for device, timeline in execution.timelines.items():
        instructions, notes = compiled.programs[device].instructions, compiled.notes.get(device, ())
        for index, start_s, stop_s in timeline.rows:
            if not 0 <= index < len(instructions):
                continue
            item = instructions[index]
            note = notes[index] if index < len(notes) else None
            moves = item.op in NETWORK
            if item.op == "send":  # its device heard of the end later
                stop_s = min(
                    stop_s,
                    max(start_s, there_s.get((item.attrs["peer"], item.attrs["name"]), stop_s)),
                )
            events.append(
                Event(
                    device=device,
                    lane=_LANES.get(item.op, "compute"),
                    start_s=start_s - zero_s,
                    stop_s=stop_s - zero_s,
                    label=note.label if note else item.op,
                    op=item.op,
                    step=step,
                    instruction=index,
                    peer=str(item.attrs["peer"]) if moves else "",
                    nbytes=note.nbytes if note and moves else 0,
                )
            )
    return events


def _arrivals(execution: ExecutionResult, compiled: Compiled) -> dict[tuple[str, str], float]:
    """When each value was there: (device, value) -> seconds on our clock."""
    found = {}
    for device, timeline in execution.timelines.items():
        instructions = compiled.programs[device].instructions
        for index, _, stop_s in timeline.rows:
            if 0 <= index < len(instructions) and instructions[index].op == "recv":
                found[device, instructions[index].outputs[0]] = stop_s
    return found


def latest_alike(
    kept: Sequence[tuple[ExecutionResult, Compiled]], program: str
) -> tuple[tuple[ExecutionResult, Compiled], ...]:
    """The latest executions in a row of one program: of this one, if there are any.

    Parameters
    ----------
    kept
        In order.
    program
        Its name.
    """
    names = [execution.program for execution, _ in kept]
    name = program if program in names or not names else names[-1]
    found = takewhile(
        lambda item: item[0].program == name,
        dropwhile(lambda item: item[0].program != name, reversed(kept)),
    )
    return tuple(reversed(list(found)))
