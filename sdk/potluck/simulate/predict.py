"""What a run should do, predicted: several steps of its very own programs under virtual time."""

from dataclasses import replace

from potluck.records import Problem, Trace, Training
from potluck.schedule.program_builder import Compiled
from potluck.simulate.programs import simulate
from potluck.simulate.time_spans import in_turn_s

STEPS = 4  # the first fills the pipeline; the others show the steady pace
IN_FLIGHT = 2  # steps handed out: the feeds of the next travel while this one computes


def predict_steps(compiled: Compiled, problem: Problem, in_flight: int = 1) -> Trace:
    """The trace of some steps of training, or of requests, so many of them at once.

    `step_s` as runs count it.

    Parameters
    ----------
    compiled
        The programs of a run.
    problem
        What was profiled.
    in_flight
        Steps or requests at once.
    """
    training = isinstance(problem.workload, Training)
    if not training and in_flight == 1:
        return simulate(compiled, problem)
    steps, in_flight = (STEPS, IN_FLIGHT) if training else (STEPS * in_flight, in_flight)
    trace = simulate(compiled, problem, steps=steps, in_flight=in_flight, serial=training)
    return replace(trace, step_s=in_turn_s(trace.spans))
