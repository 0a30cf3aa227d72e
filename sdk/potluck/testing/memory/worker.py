"""A worker without a process: the real engine, which really computes, in virtual time."""

import gc
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from potluck_agent.worker.arena import Arena
from potluck_wire.messages import (
    Compute,
    Computed,
    Configure,
    MeasuredTask,
    MeasureTask,
    Message,
    Release,
    WorkerReady,
)

TASK_S = 1e-3  # how long a task lasts of which nobody says how long

Letter = tuple[Message, tuple[Any, ...]]


class MemoryPipe:
    """The worker's end of its pipe: what it sends is collected.

    A full outbound memory lets time pass until the agent has sent something.
    """

    def __init__(self, wait: Callable[[], None]) -> None:
        self.outbound_released: deque[int] = deque()
        self.sent: list[Letter] = []
        self._wait = wait

    def send(
        self, message: Message, buffers: Sequence[bytes] = (), *, urgent: bool = False
    ) -> None:
        """Take a message.

        Parameters
        ----------
        message
            The message.
        buffers
            Its bytes.
        urgent
            Before others that wait.
        """
        self.sent.append((message, tuple(buffers)))

    def flush(self) -> None:
        """Nothing waits: it was sent at once."""

    def flush_in_time(self) -> None:
        """Nothing waits: it was sent at once."""

    def listen(self) -> None:
        """Let time pass."""
        self._wait()


class MemoryWorker:
    """Takes messages in order, each for as long as its task lasts.

    Parameters
    ----------
    clock_s
        The virtual time.
    configure
        What the agent tells a worker that starts.
    slowdown
        How many times longer its tasks last.
    after
        Lets something happen in so many seconds.
    say
        Hears what the worker says.
    wait
        Lets something else happen.
    """

    def __init__(
        self,
        configure: Configure,
        slowdown: float,
        *,
        clock_s: Callable[[], float],
        after: Callable[[float, Callable[[], None]], object],
        say: Callable[[Message, tuple[Any, ...]], None],
        wait: Callable[[], None],
    ) -> None:
        self._slowdown = slowdown
        self._clock_s = clock_s
        self._after = after
        self._say = say
        self.inbound, self.outbound = (
            Arena(configure.inbound_bytes),
            Arena(configure.outbound_bytes),
        )
        self._pipe, self._waiting = MemoryPipe(wait), deque[Letter]()
        self._configure = configure
        self._engine: Any = None
        self._is_busy = self.is_gone = False
        self.load = 1.0  # how many times longer its tasks last, as if something else ran beside it
        after(TASK_S, self._begin)

    def send(self, message: Message, buffers: tuple[Any, ...]) -> None:
        """A message for it; what was released is known at once."""
        if isinstance(message, Release):
            self._pipe.outbound_released.append(message.offset)
            return
        self._waiting.append((message, tuple(bytes(part) for part in buffers)))
        self._go_on()

    def kill(self) -> None:
        """End it."""
        self.is_gone, self._engine = True, None
        self._waiting.clear()
        self.inbound.close()
        self.outbound.close()

    def _begin(self) -> None:
        if not self.is_gone:
            self._engine = _engine(self._configure, self.inbound, self.outbound, self._pipe)
            self._say(WorkerReady(), (_statement(self._configure.backends),))
            self._go_on()

    def _go_on(self) -> None:
        if self._waiting and self._engine is not None and not self._is_busy:
            self._is_busy = True
            self._after(0.0, self._work)

    def _work(self) -> None:
        if self.is_gone:
            return
        message, buffers = self._waiting.popleft()
        start_s = self._clock_s()
        lasts_s = self._lasts_s(message)
        if isinstance(message, Compute):
            message = replace(message, lasts_s=0.0)  # virtual time passes, ours does not
        self._engine.handle(message, buffers)
        sent, self._pipe.sent = self._pipe.sent, []
        stop_s = max(start_s + lasts_s, self._clock_s())
        self._after(stop_s - self._clock_s(), lambda: self._done(sent, start_s, stop_s))

    def _lasts_s(self, message: Message) -> float:
        task_s = TASK_S * self._slowdown * self.load
        if isinstance(message, MeasureTask):
            return task_s * message.repeats * len(message.rows)
        if not isinstance(message, Compute):
            return 0.0
        return message.lasts_s * self.load or task_s

    def _done(self, sent: list[Letter], start_s: float, stop_s: float) -> None:
        if self.is_gone:
            return
        self._is_busy = False
        for message, buffers in sent:
            if isinstance(message, Computed):
                message = replace(message, start_s=start_s, stop_s=stop_s)
            if isinstance(message, MeasuredTask):
                message = self._under_load(message)
            if not self.is_gone:
                self._say(message, buffers)
        if not self.is_gone:
            self._go_on()

    def _under_load(self, message: MeasuredTask) -> MeasuredTask:
        return replace(
            message,
            forward_s=tuple(seconds * self.load for seconds in message.forward_s),
            backward_s=tuple(seconds * self.load for seconds in message.backward_s),
        )


def _engine(configure: Configure, inbound: Arena, outbound: Arena, pipe: MemoryPipe) -> Any:
    _load_torch()
    from potluck_agent.worker.engine import WorkerEngine

    class Uncounted(WorkerEngine):
        """One that shares its process: what is in memory says nothing about it."""

        def _held_bytes(self) -> int:
            return 0

        def _set_base(self) -> None:
            pass

    return Uncounted(configure, inbound, outbound, pipe)  # type: ignore[arg-type]


@cache
def _load_torch() -> None:
    """What a worker puts stand-ins in place of is needed here: to make models."""
    import sympy  # noqa: F401
    import torch._dynamo
    import torch.fx.experimental.symbolic_shapes
    import torch.utils._sympy.functions  # noqa: F401


@cache
def _statement(backends: tuple[str, ...]) -> bytes:
    """What a worker with these backends says of itself; its small measurements are made once."""
    pipe = MemoryPipe(lambda: None)
    inbound, outbound = Arena(4096), Arena(4096)
    engine = _engine(
        Configure(inbound_bytes=4096, outbound_bytes=4096, backends=backends),
        inbound,
        outbound,
        pipe,
    )
    engine.ready({})
    gc.unfreeze()  # this process lives longer than its garbage
    return bytes(pipe.sent[-1][1][0])
