"""How long each instruction shall last on an emulated device."""

from collections.abc import Iterable
from dataclasses import replace

from potluck.records import Problem
from potluck.schedule import Compiled
from potluck.simulate.cost import CostTable
from potluck.simulate.duration import instruction_s
from potluck_wire.program import NETWORK


def paced(compiled: Compiled, problem: Problem, devices: Iterable[str]) -> Compiled:
    """The programs, those of `devices` with the seconds that each computing instruction shall last
    there.

    For emulated devices: what they emulate is their profile. The fixed cost of an instruction is
    theirs in reality.

    Parameters
    ----------
    compiled
        The programs.
    problem
        What was profiled.
    devices
        The emulated ones.
    """
    table, programs = CostTable(problem), dict(compiled.programs)
    for name in devices:
        if name not in programs:
            continue
        device = replace(problem.device(name), overhead_s=0.0)
        pairs = zip(programs[name].instructions, compiled.notes[name], strict=True)
        lasts_s = tuple(
            0.0 if i.op in NETWORK else instruction_s(table, device, i, note) for i, note in pairs
        )
        programs[name] = replace(programs[name], lasts_s=lasts_s)
    return replace(compiled, programs=programs)
