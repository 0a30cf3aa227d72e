"""Programs that move named state: from home to the devices, back home, and between devices on a switch of plans."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from potluck.errors import PlanError
from potluck.records import HOME, Plan, Segment
from potluck.schedule.compiled import Assembler, Compiled, Feed, Note, Result


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One named tensor of a segment's state: a parameter or buffer, or optimizer state such as `exp_avg:NAME`."""

    name: str
    nbytes: int


States = Mapping[str, Sequence[State]]  # segment name -> its state


def compile_push(plan: Plan, segments: Sequence[Segment], states: States, *, home: str = HOME) -> Compiled:
    """The program `push` of every device: home sends each state to every device of the stage, which assigns it."""
    programs = Assembler("push", plan.devices, home)
    for stage, segment in zip(plan.stages, segments, strict=True):
        for device in stage.devices:
            for state in states.get(segment.name, ()):
                feed = Feed(
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


def compile_pull(plan: Plan, segments: Sequence[Segment], states: States, *, home: str = HOME) -> Compiled:
    """The program `pull` of the first device of every stage (its replicas hold the same): each state goes home."""
    programs = Assembler("pull", plan.devices, home)
    for stage, segment in zip(plan.stages, segments, strict=True):
        device = stage.devices[0]
        for state in states.get(segment.name, ()):
            result = Result(
                device=device,
                value=_value(segment.name, state.name),
                tensor=state.name,
                kind="state",
                whole=True,
                segment=segment.name,
                nbytes=state.nbytes,
            )
            _read(programs, device, segment.name, state, result.value)
            programs.result(result, label=f"{state.name}>{home}")
    return programs.finish()


def compile_move(
    old_plan: Plan,
    old_segments: Sequence[Segment],
    old_states: States,
    old_epoch: int,
    new_plan: Plan,
    new_segments: Sequence[Segment],
    new_states: States,
    *,
    home: str = HOME,
) -> Compiled:
    """The program `move` of the new epoch, on the devices of both plans: every device of the new plan gets its state.

    `old_states` and `new_states` are per segment of their plan. A device that holds a state under the old plan takes
    its own, without the network; else one holder sends it, the one with the fewest bytes to send so far. The old
    epoch's segments are called `EPOCH/NAME` in the attribute `segment`; they must still stand.
    """
    devices = tuple(dict.fromkeys((*old_plan.devices, *new_plan.devices)))
    programs = Assembler("move", devices, home)
    load = dict.fromkeys(devices, 0)
    holders = _holders(old_plan, old_segments, old_states)
    for stage, segment in zip(new_plan.stages, new_segments, strict=True):
        for state in new_states.get(segment.name, ()):
            slots = holders.get(state.name, {})
            if not slots:
                raise PlanError(f"No device of the old plan holds {state.name}.", next_step="Deploy the plan afresh.")
            for device in stage.devices:
                giver = device if device in slots else min(slots, key=lambda name: (load[name], name))
                value = f"{_value(segment.name, state.name)}>{device}"
                _read(programs, giver, f"{old_epoch}/{slots[giver]}", state, value)
                if giver != device:
                    load[giver] += state.nbytes
                    programs.send(giver, value, device, value, label=f"{state.name}>{device}")
                _assign(programs, device, segment.name, state, value)
    return programs.finish()


def _holders(plan: Plan, segments: Sequence[Segment], states: States) -> dict[str, dict[str, str]]:
    """State name -> device -> the segment that holds it there."""
    holders: dict[str, dict[str, str]] = {}
    for stage, segment in zip(plan.stages, segments, strict=True):
        for state in states.get(segment.name, ()):
            for device in stage.devices:
                holders.setdefault(state.name, {})[device] = segment.name
    return holders


def _value(segment: str, state: str) -> str:
    return f"{segment}:{state}"


def _read(programs: Assembler, device: str, segment: str, state: State, value: str) -> None:
    note = Note(label=f"read {state.name}", nbytes=state.nbytes)
    programs.compute(device, "state", (), {value: state.nbytes}, note=note, segment=segment, names=[state.name])


def _assign(programs: Assembler, device: str, segment: str, state: State, value: str) -> None:
    note = Note(label=f"assign {state.name}", nbytes=state.nbytes)
    programs.compute(device, "assign", (value,), {}, note=note, segment=segment, names=[state.name])
