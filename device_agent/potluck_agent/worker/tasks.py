"""What each operation of a program does in the worker: the table op -> function, over values and
segments.

Functions take the task, its input tensors and its attributes and return the output tensors. They
check what the attributes say; shapes that do not fit are the operators' own errors.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from potluck_agent.worker import available_memory
from potluck_agent.worker.arrays.backends import Arrays
from potluck_wire.program import STEP_INPUTS
from potluck_wire.tensors import item_bytes

Tensors = Sequence[Any]  # of the library that this worker computes with
Attributes = Mapping[str, Any]
Rows = tuple[int, int, int]  # [start, stop) of that many rows of a micro-batch


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """What a step of an optimizer has beside its settings.

    `groups` = [parameters, settings] have settings of their own; `scale` multiplies all gradients,
    `clip_value` bounds each number of them; `average` is the decay of a moving average of the
    weights. `growth_steps`: the step is left out where `scale` is not finite, and the factor of the
    loss grows after so many that were not. `late`: forwards and backwards of later steps are under
    way.
    """

    groups: Sequence[Any] = ()
    scale: Any = None
    clip_value: float | None = None
    average: float | None = None
    growth_steps: int | None = None
    late: bool = False


NO_OPTIONS = StepOptions()


class LoadedSegment(Protocol):
    """A loaded piece of the model: `training.Segment`, or an ONNX model, which only runs
    forward.
    """

    def forward(
        self,
        inputs: Tensors,
        *,
        key: str,
        train: bool,
        rows: Rows | None,
        step: int,
        micro_batch: int,
        recompute: bool = False,
        split: bool = False,
    ) -> Tensors:
        """The outputs; in training, what backward needs is kept under `key`: with `recompute`
        the inputs alone. `split`: the backward will come in two parts.
        """

    def backward(self, key: str, gradients: Tensors, scale: float) -> Tensors:
        """Gradients of the differentiable inputs; adds to the parameters' own."""

    def backward_input(self, key: str, gradients: Tensors, scale: float) -> Tensors:
        """Gradients of the differentiable inputs; those of weights wait."""

    def backward_weight(self, key: str) -> None:
        """Adds the gradients of weights that wait to the parameters' own."""

    def gradients(self, share_frac: float, *, taken: bool = False) -> Any:
        """Gradients, then float buffers times `share_frac`, as one flat vector; with `taken` the
        next ones begin anew.
        """

    def norms(self, vector: Any, order: float) -> Any:
        """The norm of each parameter's gradient; `vector` stands for the gradients."""

    def limit(
        self,
        norms: Tensors,
        places: Sequence[int],
        max_norm: float,
        order: float,
        *,
        scaled: bool = False,
    ) -> tuple[Any, Any]:
        """What gradients are multiplied by so that the norm of all is at most `max_norm`, and that
        norm. `scaled`: their loss was multiplied.
        """

    def step(self, vector: Any, optimizer: Attributes, options: "StepOptions" = ...) -> None:
        """One optimizer step; `vector` replaces gradients and buffers first."""

    def read(self, name: str) -> Any:
        """A named state, not copied."""

    def write(self, name: str, tensor: Any) -> None:
        """Overwrite a named state."""

    def forget(self, prefix: str) -> None:
        """Drop what is kept for backward under keys that begin with `prefix`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTask:
    """One instruction as the operations see it.

    `scope` names the execution, so that keys of two never meet.
    """

    inputs: Tensors
    attrs: Attributes
    segment: LoadedSegment | None
    step: int
    scope: str
    arrays: Arrays

    def integer(self, name: str, default: int | None = None) -> int:
        """An attribute that has to be an integer."""
        value = self.attrs.get(name, default)
        if type(value) is not int:
            raise ValueError(f"attribute {name} is {value!r}, expected an integer")
        return value

    def names(self) -> tuple[str, ...]:
        """The attribute `names`."""
        names = self.attrs.get("names")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"attribute names is {names!r:.80}, expected a list of names")
        return tuple(names)

    def kept(self) -> str:
        """Under which key the segment keeps what backward needs."""
        return f"{self.scope}{self.attrs.get('key', '')}"

    def on(self) -> LoadedSegment:
        """The segment of this task."""
        if self.segment is None:
            raise ValueError("the segment is not loaded")
        return self.segment


def perform(op: str, task: WorkerTask) -> Tensors:
    """Carry out `op`; an empty op does nothing (its exports and frees are still carried out)."""
    if op not in OPERATIONS:
        raise ValueError(f"the worker has no operation {op!r}")
    return OPERATIONS[op](task)


def _run(task: WorkerTask) -> Tensors:
    rows = task.attrs.get("rows")
    if rows is not None and not (
        isinstance(rows, list) and len(rows) == 3 and all(type(n) is int for n in rows)
    ):
        raise ValueError(f"attribute rows is {rows!r:.80}, expected [start, stop, total]")
    return task.on().forward(
        _taken(task.inputs, task.attrs.get("takes")),
        key=task.kept(),
        train=bool(task.attrs.get("train", False)),
        rows=None if rows is None else (rows[0], rows[1], rows[2]),
        step=task.step,
        micro_batch=task.integer("micro_batch", 0),
        recompute=bool(task.attrs.get("recompute", False)),
        split=bool(task.attrs.get("split", False)),
    )


def _taken(inputs: Tensors, takes: Any) -> Tensors:
    """The entries of each input that are meant: views, no copies."""
    if takes is None:
        return inputs
    if not isinstance(takes, list) or len(takes) != len(inputs):
        raise ValueError(
            f"attribute takes is {takes!r:.80}, expected one entry for each of {len(inputs)} inputs"
        )
    return [
        value if take is None else _part(value, 0, *take)
        for value, take in zip(inputs, takes, strict=True)
    ]


def _backward(task: WorkerTask) -> Tensors:
    return task.on().backward(task.kept(), task.inputs, float(task.attrs.get("scale", 1.0)))


def _backward_input(task: WorkerTask) -> Tensors:
    return task.on().backward_input(task.kept(), task.inputs, float(task.attrs.get("scale", 1.0)))


def _backward_weight(task: WorkerTask) -> Tensors:
    task.on().backward_weight(task.kept())
    return ()


def _gradients(task: WorkerTask) -> Tensors:
    share_frac, taken = float(task.attrs.get("share_frac", 1.0)), bool(task.attrs.get("taken"))
    return (task.on().gradients(share_frac, taken=taken),)


def _step(task: WorkerTask) -> Tensors:
    optimizer = task.attrs.get("optimizer")
    if not isinstance(optimizer, dict):
        raise ValueError(f"attribute optimizer is {optimizer!r:.80}, expected an object")
    given = _given(task)
    vector, scale, rates = (given.get(name) for name in STEP_INPUTS)
    groups = task.attrs.get("groups", [])
    if rates is not None:
        groups = _rated(groups, task.attrs["rated"], rates)
    options = StepOptions(
        groups=groups,
        scale=scale,
        clip_value=task.attrs.get("clip_value"),
        average=task.attrs.get("average"),
        growth_steps=task.attrs.get("growth_steps"),
        late=bool(task.attrs.get("late", False)),
    )
    task.on().step(vector, optimizer, options)
    return ()


def _given(task: WorkerTask) -> dict[str, Any]:
    """The inputs of a step by what they are."""
    names = task.attrs.get("given", ["gradients"][: len(task.inputs)])
    if len(names) != len(task.inputs):
        raise ValueError(f"{len(task.inputs)} inputs of a step, {len(names)} expected")
    return dict(zip(names, task.inputs, strict=True))


def _rated(groups: Sequence[Any], rated: Sequence[str], rates: Any) -> list[Any]:
    """The groups with the settings that came with this step: one row of them for each group."""
    if tuple(rates.shape) != (len(groups), len(rated)):  # of any size: no list is made of that
        raise ValueError(f"rates of {list(rates.shape)} for {len(groups)} groups of {len(rated)}")
    return [
        [names, {**settings, **dict(zip(rated, row, strict=True))}]
        for (names, settings), row in zip(groups, rates.tolist(), strict=True)
    ]


def _norms(task: WorkerTask) -> Tensors:
    vector = task.inputs[0] if task.inputs else None
    return (task.on().norms(vector, float(task.attrs["order"])),)


def _limit(task: WorkerTask) -> Tensors:
    max_norm, order = float(task.attrs["most"]), float(task.attrs["order"])
    scaled = bool(task.attrs.get("scaled", False))
    return task.on().limit(task.inputs, task.attrs["places"], max_norm, order, scaled=scaled)


def _state(task: WorkerTask) -> Tensors:
    states = [task.on().read(name) for name in task.names()]
    available_memory.require(sum(state.nbytes for state in states), "a copy of the state")
    return [task.arrays.clone(state) for state in states]  # the next step changes it in place


def _assign(task: WorkerTask) -> Tensors:
    names = task.names()
    if len(names) != len(task.inputs):
        raise ValueError(f"{len(names)} names for {len(task.inputs)} values")
    for name, value in zip(names, task.inputs, strict=True):
        task.on().write(name, value)
    return ()


def _slice(task: WorkerTask) -> Tensors:
    (value,) = task.inputs
    return (_part(value, task.integer("dim", 0), task.integer("start"), task.integer("stop")),)


def _part(value: Any, dim: int, start: int, stop: int) -> Any:
    if not 0 <= start <= stop <= value.shape[dim]:
        raise ValueError(
            f"[{start}, {stop}) is no part of {value.shape[dim]} along dimension {dim}"
        )
    return value[_along(value, dim, start, stop)]


def _along(value: Any, dim: int, start: int, stop: int) -> tuple[slice, ...]:
    """The index of [start, stop) along a dimension."""
    return (*[slice(None)] * (dim % len(value.shape)), slice(start, stop))


def _pad(task: WorkerTask) -> Tensors:
    (value,) = task.inputs
    dim = task.integer("dim", 0)
    before = task.integer("before", 0)
    after = task.integer("after", 0)
    if min(before, after) < 0:
        raise ValueError(f"{before} before and {after} after: padding cannot be negative")
    shape = list(value.shape)
    shape[dim] += before + after
    dtype = str(task.arrays.name_of(value))
    available_memory.require(
        available_memory.bytes_of(shape, item_bytes(dtype), "the padded value"), "the padded value"
    )
    padded = task.arrays.zeros(shape, dtype)
    padded[_along(value, dim, before, before + value.shape[dim])] = value
    return (padded,)


def _concat(task: WorkerTask) -> Tensors:
    parts = [value if value.shape else value.reshape(1) for value in task.inputs]  # losses
    # a program may name one value thousands of times
    available_memory.require(sum(part.nbytes for part in parts), "all parts together")
    return (task.arrays.concat(parts, task.integer("dim", 0)),)


def _add(task: WorkerTask) -> Tensors:
    first, *others = task.inputs
    for index, other in enumerate(others):
        if other.shape != first.shape or other.dtype != task.inputs[0].dtype:
            raise ValueError(
                f"cannot add {other.dtype} {list(other.shape)} to {task.inputs[0].dtype} "
                f"{list(task.inputs[0].shape)}"
            )
        if index:
            first += other
        else:
            available_memory.require(first.nbytes, "the sum")
            first = first + other  # a new tensor, which the rest go into
    return (first,)


OPERATIONS: dict[str, Callable[[WorkerTask], Tensors]] = {
    "": lambda task: (),
    "run": _run,
    "backward": _backward,
    "backward_input": _backward_input,
    "backward_weight": _backward_weight,
    "gradients": _gradients,
    "norms": _norms,
    "limit": _limit,
    "step": _step,
    "state": _state,
    "assign": _assign,
    "slice": _slice,
    "pad": _pad,
    "concat": _concat,
    "add": _add,
}
