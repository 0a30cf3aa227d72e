"""Services, processors and requests as the tests of serving need them."""

from potluck.serve.scheduling.allocate import allocate
from potluck.serve.scheduling.records import (
    BatchTimes,
    Frequency,
    Latency,
    Processor,
    Request,
    Server,
    ServiceSpec,
    Variant,
)

GPU = Processor(kind="gpu", memory_bytes=1000)


def times(first_s, next_s, largest=64):
    """A batch takes a fixed part and a part per item."""
    sizes = tuple(2**power for power in range(largest.bit_length()))
    return BatchTimes(items=sizes, seconds=tuple(first_s + next_s * n for n in sizes))


def service(name="birds", slo=None, *, fixed_s=0.01, item_s=0.01, degrees=(1,), **changes):
    """On the one kind of processor; side by side, replicas slow each other down in full."""
    variant = Variant(
        kind="gpu",
        memory_bytes=changes.pop("memory_bytes", 100),
        item_bytes=changes.pop("item_bytes", 0),
        n_processors=changes.pop("n_processors", 1),
        across=changes.pop("across", False),
        times={n: times(fixed_s * n, item_s * n) for n in degrees},
    )
    return ServiceSpec(name=name, slo=slo or Latency(1.0), variants=(variant,), **changes)


def allocation(each=None, processor=GPU):
    return allocate(each or service(), processor)


def stream_service(name="cameras", fps=30.0, tolerance_s=0.2, **changes):
    return service(name, Frequency(fps, tolerance_s), **changes)


def server(name, n_processors=1, memory_bytes=1000):
    processors = (Processor(kind="gpu", memory_bytes=memory_bytes),) * n_processors
    return Server(name=name, processors=processors)


def request(number=0, arrived_s=0.0, limit_s=1.0, name="birds", **changes):
    return Request(number, name, arrived_s, arrived_s + limit_s, **changes)
