"""How fast this device is: one layer at several batch sizes, one instruction, one copy.

Emulated devices do not sleep here: times are processor time, multiplied by the slowdown.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from potluck_agent.worker.arrays.backends import Arrays
from potluck_agent.worker.tasks import LoadedSegment, Tensors, WorkerTask, perform
from potluck_wire.messages import Channel, Compute, Computed
from potluck_wire.stream import StreamReader, pack

OVERHEAD_REPEATS = 30
MAX_REPEATS = 1000
# An emulated device rests between tasks, and others use the processor and its caches meanwhile:
# measured without rests, times were a third too short.
REST_S = 0.02
# The first runs of what is short are the slowest: caches are cold. An accelerator needs the most.
SHORT_S = 0.005
SHORT_REPEATS = 32
_KEY = "\0measure"
# with the defaults of torch, but a rate of zero: no weight changes
_OPTIMIZERS = ("sgd", "momentum", "adamw")
COPY_REPEATS = 7
COPY_BYTES = 4 << 20  # larger than most caches of a small device, as activations are


def taken_s(work: Callable[[], object], slowdown: float) -> float:
    """Seconds that `work` takes on this device: processor time of this thread if emulated, else
    time on the clock.
    """
    clock = time.thread_time if slowdown > 1.0 else time.perf_counter
    start_s = clock()
    work()
    took_s = clock() - start_s
    time.sleep(min(REST_S, (slowdown - 1) * took_s))
    return slowdown * took_s


def typical_s(times_s: Sequence[float], slowdown: float) -> float:
    """The median; on an emulated device the quickest, as `emulation` does and for its reason."""
    return min(times_s) if slowdown > 1.0 else median(times_s)


def _runs(repeats: int, slowdown: float) -> Iterator[None]:
    """A warm-up and `repeats` runs; of what is short as many as fit into `SHORT_S`."""
    until_s = time.perf_counter() + (SHORT_S if slowdown == 1.0 else 0.0)
    for n in range(1 + max(repeats, SHORT_REPEATS)):
        if n > repeats and time.perf_counter() >= until_s:
            return
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Typical seconds of one run of a segment, and the bytes that it keeps for backward."""

    forward_s: float
    backward_s: float = 0.0
    kept_bytes: int = 0

    @property
    def seconds(self) -> float:
        """Of both."""
        return self.forward_s + self.backward_s


class Measurable(LoadedSegment, Protocol):
    """A segment that can make up inputs for itself."""

    graph: Any

    def example(self, rows: int) -> Tensors:
        """Made-up inputs of that many rows."""

    def kept_bytes(self, inputs: Tensors) -> int:
        """Bytes that a forward run in training keeps for backward."""


def time_segment(
    segment: Measurable,
    rows: Sequence[int],
    *,
    train: bool,
    repeats: int,
    slowdown: float,
    arrays: Arrays,
) -> list[Timing]:
    """A `Timing` for each batch size in `rows`.

    The first run of each is a warm-up and does not count. What is short is run more often.
    """
    if not 1 <= repeats <= MAX_REPEATS:
        raise ValueError(f"{repeats} repeats, expected 1 to {MAX_REPEATS}")
    return [_time_rows(segment, count, train, repeats, slowdown, arrays) for count in rows]


def _time_rows(
    segment: Measurable, rows: int, train: bool, repeats: int, slowdown: float, arrays: Arrays
) -> Timing:
    inputs = segment.example(rows)
    outputs: Tensors = ()

    def forward() -> None:
        nonlocal outputs
        outputs = segment.forward(
            inputs, key=_KEY, train=train, rows=(0, rows, rows), step=0, micro_batch=0
        )
        arrays.synchronize()

    def backward() -> None:
        segment.backward(_KEY, gradients, 1.0)
        arrays.synchronize()

    forward_s, backward_s = [], []
    for _ in _runs(repeats, slowdown):
        forward_s.append(taken_s(forward, slowdown))
        if train:
            gradients = _gradients(segment, outputs, arrays)
            backward_s.append(taken_s(backward, slowdown) if gradients else 0.0)
    segment.forget(_KEY)
    return Timing(
        forward_s=typical_s(forward_s[1:], slowdown),
        backward_s=typical_s(backward_s[1:], slowdown) if train else 0.0,
        kept_bytes=segment.kept_bytes(inputs) if train else 0,
    )


def _gradients(segment: Measurable, outputs: Tensors, arrays: Arrays) -> list[Any]:
    """Made-up ones, of the outputs that have any."""
    ports = zip(outputs, segment.graph.outputs, strict=True)
    return [arrays.ones_like(output) for output, port in ports if port.gradient]


def weight_frac(
    segment: Measurable, rows: int, repeats: int, slowdown: float, arrays: Arrays
) -> float:
    """Which part of a backward, taken in two, is the second: that of the weights."""
    inputs, gradients = segment.example(rows), list[Any]()

    def first() -> None:
        segment.backward_input(_KEY, gradients, 1.0)
        arrays.synchronize()

    def second() -> None:
        segment.backward_weight(_KEY)
        arrays.synchronize()

    parts_s: tuple[list[float], list[float]] = [], []
    for _ in _runs(repeats, slowdown):
        outputs = segment.forward(
            inputs, key=_KEY, train=True, rows=(0, rows, rows), step=0, micro_batch=0, split=True
        )
        gradients = _gradients(segment, outputs, arrays)
        if not gradients:
            segment.forget(_KEY)
            return 0.0
        for work, times_s in zip((first, second), parts_s, strict=True):
            times_s.append(taken_s(work, slowdown))
    input_s, weight_s = (typical_s(times_s[1:], slowdown) for times_s in parts_s)
    return weight_s / max(input_s + weight_s, 1e-12)


def time_updates(
    segment: Measurable, rows: int, *, repeats: int, slowdown: float, arrays: Arrays
) -> tuple[float, ...]:
    """Seconds of one step of SGD, of SGD with momentum, and of AdamW on the segment's parameters.

    Each comes after a forward and a backward of so many rows, as in a run: in a row, with its code
    and numbers still in the caches, a short one takes half as long.
    """
    inputs = segment.example(rows)

    def seconds(name: str) -> float:
        settings = {"name": name, "lr": 0.0}

        def update() -> None:
            segment.step(None, settings)
            arrays.synchronize()

        times_s = []
        for _ in _runs(repeats, slowdown):
            _learn(segment, inputs, rows, arrays)
            times_s.append(taken_s(update, slowdown))
        return typical_s(times_s[1:], slowdown)

    return tuple(seconds(name) for name in _OPTIMIZERS)


def rows_before_update(rows: Sequence[int], timings: Sequence[Timing]) -> int:
    """What is computed before an update that is timed: the most rows of these, if that is short,
    else the fewest.
    """
    return max(
        (n for n, timing in zip(rows, timings, strict=True) if timing.seconds <= SHORT_S),
        default=min(rows),
    )


def _learn(segment: Measurable, inputs: Tensors, rows: int, arrays: Arrays) -> None:
    outputs = segment.forward(
        inputs, key=_KEY, train=True, rows=(0, rows, rows), step=0, micro_batch=0
    )
    gradients = _gradients(segment, outputs, arrays)
    if gradients:
        segment.backward(_KEY, gradients, 1.0)
    segment.forget(_KEY)


def overhead_s(slowdown: float, arrays: Arrays) -> float:
    """Seconds of one instruction beside its arithmetic: reading, looking up, one tiny operator,
    answering.

    Real on emulated devices too: their tasks last as long as the profile says, and this comes on
    top.
    """
    tiny = arrays.zeros((8,), "float32")
    request = pack(
        Compute(op="slice", inputs=("r/0/p/0/x",), outputs=("r/0/p/0/y",)),
        [b'{"start":0,"stop":4}'],
    )

    def instruction() -> None:
        StreamReader(Channel.WORKER).feed(request)
        attrs = json.loads('{"start":0,"stop":4}')
        perform(
            "slice",
            WorkerTask(inputs=(tiny,), attrs=attrs, segment=None, step=0, scope="", arrays=arrays),
        )
        arrays.synchronize()
        pack(Computed(), [b"[]"])

    return typical_s([taken_s(instruction, 1.0) for _ in range(OVERHEAD_REPEATS)], slowdown)


def copy_bytes_per_s(slowdown: float, arrays: Arrays) -> float:
    """Bytes of result per second when tensors are added, the slowest of the copying operations."""
    first, second, out = (arrays.zeros((COPY_BYTES // 4,), "float32") + float(i) for i in range(3))

    def copy() -> None:
        arrays.add(first, second, out=out)
        arrays.synchronize()

    times_s = [taken_s(copy, slowdown) for _ in range(COPY_REPEATS)]
    return COPY_BYTES / max(typical_s(times_s, slowdown), 1e-9)
