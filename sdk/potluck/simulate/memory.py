"""Memory over time: when each value, kept activation and working set of a device is there, and the
peak.
"""

from collections.abc import Container, Mapping, Sequence
from itertools import accumulate
from math import inf, nextafter

from potluck.schedule.program_builder import Annotation, Compiled
from potluck.simulate import cost, equations
from potluck.simulate.time_spans import Span
from potluck_wire.program import BACKWARDS, Instruction

_GRADIENTS = BACKWARDS | {"backward_weight"}  # what may take room for a second gradient

# of a forward and its backward: the segment, and what the program calls them
_Key = tuple[str, str]


def peak_bytes(
    table: cost.CostTable, compiled: Compiled, device: str, spans: Sequence[Mapping[int, Span]]
) -> int:
    """The most bytes that `device` holds at once.

    `spans[step][instruction id]` is when each instruction took place.

    A value is there from the start of what makes it to the end of its last use; what never is used
    goes at once. A `run` keeps its activations until its `backward` has ended, where it has one. A
    vector of gradients is there as long as any piece of it, as pieces are no copies. A `backward`
    takes room for gradients of parameters that have one. What a backward in two parts keeps for the
    second is there from the start of the first to the end of the second.

    Parameters
    ----------
    table
        Of the problem.
    compiled
        The programs.
    device
        Its name.
    spans
        Per step, when each instruction took place.
    """
    program, notes = compiled.programs[device], compiled.notes[device]
    sizes = compiled.value_bytes[device]
    changes: list[tuple[float, int]] = []
    returning = {_key(item) for item in program.instructions if item.op in BACKWARDS}
    reductions = compiled.reductions.get(device, ())
    reduced = {value for reduction in reductions for value in reduction.values}
    for step in spans:
        made: dict[str, float] = {}
        last: dict[str, float] = {}
        vectors: set[str] = set()
        pieces: dict[str, str] = {}  # of vectors
        kept: dict[_Key, tuple[float, int]] = {}
        learned: set[str] = set()  # segments that had a backward
        passed: dict[str, float] = {}  # of a segment and of its vector: when the last pass began
        for item in program.instructions:
            start, stop = step[item.id]
            for value in item.outputs:
                made[value], last[value] = start, stop
            for value in item.inputs:
                last[value] = max(last[value], stop)
            if item.op == "run" or item.op in _GRADIENTS:
                passed[item.attrs["segment"]] = start
            elif item.op == "gradients":
                vectors.update(item.outputs)
                passed |= dict.fromkeys(item.outputs, passed.get(item.attrs["segment"], start))
            elif item.op == "slice" and item.inputs[0] in vectors:
                pieces |= dict.fromkeys(item.outputs, item.inputs[0])
            _segment_memory(table, item, notes[item.id], start, stop, returning, kept, changes)
            changes += _second_gradients(table, item, notes[item.id], start, stop, learned)
        for piece, vector in pieces.items():
            last[vector] = max(last[vector], last[piece])
        for value, since in made.items():
            if value not in reduced:
                changes += held(since, last[value], sizes[value])
        for reduction in reductions:
            changes += held_to_reduce(
                sizes[reduction.vector],
                passed[reduction.vector],
                made[reduction.vector],
                made[reduction.joined],
                [(made[value], sizes[value]) for value in reduction.arrived],
            )
    changes.sort()
    static = _static_bytes(table, notes, program.instructions)
    static += _second_versions(notes, program.instructions)
    return static + max(accumulate((nbytes for _, nbytes in changes), initial=0))


def held(start: float, stop: float, nbytes: int) -> list[tuple[float, int]]:
    """The changes of memory by what is there from `start` to `stop`, to be sorted: at one moment
    what goes comes first, but for what comes and goes at that moment.

    Parameters
    ----------
    start, stop
        From when to when it is there.
    nbytes
        How much it is.
    """
    return [(start, nbytes), (stop if stop > start else nextafter(stop, inf), -nbytes)]


def held_to_reduce(
    vector_bytes: int,
    passed_s: float,
    made_s: float,
    joined_s: float,
    arrivals: Sequence[tuple[float, int]],
) -> list[tuple[float, int]]:
    """The changes of memory by a ring all-reduce: the most that it holds, whichever replica is
    ahead, as that no simulation tells: devices are a little slower than expected by turns.

    Parameters
    ----------
    vector_bytes
        Of what is summed.
    passed_s
        When the last forward or backward begins that the vector waits for: the others may have done
        theirs, and what they send is there.
    made_s
        When the vector begins to be made.
    joined_s
        When the sums begin to be joined: what comes then is a value as any other.
    arrivals
        Of what is added to its own: when it begins to arrive, and bytes.
    """
    changes = held(made_s, joined_s, reducing_bytes(vector_bytes, len(arrivals) + 1))
    for since, nbytes in arrivals:
        changes += held(min(since, passed_s), made_s, nbytes)
    return changes


def reducing_bytes(vector_bytes: int, replicas: int) -> int:
    """The most bytes that a ring all-reduce holds: the flat vector, pieces that were sent or added
    to, and those of other replicas or the joined vector. Pieces may differ by an element.

    Parameters
    ----------
    vector_bytes
        Of what is summed.
    replicas
        Devices of the ring.
    """
    return 3 * vector_bytes + 4 * replicas


def _segment_memory(
    table: cost.CostTable,
    item: Instruction,
    note: Annotation,
    start: float,
    stop: float,
    returning: Container[_Key],
    kept: dict[_Key, tuple[float, int]],
    changes: list[tuple[float, int]],
) -> None:
    if item.op != "run" and item.op not in _GRADIENTS:
        return
    is_piece, key = note.seconds is not None, _key(item)
    if item.op == "backward_weight":
        since, waiting = kept.pop(key)
        changes += held(since, stop, waiting)
        table = table.of(False)  # nothing is computed again
    else:
        table = table.of(note.recompute)
    working = (
        note.nbytes
        if is_piece
        else equations.working_bytes(table, note.start, note.stop, note.rows)
    )
    changes += held(start, stop, working)
    if item.op == "run" and key in returning:
        nbytes = table.kept_bytes(note.start, note.stop) * note.rows
        kept[key] = start, nbytes + table.copied_bytes(note.start, note.stop)
    elif item.op in BACKWARDS:
        since, nbytes = kept.pop(key)
        changes += held(since, stop, nbytes)
        if item.op == "backward_input":
            kept[key] = start, table.waiting_bytes(note.start, note.stop) * note.rows


def _second_gradients(
    table: cost.CostTable,
    item: Instruction,
    note: Annotation,
    start: float,
    stop: float,
    learned: set[str],
) -> list[tuple[float, int]]:
    if item.op not in _GRADIENTS:
        return []
    segment = item.attrs["segment"]
    nbytes = table.second_gradient_bytes(note.start, note.stop, first=segment not in learned)
    learned.add(segment)
    return held(start, stop, nbytes)


def _key(item: Instruction) -> _Key:
    return item.attrs["segment"], item.attrs["key"]


def _second_versions(notes: Sequence[Annotation], instructions: Sequence[Instruction]) -> int:
    """Weights that are there twice, as backwards need older ones than forwards."""
    late = [item for item in instructions if item.op == "step" and item.attrs.get("late")]
    return sum({item.attrs["segment"]: notes[item.id].nbytes for item in late}.values())


def _static_bytes(
    table: cost.CostTable, notes: Sequence[Annotation], instructions: Sequence[Instruction]
) -> int:
    """The segments that this program runs, each once."""
    runs = [notes[item.id] for item in instructions if item.op == "run"]
    # pieces borrow their weights
    ranges = {(note.start, note.stop) for note in runs if note.seconds is None}
    return equations.resting_bytes(table, ranges)
