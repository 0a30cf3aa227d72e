"""The models of EPARA's evaluation as services on a Tesla P100, by category (Table 1).

The paper prints few of its measured times. Printed (sections 1, 4.3 and 5.3.4) and kept here within
a tenth: 49 frames per second of one P100 against 97 of two. Qwen2.5-1.5B 87 tokens per second at
batch 2, Llama3-8B 24 at batch 2, DeepSeekV2-16B 46 and Qwen2.5-32B 24 at batch 2 over two stages;
which models need several processors. Batching gains up to 6.9 times and multi-task 1.7 (Fig. 3).
Everything else is assumed: a batch of n takes `fixed_s + n item_s`, so that batching gains (fixed +
item) / item at most; r replicas side by side fill the idle time of one, at most 1.7 times in all. A
split over k processors takes 1.15 / k of the time of one for each doubling, and a tenth more where
they are in several servers. A chat answers with the mean number of tokens of the trace.
"""

from dataclasses import dataclass
from math import log2

from potluck.serve.scheduling.records import (
    BATCHES,
    REPLICAS,
    BatchTimes,
    Frequency,
    Latency,
    Processor,
    Server,
    ServiceSpec,
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
class EparaModel:
    """One model: seconds of a batch of n are `fixed_s + n item_s` on one P100, if it fitted."""

    name: str
    fixed_s: float
    item_s: float
    memory_gib: float
    item_gib: float
    n_processors: int
    input_bytes: int
    load_s: float
    slo: Slo
    output_bytes: int = 2_000


INPUT_BYTES = {"picture": 150_000, "full hd": 600_000, "text": 4_000}  # JPEGs of 640 x 640, 1080p

# A chat's times are of one token of its answer.
TABLE = """
model                |fixed ms|item ms| GiB|item GiB|processors| input  |load s| limit
[frequency, one processor]
mobilenet-v2 video   |     5.9|      1| 0.6|    0.02|         1| picture|   2.0| 60/s in 0.1 s
resnet50 video       |       8|    2.5| 0.9|    0.02|         1| picture|   2.0| 60/s in 0.12 s
yolov10 video        |      11|    5.5| 1.2|    0.02|         1| picture|   2.0| 30/s in 0.15 s
yolov11 video        |      10|    5.8| 1.2|    0.02|         1| picture|   2.0| 30/s in 0.15 s
unet video           |       9|     12| 1.6|    0.02|         1| full hd|   2.0| 60/s in 0.3 s
bert stream          |       7|    1.6| 0.8|    0.02|         1| text   |   2.0| 20/s in 0.2 s
gnmt stream          |      20|      5| 1.5|    0.02|         1| text   |   2.0| 10/s in 0.3 s
qwen2.5-1.5b stream  |      20|    1.5| 3.5|    0.02|         1| text   |   2.0| 20/s in 0.2 s
[frequency, several processors]
deeplabv3+ video     |     2.4|     18| 2.0|    0.02|         1| full hd|   2.0| 60/s in 0.2 s
sctnet video         |       6|     19| 2.2|    0.02|         1| full hd|   2.0| 60/s in 0.25 s
llama3-8b stream     |      70|    6.5| 9.0|    0.02|         1| text   |   8.0| 30/s in 0.4 s
deepseekv2-16b stream|      65|    5.3|18.0|    0.02|         2| text   |  15.0| 30/s in 0.3 s
qwen2.5-32b stream   |     120|     12|22.0|    0.02|         2| text   |  20.0| 20/s in 0.5 s
[latency, one processor]
mobilenet-v2 picture |     5.9|      1| 0.6|    0.02|         1| picture|   2.0| 0.1 s
resnet50 picture     |       8|    2.5| 0.9|    0.02|         1| picture|   2.0| 0.15 s
yolov10 picture      |      11|    5.5| 1.2|    0.02|         1| picture|   2.0| 0.2 s
unet picture         |       9|     12| 1.6|    0.02|         1| full hd|   2.0| 0.3 s
deeplabv3+ picture   |     2.4|     18| 2.0|    0.02|         1| full hd|   2.0| 0.3 s
bert text            |       7|    1.6| 0.8|    0.02|         1| text   |   2.0| 0.1 s
gnmt text            |      40|      8| 1.5|    0.02|         1| text   |   2.0| 0.4 s
qwen2.5-1.5b chat    |      20|    1.5| 3.5|     0.1|         1| text   |   2.0| 15.0 s
[latency, several processors]
maskformer picture   |      40|     90|10.0|     1.0|         2| full hd|   2.0| 0.6 s
omg-seg picture      |      80|    160|18.0|     1.0|         2| full hd|   2.0| 1.0 s
llama3-8b chat       |      70|    6.5|18.0|     0.2|         2| text   |   8.0| 40.0 s
qwen2.5-32b chat     |     120|     12|36.0|     0.3|         4| text   |  20.0| 60.0 s
"""


def _measured(line: str) -> EparaModel:
    """A row of the table."""
    name, *numbers, processors, kind, load, limit = (cell.strip() for cell in line.split("|"))
    fixed_ms, item_ms, memory_gib, item_gib = map(float, numbers)
    tokens = MEAN_ANSWER_TOKENS if name.endswith(" chat") else 1
    fps, _, tolerance = limit.removesuffix(" s").rpartition("/s in ")
    return EparaModel(
        name=name,
        fixed_s=tokens * fixed_ms / 1e3,
        item_s=tokens * item_ms / 1e3,
        memory_gib=memory_gib,
        item_gib=item_gib,
        n_processors=int(processors),
        input_bytes=INPUT_BYTES[kind],
        load_s=float(load),
        slo=Frequency(float(fps), float(tolerance)) if fps else Latency(float(tolerance)),
    )


def _read(table: str) -> dict[str, tuple[EparaModel, ...]]:
    """The models of each category, whose name stands in brackets above them."""
    found: dict[str, tuple[EparaModel, ...]] = {}
    for line in table.strip().splitlines()[1:]:
        if line.startswith("["):
            category = line.strip("[]")
            found[category] = ()
        else:
            found[category] += (_measured(line),)
    return found


MODELS = _read(TABLE)
WORKLOADS = ("mixed", *MODELS)


def services(workload: str) -> tuple[ServiceSpec, ...]:
    """The services of one of the five workloads of Fig. 11: all, or those of one category.

    Parameters
    ----------
    workload
        One of `WORKLOADS`.
    """
    wanted = MODELS if workload == "mixed" else (workload,)
    return tuple(service(model) for name in wanted for model in MODELS[name])


def service(model: EparaModel) -> ServiceSpec:
    """A model with its variants: as it is, and where it is split also across servers."""
    variants = [variant(model, model.n_processors, across=False)]
    if model.n_processors > 1:
        variants.append(variant(model, model.n_processors, across=True))
    return ServiceSpec(
        name=model.name,
        slo=model.slo,
        variants=tuple(variants),
        input_bytes=model.input_bytes,
        output_bytes=model.output_bytes,
        load_s=model.load_s,
    )


def variant(model: EparaModel, n_processors: int, *, across: bool) -> Variant:
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


def side_by_side_s(model: EparaModel, n_items: int, degree: int) -> float:
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
