"""What runs of layers cost on each device, as sums over layers: times from the profile, bytes from
the records. `equations.py` has what is reckoned from them.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial, wraps
from itertools import accumulate, groupby, pairwise
from math import inf
from operator import itemgetter
from typing import Any, Concatenate, ParamSpec, TypeVar

from potluck.errors import UserError
from potluck.records import Device, Layer, LayerCost, Problem, SharedWeight, Stage, Training
from potluck.schedule.stage_graph import Before
from potluck.schedule.step import LOSS_BYTES
from potluck.simulate import flows
from potluck.simulate.interpolation import interpolated

# What a step of torch's optimizers reads and writes, in tensors of the size of its parameters, by
# how many of them its state has. SGD (none): p += g. Momentum (one): m *= mu, m += g, p += m. AdamW
# (two): p *= 1 - wd, m towards g, v *= b, v += g * g, the root of v, divided, plus eps, p += m /
# it; each is an operator of its own.
UPDATE_PASSES = (3, 8, 20)
ADAMW = 2  # tensors of state
MOST_KEPT = 1 << 16  # answers of one function about one table
P = ParamSpec("P")
T = TypeVar("T")


def kept_by_table(
    function: Callable[Concatenate["CostTable", P], T],
) -> Callable[Concatenate["CostTable", P], T]:
    """What a function says of a table is kept with the table, and goes with it: a search asks for
    the same again and again.
    """

    @wraps(function)
    def of(table: "CostTable", /, *args: P.args, **kwargs: P.kwargs) -> T:
        found: T = (table.answers.get(function) or _kept(table, function))(*args, **kwargs)
        return found

    return of


def _kept(table: "CostTable", function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of this table, kept with it."""
    table.answers[function] = lru_cache(MOST_KEPT)(partial(function, table))
    return table.answers[function]


class CostTable:
    """Times of layer ranges on the devices of a problem, by prefix sums that are made once per
    device and batch size.

    What it remembers is what it has answered before: it is the same whoever asked, and in which
    order.

    Parameters
    ----------
    problem
        What is planned.
    recomputes
        Every stage computes its forward again before its backward, and keeps its inputs alone
        (Chen et al., 2016; GPipe, section 2.3).
    n_waiting
        Of requests, the micro-batches that closed forms of memory take to wait on either side of a
        stage, as devices and links are quick enough. Default: as many as may, however slow they
        are.
    """

    limit_s = inf  # plans that take longer are of no use to who asks

    def __init__(
        self, problem: Problem, *, recomputes: bool = False, n_waiting: int | None = None
    ) -> None:
        self.problem = problem
        self.recomputes = recomputes
        self.n_waiting = n_waiting
        self.answers: dict[Any, Callable[..., Any]] = {}  # see `kept_by_table`
        self._other: CostTable | None = None
        self._sums: dict[tuple[str, int], tuple[tuple[float, ...], ...]] = {}
        self._weight_sums: dict[tuple[str, int], tuple[float, ...]] = {}
        self._updates: dict[str, tuple[tuple[float, ...], tuple[int, ...]]] = {}
        self._widest: dict[tuple[int, int], int] = {}
        self._crossing: dict[tuple[int, int], tuple[int, int]] = {}
        self._learns = flows.learning_layers(problem)
        self.shared_layers, self._shared = _shared(problem.layers if training_of(problem) else ())
        self._check_shared()
        self.shared_bytes = tuple(weight.summed_bytes for weight in self._shared)
        self.devices = {device.name: device for device in problem.devices}
        self.branches = problem.branches
        self._feeds: dict[tuple[int, int], int] = {}
        self._handed: dict[tuple[int, ...], tuple[tuple[flows.OutputGroup, ...], ...]] = {}
        self._before: dict[tuple[int, ...], Before] = {}
        self.budgets = {device.name: budget_bytes(problem, device) for device in problem.devices}
        layers, workload = problem.layers, problem.workload
        training = isinstance(workload, Training)
        self.weight_copies = 1 if training else problem.weight_copies
        # beside each weight that is trained: its gradient and moments
        self.trained_copies = 1 + workload.kept_copies if isinstance(workload, Training) else 0
        self.floor_bytes = max((device.floor_bytes for device in problem.devices), default=0)
        self._parameters = _sums([layer.parameter_bytes for layer in layers])
        self._trained = _sums([layer.trained_bytes for layer in layers])
        learning = zip(layers, self._learns, strict=True)
        self._updated = _sums([layer.trained_bytes if learns else 0 for layer, learns in learning])
        self._summed = _sums([layer.summed_bytes for layer in layers])
        self._buffers = _sums([layer.buffer_bytes for layer in layers])
        self._averaged = _sums([item.buffer_bytes - item.fixed_buffer_bytes for item in layers])
        self._activations = _sums([layer.activation_bytes for layer in layers])
        self._waiting = _sums([_waiting_bytes(layer) for layer in layers])
        self._seconds = [(0, 0) if not training else _second_gradients(layer) for layer in layers]

    def _check_shared(self) -> None:
        """Raise UserError where a shared weight learns in some of its layers only: in a graph none
        does.
        """
        for places, weight in zip(self.shared_layers, self._shared, strict=True):
            still = [i for i in places if not self._learns[i]]
            if still and len(still) < len(places):
                names = [self.problem.layers[i].name for i in places]
                raise UserError(
                    f"the layers {', '.join(names)} share the weight {weight.name}, but no "
                    f"gradient comes back to {self.problem.layers[still[0]].name}.",
                    next_step="Leave the weight out of the shared ones of that layer: it does not "
                    "learn there.",
                )

    def at_work(self) -> None:
        """A planner takes a step that asks for no cost: where time is limited, it ends here."""

    def sibling(self, problem: Problem) -> "CostTable":
        """A table of the same kind for another problem."""
        return CostTable(problem, recomputes=self.recomputes, n_waiting=self.n_waiting)

    def share_times(self, other: "CostTable") -> None:
        """Let both know the times that either looked up, where they are the same."""
        mine, theirs = self.problem, other.problem
        same = mine.costs is theirs.costs and mine.layers is theirs.layers
        same = same and training_of(mine) == training_of(theirs)
        if same and self.recomputes == other.recomputes:
            self._sums = other._sums

    def of(self, recompute: bool) -> "CostTable":
        """The table for a stage that recomputes, or that does not."""
        if recompute == self.recomputes:
            return self
        if self._other is None:
            self._other = CostTable(self.problem, recomputes=recompute, n_waiting=self.n_waiting)
        return self._other

    def forward_s(self, device: str, start: int, stop: int, rows: int) -> float:
        """Seconds of the forward of layers [start, stop) on `rows` rows.

        Parameters
        ----------
        device
            Its name.
        start, stop
            Layers [start, stop).
        rows
            Rows of a micro-batch.
        """
        sums = (self._sums.get((device, rows)) or self._times(device, rows))[0]
        return sums[stop] - sums[start]

    def backward_s(self, device: str, start: int, stop: int, rows: int) -> float:
        """Seconds of their backward; 0 for inference.

        Parameters
        ----------
        device
            Its name.
        start, stop
            Layers [start, stop).
        rows
            Rows of a micro-batch.
        """
        sums = (self._sums.get((device, rows)) or self._times(device, rows))[1]
        return sums[stop] - sums[start]

    def compute_s(self, device: str, start: int, stop: int, rows: int) -> float:
        """Seconds of the forward and (for training) the backward of layers [start, stop).

        Parameters
        ----------
        device
            Its name.
        start, stop
            Layers [start, stop).
        rows
            Rows of a micro-batch.
        """
        sums = self._sums.get((device, rows)) or self._times(device, rows)
        forward, backward = sums[0], sums[1]
        return forward[stop] - forward[start] + (backward[stop] - backward[start])

    def weight_s(self, device: str, start: int, stop: int, rows: int) -> float:
        """Seconds of the part of their backward that is for gradients of weights, and can wait.

        Parameters
        ----------
        device
            Its name.
        start, stop
            Layers [start, stop).
        rows
            Rows of a micro-batch.
        """
        sums = self._weight_sums.get((device, rows)) or self._weight_times(device, rows)
        return sums[stop] - sums[start]

    def parameter_bytes(self, start: int, stop: int) -> int:
        """Bytes of the parameters of layers [start, stop)."""
        return self._parameters[stop] - self._parameters[start] - self._twice(start, stop)[0]

    def trained_bytes(self, start: int, stop: int) -> int:
        """Bytes of those among them that training changes."""
        return self._trained[stop] - self._trained[start] - self._twice(start, stop)[0]

    def updated_bytes(self, start: int, stop: int) -> int:
        """Bytes of those that a gradient reaches: a step of the optimizer passes over no others."""
        return self._updated[stop] - self._updated[start] - self._twice(start, stop)[0]

    def summed_bytes(self, start: int, stop: int) -> int:
        """Bytes of their gradients as replicas add them up."""
        return self._summed[stop] - self._summed[start] - self._twice(start, stop)[1]

    def _twice(self, start: int, stop: int) -> tuple[int, int]:
        """Bytes of weights that several of layers [start, stop) read and all but one count anew,
        and of their gradients as they are added up.
        """
        if not self._shared:
            return 0, 0
        nbytes = summed = 0
        for layers, weight in zip(self.shared_layers, self._shared, strict=True):
            again = max(0, sum(start <= layer < stop for layer in layers) - 1)
            nbytes, summed = nbytes + again * weight.nbytes, summed + again * weight.summed_bytes
        return nbytes, summed

    def read_before_bytes(self, layer: int) -> int:
        """Bytes of weights of a layer that an earlier one reads, too."""
        pairs = zip(self.shared_layers, self._shared, strict=True)
        return sum(w.nbytes for layers, w in pairs if layer in layers and layers[0] < layer)

    def shares(self, start: int, stop: int) -> bool:
        """Whether layers [start, stop) and others read a weight that training changes."""
        return any(
            any(start <= layer < stop for layer in layers)
            and not all(start <= layer < stop for layer in layers)
            for layers in self.shared_layers
        )

    def buffer_bytes(self, start: int, stop: int) -> int:
        """Bytes of their buffers."""
        return self._buffers[stop] - self._buffers[start]

    def averaged_bytes(self, start: int, stop: int) -> int:
        """Bytes of the buffers that replicas average: running statistics."""
        return self._averaged[stop] - self._averaged[start]

    def activation_bytes(self, start: int, stop: int) -> int:
        """Bytes per row that autograd keeps of them for the backward."""
        return self._activations[stop] - self._activations[start]

    def kept_bytes(self, start: int, stop: int) -> int:
        """Bytes per row that they keep of each micro-batch until its backward: the activations, or
        the inputs where these are computed again.
        """
        if not self.recomputes:
            return self.activation_bytes(start, stop)
        given = self.feed_bytes(start, stop) + self.target_bytes(stop)
        return self.crossing_bytes(start, stop)[0] + given

    def waiting_bytes(self, start: int, stop: int) -> int:
        """Bytes per row that wait from the first to the second part of a backward in two: at most
        all activations, and as much again for gradients, where nobody knows.
        """
        return self._waiting[stop] - self._waiting[start]

    def copied_bytes(self, start: int, stop: int) -> int:
        """Bytes of running statistics kept with each micro-batch, as they were before it."""
        return self.averaged_bytes(start, stop) if self.recomputes else 0

    def cut_bytes(self, layer: int) -> int:
        """Bytes per row that enter layer `layer` (home's inputs for layer 0) or leave the last."""
        return self.problem.layers[layer - 1].output_bytes if layer else self.problem.input_bytes

    def feed_bytes(self, start: int, stop: int) -> int:
        """Bytes per row of the model's inputs that home sends to a stage of layers [start,
        stop).
        """
        if (start, stop) not in self._feeds:
            self._feeds[start, stop] = flows.feed_bytes(self.problem, start, stop)
        return self._feeds[start, stop]

    def target_bytes(self, stop: int) -> int:
        """Bytes per row of the targets that home sends to a stage of layers up to `stop`: to the
        last one in training, and to nobody else.
        """
        is_last = stop == len(self.problem.layers)
        return self.problem.target_bytes if is_last and training_of(self.problem) else 0

    def widest_bytes(self, start: int, stop: int) -> int:
        """The most bytes per row that enter and leave one of layers [start, stop) together, or that
        it works on, where nothing is kept for a backward anyhow.
        """
        if (start, stop) not in self._widest:
            keeps = training_of(self.problem)
            self._widest[start, stop] = max(
                max(
                    self.cut_bytes(layer) + self.cut_bytes(layer + 1),
                    0 if keeps else self.problem.layers[layer].working_bytes,
                )
                for layer in range(start, stop)
            )
        return self._widest[start, stop]

    def second_gradient_bytes(self, start: int, stop: int, *, first: bool) -> int:
        """The most that a backward of layers [start, stop) takes for gradients of parameters that
        have one already, on the `first` micro-batch or a later one.

        Parameters
        ----------
        start, stop
            Layers [start, stop).
        first
            On the first micro-batch of a step, rather than a later one.
        """
        return max(both[not first] for both in self._seconds[start:stop])

    def crossing_bytes(self, start: int, stop: int) -> tuple[int, int]:
        """The most bytes per row that layers [start, stop) take from earlier ones, and that they
        give: to every layer that takes it once, home included.
        """
        if (start, stop) not in self._crossing:
            layers, last = self.problem.layers, stop == len(self.problem.layers)
            if self.branches:
                earlier = [edge for layer in layers[:start] for edge in layer.edges]
                taken = sum(
                    e.output_bytes for e in earlier if any(start <= to < stop for to in e.to)
                )
                edges = [edge for layer in layers[start:stop] for edge in layer.edges]
                given = sum(e.output_bytes * sum(to >= stop for to in e.to) for e in edges)
            else:
                taken, given = (
                    (layers[start - 1].output_bytes if start else 0),
                    layers[stop - 1].output_bytes,
                )
            if last:
                given = (
                    LOSS_BYTES
                    if isinstance(self.problem.workload, Training)
                    else self.problem.result_bytes
                )
            self._crossing[start, stop] = taken, given
        return self._crossing[start, stop]

    def handed(self, stages: Sequence[Stage]) -> tuple[tuple[flows.OutputGroup, ...], ...]:
        """Per stage of a plan what it hands on, as `flows.output_groups`."""
        starts = tuple(stage.start for stage in stages)
        if starts not in self._handed:
            self._handed[starts] = flows.output_groups(self.problem, stages)
        return self._handed[starts]

    def before(self, stages: Sequence[Stage]) -> Before:
        """Per stage of a plan, the stages that hand something to it."""
        starts = tuple(stage.start for stage in stages)
        if starts not in self._before:
            self._before[starts] = flows.before(self.handed(stages))
        return self._before[starts]

    def runs_ahead(self, start: int, stop: int) -> bool:
        """Whether a stage of layers [start, stop), as it has no backward, waits for no gradient."""
        return not any(self._learns[start:stop])

    def follows_ahead(self, start: int, stop: int) -> bool:
        """Whether these layers take from a stage before that may wait for no gradient."""
        if not self.branches:
            return start > 0 and not self._learns[start - 1]
        takers = {
            i: {to for edge in self.problem.layers[i].edges for to in edge.to} for i in range(start)
        }
        return any(
            not self._learns[i] and any(start <= to < stop for to in takers[i])
            for i in range(start)
        )

    def measured_update_s(self, device: str, start: int, stop: int) -> tuple[float, int]:
        """Seconds of one optimizer step on those of layers [start, stop) that were profiled, and
        the bytes that are updated of the others.

        Parameters
        ----------
        device
            Its name.
        start, stop
            Layers [start, stop).
        """
        if device not in self._updates:
            copies = min(optimizer_copies(self.problem), ADAMW)
            layers = [
                _update_s(layer, copies) if learns else 0.0
                for layer, learns in zip(self.problem.costs[device], self._learns, strict=True)
            ]
            others = [
                after - before if seconds is None else 0
                for seconds, (before, after) in zip(layers, pairwise(self._updated), strict=True)
            ]
            self._updates[device] = (
                tuple(accumulate((s or 0.0 for s in layers), initial=0.0)),
                _sums(others),
            )
        seconds, others_bytes = self._updates[device]
        return seconds[stop] - seconds[start], min(
            others_bytes[stop] - others_bytes[start], self.updated_bytes(start, stop)
        )

    def _times(self, device: str, rows: int) -> tuple[tuple[float, ...], ...]:
        """Sums over the layers before: forward, backward."""
        found = self._sums.get((device, rows))
        if found is None:
            costs = self.problem.costs[device]
            sizes = [cost.rows for cost in costs]
            forward = _prefix(sizes, [cost.forward_s for cost in costs], rows)
            backward = (0.0,) * len(forward)
            if isinstance(self.problem.workload, Training):
                backward = _prefix(sizes, self._backward_s(device, costs), rows)
            if self.recomputes:
                backward = tuple(b + f for b, f in zip(backward, forward, strict=True))
            found = self._sums[device, rows] = forward, backward
        return found

    def _weight_times(self, device: str, rows: int) -> tuple[float, ...]:
        """Sums over the layers before: of their backward, without what is computed again, what is
        for weights.
        """
        costs = self.problem.costs[device]
        backward = self.of(False)._times(device, rows)[1]
        fracs = map(weight_frac, costs, self.problem.layers)
        each = zip(fracs, pairwise(backward), strict=True)
        sums = tuple(accumulate((f * (b - a) for f, (a, b) in each), initial=0.0))
        self._weight_sums[device, rows] = sums
        return sums

    def _backward_s(self, device: str, costs: Sequence[LayerCost]) -> list[Sequence[float]]:
        """As profiled; of layers that no gradient reaches 0, whatever was measured alone."""
        if not all(cost.backward_s for cost in costs):
            raise UserError(
                "its profile has no backward times.",
                device=device,
                next_step="Profile this model for training.",
            )
        pairs = zip(costs, self._learns, strict=True)
        return [cost.backward_s if learns else (0.0,) * len(cost.rows) for cost, learns in pairs]


def training_of(problem: Problem) -> bool:
    """Whether it is one of training."""
    return isinstance(problem.workload, Training)


def _shared(
    layers: Sequence[Layer],
) -> tuple[tuple[tuple[int, ...], ...], tuple[SharedWeight, ...]]:
    """Of each weight that several layers read, these, and what it weighs."""
    places: dict[str, list[int]] = {}
    weights: dict[str, SharedWeight] = {}
    for i, layer in enumerate(layers):
        for weight in layer.shared:
            places.setdefault(weight.name, []).append(i)
            weights[weight.name] = weight
    return tuple(map(tuple, places.values())), tuple(weights.values())


def _second_gradients(layer: Layer) -> tuple[int, int]:
    """What there is beside the gradients of a layer's parameters in the first backward, and in
    later ones.
    """
    widest = (
        layer.trained_bytes
        if layer.widest_parameter_bytes is None
        else layer.widest_parameter_bytes
    )
    return layer.reused_bytes, layer.reused_bytes + widest


def _waiting_bytes(layer: Layer) -> int:
    if layer.waiting_bytes is not None:
        return layer.waiting_bytes
    return 2 * layer.activation_bytes + layer.output_bytes if layer.trained_bytes else 0


def weight_frac(cost: LayerCost, layer: Layer) -> float:
    """Which part of a layer's backward is for gradients of weights, and can wait.

    As measured; else in proportion to the operations, or a half where nobody counted them.

    Parameters
    ----------
    cost
        Of the layer on a device.
    layer
        The layer.
    """
    if cost.weight_frac is not None:
        return cost.weight_frac
    if layer.backward_flop:
        return layer.weight_flop / layer.backward_flop
    return 0.5 if layer.trained_bytes else 0.0


def _update_s(layer: LayerCost, copies: int) -> float | None:
    """A step of the optimizer that has so many tensors of state, as measured; else AdamW's, in
    proportion to the bytes that both read and write.
    """
    if copies < len(layer.sgd_s):
        return layer.sgd_s[copies]
    if layer.update_s is None:
        return None
    return layer.update_s * UPDATE_PASSES[copies] / UPDATE_PASSES[ADAMW]


def _prefix(
    sizes: Sequence[Sequence[int]], columns: Sequence[Sequence[float]], at: int
) -> tuple[float, ...]:
    """Sums over layers, each interpolated between its own sizes."""
    values = list[float]()
    for rows, same in groupby(zip(sizes, columns, strict=True), key=itemgetter(0)):
        values += interpolated(rows, [seconds for _, seconds in same], at)
    return tuple(accumulate(values, initial=0.0))


def _sums(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(accumulate(values, initial=0))


def optimizer_copies(problem: Problem) -> int:
    """Parameter-sized tensors of optimizer state; none for inference."""
    return problem.workload.optimizer_copies if isinstance(problem.workload, Training) else 0


def budget_bytes(problem: Problem, device: Device) -> int:
    """What a plan may use on `device`: its owner's limit or the user's, whichever is less."""
    return min(device.memory_bytes, problem.qoe.memory_bytes.get(device.name, device.memory_bytes))


def is_clipped(problem: Problem) -> bool:
    """Whether the norm of all gradients is limited."""
    return isinstance(problem.workload, Training) and problem.workload.clipped
