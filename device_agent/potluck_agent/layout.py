"""A program as the agent sees it: checked once when it is prepared, with who waits for whom worked out.

Anything that does not hold is refused here, so that the execution can rely on it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from potluck_wire.limits import is_identifier, is_value_name
from potluck_wire.program import MAX_INSTRUCTIONS, NETWORK, OPERATIONS, SEGMENT, Instruction, Program

MAX_ATTRS_BYTES = 64 * 1024  # names of a segment's state, some hundred of them
MAX_PRIORITY = 2**53


class BadProgram(ValueError):
    """The program does not hold; says where."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A program with its dependencies.

    `waits[i]` counts what instruction i waits for; `followers[i]` are the instructions that wait for i, once per reason.
    `uses[value]` counts the computing instructions that read it, `sends[value]` the sends. `receives` maps the name of
    a value to come to (instruction, peer).
    """

    program: Program
    waits: tuple[int, ...]
    followers: tuple[tuple[int, ...], ...]
    uses: Mapping[str, int]
    sends: Mapping[str, int]
    receives: Mapping[str, tuple[int, str]]
    attrs: tuple[bytes, ...]  # of each instruction, as JSON

    @property
    def name(self) -> str:
        """The program's name."""
        return self.program.name

    def is_network(self, index: int) -> bool:
        """Whether the agent does this instruction, not its worker."""
        return self.program.instructions[index].op in NETWORK


def read_program(document: Any) -> Layout:
    """The layout of a program document ({"name", "instructions": rows}, see `Program.to_json`).

    Raises
    ------
    BadProgram
        Unknown operations or attributes, values nobody makes or two make, circles, names that cannot be.
    """
    if not isinstance(document, dict) or set(document) != {"name", "instructions"}:
        raise BadProgram("a program is an object with name and instructions")
    name, rows = document["name"], document["instructions"]
    if not is_identifier(name):
        raise BadProgram("the program's name is not an identifier")
    if not isinstance(rows, list) or len(rows) > MAX_INSTRUCTIONS:
        raise BadProgram(f"program {name}: a list of at most {MAX_INSTRUCTIONS} instructions is expected")
    try:
        instructions = tuple(_read_row(index, row) for index, row in enumerate(rows))
        return _lay_out(Program(name=name, instructions=instructions))
    except BadProgram as error:
        raise BadProgram(f"program {name}: {error}") from None


def _read_row(index: int, row: Any) -> Instruction:
    if not isinstance(row, list) or len(row) != 6:
        raise BadProgram(f"instruction {index}: six fields expected")
    op, inputs, outputs, after, priority, attrs = row
    if not isinstance(op, str) or op not in OPERATIONS:
        raise BadProgram(f"instruction {index}: unknown operation {op!r:.40}")
    for names in (inputs, outputs):
        if not isinstance(names, list) or not all(is_value_name(name) for name in names):
            raise BadProgram(f"instruction {index} ({op}): inputs and outputs are lists of value names")
    if not isinstance(after, list) or not all(type(other) is int for other in after):
        raise BadProgram(f"instruction {index} ({op}): `after` is a list of instruction ids")
    if type(priority) is not int or abs(priority) > MAX_PRIORITY:
        raise BadProgram(f"instruction {index} ({op}): priority is an integer")
    if not isinstance(attrs, dict) or set(attrs) - OPERATIONS[op]:
        raise BadProgram(f"instruction {index} ({op}): attributes may be {', '.join(sorted(OPERATIONS[op])) or 'none'}")
    instruction = Instruction(
        id=index,
        op=op,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        after=tuple(after),
        priority=priority,
        attrs=attrs,
    )
    _check_attrs(instruction)
    return instruction


def _check_attrs(instruction: Instruction) -> None:
    """What the agent itself reads: peers, wire names and segments. The rest is the worker's to check."""
    op, attrs = instruction.op, instruction.attrs
    where = f"instruction {instruction.id} ({op})"
    if op in NETWORK and not is_identifier(attrs.get("peer")):
        raise BadProgram(f"{where}: needs a peer")
    if op == "send" and (len(instruction.inputs) != 1 or instruction.outputs or not is_value_name(attrs.get("name"))):
        raise BadProgram(f"{where}: one input and a name expected, no outputs")
    if op == "recv" and (instruction.inputs or len(instruction.outputs) != 1):
        raise BadProgram(f"{where}: no inputs and one output expected")
    if op in SEGMENT and not is_segment(attrs.get("segment")):
        raise BadProgram(f"{where}: needs a segment")


def is_segment(name: object) -> bool:
    """A segment of this epoch by its name, or of another epoch that is still loaded: `EPOCH/NAME`."""
    if type(name) is not str:
        return False
    epoch, slash, rest = name.partition("/")
    return is_identifier(rest) and epoch.isdecimal() and epoch.isascii() if slash else is_identifier(name)


def _lay_out(program: Program) -> Layout:
    makers: dict[str, int] = {}
    for instruction in program.instructions:
        for value in instruction.outputs:
            if value in makers:
                raise BadProgram(f"instructions {makers[value]} and {instruction.id} both make {value}")
            makers[value] = instruction.id
    followers: list[list[int]] = [[] for _ in program.instructions]
    uses: dict[str, int] = {}
    sends: dict[str, int] = {}
    for instruction in program.instructions:
        for value in sorted(set(instruction.inputs)):
            if value not in makers:
                raise BadProgram(f"instruction {instruction.id} ({instruction.op}): nobody makes {value}")
            count = sends if instruction.op == "send" else uses
            count[value] = count.get(value, 0) + 1
            followers[makers[value]].append(instruction.id)
        for other in instruction.after:
            if not 0 <= other < len(followers):
                raise BadProgram(f"instruction {instruction.id} ({instruction.op}): no instruction {other}")
            followers[other].append(instruction.id)
    waits = [0] * len(followers)
    for row in followers:
        for follower in row:
            waits[follower] += 1
    _refuse_circles(waits, followers)
    receives = {i.outputs[0]: (i.id, i.attrs["peer"]) for i in program.instructions if i.op == "recv"}
    return Layout(
        program=program,
        waits=tuple(waits),
        followers=tuple(tuple(row) for row in followers),
        uses=uses,
        sends=sends,
        receives=receives,
        attrs=tuple(_dump(instruction) for instruction in program.instructions),
    )


def _refuse_circles(waits: list[int], followers: list[list[int]]) -> None:
    left = list(waits)
    free = [index for index, count in enumerate(left) if not count]
    n_done = 0
    while free:
        n_done += 1
        for follower in followers[free.pop()]:
            left[follower] -= 1
            if not left[follower]:
                free.append(follower)
    if n_done < len(left):
        stuck = next(index for index, count in enumerate(left) if count)
        raise BadProgram(f"instruction {stuck} waits for itself in a circle")


def _dump(instruction: Instruction) -> bytes:
    try:
        attrs = json.dumps(dict(instruction.attrs), separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise BadProgram(f"instruction {instruction.id}: attributes that are no plain numbers and texts") from error
    if len(attrs) > MAX_ATTRS_BYTES:
        raise BadProgram(f"instruction {instruction.id}: attributes of {len(attrs)} bytes, at most {MAX_ATTRS_BYTES}")
    return attrs
