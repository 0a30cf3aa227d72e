"""Model: a network as potluck sees it, made from a torch module or an ONNX file, with its layers and its segments."""

import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from potluck import records
from potluck.errors import ModelError
from potluck.graph.indices import check_indices, index_bounds
from potluck_wire.graph import BATCH, DTYPE_BYTES, FLOATS, Graph, Input, Output, evaluate
from potluck_wire.segment import dumps

from .cuts import Line, line
from .layers import Layers, layers
from .traced import Traced

if TYPE_CHECKING:
    import torch

    from .modelgraph import ModelGraph, Node
    from .onnx_model import OnnxModel

MAX_LAYERS = 24  # enough for 8 devices to choose from; measuring a layer costs each of them some seconds


class Model:
    """A network, its layers, and its pieces for devices. Make one with `from_torch` or `from_onnx`."""

    def __init__(self, *, inference: Layers, training: Layers | None, net: Any, name: str = "") -> None:
        self._inference, self._training, self._net, self._name = inference, training, net, name
        self._as_onnx: dict[tuple[int, int], bytes] = {}  # what was exported before, by layers

    @property
    def name(self) -> str:
        """What plans call it: the name given, or one made from its class and signature."""
        return self._name or f"{type(self._net).__name__.lower()}-{self.signature[:8]}"

    @classmethod
    def from_torch(
        cls,
        net: "torch.nn.Module",
        example_inputs: "torch.Tensor | Sequence[torch.Tensor]",
        *,
        loss: "Callable[..., torch.Tensor] | None" = None,
        example_targets: "torch.Tensor | Sequence[torch.Tensor]" = (),
        sequence_dims: Sequence[int | None] = (),
        max_layers: int = MAX_LAYERS,
        merge_below: float = 0.0,
        name: str = "",
    ) -> "Model":
        """A model from a torch module and an example of its inputs (the batch is the first dimension of each).

        With `loss`, called as loss(output, *targets) and giving a mean over rows, it can be trained. That it gives one
        is proven from its graph; where that cannot be, it is tried, and a warning says so. The mean may be weighted
        (class weights, ignored targets, a mask): what all targets of a batch make up, such as the number that counts,
        is taken of the whole batch, as on one machine. Where the module computes its loss itself, wrap it in one that
        returns the logits, and write the loss beside it. Plans call it `name`. `sequence_dims[i]` is the dimension of
        input (then target) i that may change its length too. Raises ModelError.
        """
        import torch

        from .export import trace
        from .learning import check_module

        if not isinstance(net, torch.nn.Module):
            raise ModelError(f"a torch.nn.Module is expected, got {type(net).__name__}.")
        check_module(net)
        inputs, targets = _rows_of(example_inputs, "input"), _rows_of(example_targets, "target")
        if not inputs:
            raise ModelError("an example of the inputs is needed.")
        if loss is not None and not targets:
            raise ModelError("a loss needs an example of the targets.", next_step="Pass example_targets.")
        if loss is None and targets:
            raise ModelError("targets are given, and no loss.", next_step="Pass loss=, as in loss(output, target).")
        if isinstance(loss, type) or (loss is not None and not callable(loss)):
            raise ModelError(
                f"the loss is called as loss(output, *targets), got {loss!r}.",
                next_step="Pass a function or an object, such as torch.nn.CrossEntropyLoss().",
            )
        inputs, targets = _at_least_two(inputs, targets)
        names = [f"input_{i}" if i else "input" for i in range(len(inputs))]
        target_names = [f"target_{i}" if i else "target" for i in range(len(targets))]

        def laid_out(traced: Traced) -> Layers:
            return layers(line(traced), n_inputs=len(inputs), max_layers=max_layers, merge_below=merge_below)

        inference = trace(net, inputs, input_names=names, sequence_dims=sequence_dims)
        training = None
        if loss is not None:
            training = trace(
                net,
                inputs,
                input_names=[*names, *target_names],
                loss=loss,
                targets=targets,
                sequence_dims=sequence_dims,
            )
        model = cls(
            inference=laid_out(inference), training=laid_out(training) if training else None, net=net, name=name
        )
        if training is not None and training.unproven:
            warnings.warn(model.notes(train=True)[-1], stacklevel=2)
        return model

    @staticmethod
    def from_onnx(
        path: str | Path,
        *,
        sizes: Mapping[str, int] = MappingProxyType({}),
        max_layers: int = MAX_LAYERS,
        merge_below: float = 0.0,
    ) -> "OnnxModel":
        """A model for inference from an ONNX file whose inputs have a free first dimension, the batch.

        `sizes` fixes the other free dimensions by name. Raises FileError or ModelError.
        """
        from .onnx_model import OnnxModel

        return OnnxModel.read(Path(path), sizes=sizes, max_layers=max_layers, merge_below=merge_below)

    # --- layers and segments ---

    @property
    def trains(self) -> bool:
        """Whether a loss is part of it."""
        return self._training is not None

    def layers(self, train: bool = False) -> tuple[records.Layer, ...]:
        """Its layers, for training or for inference (they may differ in number)."""
        return self._laid_out(train).records

    def segment(self, start: int, stop: int, *, train: bool = False) -> tuple[records.Segment, Graph]:
        """Layers [start, stop) as a piece for a device: what it looks like from outside, and the graph."""
        chosen = self._laid_out(train)
        n_layers = len(chosen.records)
        if not 0 <= start < stop <= n_layers:
            raise ModelError(f"there are no layers [{start}, {stop}): the model has {n_layers}.")
        graph = chosen.graph(start, stop)
        return _segment_record(graph, chosen, start, stop), graph

    def kinds(self, train: bool = False) -> tuple[str, ...]:
        """As what its pieces can be given to devices, the best first."""
        return ("aten",) if train else ("aten", "onnx")

    def document(self, start: int, stop: int, *, train: bool = False, kind: str = "") -> bytes:
        """Layers [start, stop) as bytes for a device, as one of `kinds`; by default the first.

        Raises ModelError where they cannot be of that kind.
        """
        if kind and kind not in self.kinds(train):
            raise ModelError(f"its pieces cannot be {kind} in {'training' if train else 'inference'}.")
        if kind == "onnx" and (start, stop) in self._as_onnx:
            return self._as_onnx[start, stop]
        document = self.document_of(self.segment(start, stop, train=train)[1], kind)
        if kind == "onnx":
            self._as_onnx[start, stop] = document
        return document

    def document_of(self, graph: Graph, kind: str = "") -> bytes:
        """A graph made of operators of this model as bytes for a device."""
        if kind != "onnx":
            return dumps(graph)
        try:
            from . import onnx_export
        except ImportError as error:
            raise ModelError(
                f"a device without torch needs it as ONNX, and here the package {error.name} is missing.",
                next_step='pip install "potluck[onnx]"',
            ) from error
        return onnx_export.document(graph, self._inference.line.traced.tensors)

    def notes(self, train: bool = False) -> tuple[str, ...]:
        """What keeps the model from being cut more finely, and what of its loss is not proven, in words."""
        line = self._laid_out(train).line
        tied = sorted({name for _, _, name in line.tied})
        notes = [f"{name} is used in several places, which training keeps on one device" for name in tied]
        if line.traced.unproven:
            notes.append(
                "that the loss is a mean over rows was tried on several batches, and is not proven: how "
                f"{line.traced.unproven} treats rows is not known"
            )
        return tuple(notes)

    def _laid_out(self, train: bool) -> Layers:
        if not train:
            return self._inference
        if self._training is None:
            raise ModelError("this model has no loss, so it cannot be trained.", next_step="Pass loss= to from_torch.")
        return self._training

    @property
    def signature(self) -> str:
        """A name that is the same for the same graph and layers, whatever the weights."""
        digest = hashlib.sha256()
        for chosen in (self._inference, self._training):
            if chosen is not None:
                graph = chosen.line.traced.graph
                free = replace(graph, symbols=tuple(replace(symbol, hint=1) for symbol in graph.symbols))
                digest.update(dumps(free) + repr(chosen.bounds).encode())
        return digest.hexdigest()[:32]

    # --- state ---

    def state(self) -> "dict[str, torch.Tensor]":
        """All parameters and buffers as they are in the user's module now, by name."""
        chosen = [c for c in (self._inference, self._training) if c is not None]
        return {name: tensor.detach() for c in chosen for name, tensor in c.line.traced.tensors.items()}

    def state_names(self, start: int, stop: int, *, train: bool = False) -> tuple[str, ...]:
        """Names of the state that layers [start, stop) need: parameters, then buffers."""
        _, graph = self.segment(start, stop, train=train)
        return (*(p.name for p in graph.parameters), *(b.name for b in graph.buffers))

    def load_state(self, state: "Mapping[str, torch.Tensor]") -> None:
        """Put weights into the user's own module. Raises ModelError, and changes nothing, where one does not fit."""
        import torch

        own = self.state()
        for name, tensor in state.items():
            if name not in own:
                raise ModelError(f"the model has no state {name!r}.")
            if tuple(tensor.shape) != tuple(own[name].shape):
                raise ModelError(f"{name} has the shape {list(tensor.shape)}; {list(own[name].shape)} is expected.")
        with torch.no_grad():
            for name, tensor in state.items():
                own[name].copy_(tensor)

    def graph(self) -> "ModelGraph":
        """Its operators with their costs: for `potluck.estimate` on homes that do not exist, and as text."""
        from .priced import priced

        return priced(self._inference.line.traced, name=self.name, source=repr(self))

    def operators(self, train: bool = False) -> "tuple[tuple[Node, ...], ...]":
        """The operators of each layer with their costs."""
        from .priced import nodes_of

        chosen = self._laid_out(train)
        found = nodes_of(chosen.line)
        return tuple(
            tuple(found[i] for i in range(start, stop) if i in found) for start, stop in pairwise(chosen.bounds)
        )

    def traced_line(self) -> Line:
        """The inference graph as it was traced, in a line."""
        return self._inference.line

    def laid_out(self) -> Layers:
        """The inference graph in a line, and where its layers begin."""
        return self._inference

    # --- inputs and outputs ---

    def inputs(self, train: bool = False) -> tuple[records.Tensor, ...]:
        """What home feeds: the inputs, in training followed by the targets and what the loss makes of a whole batch."""
        traced = self._laid_out(train).line.traced
        return tuple(_tensor(port, traced.hints) for port in traced.graph.inputs)

    def fed(self, *batch: "torch.Tensor") -> "dict[str, torch.Tensor]":
        """All that home feeds of one step of training, by name; it was checked before."""
        from .rows import OperatorFailed

        traced = self._laid_out(True).line.traced
        try:
            tallies = traced.tallies(batch) if traced.tallies else []
        except OperatorFailed as error:
            raise ModelError(f"its loss cannot be taken of these targets: {error}") from error
        return {port.name: tensor for port, tensor in zip(traced.graph.inputs, (*batch, *tallies), strict=True)}

    def check_inputs(self, *tensors: Any, train: bool = False) -> int:
        """The number of rows, after checking types, shapes and indices. Raises ModelError: what was expected."""
        traced = self._laid_out(train).line.traced
        ports = traced.given
        if len(tensors) != len(ports):
            expected = ", ".join(port.name for port in ports)
            wanted = "1 tensor is" if len(ports) == 1 else f"{len(ports)} tensors are"
            raise ModelError(f"{wanted} expected ({expected}); got {len(tensors)}.")
        for port, tensor in zip(ports, tensors, strict=True):
            if not hasattr(tensor, "detach"):
                is_array = hasattr(tensor, "dtype")
                raise ModelError(
                    f"{port.name} is {'an array' if is_array else f'a {type(tensor).__name__}'}; a tensor is expected.",
                    next_step="torch.as_tensor(x) makes one of an array." if is_array else "",
                )
        sizes: dict[str, int] = {}
        for symbol in traced.graph.symbols:
            shape = tuple(tensors[symbol.input].shape)
            if symbol.dim >= len(shape):
                raise _mismatch(ports[symbol.input], tensors[symbol.input], traced.hints)
            sizes[symbol.name] = shape[symbol.dim]
        for port, tensor in zip(ports, tensors, strict=True):
            expected_shape = tuple(evaluate(size, sizes) for size in port.shape)
            dtype = str(tensor.dtype).removeprefix("torch.")
            if tuple(tensor.shape) != expected_shape or dtype != port.dtype:
                raise _mismatch(port, tensor, sizes, expected=expected_shape, got=tuple(tensor.shape))
        check_indices(index_bounds(traced), [port.name for port in ports], tensors)
        return sizes[BATCH]

    def __repr__(self) -> str:
        size = sum(layer.parameter_bytes for layer in self.layers())
        training = f", {len(self.layers(True))} in training" if self.trains else ""
        name = self.kinds()[0] if self._net is None else type(self._net).__name__
        return f"<Model {name}: {len(self.layers())} layers{training}, {size / 1e6:.3g} MB>"

    def _repr_html_(self) -> str:
        from potluck.display import html

        return html.layers(self.layers(self.trains), repr(self).strip("<>"))


def _rows_of(example: Any, what: str) -> "list[torch.Tensor]":
    """The tensors of an example, which is one of them, or a row of them."""
    import torch

    tensors = list(example) if isinstance(example, Sequence | Iterator) and not isinstance(example, str) else [example]
    for i, tensor in enumerate(tensors):
        which = f"example {what}{f' {i}' if len(tensors) > 1 else ''}"
        if not isinstance(tensor, torch.Tensor):
            raise ModelError(
                f"{which} is a {type(tensor).__name__}; a tensor whose first dimension is the batch is expected.",
                next_step="Wrap the module in one that takes tensors, one after the other.",
            )
        if tensor.dim() == 0 or tensor.layout is not torch.strided:
            form = "has no dimension" if tensor.dim() == 0 else "is sparse"
            raise ModelError(f"{which} {form}; a dense tensor whose first dimension is the batch is expected.")
    return tensors


def _at_least_two(
    inputs: "list[torch.Tensor]", targets: "list[torch.Tensor]"
) -> "tuple[list[torch.Tensor], list[torch.Tensor]]":
    """The example with two rows where it has one: a batch of one would be taken for a constant."""
    import torch

    rows = {tensor.shape[0] for tensor in (*inputs, *targets)}
    if len(rows) != 1 or 0 in rows:
        raise ModelError(
            f"the examples have {sorted(rows)} rows.", next_step="Give them all the same batch, as first dimension."
        )
    if rows == {1}:
        return [torch.cat([x, x]) for x in inputs], [torch.cat([x, x]) for x in targets]
    return inputs, targets


def _mismatch(port: Input, tensor: Any, sizes: Mapping[str, int], **facts: Any) -> ModelError:
    words = [
        _rows(sizes) if size == BATCH else size if isinstance(size, str) else evaluate(size, sizes)
        for size in port.shape
    ]
    expected = ", ".join(str(word) for word in words)
    dtype = str(tensor.dtype).removeprefix("torch.")
    next_step = ""
    if len(tensor.shape) == len(port.shape) - 1:
        next_step = "The first dimension is the batch: x[None] makes one row of x."
    elif dtype != port.dtype:
        next_step = f"Convert it: .to(torch.{port.dtype})."
    text = f"{port.name} is {dtype} {list(tensor.shape)}; {port.dtype} [{expected}] is expected."
    return ModelError(text, next_step=next_step, **facts)


def _rows(sizes: Mapping[str, int]) -> str:
    return f"{sizes[BATCH]} row{'s' * (sizes[BATCH] != 1)}" if BATCH in sizes else "rows"


def _tensor(port: Input | Output, hints: Mapping[str, int]) -> records.Tensor:
    sizes = {**hints, BATCH: 1}
    elements = math.prod(evaluate(size, sizes) for size in port.shape)
    return records.Tensor(
        name=port.name, dtype=port.dtype, row_bytes=elements * DTYPE_BYTES[port.dtype], gradient=port.gradient
    )


def _segment_record(graph: Graph, chosen: Layers, start: int, stop: int) -> records.Segment:
    traced = chosen.line.traced
    own = {port.name for port in traced.graph.inputs}
    tensors = [_tensor(port, traced.hints) for port in graph.inputs]
    return records.Segment(
        name=f"layers-{start}-{stop}",
        start=start,
        stop=stop,
        feeds=tuple(t for t in tensors if t.name in own),
        inputs=tuple(t for t in tensors if t.name not in own),
        sources=chosen.sources(start, stop),
        outputs=tuple(_tensor(port, traced.hints) for port in graph.outputs),
        parameter_count=sum(math.prod(p.shape) for p in graph.parameters if p.trainable),
        buffer_count=sum(math.prod(b.shape) for b in graph.buffers if b.updated and b.dtype in FLOATS),
    )
