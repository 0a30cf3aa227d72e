"""A small home, its plan and two traces of one step, written by hand."""

from potluck.records import (
    Device,
    Event,
    Layer,
    LayerCost,
    Medium,
    Network,
    Path,
    Plan,
    Problem,
    Stage,
    Trace,
    Training,
)

LAPTOP = Device(
    name="laptop", kind="laptop", memory_bytes=1 << 30, idle_w=3, busy_w=28, radio_w=1.5
)
PHONE = Device(name="phone", kind="phone", memory_bytes=1 << 29)
PLAN = Plan(
    planner="asteroid",
    model="digits-cnn",
    stages=(
        Stage(start=0, stop=2, devices=("laptop",), shares=(8,), warm_up=2),
        Stage(start=2, stop=3, devices=("phone",), shares=(8,)),
    ),
    micro_batch=8,
    n_micro_batches=4,
    latency_s=0.1234,
    energy_j=3.4,
    peak_bytes={"laptop": 700 << 20, "phone": 600 << 20},
    unused={"nano": "slower than doing without it"},
)
PROBLEM = Problem(
    model="digits-cnn",
    devices=(LAPTOP, PHONE),
    network=Network(
        media=(Medium(name="air", capacity_bytes_per_s=12 * 2**20),),
        paths={("laptop", "phone"): Path(media=(("air", 2),), latency_s=0.002)},
    ),
    layers=(
        Layer(name="conv1", parameter_bytes=1024),
        Layer(name="conv2", parameter_bytes=4096),
        Layer(name="head"),
    ),
    costs={
        "laptop": tuple(
            LayerCost(rows=(1, 8), forward_s=(0.001, 0.004), backward_s=(0.002, 0.008))
            for _ in range(3)
        ),
        "phone": tuple(
            LayerCost(
                rows=(1, 8), forward_s=(0.002, 0.01), backward_s=(0.004, 0.02), source="estimated"
            )
            for _ in range(3)
        ),
    },
    workload=Training(batch=32, micro_batch=8),
)


def trace(source: str, stretch: float = 1.0, energy_source: str = "simulated") -> Trace:
    """One micro-batch forwards and backwards over two devices, every time multiplied by
    `stretch`.
    """
    rows = [
        ("laptop", "compute", 0.000, 0.004, "0F0", "run", "", 0),
        ("laptop", "send", 0.004, 0.006, "act:0", "send", "phone", 4096),
        ("phone", "receive", 0.0045, 0.0065, "act:0", "recv", "laptop", 4096),
        ("phone", "compute", 0.0065, 0.0165, "1F0", "run", "", 0),
        ("phone", "compute", 0.0165, 0.0365, "1B0", "backward", "", 0),
        ("phone", "send", 0.0365, 0.0385, "grad:0", "send", "laptop", 4096),
        ("laptop", "receive", 0.037, 0.039, "grad:0", "recv", "phone", 4096),
        ("laptop", "compute", 0.039, 0.047, "0B0", "backward", "", 0),
        ("laptop", "compute", 0.047, 0.048, "step", "step", "", 0),
    ]
    events = tuple(
        Event(
            device=d,
            lane=lane,
            start_s=a * stretch,
            stop_s=b * stretch,
            label=label,
            op=op,
            peer=peer,
            nbytes=n,
        )
        for d, lane, a, b, label, op, peer, n in rows
    )
    return Trace(
        source=source,
        events=events,
        step_s=(0.048 * stretch,),
        busy_s={"laptop": 0.013 * stretch, "phone": 0.030 * stretch},
        energy_j={"laptop": 0.5 * stretch},
        energy_source={"laptop": energy_source},
        peak_bytes={"laptop": 1 << 20, "phone": 1 << 21},
    )


PREDICTED, MEASURED = trace("predicted"), trace("measured", 1.25, "assumed")
