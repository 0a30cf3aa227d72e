"""What a run should do, foretold: its very own programs under virtual time. Pure."""

from dataclasses import replace

from potluck.records import Problem, Trace, Training
from potluck.run.engine import IN_FLIGHT
from potluck.run.history import in_turn_s
from potluck.schedule import Compiled
from potluck.simulate import simulate

STEPS = 4  # the first fills the pipeline; the others show the steady pace


def foretell(compiled: Compiled, problem: Problem) -> Trace:
    """The trace of some steps of training, or of one request; `step_s` as measured runs count it."""
    if not isinstance(problem.workload, Training):
        return simulate(compiled, problem)
    trace = simulate(compiled, problem, steps=STEPS, in_flight=IN_FLIGHT, serial=True)
    steps = [[event for event in trace.events if event.step == step] for step in range(STEPS)]
    spans = [(min(e.start_s for e in events), max(e.stop_s for e in events)) for events in steps]
    return replace(trace, step_s=in_turn_s(spans))
