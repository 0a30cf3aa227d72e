"""What a run should do, foretold: its very own programs under virtual time, with the costs that were profiled. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from potluck.records import Problem, Trace, Training
from potluck.run.history import in_turn_s
from potluck.schedule import Compiled
from potluck.schedule.network import by_priority, schedule_transfers
from potluck.simulate import simulate
from potluck.simulate.cost import CostTable
from potluck.simulate.duration import instruction_s
from potluck_wire.program import NETWORK

STEPS = 4  # the first fills the pipeline; the others show the steady pace
WORTH_FRAC = 0.02  # beginning together costs a round trip and waits for the slowest: not for less than that
IN_FLIGHT = 2  # steps handed out: the feeds of the next travel while this one computes


def foretell(compiled: Compiled, problem: Problem, in_flight: int = 1) -> Trace:
    """The trace of some steps of training, or of requests, so many of them at once; `step_s` as runs count it."""
    training = isinstance(problem.workload, Training)
    if not training and in_flight == 1:
        return simulate(compiled, problem)
    steps, in_flight = (STEPS, IN_FLIGHT) if training else (STEPS * in_flight, in_flight)
    trace = simulate(compiled, problem, steps=steps, in_flight=in_flight, serial=training)
    return replace(trace, step_s=in_turn_s(trace.spans))


def in_turns(compiled: Compiled, problem: Problem, *, always: bool = False, refine_s: float = 0.0) -> Compiled:
    """The programs with transfers that take turns on shared media, where that ends a step sooner (or `always`).

    Where releases would make turns wait for more than they save, the order may hold by priorities alone. `refine_s`: so
    long an exact solver may look for a better order, which is taken where the simulator finds it so.
    """
    if len(compiled.programs) < 2:
        return compiled

    def step_s(programs: Compiled) -> float:
        return max(foretell(programs, problem).step_s)

    ordered = schedule_transfers(compiled, problem)
    if refine_s > 0:
        ordered = min(ordered, schedule_transfers(compiled, problem, refine_s=refine_s), key=step_s)
    free = min(compiled, by_priority(ordered), key=step_s)
    return ordered if always or step_s(ordered) < (1 - WORTH_FRAC) * step_s(free) else free


def most_at_once(spans: Sequence[tuple[float, float]]) -> int:
    """How many of these (start, stop), the oldest first, were under way at once at most; 1 of none.

    >>> most_at_once([(0.0, 2.0), (1.0, 3.0), (2.5, 4.0)])
    2
    """
    return max(
        (sum(stop_s > start_s for _, stop_s in spans[: i + 1]) for i, (start_s, _) in enumerate(spans)), default=1
    )


def paced(compiled: Compiled, problem: Problem, devices: Iterable[str]) -> Compiled:
    """The programs, those of `devices` with the seconds that each computing instruction shall last there.

    For emulated devices: what they emulate is their profile. The fixed cost of an instruction is theirs in reality.
    """
    table, programs = CostTable(problem), dict(compiled.programs)
    for name in devices:
        if name not in programs:
            continue
        device = replace(problem.device(name), overhead_s=0.0)
        pairs = zip(programs[name].instructions, compiled.notes[name], strict=True)
        lasts_s = tuple(0.0 if i.op in NETWORK else instruction_s(table, device, i, note) for i, note in pairs)
        programs[name] = replace(programs[name], lasts_s=lasts_s)
    return replace(compiled, programs=programs)
