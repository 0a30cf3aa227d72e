"""The parts of what answers a batch, as devices may be asked for them: the whole, where one device
has the model; where several share it, what each computes and what it needs for that.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from potluck.records import Segment
from potluck.schedule import Compiled
from potluck_wire.program import NETWORK, Program

Kind = tuple[str, tuple[int, ...]]  # of a tensor: dtype and shape


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramPart:
    """What a device and all later ones compute of a batch: `inputs` (name, dtype, shape) and the
    names of its `outputs`.
    """

    device: str
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    outputs: tuple[str, ...]


def parts_of(
    compiled: Compiled, kinds: Mapping[str, Kind], devices: Sequence[str]
) -> tuple[ProgramPart, ...]:
    """The parts, each asked of its device by the one before: what devices tell each other goes that
    way and back. None where a value is of an unknown kind, or two are called alike.

    Parameters
    ----------
    compiled
        What answers a batch.
    kinds
        Of the values that cross, as far as they are known.
    devices
        The first one is the entrance.
    """
    if not _one_name_each(compiled):
        return ()
    parts: list[ProgramPart] = []
    needed, answered = list[str](), list[str]()  # of later devices, by earlier ones
    for index in reversed(range(len(devices))):
        moved = _moved(compiled.programs[devices[index]], {*devices[index + 1 :]})
        needed = [name for name in needed if ("send", True, name) not in moved]
        answered = [name for name in answered if ("recv", True, name) not in moved]
        for op, is_later, name in moved:
            if not is_later:
                (needed if op == "recv" else answered).append(name)
        if not kinds.keys() >= {*needed}:
            return ()
        inputs = tuple((name, *kinds[name]) for name in dict.fromkeys(needed))
        outputs = tuple(dict.fromkeys(answered))
        parts.append(ProgramPart(device=devices[index], inputs=inputs, outputs=outputs))
    return tuple(reversed(parts))


def _moved(program: Program, later: Collection[str]) -> list[tuple[str, bool, str]]:
    """All that a device receives and sends: how, whether it is from or to one of the later ones,
    and its name.
    """
    return [
        (i.op, i.attrs["peer"] in later, i.outputs[0] if i.op == "recv" else i.attrs["name"])
        for i in program.instructions
        if i.op in NETWORK
    ]


def _one_name_each(compiled: Compiled) -> bool:
    """Whether whatever is sent has a name of its own, wherever it goes."""
    fed = {(feed.value, feed.tensor, feed.start, feed.stop) for feed in compiled.feeds}
    sent = {
        (each.attrs["name"], device)
        for device, program in compiled.programs.items()
        for each in program.instructions
        if each.op == "send"
    }
    names = [name for name, *_ in (*fed, *sent)]
    return len({*names}) == len(names)


def crossing_kinds(
    programs: Iterable[Program], pieces: Mapping[str, tuple[Segment, Any]], rows: int
) -> dict[str, Kind]:
    """Of the values that devices send each other for so many rows, as the segments take them; those
    that have other sizes than their rows are left out.

    Parameters
    ----------
    programs
        Of the devices.
    pieces
        By name, the segments and their graphs.
    rows
        Of the batch.
    """
    found: dict[str, Kind] = {}
    for program in programs:
        for each in program.instructions:
            if each.op != "run":
                continue
            segment, graph = pieces[each.attrs["segment"]]
            tensors = (*segment.feeds, *segment.inputs)
            for value, tensor, port in zip(each.inputs, tensors, graph.inputs, strict=True):
                first = (tensor.multiple * rows,) if tensor.multiple else port.shape[:1]
                shape = (*first, *port.shape[1:])
                if all(type(size) is int for size in shape):
                    found[value] = (port.dtype, shape)
    return found
