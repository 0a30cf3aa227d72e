"""The records that flow through the six steps: frozen, validated where they are made, SI units in
their names.

Device, Medium, Path, Network: the home. Layer, LayerCost: the model and what it costs where.
Training, Inference, QoE, Problem: what is asked. Stage, Plan: the answer. Tensor, Segment: a cut
model's pieces. Event, Trace: what a plan did, predicted or measured. Pure: the standard library
only. In notebooks, records show themselves: see `display_hooks.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from potluck import display_hooks
from potluck.argument_checks import check_flags
from potluck.display_hooks import Shown
from potluck.errors import PlanError, UserError
from potluck.provenance import ASSUMED, MARKS, UNKNOWN, worst

if TYPE_CHECKING:
    from potluck.planning.explain import Explanation

# the notebook: it feeds inputs and targets and collects losses and outputs, but computes nothing
HOME = "home"
# instructions that training alone has
TRAINING_OPS = ("backward", "backward_input", "gradients", "step")


def _positive(what: str, value: float | None, *, zero: bool = False) -> None:
    """Raise `UserError` unless `value` is a finite number above zero (or None: not known)."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
        raise UserError(f"{what} must be a number, got {value!r}.")
    try:
        finite = value is None or isfinite(value)
    except OverflowError:  # a whole number beyond every float
        finite = False
    if value is not None and (not finite or value < 0 or (value == 0 and not zero)):
        raise UserError(
            f"{what} must be {'zero or more' if zero else 'above zero'}, got {value!r}."
        )


def _whole(what: str, *values: object) -> None:
    """Raise `PlanError` unless all values are whole numbers."""
    if all(type(value) is int for value in values):  # as nearly always, and told quickly
        return
    if not all(isinstance(value, Integral) and not isinstance(value, bool) for value in values):
        raise PlanError(f"{what}, got {values}.")


def _given(what: str, value: float | None, *, zero: bool = False) -> None:
    """The same for what is no limit if it is left out, and must not be None."""
    if value is None:
        raise UserError(f"{what} must be a number, got None.", next_step="Leave it out instead.")
    _positive(what, value, zero=zero)


def _rows(what: str, value: int | None) -> None:
    """Raise `UserError` unless `value` is a whole number above zero (or None)."""
    _positive(what, value)
    if value is not None and not isinstance(value, int):
        raise UserError(f"{what} must be a whole number of rows, got {value!r}.")


def _mark(what: str, mark: str) -> None:
    """Raise `UserError` unless this says where a figure of energy comes from."""
    if mark not in MARKS:
        raise UserError(f"{what} must be one of {', '.join(MARKS)}, got {mark!r}.")


def _unique(what: str, names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(
            f"{what}: {twice[0]!r} appears more than once.", next_step="Give each its own name."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device as the planner sees it. A number that nobody knows is None, never a guess.

    `memory_bytes` is what the owner lets potluck use. Power: `idle_w` doing nothing, `busy_w`
    computing, `radio_w` on top while sending or receiving; `power_source` is where these come from
    (see `provenance`), `power_note` says it in words, `power_error_w` how far off they may be.
    `overhead_s` is the fixed cost of one instruction, `copy_bytes_per_s` the speed of slicing and
    adding tensors, in bytes of result (by default that of a slow processor's core). `host` names
    the physical machine: devices of one host share its processor. `host_cores`: how many of them it
    lets compute at full speed at once; None: no other one is in its way. `handling_s`: seconds of
    that processor that whoever hands out the work takes for an instruction, while others compute.
    """

    name: str
    memory_bytes: int
    idle_w: float | None = None
    busy_w: float | None = None
    radio_w: float | None = None
    power_source: str = ASSUMED
    power_note: str = ""
    power_error_w: float | None = None
    overhead_s: float = 0.0
    copy_bytes_per_s: float = 4e9
    floor_bytes: int = 0  # what a worker takes beside its tensors
    host: str = ""
    host_cores: float | None = None
    handling_s: float = 0.0
    kind: str = ""
    backends: tuple[str, ...] = ("torch",)

    def __post_init__(self) -> None:
        if not self.name or self.name == HOME:
            raise UserError(
                f"A device cannot be called {self.name!r}: that name is taken.",
                next_step="Rename it.",
            )
        _positive(f"{self.name}: memory_bytes", self.memory_bytes)
        _positive(f"{self.name}: copy_bytes_per_s", self.copy_bytes_per_s)
        _positive(f"{self.name}: host_cores", self.host_cores)
        not_negative = ("idle_w", "busy_w", "radio_w", "power_error_w", "overhead_s", "handling_s")
        for field_name in not_negative:
            _positive(f"{self.name}: {field_name}", getattr(self, field_name), zero=True)
        _mark(f"{self.name}: power_source", self.power_source)

    @property
    def power_mark(self) -> str:
        """Where its power comes from; unknown, where it is not known idle or busy. A radio of which
        nobody knows it is assumed to take none.
        """
        if self.idle_w is None or self.busy_w is None:
            return UNKNOWN
        marks = (self.power_source,) if self.radio_w is not None else (self.power_source, ASSUMED)
        return worst(marks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Medium:
    """Something that flows share: one radio channel, one cable in one direction, one uplink."""

    name: str
    capacity_bytes_per_s: float

    def __post_init__(self) -> None:
        _positive(f"medium {self.name}: capacity_bytes_per_s", self.capacity_bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """How data gets from one device to another: the media that it crosses, each with how often, and
    the latency.

    WiFi through an access point crosses the same air twice: `(("air", 2),)`. Inside one machine,
    `host` names it: what goes there is work for the processor that its devices share.
    """

    media: tuple[tuple[str, int], ...]
    latency_s: float = 0.0
    host: str = ""

    def __post_init__(self) -> None:
        _positive("path: latency_s", self.latency_s, zero=True)
        if any(times < 1 for _, times in self.media):
            raise UserError(f"path: every medium is crossed at least once, got {self.media}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Shared media and the paths over them, for ordered pairs of device names (`home` is one)."""

    media: tuple[Medium, ...]
    paths: Mapping[tuple[str, str], Path]
    _capacity: Mapping[str, float] = field(init=False, repr=False, compare=False)
    _rates: dict[tuple[str, str], float] = field(init=False, repr=False, compare=False)  # if asked

    def __post_init__(self) -> None:
        object.__setattr__(self, "_rates", {})
        _unique("network media", [medium.name for medium in self.media])
        object.__setattr__(
            self, "_capacity", {medium.name: medium.capacity_bytes_per_s for medium in self.media}
        )
        for (source, target), path in self.paths.items():
            for name, _ in path.media:
                if name not in self._capacity:
                    raise UserError(
                        f"The path from {source} to {target} crosses {name!r}, which is not "
                        "a medium."
                    )

    def bandwidth(self, source: str, target: str) -> float:
        """Bytes per second of one flow alone on its path; infinite from a device to itself."""
        found = self._rates.get((source, target))
        if found is None:
            media = self.path(source, target).media if source != target else ()
            rates = (self._capacity[name] / times for name, times in media)
            found = self._rates[source, target] = min(rates, default=float("inf"))
        return found

    def latency(self, source: str, target: str) -> float:
        """Seconds before the first byte arrives."""
        return 0.0 if source == target else self.path(source, target).latency_s

    def path(self, source: str, target: str) -> Path:
        """The path from `source` to `target`.

        Raises
        ------
        UserError
            The network does not join them.
        """
        try:
            return self.paths[source, target]
        except KeyError:
            raise UserError(
                f"The network has no path from {source} to {target}.",
                next_step="Connect them or leave one out.",
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """What a layer hands to the later layers `to`, the same to each.

    Bytes per row, and the part with a gradient.
    """

    to: tuple[int, ...]
    output_bytes: int
    gradient_bytes: int = 0

    def __post_init__(self) -> None:
        if not (self.to and self.output_bytes and 0 <= self.gradient_bytes <= self.output_bytes):
            raise UserError(
                f"an edge to the layers {self.to} needs somebody who takes it, something to take "
                "and a gradient within that: got "
                f"gradient_bytes {self.gradient_bytes} and output_bytes {self.output_bytes}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedWeight:
    """A weight that other layers read, too: its bytes, and those of its gradient as holders add it
    up.
    """

    name: str
    nbytes: int = 0
    summed_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A run of neighbouring operators that is never cut. Sizes are per row (sample) of the batch
    unless they say otherwise.

    `output_bytes` counts every tensor alive at the cut behind this layer, skip connections and
    other branches too. `gradient_bytes` is the part of it that carries a gradient back.
    `activation_bytes` is kept from forward to backward. `parameter_bytes` and `buffer_bytes` are
    totals. `edges`: to whom it hands what, where the model has parallel branches; none in a chain,
    where all goes to the next layer. Along a branch tensors are handed on from layer to layer, into
    another branch they go directly. `feed_bytes`: inputs of the model that no earlier layer reads
    (those of the first layer are not stated). `norm_values`: values of a channel that its batch
    norms have to learn by, the fewest of them; 0 where it has none. A layer of 1 cannot train on a
    single row. `widest_parameter_bytes`: the parameters of that operator which has most, which
    backward makes a second gradient of before it adds it to that of the micro-batches before. None
    where nobody knows, so that all parameters count. `reused_bytes`: the parameters that several
    operators read, which have a gradient more within one backward. `frozen_bytes`: the parameters
    that training leaves as they are, which have no gradient, no moments, and no part in an
    all-reduce. `fixed_buffer_bytes`: the buffers that replicas need not average. `widened_bytes`:
    by how much gradients in half precision grow as replicas add them up, in float32. `weight_flop`:
    the part of `backward_flop` that is for gradients of weights and can wait. `waiting_bytes` is
    kept from the first to the second part of a backward in two; None where nobody knows. `shared`:
    those of its trained parameters that other layers read, too: stages that hold one add up their
    gradients. `whole_batch`: it compares rows, so that one device takes all of a batch at once.
    `lane`: the place of its device, from 0, in a model that is divided by tensor. `is_random`: in
    training it draws masks, as dropout does. `slots`: the most rows of a request, where it keeps
    something of each row for the next request; 0: any number. `working_bytes`: the most that its
    operators have at once, of what they read and make, where nothing is kept for a backward; 0
    where nobody knows.
    """

    name: str
    parameter_bytes: int = 0
    buffer_bytes: int = 0
    output_bytes: int = 0
    gradient_bytes: int = 0
    activation_bytes: int = 0
    forward_flop: float = 0.0
    backward_flop: float = 0.0
    edges: tuple[Edge, ...] = ()
    feed_bytes: int = 0
    norm_values: int = 0
    widest_parameter_bytes: int | None = None
    reused_bytes: int = 0
    frozen_bytes: int = 0
    fixed_buffer_bytes: int = 0
    widened_bytes: int = 0
    weight_flop: float = 0.0
    waiting_bytes: int | None = None
    shared: tuple[SharedWeight, ...] = ()
    whole_batch: bool = False
    lane: int | None = None
    is_random: bool = False
    slots: int = 0
    working_bytes: int = 0

    def __post_init__(self) -> None:
        sizes = (
            "parameter_bytes",
            "buffer_bytes",
            "output_bytes",
            "gradient_bytes",
            "activation_bytes",
            "feed_bytes",
        )
        more = ("norm_values", "widest_parameter_bytes", "reused_bytes", "slots", "working_bytes")
        for field_name in (*sizes, *more, "frozen_bytes", "fixed_buffer_bytes", "widened_bytes"):
            _positive(f"layer {self.name}: {field_name}", getattr(self, field_name), zero=True)
        for part, total in (
            ("frozen_bytes", "parameter_bytes"),
            ("fixed_buffer_bytes", "buffer_bytes"),
        ):
            if getattr(self, part) > getattr(self, total):
                raise UserError(
                    f"layer {self.name}: {part} {getattr(self, part)} exceed {total} "
                    f"{getattr(self, total)}."
                )
        _positive(f"layer {self.name}: waiting_bytes", self.waiting_bytes or 0, zero=True)
        if not 0 <= self.weight_flop <= self.backward_flop:
            raise UserError(
                f"layer {self.name}: weight_flop {self.weight_flop:g} are not within the "
                f"backward_flop {self.backward_flop:g}."
            )
        if self.gradient_bytes > self.output_bytes:
            raise UserError(
                f"layer {self.name}: gradient_bytes {self.gradient_bytes} exceed output_bytes "
                f"{self.output_bytes}."
            )

    @property
    def sees_micro_batch(self) -> bool:
        """Whether what it learns depends on which rows are one micro-batch, beyond the order of
        sums.
        """
        return self.norm_values > 0 or self.is_random

    @property
    def trained_bytes(self) -> int:
        """Bytes of the parameters that training changes."""
        return self.parameter_bytes - self.frozen_bytes

    @property
    def summed_bytes(self) -> int:
        """Bytes of the gradients that replicas add up."""
        return self.trained_bytes + self.widened_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """Seconds of one layer on one device at several batch sizes (`rows`, ascending).

    Not linear in between.

    `update_s`: one step of AdamW on its parameters; None where nobody measured or estimated it.
    `sgd_s`: one step of SGD, without momentum and with it; empty likewise. `weight_frac`: which
    part of its backward is for gradients of weights, and can wait; None likewise.
    """

    rows: tuple[int, ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...] = ()
    source: str = "measured"  # or "estimated" (roofline)
    update_s: float | None = None
    sgd_s: tuple[float, ...] = ()
    weight_frac: float | None = None

    def __post_init__(self) -> None:
        if (
            not self.rows
            or self.rows[0] < 1
            or any(a >= b for a, b in zip(self.rows, self.rows[1:], strict=False))
        ):
            raise UserError(f"Costs need ascending batch sizes from 1 up, got rows={self.rows}.")
        if len(self.forward_s) != len(self.rows) or len(self.backward_s) not in (0, len(self.rows)):
            raise UserError(
                f"Costs need one time per batch size: {len(self.rows)} batch sizes, "
                f"{len(self.forward_s)} forward and {len(self.backward_s)} backward times."
            )
        if len(self.sgd_s) not in (0, 2):
            raise UserError(
                f"Costs of SGD are a time without momentum and one with it, got sgd_s={self.sgd_s}."
            )
        for seconds in (*self.forward_s, *self.backward_s, self.update_s or 0.0, *self.sgd_s):
            _positive("layer time in seconds", seconds, zero=True)
        if self.weight_frac is not None and not 0 <= self.weight_frac <= 1:
            raise UserError(f"weight_frac is a part, 0 to 1, got {self.weight_frac}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Train on batches of `batch` rows.

    `micro_batch` None lets the planner choose; `optimizer_copies`: parameter-sized tensors of
    state. `clipped`: the norm of all gradients is limited, so that every step of the optimizer
    waits for the last of them. `bfloat16_moments`: that state takes half the memory
    (`potluck.AdamW(bfloat16_moments=True)`).
    """

    batch: int
    micro_batch: int | None = None
    optimizer_copies: int = 2  # AdamW: two moments; SGD with momentum: one; plain SGD: none
    clipped: bool = False
    bfloat16_moments: bool = False

    def __post_init__(self) -> None:
        _rows("batch", self.batch)
        _rows("micro_batch", self.micro_batch)
        _positive("optimizer_copies", self.optimizer_copies, zero=True)
        check_flags(clipped=self.clipped, bfloat16_moments=self.bfloat16_moments)
        if self.micro_batch is not None and self.batch % self.micro_batch:
            raise UserError(
                f"A batch of {self.batch} rows cannot be split into micro-batches of "
                f"{self.micro_batch}.",
                next_step="Choose a micro-batch that divides the batch.",
            )

    @property
    def kept_copies(self) -> int:
        """Tensors of a parameter's bytes that the optimizer keeps."""
        return -(-self.optimizer_copies // 2) if self.bfloat16_moments else self.optimizer_copies


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """Answer requests of `batch` rows.

    `streaming` judges the steady rate of many requests, else the time of one alone.
    """

    batch: int = 1
    streaming: bool = False

    def __post_init__(self) -> None:
        _rows("batch", self.batch)
        check_flags(streaming=self.streaming)


@dataclass(frozen=True, slots=True, kw_only=True)
class QoE:
    """What the user wants: seconds per step or request, joules in total or per device, bytes per
    device.

    None: no limit.
    """

    latency_s: float | None = None
    energy_j: float | None = None
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    device_energy_j: Mapping[str, float] = field(default_factory=dict)
    lambda_j_per_s: float = 1e3

    def __post_init__(self) -> None:
        _positive("QoE latency_s", self.latency_s)
        _positive("QoE energy_j", self.energy_j)
        _given("QoE lambda_j_per_s", self.lambda_j_per_s, zero=True)
        for what in ("memory_bytes", "device_energy_j"):
            if not isinstance(limits := getattr(self, what), Mapping):
                raise UserError(
                    f"QoE {what} must say a limit for each device by its name, got {limits!r}.",
                    next_step=f'{what}={{"laptop": 1e9}}',
                )
        for name, limit in (*self.memory_bytes.items(), *self.device_energy_j.items()):
            _given(f"QoE limit of {name}", limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem(Shown):
    """One home, one model, one workload, the user's limits. `costs[device name][layer index]`.

    `input_bytes` and `target_bytes` are per row, sent by `home` to the first and the last stage.
    Inputs that a later layer is the first to read, its `feed_bytes`, go to that one's stage;
    `result_bytes` comes back. `home` names a home of the library, where it is one. `excluded`:
    devices of the home that cannot do this at all, and why. `weight_copies`: how often a device
    holds its weights for inference.
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
    home: str = ""
    excluded: Mapping[str, str] = field(default_factory=dict)
    weight_copies: int = 1

    def __post_init__(self) -> None:
        _unique("devices", [device.name for device in self.devices])
        if not self.layers:
            raise UserError(f"Model {self.model} has no layers.")
        for device in self.devices:
            n_costs = len(self.costs.get(device.name, ()))
            if n_costs != len(self.layers):
                raise UserError(
                    f"the model has {len(self.layers)} layers but the profile {n_costs}.",
                    device=device.name,
                    next_step="Profile this model on this device.",
                )
        if self.branches:
            _check_edges(self.layers)
        for name in (*self.qoe.memory_bytes, *self.qoe.device_energy_j):
            if name not in self.excluded and all(name != device.name for device in self.devices):
                raise UserError(f"A limit names the device {name!r}, which is not in this home.")

    @property
    def branches(self) -> bool:
        """Whether some layers can run at the same time: the model is no chain."""
        return any(layer.edges for layer in self.layers)

    def device(self, name: str) -> Device:
        """The device of that name.

        Raises
        ------
        UserError
            There is none.
        """
        for device in self.devices:
            if device.name == name:
                return device
        raise UserError(
            f"There is no device {name!r}; this home has {', '.join(d.name for d in self.devices)}."
        )


def _check_edges(layers: Sequence[Layer]) -> None:
    """Raise `UserError` unless every edge leads to later layers, and every layer but the last has
    one.
    """
    for index, layer in enumerate(layers):
        for to in (to for edge in layer.edges for to in edge.to):
            if not index < to < len(layers):
                fault = (
                    f"there are {len(layers)} layers"
                    if to >= len(layers)
                    else "that would be a cycle"
                )
                raise UserError(
                    f"layer {layer.name} (number {index}) hands its output to layer {to}: {fault}."
                )
        if not layer.edges and index < len(layers) - 1:
            raise UserError(
                f"layer {layer.name} (number {index}) hands its output to nobody; other layers "
                "have edges."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Layers [start, stop) on `devices`; device i takes `shares[i]` rows of every micro-batch.

    `warm_up` forwards come first. `recompute`: of every micro-batch under way the stage keeps only
    its inputs, and computes its forward again just before its backward (Chen et al., 2016).
    `micro_batch`: the rows that it takes at a time, where it is another number than the plan's.
    """

    start: int
    stop: int
    devices: tuple[str, ...]
    shares: tuple[int, ...]
    warm_up: int = 1
    recompute: bool = False
    micro_batch: int | None = None

    def __post_init__(self) -> None:
        where = f"stage of layers [{self.start}, {self.stop})"
        _whole(f"{where}: its layers are whole numbers", self.start, self.stop)
        _whole(f"{where}: its shares are whole numbers of rows", *self.shares)
        _whole(f"{where}: warm_up is a whole number", self.warm_up)
        if self.micro_batch is not None:
            _whole(f"{where}: micro_batch is a whole number of rows", self.micro_batch)
        if not 0 <= self.start < self.stop:
            raise PlanError(f"{where}: it must hold at least one layer.")
        if not self.devices or len(set(self.devices)) != len(self.devices):
            raise PlanError(f"{where}: it needs devices, each once; got {self.devices}.")
        if len(self.shares) != len(self.devices) or any(share < 1 for share in self.shares):
            raise PlanError(
                f"{where}: each of its {len(self.devices)} devices needs a share of 1 row or more; "
                f"got {self.shares}."
            )
        if self.warm_up < 1:
            raise PlanError(f"{where}: warm_up must be 1 or more, got {self.warm_up}.")
        if type(self.recompute) is not bool:
            raise PlanError(f"{where}: recompute is true or false, got {self.recompute!r}.")

    @property
    def rows(self) -> int:
        """Of a micro-batch of this stage."""
        return sum(self.shares)

    @property
    def lead(self) -> str:
        """The device with the most rows, which has some of every micro-batch, however small."""
        return self.devices[self.shares.index(max(self.shares))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Shown):
    """Which layers where, in what shares: a document to read, edit and post back.

    `micro_batch` rows at a time, `n_micro_batches` of them per step; batches of other sizes are
    taken in micro-batches of the same size and a smaller one (`schedule.micro_batches`). A stage
    may take them in larger or smaller ones of its own, of which each is a multiple of any smaller
    one: at its edges they are joined, or cut. Predictions come from the simulator. `unused` says
    why, per device. `gap_frac`: no plan with micro-batches of one size and whole backwards is
    faster by more than this part of `latency_s` (of a chain: none in which each device has one
    stage at most); `energy_gap_frac`: none that is on time takes fewer joules by more than this
    part of `energy_j`. `problem` is what it was judged for; a plan from a file has none yet.
    `energy_source`: where the worst known of the watts behind `energy_j` come from (see
    `provenance`); empty before it is judged. `schedule`: the policy that it was judged with
    (`schedule.policies`); empty: 1F1B, or forward only.
    """

    planner: str
    model: str
    stages: tuple[Stage, ...]
    micro_batch: int
    n_micro_batches: int = 1
    training: bool = True
    latency_s: float | None = None
    energy_j: float | None = None
    energy_source: str = ""
    peak_bytes: Mapping[str, int] = field(default_factory=dict)
    device_energy_j: Mapping[str, float] = field(default_factory=dict)
    unused: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = None
    gap_frac: float | None = None
    energy_gap_frac: float | None = None
    home: str = ""
    schedule: str = ""
    problem: Problem | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.stages:
            raise PlanError("A plan needs at least one stage.")
        if self.energy_source:
            _mark("A plan's energy_source", self.energy_source)
        _whole(
            "The number and the rows of micro-batches are whole numbers",
            self.n_micro_batches,
            self.micro_batch,
        )
        if self.micro_batch < 1 or self.n_micro_batches < 1:
            raise PlanError(
                f"A plan needs micro-batches: got {self.n_micro_batches} of "
                f"{self.micro_batch} rows."
            )
        expected = 0
        for index, stage in enumerate(self.stages):
            if stage.start != expected:
                raise PlanError(
                    f"stage {index} starts at layer {stage.start}; expected {expected}, "
                    "without a gap."
                )
            expected = stage.stop
            wanted = self.micro_batch if stage.micro_batch is None else stage.micro_batch
            if stage.rows != wanted:
                raise PlanError(
                    f"stage {index}: shares {stage.shares} add up to {stage.rows} rows; "
                    f"expected the micro-batch, {wanted}."
                )
            if stage.recompute and not self.training:
                raise PlanError(
                    f"stage {index}: it recomputes activations, and inference keeps none.",
                    next_step="Leave `recompute` out, or plan for training.",
                )
        _check_sizes(self)

    @property
    def batch(self) -> int:
        """Rows of one step."""
        return self.micro_batch * self.n_micro_batches

    @property
    def sizes(self) -> tuple[int, ...]:
        """The rows of its micro-batches, the most first: one number, or several where stages have
        their own.
        """
        return tuple(sorted({self.micro_batch, *(s.rows for s in self.stages)}, reverse=True))

    @property
    def counts(self) -> tuple[int, ...]:
        """Per stage, its micro-batches in a step."""
        return tuple(self.batch // stage.rows for stage in self.stages)

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that take part, in the order of their first stage."""
        return tuple(dict.fromkeys(name for stage in self.stages for name in stage.devices))

    def explain(self) -> "Explanation":
        """Why these devices, what holds the plan up, and what would help."""
        return display_hooks.explanation(self)

    def save(self, path: Any) -> None:
        """Write it as text to read, edit and load again with `potluck.load_plan`."""
        display_hooks.save_plan(self, path)


def _check_sizes(plan: Plan) -> None:
    """Raise `PlanError` unless micro-batches of stages can be joined to larger ones, and cut."""
    sizes = plan.sizes
    if len(sizes) > 1 and not plan.training:
        raise PlanError(
            f"stages take {', '.join(map(str, sizes))} rows at a time, and inference takes one "
            "number of rows everywhere.",
            next_step="Leave `micro_batch` of the stages out, or plan for training.",
        )
    for more, fewer in zip((plan.batch, *sizes), sizes, strict=False):
        if more % fewer:
            raise PlanError(
                f"micro-batches of {fewer} rows cannot be joined to {more}: stages of this plan "
                f"take {', '.join(map(str, sizes))} rows at a time, of a batch of {plan.batch}.",
                next_step="Choose sizes of which each is a multiple of the next smaller one, and "
                "that divide the batch.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor at the edge of a segment: its first dimension has `multiple` entries per row of the
    batch.

    `row_bytes` per row of the batch. `gradient`: a gradient flows back through it in training.
    `multiple` 0: it has no batch dimension, every device needs all of it, `row_bytes` is its whole
    size, and no gradient flows through it.
    """

    name: str
    dtype: str
    row_bytes: int
    gradient: bool = False
    multiple: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPart:
    """Elements [start, stop) of the vector of a step of a segment: the gradient of a parameter that
    other layers read, too.
    """

    name: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Layers [start, stop) as one piece that a device can load, seen from outside.

    Its inputs in order: `feeds`, model inputs and targets that home sends to this very stage, then
    `inputs` from the stages that hold the layers `sources` (one for each input; none: the layer
    before `start`). `outputs` go to the stages that take them; those of the last stage go home (in
    training the first is the loss). `norm_values`: as of its layers. `shared`: gradients that go
    into the sum of all segments that hold the parameter.
    """

    name: str
    start: int
    stop: int
    feeds: tuple[Tensor, ...] = ()
    inputs: tuple[Tensor, ...] = ()
    sources: tuple[int, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    parameter_count: int = 0
    buffer_count: int = 0  # elements of float buffers (running statistics)
    vector_item_bytes: int = 4  # of an element of the vector of a step: 8 where it holds float64
    sums_rows: bool = False  # in training: the loss is a sum over rows, not a mean
    whole_batch: bool = False  # the loss, or an output, compares rows
    norm_values: int = 0
    shared: tuple[SharedPart, ...] = ()


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
class Trace(Shown):
    """What happened, predicted or measured; time 0 is the start of the first step.

    `step_s`: each step (or request) from its start, or from the end of the one before where that
    was later: of a stream, from answer to answer. Energy is missing where nobody knows the power;
    `energy_source` says of each device's where it comes from (see `provenance`).
    """

    source: str  # "predicted" or "measured"
    events: tuple[Event, ...] = ()
    step_s: tuple[float, ...] = ()
    busy_s: Mapping[str, float] = field(default_factory=dict)
    energy_j: Mapping[str, float] = field(default_factory=dict)
    energy_source: Mapping[str, str] = field(default_factory=dict)
    peak_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def trains(self) -> bool:
        """Whether it is of training: nothing in it tells of requests."""
        return not self.events or any(event.op in TRAINING_OPS for event in self.events)

    @property
    def stop_s(self) -> float:
        """When the last event ended."""
        return max((event.stop_s for event in self.events), default=0.0)

    @property
    def spans(self) -> tuple[tuple[float, float], ...]:
        """When the first event of each step began, and when its last one ended."""
        found: dict[int, tuple[float, float]] = {}
        for event in self.events:
            start_s, stop_s = found.get(event.step, (event.start_s, event.stop_s))
            found[event.step] = min(start_s, event.start_s), max(stop_s, event.stop_s)
        return tuple(found[step] for step in sorted(found))

    @property
    def whole_s(self) -> tuple[float, ...]:
        """Seconds of each step from its first event to its last, whatever else is under way
        meanwhile.
        """
        return tuple(stop_s - start_s for start_s, stop_s in self.spans)
