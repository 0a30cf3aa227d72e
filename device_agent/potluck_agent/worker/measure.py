"""How fast this device is: one layer at several batch sizes, one instruction, one copy.

Emulated devices do not sleep here: times are processor time, multiplied by the slowdown.
"""

import json
import time
from collections.abc import Callable
from statistics import median

import torch

from potluck_agent.worker.tasks import Task, perform
from potluck_wire.messages import Channel, Compute, Computed
from potluck_wire.stream import Reader, pack

OVERHEAD_REPEATS = 30
COPY_REPEATS = 7
COPY_BYTES = 4 << 20  # larger than most caches of a small device, as activations are


def cpu_s(work: Callable[[], object]) -> float:
    """Seconds of this thread's processor time that `work` takes."""
    start_s = time.thread_time()
    work()
    return time.thread_time() - start_s


def overhead_s(slowdown: float) -> float:
    """Seconds of one instruction beside its arithmetic: reading, looking up, one tiny operator, answering.

    An emulated device stretches the operator only, not the messages.
    """
    tiny = torch.zeros(8)
    request = pack(Compute(op="slice", inputs=("r/0/p/0/x",), outputs=("r/0/p/0/y",)), [b'{"start":0,"stop":4}'])

    def message() -> None:
        Reader(Channel.WORKER).feed(request)
        pack(Computed(), [b"[]"])

    def task() -> None:
        attrs = json.loads('{"start":0,"stop":4}')
        perform("slice", Task(inputs=(tiny,), attrs=attrs, segment=None, step=0, scope=""))

    def typical_s(work: Callable[[], object]) -> float:
        return median(cpu_s(work) for _ in range(OVERHEAD_REPEATS))

    return typical_s(message) + slowdown * typical_s(task)


def copy_bytes_per_s(slowdown: float) -> float:
    """Bytes of result per second when tensors are added, the slowest of the copying operations."""
    first, second = torch.ones(COPY_BYTES // 4), torch.ones(COPY_BYTES // 4)
    out = torch.empty_like(first)
    took_s = median(cpu_s(lambda: torch.add(first, second, out=out)) for _ in range(COPY_REPEATS))
    return COPY_BYTES / (slowdown * max(took_s, 1e-9))
