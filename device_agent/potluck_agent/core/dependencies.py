"""A program as the agent sees it: who waits for whom, which values are used how often, and which
come from where.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from potluck_wire.documents import dump
from potluck_wire.messages import HOME
from potluck_wire.program import BACKWARDS, NETWORK, Program, read_target


@dataclass(frozen=True, slots=True, kw_only=True)
class DependencyGraph:
    """A program with its dependencies.

    `waits[i]` counts what instruction i waits for, a receive's value among it; `first` are those
    that wait for nothing; `followers[i]` are those that wait for i, once per reason. `uses[value]`
    counts the computing instructions that read it, `sends[value]` the sends. `receives` maps the
    name of a value to come to (instruction, peer). `targets` maps each send to another program to
    its (epoch, program). `exchanged` counts, in training, the values sent to and received from each
    device. `took_s` is written by `Lane`: how long each instruction took last.
    """

    program: Program
    waits: tuple[int, ...]
    first: tuple[int, ...]
    followers: tuple[tuple[int, ...], ...]
    uses: Mapping[str, int]
    sends: Mapping[str, int]
    receives: Mapping[str, tuple[int, str]]
    targets: Mapping[int, tuple[int, str]]
    exchanged: Mapping[str, int]
    attrs: tuple[bytes, ...]  # of each instruction for the worker, as JSON
    took_s: list[float]

    @property
    def name(self) -> str:
        """The program's name."""
        return self.program.name

    @property
    def n_instructions(self) -> int:
        """How many there are."""
        return len(self.waits)

    def lasts_s(self, index: int) -> float:
        """How long it shall last on an emulated device; 0: nobody says."""
        return self.program.lasts_s[index] if self.program.lasts_s else 0.0

    def release_s(self, index: int) -> float:
        """How long after the common begin of the step it had better wait; 0: it need not."""
        return self.program.release_s[index] if self.program.release_s else 0.0

    def pace_bytes_per_s(self, index: int) -> float:
        """How fast its chunks may leave; 0: as fast as they can."""
        return self.program.pace_bytes_per_s[index] if self.program.pace_bytes_per_s else 0.0

    def is_network(self, index: int) -> bool:
        """Whether the agent does this instruction, not its worker."""
        return self.program.instructions[index].op in NETWORK


def lay_out(program: Program) -> DependencyGraph:
    """The layout of a program that holds (`potluck_wire.program.from_json` has checked it)."""
    makers = {
        value: instruction.id
        for instruction in program.instructions
        for value in instruction.outputs
    }
    followers: list[list[int]] = [[] for _ in program.instructions]
    waits = [0] * len(followers)
    uses: dict[str, int] = {}
    sends: dict[str, int] = {}
    for instruction in program.instructions:
        values = set(instruction.inputs)
        count = sends if instruction.op == "send" else uses
        for value in values:
            count[value] = count.get(value, 0) + 1
        reasons = [makers[value] for value in values] + list(instruction.after)
        waits[instruction.id] = len(reasons) + (instruction.op == "recv")
        for reason in reasons:
            followers[reason].append(instruction.id)
    peers = [
        instruction.attrs["peer"]
        for instruction in program.instructions
        if instruction.op in NETWORK
    ]
    trains = any(instruction.op in BACKWARDS for instruction in program.instructions)
    return DependencyGraph(
        program=program,
        waits=tuple(waits),
        first=tuple([index for index, count in enumerate(waits) if not count]),
        followers=tuple(tuple(row) for row in followers),
        uses=uses,
        sends=sends,
        receives={
            i.outputs[0]: (i.id, i.attrs["peer"]) for i in program.instructions if i.op == "recv"
        },
        targets={
            i.id: read_target(i.attrs["to"])
            for i in program.instructions
            if i.attrs.get("to") and i.op == "send"
        },
        exchanged=Counter(peer for peer in peers if trains and peer != HOME),
        attrs=tuple(b"" if i.op in NETWORK else dump(dict(i.attrs)) for i in program.instructions),
        took_s=[math.inf] * len(followers),
    )
