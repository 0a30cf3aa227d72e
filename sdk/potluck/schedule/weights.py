"""Programs that move named state: from home to the devices, back home, and between devices on a
switch of plans.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from potluck.errors import PlanError
from potluck.records import HOME, Plan, Segment
from potluck.schedule.program_builder import (
    LATE,
    Annotation,
    Compiled,
    InputBinding,
    ProgramBuilder,
    ReceivedValue,
)
from potluck_wire.program import NAMES_AT_ONCE


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedState:
    """One named tensor of a segment's state: a parameter or buffer, or optimizer state such as
    `exp_avg:NAME`.

    `counts`: a device changes it with every micro-batch that it has rows of; the lead of its stage
    has some of each.
    """

    name: str
    nbytes: int
    counts: bool = False


States = Mapping[str, Sequence[NamedState]]  # segment name -> its state
# state name -> device -> the segment that holds it there, as EPOCH/NAME
Holders = Mapping[str, Mapping[str, str]]


class SegmentTarget(NamedTuple):
    """A segment, the devices that load it, and the states that they need for it."""

    segment: str
    devices: tuple[str, ...]
    states: Sequence[NamedState]


AHEAD_BYTES = 8 * 2**20  # read but not arrived yet: one credit window keeps the link busy


def compile_push(
    plan: Plan, segments: Sequence[Segment], states: States, *, home: str = HOME
) -> Compiled:
    """The program `push` of every device: home sends each state to every device of the stage, which
    assigns it.

    Parameters
    ----------
    plan, segments
        Its stages, and one segment per stage.
    states
        Per segment name, its parameters and buffers.
    home
        What the notebook is called as a peer.
    """
    programs = ProgramBuilder("push", plan.devices, home)
    for stage, segment in zip(plan.stages, segments, strict=True):
        for device in stage.devices:
            for state in states.get(segment.name, ()):
                feed = InputBinding(
                    device=device,
                    value=_value(segment.name, state.name),
                    tensor=state.name,
                    kind="state",
                    whole=True,
                    segment=segment.name,
                    nbytes=state.nbytes,
                )
                value = programs.feed(feed, label=f"{home}>{state.name}")
                _assign(programs, device, segment.name, state, value)
    return programs.finish()


def compile_pull(
    plan: Plan,
    segments: Sequence[Segment],
    states: States,
    *,
    home: str = HOME,
    in_background: bool = False,
) -> Compiled:
    """The program `pull` of the lead of every stage (its replicas hold the same): each state goes
    home.

    Parameters
    ----------
    plan, segments
        Its stages, and one segment per stage.
    states
        Per segment name, its parameters and buffers.
    home
        What the notebook is called as a peer.
    in_background
        It takes its time: everything else is sent first, and a state is read only when what was
        read before has arrived, but for `AHEAD_BYTES`.
    """
    programs = ProgramBuilder("pull", plan.devices, home)
    priority = LATE if in_background else 0
    windows = {device: _Window() for device in plan.devices}
    seen = set[str]()  # of a weight that several stages hold, one comes
    for stage, segment in zip(plan.stages, segments, strict=True):
        device = stage.lead
        for state in states.get(segment.name, ()):
            if state.name in seen:
                continue
            seen.add(state.name)
            result = ReceivedValue(
                device=device,
                value=_value(segment.name, state.name),
                tensor=state.name,
                kind="state",
                whole=True,
                segment=segment.name,
                nbytes=state.nbytes,
            )
            behind = windows[device].room(state.nbytes) if in_background else ()
            # soon, or it would never come where a device always has something to compute
            _read(programs, device, segment.name, state, result.value, behind=behind)
            sent = programs.result(result, label=f"{state.name}>{home}", priority=priority)
            windows[device].sent(sent, state.nbytes)
    return programs.finish()


def holding(
    plan: Plan, segments: Sequence[Segment], states: States, epoch: int
) -> dict[str, dict[str, str]]:
    """Where every state is under this plan, whose segments stand under `epoch`.

    Parameters
    ----------
    plan, segments
        Its stages, and one segment per stage.
    states
        Per segment name, its parameters and buffers.
    epoch
        The number of the plan's epoch.

    Returns
    -------
    dict[str, dict[str, str]]
        State name to device to the segment that holds it there, as "EPOCH/NAME".
    """
    holders: dict[str, dict[str, str]] = {}
    for stage, segment in zip(plan.stages, segments, strict=True):
        for state in states.get(segment.name, ()):
            for device in (stage.lead,) if state.counts else stage.devices:
                holders.setdefault(state.name, {})[device] = f"{epoch}/{segment.name}"
    return holders


def targets(plan: Plan, segments: Sequence[Segment], states: States) -> tuple[SegmentTarget, ...]:
    """Every stage of a plan with the states that it needs.

    Parameters
    ----------
    plan, segments
        Its stages, and one segment per stage.
    states
        Per segment name, its parameters and buffers.
    """
    pairs = zip(plan.stages, segments, strict=True)
    return tuple(
        SegmentTarget(segment.name, stage.devices, states.get(segment.name, ()))
        for stage, segment in pairs
    )


def compile_move(
    name: str,
    holders: Holders,
    wanted: Sequence[SegmentTarget],
    *,
    home: str = HOME,
    home_has_all: bool = False,
    offered: Container[tuple[str, str]] = (),
) -> Compiled:
    """The program `name` that puts all that is wanted where it belongs, on all who hold or need any
    of it.

    A device that holds a state takes its own, without the network; else one holder sends it, the
    one with the fewest bytes to send so far. It takes its time: everything else goes first, and a
    giver reads a state only when what it read before has arrived, but for `AHEAD_BYTES`.

    Parameters
    ----------
    name
        Of the program.
    holders
        State name to device to the segment that holds it there.
    wanted
        Who needs what, from `targets`.
    home
        What the notebook is called as a peer.
    home_has_all
        It sends what no device holds.
    offered
        Device and name of states that home offers again: the device may have kept them.

    Raises
    ------
    PlanError
        Nobody holds a state that is wanted.
    """
    givers = (device for slots in holders.values() for device in slots)
    move = _Move(
        name,
        tuple(dict.fromkeys((*givers, *(d for target in wanted for d in target.devices)))),
        home,
    )
    for target in wanted:
        for device in target.devices:
            own: dict[str, list[NamedState]] = {}
            for state in target.states:
                slots = holders.get(state.name, {})
                is_kept = device not in slots and (device, state.name) in offered
                if is_kept or (not slots and home_has_all):
                    move.from_home(device, target.segment, state)
                    continue
                if not slots:
                    raise PlanError(
                        f"No device of the old plan holds {state.name}.",
                        next_step="Deploy it afresh.",
                    )
                if device in slots:
                    own.setdefault(slots[device], []).append(state)
                else:
                    move.over(slots, device, target.segment, state)
            for source, rows in own.items():
                for first in range(0, len(rows), NAMES_AT_ONCE):
                    move.within(device, source, target.segment, rows[first : first + NAMES_AT_ONCE])
    return move.programs.finish()


class _Move:
    """The programs of one move as they grow, and what each giver has sent so far."""

    def __init__(self, name: str, devices: Sequence[str], home: str) -> None:
        self.programs = ProgramBuilder(name, devices, home)
        self._load = dict.fromkeys(devices, 0)
        self._windows = {device: _Window() for device in devices}

    def within(self, device: str, source: str, target: str, rows: Sequence[NamedState]) -> None:
        """From one segment to another of the same device, all in one go."""
        names = [state.name for state in rows]
        values = {f"{target}:{state.name}>{device}": state.nbytes for state in rows}
        note = Annotation(label=f"keep {target}", nbytes=sum(values.values()))
        self.programs.compute(
            device, "state", (), values, note=note, priority=LATE, segment=source, names=names
        )
        self.programs.compute(
            device, "assign", [*values], {}, note=note, priority=LATE, segment=target, names=names
        )

    def over(self, slots: Mapping[str, str], device: str, target: str, state: NamedState) -> None:
        """From one of those who hold it to one who does not."""
        giver = min(slots, key=lambda name: (self._load[name], name))
        self._load[giver] += state.nbytes
        value = f"{target}:{state.name}>{device}"
        room = self._windows[giver].room(state.nbytes)
        _read(self.programs, giver, slots[giver], state, value, priority=LATE, behind=room)
        sent = self.programs.send(
            giver, value, device, value, label=f"{state.name}>{device}", priority=LATE
        )
        self._windows[giver].sent(sent, state.nbytes)
        _assign(self.programs, device, target, state, value, priority=LATE)

    def from_home(self, device: str, target: str, state: NamedState) -> None:
        """To one who needs it, where no device holds it."""
        feed = InputBinding(
            device=device,
            value=f"{target}:{state.name}>{device}",
            tensor=state.name,
            kind="state",
            whole=True,
            segment=target,
            nbytes=state.nbytes,
        )
        value = self.programs.feed(feed, label=f"{self.programs.home}>{state.name}")
        _assign(self.programs, device, target, state, value, priority=LATE)


class _Window:
    """What a device sends so that it never holds more than `AHEAD_BYTES` that have not arrived: an
    agent's memory for them is limited.
    """

    def __init__(self) -> None:
        self._under_way: list[tuple[int, int]] = []  # (send, bytes)

    def room(self, nbytes: int) -> list[int]:
        """The sends that must be over before so many bytes more are read."""
        done = []
        while self._under_way and sum(size for _, size in self._under_way) + nbytes > AHEAD_BYTES:
            done.append(self._under_way.pop(0)[0])
        return done

    def sent(self, send: int, nbytes: int) -> None:
        """One more is under way."""
        self._under_way.append((send, nbytes))


def _value(segment: str, state: str) -> str:
    return f"{segment}:{state}"


def _read(
    programs: ProgramBuilder,
    device: str,
    segment: str,
    state: NamedState,
    value: str,
    *,
    priority: int = 0,
    behind: Sequence[int] = (),
) -> None:
    note = Annotation(label=f"read {state.name}", nbytes=state.nbytes)
    programs.compute(
        device,
        "state",
        (),
        {value: state.nbytes},
        note=note,
        priority=priority,
        behind=behind,
        segment=segment,
        names=[state.name],
    )


def _assign(
    programs: ProgramBuilder,
    device: str,
    segment: str,
    state: NamedState,
    value: str,
    *,
    priority: int = 0,
) -> None:
    note = Annotation(label=f"assign {state.name}", nbytes=state.nbytes)
    programs.compute(
        device,
        "assign",
        (value,),
        {},
        note=note,
        priority=priority,
        segment=segment,
        names=[state.name],
    )
