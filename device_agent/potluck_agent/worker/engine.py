"""What the worker does with each message: values in, tasks done, values out.

The only state is here: segments by slot, values by key, and what the two shared memories hold.
"""

import gc
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from potluck_agent.worker import available_memory
from potluck_agent.worker.arena import Arena
from potluck_agent.worker.arrays.backends import arrays_of, backends
from potluck_agent.worker.emulation import EmulatedDurations, Kind, wait_until
from potluck_agent.worker.failures import cause_of
from potluck_agent.worker.loading import Loader
from potluck_agent.worker.measure import (
    copy_bytes_per_s,
    overhead_s,
    rows_before_update,
    time_segment,
    time_updates,
    weight_frac,
)
from potluck_agent.worker.pipe import Pipe
from potluck_agent.worker.tasks import LoadedSegment, WorkerTask, perform
from potluck_agent.worker.values import Exports, Values
from potluck_wire.messages import (
    Compute,
    Computed,
    ComputeFailed,
    Configure,
    Forget,
    Freed,
    Limit,
    LoadSegment,
    MeasuredTask,
    MeasureTask,
    Message,
    Put,
    SegmentLoaded,
    WorkerReady,
)

Buffers = Sequence[bytes | memoryview]


class WorkerEngine:
    """One worker's state; `handle` takes the messages in order and answers through the pipe."""

    def __init__(self, configure: Configure, inbound: Arena, outbound: Arena, pipe: Pipe) -> None:
        present = backends(configure.backends)
        if "torch" in present:
            from potluck_agent.worker import torch_setup

            torch_setup.prepare(configure.threads, configure.device)
        self._arrays = arrays_of(tuple(present), configure.device, configure.memory_bytes)
        self._loader = Loader(present, self._arrays, configure.threads, configure.provider)
        self._pipe = pipe
        self._stretch = EmulatedDurations(configure.slowdown)
        self._values = Values(inbound, self._arrays)
        self._exports = Exports(outbound, self._wait_for_release, self._arrays)
        self._segments: dict[str, LoadedSegment] = {}
        self._scope = ""  # of the last task
        self._base_bytes = self._arrays.allocated_bytes() or 0
        self._actions: dict[type[Message], Callable[[Any, Buffers], None]] = {
            LoadSegment: self._load,
            Put: self._put,
            Compute: self._compute,
            Forget: self._forget,
            MeasureTask: self._measure,
            Limit: self._limit,
        }

    def ready(self, bounds: dict[str, str]) -> None:
        """Tell the agent what this worker can do, how fast its smallest steps are, and which limits
        hold.
        """
        statement = self._loader.capabilities() | {
            "bounds": bounds,
            "memory_counted": self._arrays.COUNTED,
            "overhead_s": overhead_s(self._stretch.slowdown, self._arrays),
            "copy_bytes_per_s": copy_bytes_per_s(self._stretch.slowdown, self._arrays),
        }
        self._pipe.send(WorkerReady(), [json.dumps(statement).encode()])
        self._pipe.flush()
        # what the libraries made stays anyway: looking through it takes 50 ms, in the middle of a
        # step
        gc.freeze()

    def handle(self, message: Message, buffers: Buffers) -> None:
        """Carry out one message."""
        self._actions[type(message)](message, buffers)
        self._release()
        self._send_freed()
        self._pipe.flush_in_time()

    def _limit(self, message: Limit, buffers: Buffers) -> None:
        available_memory.limit(message.memory_bytes)

    def _put(self, message: Put, buffers: Buffers) -> None:
        try:
            self._values.put(
                message.value, message.offset, message.nbytes, message.dtype, message.shape
            )
        except ValueError as error:
            self._values.freed.append(message.offset)
            self._fail(error)
        except (MemoryError, RuntimeError) as error:  # no room for a copy: that place frees itself
            self._fail(error)

    def _compute(self, message: Compute, buffers: Buffers) -> None:
        if message.scope != self._scope:  # what was said last may have ended an execution
            self._scope = message.scope
            self._pipe.flush()
        start_s, before_bytes = time.monotonic(), self._held_bytes()
        try:
            task = self._task(message, json.loads(bytes(buffers[0])))
            work_s, work_cpu_s = time.monotonic(), time.thread_time()
            rows = self._perform(message, task)
            took_cpu_s = time.thread_time() - work_cpu_s
        except Exception as error:  # whatever it is, it is the task's failure
            self._values.drop(message.frees)
            self._arrays.synchronize()  # an accelerator that is lost ends the worker
            self._fail(error, tag=message.tag, slot=message.slot)
            return
        held_bytes = max(before_bytes, self._held_bytes())
        until_s = work_s + self._stretch.target_s(_kind(message, task), took_cpu_s, message.lasts_s)
        del task  # it holds its inputs
        self._values.drop(message.frees)
        wait_until(until_s)
        answer = Computed(
            tag=message.tag,
            start_s=start_s,
            stop_s=time.monotonic(),
            memory_bytes=held_bytes,
            freed=self._values.take_freed(),
        )
        self._pipe.send(
            answer, [json.dumps(rows, separators=(",", ":")).encode()], urgent=bool(rows)
        )

    def _task(self, message: Compute, attrs: dict[str, Any]) -> WorkerTask:
        return WorkerTask(
            inputs=tuple(self._values[key] for key in message.inputs),
            attrs=attrs,
            segment=self._segment(message.slot),
            step=message.step,
            scope=message.scope
            # `backward` may have no values at all
            or scope_of((*message.outputs, *message.inputs)),
            arrays=self._arrays,
        )

    def _segment(self, slot: str) -> LoadedSegment | None:
        if slot and slot not in self._segments:
            raise ValueError(f"segment {slot} is not loaded")
        return self._segments.get(slot)

    def _perform(self, message: Compute, task: WorkerTask) -> list[list[Any]]:
        """The task and its exports: the rows of `Computed`."""
        outputs = tuple(perform(message.op, task))
        self._arrays.synchronize()
        if len(outputs) != len(message.outputs):
            raise ValueError(
                f"{message.op} gave {len(outputs)} values, {len(message.outputs)} are named"
            )
        for key, tensor in zip(message.outputs, outputs, strict=True):
            self._values[key] = tensor
        rows: list[list[Any]] = []
        try:
            for key in message.exports:
                rows.append(self._exports.copy(key, self._values[key]))
        except Exception:
            for _, offset, *_ in rows:  # nobody will hear of these places
                self._exports.release(offset)
            raise
        return rows

    def _load(self, message: LoadSegment, buffers: Buffers) -> None:
        try:
            self._prepare(message.kind)
            self._segments.pop(message.slot, None)
            weight_source, document = self._segment(message.weights), bytes(buffers[0])
            if weight_source is not None:
                self._segments[message.slot] = self._loader.borrow(
                    message.kind, document, weight_source
                )
            else:
                self._segments[message.slot] = self._loader.load(
                    message.kind, document, seed=message.seed
                )
        except Exception as error:  # whatever it is, it is the document's failure
            self._fail(error, slot=message.slot)
            return
        self._pipe.send(SegmentLoaded(slot=message.slot))

    def _prepare(self, kind: str) -> None:
        """Load what this kind of segment needs; a library is nobody's tensor."""
        before_bytes = self._arrays.allocated_bytes() or 0
        self._loader.prepare(kind)
        self._base_bytes += (self._arrays.allocated_bytes() or 0) - before_bytes

    def _set_base(self) -> None:
        """What is there while nothing is held for anybody is the libraries': kernels and buffers
        made at first use.

        A tensor is never theirs: one that is still alive then goes on being counted as held.
        """
        if not self._segments and not self._values:
            gc.collect()
            self._base_bytes = (self._arrays.allocated_bytes() or 0) - self._arrays.live_bytes()

    def _forget(self, message: Forget, buffers: Buffers) -> None:
        """Segments, values, and what unfinished executions keep for backward runs that will not
        come.
        """
        self._values.drop_prefix(message.prefix)
        for slot in [slot for slot in self._segments if slot.startswith(message.prefix)]:
            del self._segments[slot]
            self._stretch.forget(slot)
        for segment in self._segments.values():
            segment.forget(message.prefix)
        self._set_base()

    def _measure(self, message: MeasureTask, buffers: Buffers) -> None:
        try:
            self._prepare(message.kind)
            segment = self._loader.load(message.kind, bytes(buffers[0]), seed=0, made_up=True)
            slowdown = self._stretch.slowdown
            timings = time_segment(
                segment,
                message.rows,
                train=message.train,
                repeats=message.repeats,
                slowdown=slowdown,
                arrays=self._arrays,
            )
            *sgd_s, update_s = (
                time_updates(
                    segment,
                    rows_before_update(message.rows, timings),
                    repeats=message.repeats,
                    slowdown=slowdown,
                    arrays=self._arrays,
                )
                if message.train and message.rows
                else (0.0,)
            )
            frac = (
                weight_frac(segment, max(message.rows), message.repeats, slowdown, self._arrays)
                if message.train and message.rows
                else -1.0
            )
        except Exception as error:  # whatever it is, it is the document's failure
            self._fail(error, slot=message.task)
            return
        answer = MeasuredTask(
            task=message.task,
            rows=message.rows,
            forward_s=tuple(timing.forward_s for timing in timings),
            backward_s=tuple(timing.backward_s for timing in timings) if message.train else (),
            memory_bytes=tuple(timing.kept_bytes for timing in timings),
            update_s=update_s,
            sgd_s=tuple(sgd_s),
            weight_frac=frac,
        )
        self._pipe.send(answer)
        del segment, timings
        self._set_base()

    def _held_bytes(self) -> int:
        """Bytes of tensors held now: since the start, and in the two shared memories."""
        allocated_bytes = self._arrays.allocated_bytes()
        if allocated_bytes is None:
            return self._values.stored_bytes() + self._exports.used_bytes
        return (
            max(0, allocated_bytes - self._base_bytes)
            + self._values.inbound_bytes
            + self._exports.used_bytes
        )

    def _wait_for_release(self) -> None:
        """The outbound memory is full: read until the agent has sent something."""
        while not self._pipe.outbound_released:
            self._pipe.listen()
        self._release()

    def _release(self) -> None:
        while self._pipe.outbound_released:
            self._exports.release(self._pipe.outbound_released.popleft())

    def _send_freed(self) -> None:
        for offset in self._values.take_freed():
            self._pipe.send(Freed(offset=offset))

    def _fail(self, error: Exception, tag: int = -1, slot: str = "") -> None:
        cause, text = cause_of(error)
        self._pipe.send(ComputeFailed(tag=tag, slot=slot, cause=cause, text=text))


def _kind(message: Compute, task: WorkerTask) -> Kind:
    """Which tasks take the same time as this one."""
    shapes = tuple(tuple(tensor.shape) for tensor in task.inputs)
    return message.slot, (message.op, bool(task.attrs.get("train")), shapes, len(message.exports))


def scope_of(keys: Sequence[str]) -> str:
    """The execution that a task belongs to, as the common beginning of its keys:
    `run/epoch/program/step/`.
    """
    return "".join(f"{part}/" for part in keys[0].split("/")[:4]) if keys else ""
