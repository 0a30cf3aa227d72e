"""The records that flow through the six steps: frozen, validated where they are made, SI units in their names.

Device, Medium, Path, Network: the home. Layer, LayerCost: the model and what it costs where. Training, Inference, QoE,
Problem: what is asked. Stage, Plan: the answer. Tensor, Segment: a cut model's pieces. Event, Trace: what a plan did,
predicted or measured.
Pure: the standard library only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

HOME = "home"  # the notebook: it feeds inputs and targets and collects losses and outputs, but computes nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device as the planner sees it. A number that nobody knows is None, never a guess.

    `memory_bytes` is what the owner lets potluck use. Power: `idle_w` doing nothing, `busy_w` computing, `radio_w` on
    top while sending or receiving. `overhead_s` is the fixed cost of one instruction, `copy_bytes_per_s` the speed of
    slicing, adding and updating tensors. `host` names the physical machine: devices of one host share its processor.
    """

    name: str
    memory_bytes: int
    idle_w: float | None = None
    busy_w: float | None = None
    radio_w: float | None = None
    overhead_s: float = 0.0
    copy_bytes_per_s: float = 4e9
    host: str = ""
    kind: str = ""
    backends: tuple[str, ...] = ("torch",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Medium:
    """Something that flows share: one radio channel, one cable in one direction, one uplink."""

    name: str
    capacity_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """How data gets from one device to another: the media that it crosses, each with how often, and the latency.

    WiFi through an access point crosses the same air twice: `(("air", 2),)`.
    """

    media: tuple[tuple[str, int], ...]
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Shared media and the paths over them, for ordered pairs of device names (`home` is one)."""

    media: tuple[Medium, ...]
    paths: Mapping[tuple[str, str], Path]

    def bandwidth(self, source: str, target: str) -> float:
        """Bytes per second of one flow alone on its path; infinite from a device to itself."""
        if source == target:
            return float("inf")
        capacity = {medium.name: medium.capacity_bytes_per_s for medium in self.media}
        return min((capacity[name] / times for name, times in self.paths[source, target].media), default=float("inf"))

    def latency(self, source: str, target: str) -> float:
        """Seconds before the first byte arrives."""
        return 0.0 if source == target else self.paths[source, target].latency_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A run of neighbouring operators that is never cut. Sizes are per row (sample) of the batch unless they say
    otherwise.

    `output_bytes` counts every tensor alive at the cut behind this layer, skip connections too. `gradient_bytes` is
    the part of it that carries a gradient back. `activation_bytes` is kept from forward to backward. `parameter_bytes`
    and `buffer_bytes` are totals.
    """

    name: str
    parameter_bytes: int = 0
    buffer_bytes: int = 0
    output_bytes: int = 0
    gradient_bytes: int = 0
    activation_bytes: int = 0
    forward_flop: float = 0.0
    backward_flop: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """Seconds of one layer on one device at several batch sizes (`rows`, ascending); not linear in between or

    Beyond.
    """

    rows: tuple[int, ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...] = ()
    source: str = "measured"  # or "estimated" (roofline)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Train on batches of `batch` rows.

    `micro_batch` None lets the planner choose; `optimizer_copies`: parameter-sized tensors of state.
    """

    batch: int
    micro_batch: int | None = None
    optimizer_copies: int = 2  # AdamW: two moments; SGD with momentum: one; plain SGD: none


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """Answer requests of `batch` rows.

    `streaming` judges the steady rate of many requests, else the time of one alone.
    """

    batch: int = 1
    streaming: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QoE:
    """What the user wants: seconds per step or request, joules and bytes in total or per device. None: no limit."""

    latency_s: float | None = None
    energy_j: float | None = None
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    device_energy_j: Mapping[str, float] = field(default_factory=dict)
    lambda_j_per_s: float = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One home, one model, one workload, the user's limits. `costs[device name][layer index]`.

    `input_bytes` and `target_bytes` are per row, sent by `home` to the first and the last stage; `result_bytes` comes
    back.
    """

    model: str
    devices: tuple[Device, ...]
    network: Network
    layers: tuple[Layer, ...]
    costs: Mapping[str, tuple[LayerCost, ...]]
    workload: Training | Inference
    qoe: QoE = field(default_factory=QoE)
    input_bytes: int = 0
    target_bytes: int = 0
    result_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Layers [start, stop) on `devices`; device i takes `shares[i]` rows of every micro-batch.

    `warm_up` forwards come first.
    """

    start: int
    stop: int
    devices: tuple[str, ...]
    shares: tuple[int, ...]
    warm_up: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which layers where, in what shares: a document to read, edit and post back.

    `micro_batch` rows at a time, `n_micro_batches` of them per step. Predictions come from the simulator. `unused`
    says why, per device.
    """

    planner: str
    model: str
    stages: tuple[Stage, ...]
    micro_batch: int
    n_micro_batches: int = 1
    training: bool = True
    latency_s: float | None = None
    energy_j: float | None = None
    peak_bytes: Mapping[str, int] = field(default_factory=dict)
    unused: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = None

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that take part, in the order of their first stage."""
        return tuple(dict.fromkeys(name for stage in self.stages for name in stage.devices))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor at the edge of a segment: its first dimension counts rows (or a fixed multiple of rows) of the batch.

    `row_bytes` per row of the batch. `gradient`: a gradient flows back through it in training.
    """

    name: str
    dtype: str
    row_bytes: int
    gradient: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Layers [start, stop) as one piece that a device can load, seen from outside.

    Its inputs in order: `feeds`, model inputs and targets that home sends to this very stage, then `inputs` from the
    stage before. `outputs` go to the next stage; those of the last stage go home (in training the first is the loss).
    """

    name: str
    start: int
    stop: int
    feeds: tuple[Tensor, ...] = ()
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    parameter_count: int = 0
    buffer_count: int = 0  # elements of float buffers (running statistics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something took a device's lane from `start_s` to `stop_s`.

    `label` is an action such as `2F0`; `peer` for transfers.
    """

    device: str
    lane: str  # "compute", "send" or "receive"
    start_s: float
    stop_s: float
    label: str = ""
    op: str = ""
    step: int = 0
    instruction: int = -1
    peer: str = ""
    nbytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What happened, predicted or measured; time 0 is the start of the first step.

    Energy is None where nobody knows the power.
    """

    source: str  # "predicted" or "measured"
    events: tuple[Event, ...] = ()
    step_s: tuple[float, ...] = ()
    busy_s: Mapping[str, float] = field(default_factory=dict)
    energy_j: Mapping[str, float] = field(default_factory=dict)
    energy_source: Mapping[str, str] = field(default_factory=dict)
    peak_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def stop_s(self) -> float:
        """When the last event ended."""
        return max((event.stop_s for event in self.events), default=0.0)
