"""Requests of a run for inference: some under way at once, answered in order. After a loss those
under way are asked again, of what is left.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from typing import TYPE_CHECKING

from potluck.errors import PotluckError
from potluck.graph.values import check_values
from potluck.records import Inference, Plan
from potluck.run.device_group import outputs_of
from potluck.run.in_flight import CachesGone, NoProgram
from potluck.run.recovery import TRIES, recover
from potluck.run.tensors import first_rows
from potluck.sessions.events import ExecutionResult
from potluck.simulate.direct_simulation import in_flight

if TYPE_CHECKING:
    import torch

    from potluck.run.compiled_plan import CompiledPlan
    from potluck.run.engine import RunEngine
    from potluck.run.in_flight import RunRequest

REQUESTS_IN_FLIGHT = 4  # of a plan that was not made for a stream
MOST_SIZES = 8  # of requests whose rows are compared: each has a program on every device


def answers(
    engine: "RunEngine", given: "Sequence[torch.Tensor]", rows: int
) -> "Iterator[dict[str, torch.Tensor]]":
    """The outputs for these rows, as many at a time as the plan takes, in order.

    Parameters
    ----------
    engine
        Of a run for inference.
    given
        Its inputs, each [rows, ...].
    rows
        How many.

    Raises
    ------
    RequestFailed
        An operator failed over these inputs.
    PotluckError
        The run has ended, or what is asked has cost more devices than there are.
    """
    waiting: deque[RunRequest] = deque()
    start = n_lost = 0
    while start < rows or waiting:
        if start < rows and len(waiting) < requests_at_once(engine.compiled_plan.plan):
            waiting.append(_requested(engine, given, start, rows))
            start += waiting[-1].wanted
            continue
        request = waiting.popleft()
        execution = _execution_of(engine, request, n_lost)
        if execution is None:  # lost, and those behind it too
            start, n_lost = request.start, n_lost + 1
            waiting.clear()
            continue
        n_lost = 0
        outputs = outputs_of(execution, request.compiled, request.types)
        engine.kept.append((execution, request.compiled))
        yield {name: first_rows(t, request.wanted, request.batch) for name, t in outputs.items()}


def requests_at_once(plan: Plan) -> int:
    """Requests that are under way at once: as many as its pace and memory were judged with, of a
    plan for a stream.

    Parameters
    ----------
    plan
        For inference.
    """
    workload = None if plan.problem is None else plan.problem.workload
    is_stream = isinstance(workload, Inference) and workload.streaming
    return in_flight(plan) if is_stream else REQUESTS_IN_FLIGHT


def answer_once(
    engine: "RunEngine", given: "Sequence[torch.Tensor]", after: "CompiledPlan", n_lost: int
) -> "dict[str, torch.Tensor]":
    """The outputs for these rows, all at once, by who has what earlier requests left.

    Parameters
    ----------
    engine
        Of a run for inference.
    given
        Its inputs, each [rows, ...].
    after
        The compiled plan that answered those.
    n_lost
        So many requests were lost before this one.

    Raises
    ------
    CachesGone
        That is not in force any more; the run goes on.
    PotluckError
        The run has ended, or what is asked has cost more devices than there are.
    """
    rows = given[0].shape[0]
    try:
        request = engine.request(given, 0, rows, after=after)
    except NoProgram:
        with engine.boundary():
            engine.check()
            try:
                _make_for(engine, rows)
            except PotluckError as error:
                _recovered(engine, error, n_lost)
        raise CachesGone from None
    execution = _execution_of(engine, request, n_lost)
    if execution is None:
        raise CachesGone
    engine.kept.append((execution, request.compiled))
    return outputs_of(execution, request.compiled, request.types)


def empty_caches(engine: "RunEngine") -> None:
    """Leave nothing of earlier requests: the devices load their pieces again, with the weights of
    those that they have.
    """
    with engine.boundary():
        engine.check()
        try:
            engine.renew(engine.compiled_plan.plan, None, engine.sizes)
        except PotluckError as error:
            _recovered(engine, error, 0)  # whoever goes on loads them anew, too


def _requested(
    engine: "RunEngine", given: "Sequence[torch.Tensor]", start: int, rows: int
) -> "RunRequest":
    """The next request, handed out; its number of rows may need a program of its own."""
    n_lost = 0
    while True:
        try:
            return engine.request(given, start, rows)
        except NoProgram:
            pass
        with engine.boundary():
            engine.check()
            try:
                _make_for(engine, rows - start)
            except PotluckError as error:
                n_lost += 1
                _recovered(engine, error, n_lost)


def _make_for(engine: "RunEngine", rows: int) -> None:
    """Make a program for requests of so many rows, unless somebody has made it meanwhile."""
    current = engine.compiled_plan
    if current.answering(rows)[0] not in current.infer_rows:
        engine.renew(current.plan, None, (*engine.sizes[1 - MOST_SIZES :], rows))


def _execution_of(
    engine: "RunEngine", request: "RunRequest", n_lost: int
) -> ExecutionResult | None:
    """What came of it; None where it is to be asked again, as the run has recovered."""
    wait((request.future,))
    if not request.future.cancelled() and request.future.exception() is None:
        if request.group is engine.group:
            engine.failures.clear()
        return engine.result(request.future)
    with engine.boundary():  # one of all that wait recovers
        engine.check()
        if request.group is not engine.group or request.future.cancelled():
            return None  # somebody has, or has broken it off
        try:
            return engine.result(request.future)
        except PotluckError as error:
            _recovered(engine, error, n_lost)
    return None


def _recovered(engine: "RunEngine", error: PotluckError, n_lost: int) -> None:
    """Go on after this loss at a boundary, or raise it."""
    # what kills whoever computes it is not asked for ever
    if not engine.can_recover(error) or n_lost > TRIES * len(engine.members):
        raise error
    check_values(engine.model, engine.value_marks)  # what was sent is here no more
    recover(engine, error)
