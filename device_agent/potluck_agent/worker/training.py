"""A loaded segment: forward, backward, gradients, optimizer steps, and its state by name.

Gradients add up over micro-batches in the order of the backward calls, as they would on one
machine. Parameters are zeros until they are written (which takes no time), or made up, so that a
segment can be timed without any weight.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from potluck_wire.graph import (
    BATCH,
    DTYPE_BYTES,
    FLOATS,
    Graph,
    SegmentError,
    cached,
    evaluate,
    rowless,
)
from potluck_wire.optimizers import LOSS_SCALE, MAX_LOSS_SCALE
from potluck_wire.weight_gradients import weights_apart

from . import available_memory
from .arrays.torch_device import CPU
from .dropout import Masks
from .failures import is_out_of_memory
from .interpreter import Interpreter, Observer
from .operators import DTYPES
from .optimizers import ParameterOptimizer
from .recomputation import Recomputed, unsaved
from .split_backward import PieceRecorder, Waiting, read_once, weight_part
from .tasks import NO_OPTIONS, StepOptions
from .weight_versions import Weights, WeightVersions

Rows = tuple[int, int, int]
_INPUT = "bad-input"
# of one forward: the inputs that have a gradient, the outputs that have one, and where its backward
# comes in parts, what waits for the second
_Autograd = tuple[list[torch.Tensor], list[torch.Tensor], Waiting | None]


class _Kept(NamedTuple):
    """What is kept of a forward for its backward, and the version of the weights that it took."""

    forward: _Autograd | Recomputed
    weights: Weights

    @property
    def is_split(self) -> bool:
        """Whether its backward comes in two parts."""
        kept = self.forward
        return kept.split if isinstance(kept, Recomputed) else kept[2] is not None


class TrainingSegment:
    """A piece of a model that computes and learns.

    With `seed` None, dropout draws from torch's global generator as an unsplit model would. Else
    its masks are a function of (seed, step, micro-batch, node) and do not depend on the split."""

    def __init__(
        self,
        graph: Graph,
        seed: int | None = 0,
        *,
        made_up: bool = True,
        device: torch.device = CPU,
    ) -> None:
        self.graph, self._device = graph, device
        self._masks = None if seed is None else Masks(seed, _rowless(graph))
        randoms = self._masks.operators() if self._masks else None
        apart = weights_apart(graph)
        self._pieces = PieceRecorder(graph, apart, device)
        self._interpreter = Interpreter(graph, randoms, device, self._pieces.wrap)
        self._parameters = _parameters(graph, made_up, device)
        self._buffers = _made_up_buffers(graph, device)
        self._state = [*self._parameters.values(), *self._buffers.values()]
        self._trainable: Weights = {
            p.name: self._parameters[p.name] for p in graph.parameters if p.trainable
        }
        self._averaged = [
            self._buffers[b.name] for b in graph.buffers if b.updated and b.dtype in FLOATS
        ]
        learned = (*self._trainable.values(), *self._averaged)
        self._vector_dtype = (
            torch.float64 if any(t.dtype is torch.float64 for t in learned) else torch.float32
        )
        self._optimizer = ParameterOptimizer(self._trainable)
        self._versions = WeightVersions(self._trainable)
        self._updated = {b.name: self._buffers[b.name] for b in graph.buffers if b.updated}
        own = dict(enumerate(self._parameters.values(), start=len(graph.inputs)))
        self._apart = [own[value] for value in sorted(apart.parameters)]
        self._apart_once = [own[value] for value in apart.parameters & read_once(graph)]
        self._kept: dict[str, _Kept] = {}
        self._waiting: dict[str, Waiting] = {}  # for the second part of a backward

    # --- computing ---

    def forward(
        self,
        inputs: Sequence[torch.Tensor],
        *,
        key: str = "",
        train: bool = False,
        rows: Rows | None = None,
        step: int = 0,
        micro_batch: int = 0,
        recompute: bool = False,
        split: bool = False,
        observe: Observer | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """The outputs. In training, what backward needs is kept under `key` (the inputs' memory
        too: leave it be): with `recompute` the inputs alone, of which it computes the forward
        again. `split`: the backward will come in two parts.
        """
        self._draw_for(rows, step, micro_batch)
        if not train:
            return self._interpreter.run(inputs, self._state, train=False, observe=observe)
        if not recompute:
            kept, outputs = self._with_graph(inputs, self._state, observe, split=split)
            self._kept[key] = _Kept(kept, self._trainable)
            return tuple(y.detach() for y in outputs)
        again = Recomputed(inputs, self._updated, rows, step, micro_batch, split)
        with unsaved():  # the same kernels as in backward, and nothing of them is kept
            _, outputs = self._with_graph(inputs, self._state, observe)
        self._kept[key] = _Kept(again, self._trainable)
        return tuple(y.detach() for y in outputs)

    def _draw_for(self, rows: Rows | None, step: int, micro_batch: int) -> None:
        """Masks of dropout from now on are those of these rows."""
        if self._masks:
            _check_rows(rows)
            self._masks.rows = rows
            self._masks.step = step
            self._masks.micro_batch = micro_batch

    def _with_graph(
        self,
        inputs: Sequence[torch.Tensor],
        state: Sequence[torch.Tensor],
        observe: Observer | None = None,
        *,
        split: bool = False,
    ) -> tuple[_Autograd, tuple[torch.Tensor, ...]]:
        """A forward in training: what backward begins with and ends at, and the outputs."""
        if len(inputs) != len(self.graph.inputs):
            raise SegmentError(
                _INPUT, f"{len(self.graph.inputs)} inputs are expected, {len(inputs)} came"
            )
        ports = zip(inputs, self.graph.inputs, strict=True)
        leaves = [
            x.detach().requires_grad_() if port.gradient and x.is_floating_point() else x
            for x, port in ports
        ]
        waiting = self._pieces.waiting = [] if split else None
        try:
            outputs = self._interpreter.run(leaves, state, train=True, observe=observe)
        finally:
            self._pieces.waiting = None
        roots = [y for y, port in zip(outputs, self.graph.outputs, strict=True) if port.gradient]
        ends = [x for x, port in zip(leaves, self.graph.inputs, strict=True) if port.gradient]
        return (ends, roots, waiting), outputs

    def _again(self, kept: Recomputed, weights: Weights) -> _Autograd:
        """The forward once more, from the weights and buffers and with the masks of then; buffers
        and the generator of random numbers stay as they are now.
        """
        self._draw_for(kept.rows, kept.step, kept.micro_batch)
        parameters = {**self._parameters, **weights}
        state = [*parameters.values(), *kept.state_of(self._buffers)]
        with kept.random_numbers():
            return self._with_graph(kept.inputs, state, split=kept.split)[0]

    def backward(
        self, key: str, gradients: Sequence[torch.Tensor] = (), scale: float = 1.0
    ) -> tuple[torch.Tensor, ...]:
        """Gradients of the inputs that have one; adds to the parameters' own.

        `gradients` belong to the outputs that have one. Without any, the first output is the loss
        and `scale` is its gradient. Raises SegmentError where no forward was kept under `key`.
        """
        found = self.backward_input(key, gradients, scale)
        self.backward_weight(key)
        return found

    def backward_input(
        self, key: str, gradients: Sequence[torch.Tensor] = (), scale: float = 1.0
    ) -> tuple[torch.Tensor, ...]:
        """Gradients of the inputs that have one, as `backward`; those of the weights wait where the
        forward was `split`, and are added now where it was not.
        """
        if key not in self._kept:
            raise SegmentError(_INPUT, f"no forward is kept under {key!r}")
        kept, weights = self._kept.pop(key)
        if isinstance(kept, Recomputed):
            kept = self._again(kept, weights)
        leaves, roots, waiting = kept
        if not gradients:
            if not roots or roots[0].numel() != 1:
                raise SegmentError(
                    _INPUT,
                    "backward without gradients needs a segment whose first output is the loss",
                )
            roots, gradients = roots[:1], [torch.full_like(roots[0], scale)]
        if [tuple(g.shape) for g in gradients] != [tuple(y.shape) for y in roots]:
            expected = [list(y.shape) for y in roots]
            raise SegmentError(
                _INPUT,
                f"gradients of {[list(g.shape) for g in gradients]} came, {expected} expected",
            )
        pairs = [(y, g) for y, g in zip(roots, gradients, strict=True) if y.requires_grad]
        with _named_backward():
            if pairs:
                torch.autograd.backward([y for y, _ in pairs], [g for _, g in pairs])
        self._bring_over(weights)
        self._waiting[key] = waiting or []
        return tuple(torch.zeros_like(x) if x.grad is None else x.grad for x in leaves)

    def _bring_over(self, weights: Weights) -> None:
        """What a backward has added to an older version of the weights is added to the current."""
        if weights is self._trainable:
            return
        for name, old in weights.items():
            gradient, old.grad = old.grad, None
            current = self._trainable[name]
            if current.grad is None:
                current.grad = gradient
            elif gradient is not None:
                current.grad.add_(gradient)

    def backward_weight(self, key: str) -> None:
        """Add the gradients of weights that wait since `backward_input` to the parameters' own.

        Raises SegmentError where none was under `key`.
        """
        if key not in self._waiting:
            raise SegmentError(_INPUT, f"no gradients of weights wait under {key!r}")
        with _named_backward():
            weight_part(self._waiting.pop(key), self._apart_once, self._apart)

    def forget(self, prefix: str = "") -> None:
        """Drop what was kept for backward under keys that begin with `prefix`."""
        self._kept = {key: kept for key, kept in self._kept.items() if not key.startswith(prefix)}
        self._waiting = {k: kept for k, kept in self._waiting.items() if not k.startswith(prefix)}

    # --- learning ---

    def gradients(self, share_frac: float = 1.0, *, taken: bool = False) -> torch.Tensor:
        """All gradients, then all running statistics times `share_frac`, as one flat vector.

        Of float64 where one of them is, so that none of it is lost; otherwise of float32. `taken`:
        those of the next step begin anew.
        """
        gradients = [_gradient(p) for p in self._trainable.values()]
        copied = [g for g in gradients if g.dtype is not self._vector_dtype] + self._averaged
        numel = sum(tensor.numel() for tensor in (*gradients, *self._averaged, *copied))
        available_memory.require(numel * self._vector_dtype.itemsize, "the vector of gradients")
        parts = [self._flat(gradient) for gradient in gradients]
        parts += [self._flat(buffer) * share_frac for buffer in self._averaged]
        if taken:
            for parameter in self._trainable.values():
                parameter.grad = None
        return torch.cat(parts) if parts else torch.zeros(0, device=self._device)

    def _flat(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().reshape(-1).to(self._vector_dtype)

    def norms(self, vector: torch.Tensor | None, order: float) -> torch.Tensor:
        """The norm of each parameter's gradient, of this order (2: Euclid's); `vector` stands for
        the gradients.
        """
        parts = self._gradients_of(vector)
        norms = [torch.linalg.vector_norm(gradient, order) for gradient in parts.values()]
        return torch.stack(norms) if norms else torch.zeros(0, device=self._device)

    def limit(
        self,
        norms: Sequence[torch.Tensor],
        places: Sequence[int],
        max_norm: float,
        order: float,
        *,
        scaled: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What gradients are multiplied by so that the norm of all is at most `max_norm`, and that
        norm: as `torch.nn.utils.clip_grad_norm_`, not finite where a gradient is not.

        `places`: the norms are looked at in this order. `scaled`: they are gradients of a loss that
        was multiplied by the factor of this segment; the norm is that of a loss that was not.
        """
        all_norms = torch.cat([part.reshape(-1) for part in norms])
        if not places or max(places) >= len(all_norms):
            raise SegmentError(
                _INPUT, f"the last place is {max(places)}, of {len(all_norms)} norms"
            )
        total = torch.linalg.vector_norm(all_norms[list(places)], order)
        if not scaled:
            return torch.clamp(max_norm / (total + 1e-6), max=1.0), total
        factor = torch.exp2(self._named(LOSS_SCALE)[0].to(total.dtype))
        total = total / factor
        if not total.isfinite():
            return torch.full_like(total, math.nan), total
        return torch.clamp(max_norm / (total + 1e-6), max=1.0) / factor, total

    def step(
        self,
        vector: torch.Tensor | None,
        optimizer: Mapping[str, Any],
        options: StepOptions = NO_OPTIONS,
    ) -> None:
        """One optimizer step; `vector`, of the form of `gradients`, replaces gradients and
        statistics first. One that is `late` leaves statistics, and the gradients and forwards of
        the steps that are under way, as they are.
        """
        under_way = self._beside_others() if options.late else {}
        self._update(vector, optimizer, options)
        for name, gradient in under_way.items():
            self._trainable[name].grad = gradient

    def _beside_others(self) -> dict[str, torch.Tensor | None]:
        """Go over to weights that no outstanding backward needs; the gradients so far."""
        if self._waiting or any(kept.is_split for kept in self._kept.values()):
            raise SegmentError(_INPUT, "a late step among backwards in two parts")
        under_way = {name: p.grad for name, p in self._trainable.items()}
        for parameter in self._trainable.values():
            parameter.grad = None
        version = self._versions.to_write([kept.weights for kept in self._kept.values()])
        if version is not self._trainable:
            self._trainable = version
            self._parameters = {**self._parameters, **version}
            self._state = [*self._parameters.values(), *self._buffers.values()]
            self._optimizer.go_over(version)
        return under_way

    def _update(
        self, vector: torch.Tensor | None, optimizer: Mapping[str, Any], options: StepOptions
    ) -> None:
        if vector is not None:
            self._spread(vector, statistics=not options.late)
        if options.growth_steps is not None and self._is_left_out(
            options.scale, options.growth_steps
        ):
            self._optimizer.leave_out(options.average)
            return
        for parameter in self._trainable.values():
            if parameter.grad is None:
                continue
            if options.scale is not None:
                parameter.grad.mul_(options.scale.reshape(()).to(parameter.grad.device))
            if (max_value := options.clip_value) is not None:
                parameter.grad.clamp_(min=-max_value, max=max_value)
        self._optimizer.step(optimizer, options.groups, options.average)

    def _is_left_out(self, scale: torch.Tensor, growth_steps: int) -> bool:
        """Whether gradients are not finite. The factor of the loss, where it is here, shrinks then;
        it grows after so many steps in a row with finite ones.
        """
        is_left_out = not bool(scale.isfinite().all())
        if LOSS_SCALE in self._buffers:
            exponent, n_finite = self._buffers[LOSS_SCALE].tolist()
            n_finite = 0 if is_left_out else n_finite + 1
            if n_finite == growth_steps:
                exponent, n_finite = min(exponent + 1, MAX_LOSS_SCALE), 0
            now = [exponent - is_left_out, n_finite]
            self._buffers[LOSS_SCALE].copy_(torch.tensor(now))
        return is_left_out

    def _gradients_of(self, vector: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Per parameter its gradient: its own, zeros where it has none, or a part of the vector."""
        if vector is None:
            return {name: _gradient(p) for name, p in self._trainable.items()}
        copied = [p for p in self._trainable.values() if p.dtype is not vector.dtype]
        available_memory.require(sum(p.nbytes for p in copied), "gradients of a vector")
        pairs = zip(self._trainable.items(), self._parts(vector), strict=False)
        return {name: part.view_as(p).to(p.dtype) for (name, p), part in pairs}

    def _parts(self, vector: torch.Tensor) -> Sequence[torch.Tensor]:
        """Of a vector of the form of `gradients`: per parameter, then per statistic."""
        sizes = [t.numel() for t in (*self._trainable.values(), *self._averaged)]
        if tuple(vector.shape) != (sum(sizes),) or vector.dtype is not self._vector_dtype:
            got = f"{vector.dtype} {list(vector.shape)}"
            raise SegmentError(
                _INPUT, f"step takes a flat vector, {self._vector_dtype} [{sum(sizes)}], not {got}"
            )
        return torch.split(vector, sizes)

    def _spread(self, vector: torch.Tensor, *, statistics: bool) -> None:
        parts = self._parts(vector)
        for name, gradient in self._gradients_of(vector).items():
            self._trainable[name].grad = gradient
        if not statistics:
            return
        for buffer, part in zip(self._averaged, parts[len(self._trainable) :], strict=True):
            buffer.copy_(part.view_as(buffer))

    # --- state ---

    def names(self) -> tuple[str, ...]:
        """Everything that `read` knows: parameters, buffers, then the optimizer's state so far."""
        return (*self._parameters, *self._buffers, *self._optimizer.names())

    def read(self, name: str) -> torch.Tensor:
        """A named state; the optimizer's is `exp_avg:NAME` and so on, zeros before the first
        step.
        """
        if ":" in name and name not in self._buffers and name not in self._parameters:
            return self._optimizer.read(name)
        return self._named(name).detach()

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Overwrite a named state; the shape and type must be its own."""
        if ":" in name and name not in self._buffers and name not in self._parameters:
            self._optimizer.write(name, tensor)
            return
        state = self._named(name)
        if state.shape != tensor.shape or state.dtype is not tensor.dtype:
            got, expected = (
                f"{tensor.dtype} {list(tensor.shape)}",
                f"{state.dtype} {list(state.shape)}",
            )
            raise SegmentError(_INPUT, f"{name} is {expected}, not {got}")
        with torch.no_grad():
            state.copy_(tensor)

    def _named(self, name: str) -> torch.Tensor:
        state = self._parameters.get(name)
        state = self._buffers.get(name) if state is None else state
        if state is None:
            raise SegmentError(_INPUT, f"there is no state {name!r} in this segment"[:200])
        return state

    # --- measuring ---

    def example(self, rows: int) -> tuple[torch.Tensor, ...]:
        """Made-up inputs of that many rows (integers are zeros: a valid token and a valid
        class).
        """
        sizes = {symbol.name: symbol.hint for symbol in self.graph.symbols} | {BATCH: rows}
        generator = torch.Generator().manual_seed(0)
        made = []
        for port in self.graph.inputs:
            shape = [evaluate(size, sizes) for size in port.shape]
            floating = port.dtype in FLOATS
            available_memory.require(
                available_memory.bytes_of(shape, max(4, DTYPE_BYTES[port.dtype]), port.name),
                port.name,
            )
            made.append(torch.randn(shape, generator=generator) if floating else torch.zeros(shape))
        return tuple(
            x.to(self._device, DTYPES[port.dtype])
            for x, port in zip(made, self.graph.inputs, strict=True)
        )

    def kept_bytes(self, inputs: Sequence[torch.Tensor]) -> int:
        """Bytes that one forward in training keeps for backward, beside the parameters.

        Nothing is left for autograd to keep: a tensor that its own graph keeps would never be
        freed.
        """
        own = {t.untyped_storage().data_ptr() for t in self._state}
        # alive until all are counted, so that no address is used twice
        kept: dict[int, torch.UntypedStorage] = {}

        def note(tensor: torch.Tensor) -> None:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage

        with torch.autograd.graph.saved_tensors_hooks(note, lambda nothing: nothing):
            self.forward(inputs, key="\0kept", train=True)
        self.forget("\0kept")
        return sum(storage.nbytes() for place, storage in kept.items() if place not in own)


@contextmanager
def _named_backward() -> Iterator[None]:
    """Inside, what torch raises becomes a SegmentError."""
    try:
        yield
    except (RuntimeError, IndexError) as error:
        cause = "out-of-memory" if is_out_of_memory(error) else "arithmetic"
        raise SegmentError(cause, f"backward: {error}"[:300]) from error


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    """Its gradient, or zeros that take no memory."""
    if parameter.grad is not None:
        return parameter.grad
    return torch.zeros((), dtype=parameter.dtype, device=parameter.device).expand(parameter.shape)


def _rowless(graph: Graph) -> frozenset[int]:
    """The numbers of the nodes that no row has a part in."""
    values = rowless(graph)
    nodes = enumerate(graph.nodes, start=graph.first_node)
    return frozenset(node.number for value, node in nodes if value in values)


def _check_rows(rows: Rows | None) -> None:
    if rows is not None and not 0 <= rows[0] < rows[1] <= rows[2]:
        raise SegmentError(_INPUT, f"rows {list(rows)} are not [start, stop, total]")


def _parameters(graph: Graph, made_up: bool, device: torch.device) -> dict[str, torch.Tensor]:
    """Zeros, or values of the size that trained weights have: matrices 1/sqrt(inputs), vectors
    around one.
    """
    generator = torch.Generator().manual_seed(0)
    made = {}
    for p in graph.parameters:
        # one generator's numbers, whatever the device
        tensor = _zeros(p.name, p.shape, p.dtype, CPU if made_up else device)
        if made_up and p.dtype in FLOATS:
            if len(p.shape) > 1:
                tensor.normal_(
                    0.0,
                    math.prod(p.shape[1:]) ** -0.5 if tensor.numel() else 1.0,
                    generator=generator,
                )
            else:
                tensor.uniform_(0.5, 1.5, generator=generator)
        made[p.name] = tensor.to(device).requires_grad_(p.trainable and p.dtype in FLOATS)
    return made


def _made_up_buffers(graph: Graph, device: torch.device) -> dict[str, torch.Tensor]:
    """Ones where they are floats (a variance must be positive), else zeros (an index must be
    valid); caches are zeros.
    """
    made = {b.name: _zeros(b.name, b.shape, b.dtype, device) for b in graph.buffers}
    caches = cached(graph)
    for b in graph.buffers:
        if b.dtype in FLOATS and b.name not in caches:
            made[b.name].fill_(1.0)
    return made


def _zeros(name: str, shape: tuple[int, ...], dtype: str, device: torch.device) -> torch.Tensor:
    available_memory.require(available_memory.bytes_of(shape, DTYPE_BYTES[dtype], name), name)
    try:
        return torch.zeros(shape, dtype=DTYPES[dtype], device=device)
    except (RuntimeError, MemoryError) as error:
        raise SegmentError("out-of-memory", f"{name} {list(shape)}: {error}"[:300]) from error
