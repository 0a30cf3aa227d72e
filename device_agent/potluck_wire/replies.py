"""What devices and workers answer in documents and in lists that belong together, each with its
check.

Whoever answers may have been taken over: an agent believes its worker, and a notebook its agents,
no further than this.
"""

from typing import Any, cast

from potluck_wire.checks import Unfit, integer, number, row, rows, which
from potluck_wire.documents import Buffer, parse
from potluck_wire.errors import WireCode, WireError
from potluck_wire.limits import MAX_BUFFER_BYTES, MAX_CLOCK_S, MAX_DIMENSIONS
from potluck_wire.messages import (
    Computed,
    ComputeFailed,
    FailureCause,
    Measure,
    Measured,
    MeasuredTask,
    Probe,
    Probed,
    RefusalCode,
)
from potluck_wire.program import MAX_INSTRUCTIONS, MAX_VALUES
from potluck_wire.tensors import DTYPES, nbytes

SLACK_S = 1.0  # clocks of coarse steps
TASK_CAUSES = frozenset(
    {
        *(FailureCause.MEMORY, FailureCause.INPUT, FailureCause.ARITHMETIC, FailureCause.INTERNAL),
        *(RefusalCode.DOCUMENT, RefusalCode.OPERATOR, RefusalCode.BACKEND),
    }
)
MIN_PROBE_S = 1e-9  # no value takes less to a peer and back

Timeline = tuple[tuple[int, float, float], ...]  # instruction, start_s, stop_s
Export = tuple[str, int, int, str, tuple[int, ...]]  # value, offset, nbytes, dtype, shape


def _moments(value: Any) -> tuple[int, float, float]:
    """One row of a timeline. Written out: there are dozens in every step."""
    if type(value) is list and len(value) == 3:
        index, start_s, stop_s = value
        if type(index) is int and 0 <= index < MAX_INSTRUCTIONS:
            return index, number(start_s), number(stop_s)
    raise Unfit("[instruction, start_s, stop_s]", value)


_TIMELINE = rows(_moments, max_entries=MAX_INSTRUCTIONS)
_KEY = which(lambda value: type(value) is str and len(value) <= 512, "the key of a value")
_DTYPE = which(lambda value: type(value) is str and value in DTYPES, "an element type")
_SHAPE = rows(integer(), max_entries=MAX_DIMENSIONS)
_EXPORTS = rows(row(_KEY, integer(), integer(), _DTYPE, _SHAPE), max_entries=MAX_VALUES)


def read_timeline(document: Buffer) -> Timeline:
    """Buffer 0 of `Done`: what was done when. WireError where it does not hold."""
    return cast(Timeline, parse(document, "the timeline", _TIMELINE, MAX_BUFFER_BYTES))


def read_exports(
    document: Buffer, expected: tuple[str, ...], arena_bytes: int
) -> tuple[Export, ...]:
    """Buffer 0 of `Computed`: where in the outbound memory of `arena_bytes` the values `expected`
    lie.

    Parameters
    ----------
    document
        The buffer.
    expected
        Names of the values that were asked for.
    arena_bytes
        Size of the outbound memory.

    Raises
    ------
    WireError
        Where other values are told, one does not lie within the memory, or type, shape and bytes do
        not fit.
    """
    if not expected and len(document) == 2:  # nothing to be told, and nothing is: most tasks
        document = bytes(document)
        if document == b"[]":
            return ()
    exports = cast(tuple[Export, ...], parse(document, "what a task has made", _EXPORTS))
    if tuple([export[0] for export in exports]) != expected:
        raise WireError(
            WireCode.DOCUMENT,
            f"{len(exports)} values are told, {len(expected)} others were asked for",
        )
    for key, offset, count, dtype, shape in exports:
        if nbytes(dtype, shape) != count or offset + count > arena_bytes:
            raise WireError(
                WireCode.TENSOR,
                f"{key:.60}: {count} bytes at {offset} are no {dtype} of {list(shape)} here",
            )
    return exports


def check_timings(request: Measure, reply: Measured | MeasuredTask) -> None:
    """Refuse a measurement that does not tell one time for each of the `rows` that were asked for.

    Raises
    ------
    WireError
        It does not, or a time is below zero.
    """
    n_rows = len(request.rows)
    lengths = len(reply.forward_s), len(reply.memory_bytes), len(reply.backward_s)
    if reply.rows != request.rows or lengths != (n_rows, n_rows, n_rows if request.train else 0):
        raise WireError(
            WireCode.FIELD, f"times for {len(reply.rows)} batch sizes, {n_rows} were asked for"
        )
    if len(reply.sgd_s) not in (0, 2 * request.train):
        raise WireError(WireCode.FIELD, f"{len(reply.sgd_s)} times of SGD, 2 are measured")
    if min((reply.update_s, *reply.sgd_s, *reply.forward_s, *reply.backward_s)) < 0:
        raise WireError(WireCode.FIELD, "a time below zero")
    if reply.weight_frac > 1:
        raise WireError(WireCode.FIELD, f"{reply.weight_frac:g} is no part of a backward")


def check_seconds(request: Probe, reply: Probed) -> None:
    """Refuse a probe of a link that does not tell how long each of its repeats took.

    Raises
    ------
    WireError
        It does not, or a time is none that a value can take.
    """
    if len(reply.seconds) != request.repeats:
        raise WireError(WireCode.FIELD, f"{len(reply.seconds)} times for {request.repeats} repeats")
    for seconds in reply.seconds:
        if not MIN_PROBE_S <= seconds <= MAX_CLOCK_S:
            raise WireError(WireCode.FIELD, f"a probe that took {seconds:.3g} s")


def check_clock(clock_s: float) -> None:
    """Refuse a device's clock that cannot be one.

    Raises
    ------
    WireError
        It is below zero, or too far ahead.
    """
    if not 0 <= clock_s <= MAX_CLOCK_S:
        raise WireError(WireCode.FIELD, f"a clock at {clock_s:g} s")


def check_cause(reply: ComputeFailed) -> None:
    """Refuse a failure that no task can have, such as that another device is lost or a notebook is
    not paired.

    Raises
    ------
    WireError
        Its cause is none of those of tasks and documents.
    """
    if reply.cause not in TASK_CAUSES:
        raise WireError(WireCode.FIELD, f"no task fails by {reply.cause!r:.60}")


def check_moments(reply: Computed, now_s: float) -> None:
    """Refuse a task that was not done between the start of the clock (this machine's own) and now.

    Raises
    ------
    WireError
        It was not.
    """
    if not 0 <= reply.start_s <= reply.stop_s <= now_s + SLACK_S:
        raise WireError(
            WireCode.FIELD,
            f"a task done from {reply.start_s:g} to {reply.stop_s:g} s, at {now_s:g} s",
        )
