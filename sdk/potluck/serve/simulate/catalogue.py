"""The models of EPARA's evaluation as services on a Tesla P100, by category (Table 1).

The paper prints few of its measured times. Printed (sections 1, 4.3 and 5.3.4) and kept here within
a tenth: 49 frames per second of one P100 against 97 of two; Qwen2.5-1.5B 87 tokens per second at
batch 2, Llama3-8B 24 at batch 2, DeepSeekV2-16B 46 and Qwen2.5-32B 24 at batch 2 over two stages;
which models need several processors; batching gains up to 6.9 times and multi-task 1.7 (Fig. 3).
Everything else is assumed: a batch of n takes `fixed_s + n item_s`, so that batching gains
(fixed + item) / item at most; r replicas side by side fill the idle time of one, at most 1.7 times
in all; a split over k processors takes 1.15 / k of the time of one for each doubling, and a tenth
more where they are in several servers. A chat answers with the mean number of tokens of the trace.
"""

from dataclasses import dataclass
from math import log2

from potluck.serve.decide.records import (
    BATCHES,
    REPLICAS,
    BatchTimes,
    Frequency,
    Latency,
    Processor,
    Server,
    Service,
    Slo,
    Variant,
)

P100 = "p100"
GIB = 2**30
P100_BYTES = 16 * GIB
MULTI_TASK_GAIN = 1.7  # Fig. 3(c): the most that replicas side by side gain
SPLIT_LOSS = 1.15  # per doubling of the processors
ACROSS_LOSS = 1.1  # over the network between servers
MEAN_ANSWER_TOKENS = 211  # of the conversation trace, see `arrivals`


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One model: seconds of a batch of n are `fixed_s + n item_s` on one P100, if it fitted."""

    name: str
    fixed_s: float
    item_s: float
    memory_gib: float
    slo: Slo
    n_processors: int = 1
    item_gib: float = 0.02
    input_bytes: int = 150_000
    output_bytes: int = 2_000
    load_s: float = 2.0


PICTURE, FULL_HD, TEXT = 150_000, 600_000, 4_000  # bytes: JPEGs of 640 x 640 and 1080p; a prompt

MODELS = {
    "frequency, one processor": (
        Measured(
            name="mobilenet-v2 video",
            fixed_s=5.9e-3,
            item_s=1.0e-3,
            memory_gib=0.6,
            slo=Frequency(60, 0.1),
        ),
        Measured(
            name="resnet50 video",
            fixed_s=8e-3,
            item_s=2.5e-3,
            memory_gib=0.9,
            slo=Frequency(60, 0.12),
        ),
        Measured(
            name="yolov10 video",
            fixed_s=11e-3,
            item_s=5.5e-3,
            memory_gib=1.2,
            slo=Frequency(30, 0.15),
        ),
        Measured(
            name="yolov11 video",
            fixed_s=10e-3,
            item_s=5.8e-3,
            memory_gib=1.2,
            slo=Frequency(30, 0.15),
        ),
        Measured(
            name="unet video",
            fixed_s=9e-3,
            item_s=12e-3,
            memory_gib=1.6,
            slo=Frequency(60, 0.3),
            input_bytes=FULL_HD,
        ),
        Measured(
            name="bert stream",
            fixed_s=7e-3,
            item_s=1.6e-3,
            memory_gib=0.8,
            slo=Frequency(20, 0.2),
            input_bytes=TEXT,
        ),
        Measured(
            name="gnmt stream",
            fixed_s=20e-3,
            item_s=5e-3,
            memory_gib=1.5,
            slo=Frequency(10, 0.3),
            input_bytes=TEXT,
        ),
        Measured(
            name="qwen2.5-1.5b stream",
            fixed_s=20e-3,
            item_s=1.5e-3,
            memory_gib=3.5,
            slo=Frequency(20, 0.2),
            input_bytes=TEXT,
        ),
    ),
    "frequency, several processors": (
        Measured(
            name="deeplabv3+ video",
            fixed_s=2.4e-3,
            item_s=18e-3,
            memory_gib=2.0,
            slo=Frequency(60, 0.2),
            input_bytes=FULL_HD,
        ),
        Measured(
            name="sctnet video",
            fixed_s=6e-3,
            item_s=19e-3,
            memory_gib=2.2,
            slo=Frequency(60, 0.25),
            input_bytes=FULL_HD,
        ),
        Measured(
            name="llama3-8b stream",
            fixed_s=70e-3,
            item_s=6.5e-3,
            memory_gib=9.0,
            slo=Frequency(30, 0.4),
            input_bytes=TEXT,
            load_s=8.0,
        ),
        Measured(
            name="deepseekv2-16b stream",
            fixed_s=65e-3,
            item_s=5.3e-3,
            memory_gib=18.0,
            n_processors=2,
            slo=Frequency(30, 0.3),
            input_bytes=TEXT,
            load_s=15.0,
        ),
        Measured(
            name="qwen2.5-32b stream",
            fixed_s=120e-3,
            item_s=12e-3,
            memory_gib=22.0,
            n_processors=2,
            slo=Frequency(20, 0.5),
            input_bytes=TEXT,
            load_s=20.0,
        ),
    ),
    "latency, one processor": (
        Measured(
            name="mobilenet-v2 picture",
            fixed_s=5.9e-3,
            item_s=1.0e-3,
            memory_gib=0.6,
            slo=Latency(0.1),
        ),
        Measured(
            name="resnet50 picture", fixed_s=8e-3, item_s=2.5e-3, memory_gib=0.9, slo=Latency(0.15)
        ),
        Measured(
            name="yolov10 picture", fixed_s=11e-3, item_s=5.5e-3, memory_gib=1.2, slo=Latency(0.2)
        ),
        Measured(
            name="unet picture",
            fixed_s=9e-3,
            item_s=12e-3,
            memory_gib=1.6,
            slo=Latency(0.3),
            input_bytes=FULL_HD,
        ),
        Measured(
            name="deeplabv3+ picture",
            fixed_s=2.4e-3,
            item_s=18e-3,
            memory_gib=2.0,
            slo=Latency(0.3),
            input_bytes=FULL_HD,
        ),
        Measured(
            name="bert text",
            fixed_s=7e-3,
            item_s=1.6e-3,
            memory_gib=0.8,
            slo=Latency(0.1),
            input_bytes=TEXT,
        ),
        Measured(
            name="gnmt text",
            fixed_s=40e-3,
            item_s=8e-3,
            memory_gib=1.5,
            slo=Latency(0.4),
            input_bytes=TEXT,
        ),
        Measured(
            name="qwen2.5-1.5b chat",
            fixed_s=20e-3 * MEAN_ANSWER_TOKENS,
            item_s=1.5e-3 * MEAN_ANSWER_TOKENS,
            memory_gib=3.5,
            item_gib=0.1,
            slo=Latency(15.0),
            input_bytes=TEXT,
        ),
    ),
    "latency, several processors": (
        Measured(
            name="maskformer picture",
            fixed_s=40e-3,
            item_s=90e-3,
            memory_gib=10.0,
            n_processors=2,
            slo=Latency(0.6),
            item_gib=1.0,
            input_bytes=FULL_HD,
        ),
        Measured(
            name="omg-seg picture",
            fixed_s=80e-3,
            item_s=160e-3,
            memory_gib=18.0,
            n_processors=2,
            slo=Latency(1.0),
            item_gib=1.0,
            input_bytes=FULL_HD,
        ),
        Measured(
            name="llama3-8b chat",
            fixed_s=70e-3 * MEAN_ANSWER_TOKENS,
            item_s=6.5e-3 * MEAN_ANSWER_TOKENS,
            memory_gib=18.0,
            item_gib=0.2,
            n_processors=2,
            slo=Latency(40.0),
            input_bytes=TEXT,
            load_s=8.0,
        ),
        Measured(
            name="qwen2.5-32b chat",
            fixed_s=120e-3 * MEAN_ANSWER_TOKENS,
            item_s=12e-3 * MEAN_ANSWER_TOKENS,
            memory_gib=36.0,
            item_gib=0.3,
            n_processors=4,
            slo=Latency(60.0),
            input_bytes=TEXT,
            load_s=20.0,
        ),
    ),
}
WORKLOADS = ("mixed", *MODELS)


def services(workload: str) -> tuple[Service, ...]:
    """The services of one of the five workloads of Fig. 11: all, or those of one category.

    Parameters
    ----------
    workload
        One of `WORKLOADS`.
    """
    wanted = MODELS if workload == "mixed" else (workload,)
    return tuple(service(model) for name in wanted for model in MODELS[name])


def service(model: Measured) -> Service:
    """A model with its variants: as it is, and where it is split also across servers."""
    variants = [variant(model, model.n_processors, across=False)]
    if model.n_processors > 1:
        variants.append(variant(model, model.n_processors, across=True))
    return Service(
        name=model.name,
        slo=model.slo,
        variants=tuple(variants),
        input_bytes=model.input_bytes,
        output_bytes=model.output_bytes,
        load_s=model.load_s,
    )


def variant(model: Measured, n_processors: int, *, across: bool) -> Variant:
    """A model over so many processors, which share its weights and its work.

    Parameters
    ----------
    model
        As measured.
    n_processors
        A power of two.
    across
        Whether they are in several servers.
    """
    scale = SPLIT_LOSS ** log2(n_processors) / n_processors * (ACROSS_LOSS if across else 1.0)
    times = {
        degree: BatchTimes(
            items=BATCHES, seconds=tuple(scale * side_by_side_s(model, n, degree) for n in BATCHES)
        )
        for degree in REPLICAS
    }
    return Variant(
        kind=P100,
        memory_bytes=int(model.memory_gib * GIB / n_processors),
        item_bytes=int(model.item_gib * GIB / n_processors),
        n_processors=n_processors,
        across=across,
        times=times,
    )


def side_by_side_s(model: Measured, n_items: int, degree: int) -> float:
    """Seconds of a batch while so many replicas run on one processor.

    Parameters
    ----------
    model
        As measured.
    n_items
        Of the batch.
    degree
        Replicas.
    """
    alone_s = model.fixed_s + n_items * model.item_s
    busy_s = model.fixed_s + degree * n_items * model.item_s
    return max(busy_s, degree * alone_s / MULTI_TASK_GAIN) if degree > 1 else alone_s


def servers(n_servers: int, n_processors: int) -> tuple[Server, ...]:
    """Servers of so many P100 each, `s0` and on."""
    processors = (Processor(kind=P100, memory_bytes=P100_BYTES),) * n_processors
    return tuple(Server(name=f"s{n}", processors=processors) for n in range(n_servers))
