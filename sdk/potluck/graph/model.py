"""Model: a network as potluck sees it, made from a torch module or an ONNX file, with its layers
and its segments.
"""

import copy
import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from potluck import records
from potluck.display_hooks import Shown
from potluck.documents import file_path
from potluck.errors import ModelError
from potluck.graph.cautions import cautions, notes_of
from potluck.graph.partition.cuts import Linearization, line
from potluck.graph.partition.layers import Layers, layers
from potluck.graph.partition.segment_records import segment_record, tensor_record
from potluck.graph.tensor.allotment import TOLERANCE_FRAC
from potluck.graph.torch.state_names import as_module, load, unshared, unused
from potluck.optional_packages import needed
from potluck_wire.graph import Graph, Parameter
from potluck_wire.install_hints import install
from potluck_wire.segment import dumps

from .arguments import Arguments, dims_in_order
from .input_checks import check_inputs
from .traced import Traced

if TYPE_CHECKING:
    import torch

    from potluck.graph.loss.constants import LossConstants
    from potluck.graph.onnx.model import OnnxModel
    from potluck.graph.tensor.model import DividedModel
    from potluck.graph.torch.value_marks import Marks

    from .modelgraph import ModelGraph, OperatorNode

# enough for 8 devices to choose from; measuring a layer costs each of them some seconds
MAX_LAYERS = 24
_NO_LOSS = "this model has no loss, so it cannot be trained. Pass loss= to from_torch."


class Model(Shown):
    """A network, its layers, and its pieces for devices. Make one with `from_torch` or `from_onnx`.

    Parameters
    ----------
    inference, training
        The traced graph in layers, for each mode; `training` is None where there is no loss.
    net
        The user's own module, which gets the weights back.
    loss
        The user's own loss.
    name
        What plans call the model; default: made from its class and signature.
    arguments
        What a batch may call its inputs and targets; default: the names in the graph.
    """

    # of each state that is a piece of a larger one which: where a model is divided by tensor
    pieces: Mapping[str, Any] = MappingProxyType({})
    # how many its requests may have, beside those of a plan
    request_rows: tuple[int, ...] = ()
    # values that it answers by in place of the module's
    kept_values: "Mapping[str, torch.Tensor]" = MappingProxyType({})

    def __init__(
        self,
        *,
        inference: Layers,
        training: Layers | None,
        net: Any,
        loss: "Callable[..., torch.Tensor] | None" = None,
        name: str = "",
        arguments: Arguments | None = None,
    ) -> None:
        self._inference = inference
        self._training = training
        self._net, self._loss = net, loss
        self._name = name
        names = tuple(port.name for port in inference.line.traced.graph.inputs)
        # what a batch may call inputs and targets
        self.arguments = arguments or Arguments(inputs=names)
        # why it cannot be trained, and what to do
        self.untrained = "" if training is not None else _NO_LOSS
        self._as_traced = self._now()
        self._as_onnx: dict[tuple[int, int], bytes] = {}  # what was exported before, by layers

    @property
    def name(self) -> str:
        """What plans call it: the name given, or one made from its class and signature."""
        return self._name or f"{self.net_kind.lower()}-{self.signature[:8]}"

    @property
    def net_kind(self) -> str:
        """The class of the module that it was made from."""
        return type(self._net).__name__

    @classmethod
    def from_torch(
        cls,
        net: "torch.nn.Module",
        example_inputs: "torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor]",
        *,
        loss: "Callable[..., torch.Tensor] | str | int | None" = None,
        example_targets: "torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor]" = (),
        sequence_dims: Sequence[int | None] | Mapping[str, int | None] = (),
        max_layers: int = MAX_LAYERS,
        merge_below: float = 0.0,
        name: str = "",
        autocast: str = "",
        compares_rows: bool = False,
    ) -> "Model":
        """A model from a torch module and an example of its inputs (the batch is the first
        dimension of each).

        The example is a tensor, a tuple of them, or a mapping by the names that `forward` gives
        them; batches may be any of these later. Training is of the module as it is: what was put
        into `eval()` inside it stays so. (As a whole in evaluation, it is refused where that makes
        a difference: net.train() says what is meant.) With `loss`, called as loss(output, *targets)
        and giving a mean over rows, it can be trained. That it gives one is proven from its graph;
        where that cannot be, it is tried, and a warning says so. The mean may be weighted (class
        weights, ignored targets, a mask): what all targets of a batch make up, such as the number
        that counts, is taken of the whole batch, as on one machine. A sum over rows is one. Where
        the module computes its loss itself, as those of `transformers` do, `loss` says which part
        of its answer that is: "loss", or 0 for the first. It gets its targets by name. Plans call
        it `name`. `sequence_dims[i]` (or by name) is the dimension of input (then target) i that
        may change its length too, as far as tables of the module go.

        Parameters
        ----------
        net
            The module. Operators outside the list of `potluck_wire.operators` are refused.
        example_inputs
            One tensor, a tuple, or a mapping by the names of `forward`; each [rows, ...], rows
            first.
        loss
            Called as loss(output, *targets); gives a mean over rows, or a sum. Or the name (or the
            place) of the loss in what the module returns. Without it the model answers and does
            not train.
        example_targets
            As `example_inputs`, for the loss; each [rows, ...]. Where the module takes them, by
            name; default: those of the inputs that are called labels, or otherwise as usual.
            A loss of the output alone has none.
        sequence_dims
            Per input, then target (or by name): the dimension that may change its length too, or
            None.
        max_layers
            Operators are merged into at most so many layers.
        merge_below
            A layer with a smaller part of the model's work than this, from 0 to 1, joins a
            neighbour.
        name
            What plans call it; default: made from the module's class.
        autocast
            `bfloat16` or `float16`: devices compute as under torch.autocast of that type on a CPU.
            Weights stay as they are. With `float16` the loss is scaled as by torch.amp.GradScaler:
            steps whose gradients overflow are left out.
        compares_rows
            The loss, or an output, compares rows of a batch with each other (contrastive, dice
            over the batch; scores of all images for all texts). All rows of a batch, or of a
            request, then go through the pipeline at once, and one device has what compares them.

        Raises
        ------
        ModelError
            It cannot be traced, an operator is not allowed, or the loss is no mean over rows.
        """
        with needed():
            import torch

            from potluck.graph.torch import mixed_precision
            from potluck.graph.torch.examples import examples
            from potluck.graph.torch.refusals import each
            from potluck.graph.torch.trainability import check_memory, check_module
            from potluck.graph.trace import trace

        if not isinstance(net, torch.nn.Module):
            raise ModelError(f"a torch.nn.Module is expected, got {type(net).__name__}.")
        check_module(net)
        mixed_precision.check(autocast)
        if loss is not None:
            check_memory(net)
        given = examples(net, loss, example_inputs, example_targets, compares_rows=compares_rows)
        names, all_names = given.names()

        def laid_out(traced: Traced) -> Layers:
            return layers(
                line(traced), n_inputs=len(names), max_layers=max_layers, merge_below=merge_below
            )

        traced = partial(
            trace,
            net,
            given.inputs,
            sequence_dims=dims_in_order(sequence_dims, given.arguments),
            keywords=given.keywords,
            autocast=autocast,
            compares_rows=compares_rows,
        )
        modes = [partial(traced, input_names=names)]
        if given.loss is not None:
            modes.append(
                partial(traced, input_names=all_names, loss=given.loss, targets=given.targets)
            )
        inference, *rest = map(laid_out, each(modes))
        training = rest[0] if rest else None
        model = cls(
            inference=inference,
            training=training,
            net=net,
            loss=given.loss,
            name=name,
            arguments=given.arguments,
        )
        for note in cautions(model.laid_out(model.trains).line, inference.line, model.trains):
            warnings.warn(note, stacklevel=2)
        return model

    @classmethod
    def check(
        cls, net: "torch.nn.Module", example_inputs: Any, **how: Any
    ) -> tuple[ModelError, ...]:
        """Everything that devices refuse of a module, at once; empty where nothing is.

        Operators are all told, each with its line in your source; a branch that depends on the
        data hides what comes behind it.

        Parameters
        ----------
        net, example_inputs
            As for `from_torch`.
        **how
            Its other arguments, such as `loss` and `example_targets`.
        """
        try:
            cls.from_torch(net, example_inputs, **how)
        except ModelError as error:
            from potluck.graph.torch.refusals import all_of

            return all_of([error])
        return ()

    @staticmethod
    def from_onnx(
        path: str | Path,
        *,
        sizes: Mapping[str, int] = MappingProxyType({}),
        max_layers: int = MAX_LAYERS,
        merge_below: float = 0.0,
    ) -> "OnnxModel":
        """A model for inference from an ONNX file whose inputs have a free first dimension, the
        batch.

        `sizes` fixes the other free dimensions by name.

        Parameters
        ----------
        path
            The file.
        sizes
            A number for every other free dimension, by its name.
        max_layers
            Operators are merged into at most so many layers.
        merge_below
            A layer with a smaller part of the model's work than this, from 0 to 1, joins a
            neighbour.

        Raises
        ------
        FileError
            The file cannot be read, or is no ONNX model.
        ModelError
            It has an operator that is not known, or a dimension without a size.
        """
        from potluck.graph.onnx.file import read_bytes

        path = file_path(path)
        data = read_bytes(path)  # a wrong path is told also where the package onnx is missing
        with needed():
            from potluck.graph.onnx.model import OnnxModel

        return OnnxModel.read(
            path, data, sizes=sizes, max_layers=max_layers, merge_below=merge_below
        )

    def save(self, path: str | Path) -> None:
        """Write it to one file that `Model.load` reads: graphs and weights, none of your code.

        Parameters
        ----------
        path
            Where to.

        Raises
        ------
        ModelError
            It came from an ONNX file, which is that model already.
        FileError
            It cannot be written; nothing is left behind.
        """
        from potluck.graph.model_file import save_model

        save_model(self, file_path(path))

    @staticmethod
    def load(path: str | Path) -> "Model":
        """The model of a file that `save` wrote; it needs no module.

        What its loss makes of a whole batch, such as how many targets count, it takes as further
        targets: `model_file.with_reductions` makes them where the module is.

        Parameters
        ----------
        path
            The file.

        Raises
        ------
        FileError
            It is missing, cut short, of another kind, or does not hold.
        """
        from potluck.graph.model_file import load_model

        return load_model(file_path(path))

    def divided(
        self,
        shares: Sequence[int],
        *,
        tolerance_frac: float = TOLERANCE_FRAC,
        sequence: bool = False,
    ) -> "DividedModel":
        """The same model divided by tensor: each of several devices has some columns, heads,
        channels or rows of a table, and all have the sums. For links as fast as a wire.

        Answers, losses and gradients are those of this model within the rounding of sums in
        another order (1e-5 of the largest in float32).

        Parameters
        ----------
        shares
            The proportion, a whole number for each device: (1, 1), or (1, 2, 2, 4).
        tolerance_frac
            By which part a device may get more than its share, as heads, groups of them and
            channels stay whole.
        sequence
            Norms, residual sums and what else goes by the positions of a sequence are divided,
            too (sequence parallelism, Korthikanti et al. 2022): each device keeps those of its
            own positions for the backward. Of two devices the same bytes cross, of more fewer, in
            twice as many exchanges.

        Raises
        ------
        ModelError
            Nothing of it can be divided, or not in this proportion; says the numbers.
        """
        from potluck.graph.tensor.model import DividedModel

        return DividedModel(self, shares, tolerance_frac=tolerance_frac, sequence=sequence)

    def rounded(self, code: str) -> "Model":
        """The same model whose layers hand on smaller values: for links that are too slow.

        A choice of yours, as it changes the result. Every layer rounds what it hands on, whether a
        plan cuts there or not, so that all plans of this model give the same. What comes from and
        goes to the notebook stays as it is. `potluck.rounding_effect` measures what it changes.

        Parameters
        ----------
        code
            "bfloat16": half the bytes, of gradients, too. "float16": the same, for answers alone.
            "int8": a quarter, of gradients, too; a scale for each row, and for each of its tokens
            or channels, and the nearest of its 255 steps. In training, a value that several layers
            read crosses once for each, and what has no rows stays as it is.

        Raises
        ------
        ModelError
            There is no such code, or none to train with; nothing is handed on; the model came from
            an ONNX file or is divided already.
        """
        from potluck.graph.rounded import rounded_layers

        made = copy.copy(self)
        made._inference, made._training = rounded_layers(self, code)
        made._name, made._as_onnx = f"{self.name}-{code}-links", {}
        return made

    # --- layers and segments ---

    @property
    def trains(self) -> bool:
        """Whether a loss is part of it."""
        return self._training is not None

    def layers(self, train: bool = False) -> tuple[records.Layer, ...]:
        """Its layers, for training or for inference (they may differ in number)."""
        return self.laid_out(train).records

    def segment(
        self, start: int, stop: int, *, train: bool = False
    ) -> tuple[records.Segment, Graph]:
        """Layers [start, stop) as a piece for a device: what it looks like from outside, and the
        graph.

        Parameters
        ----------
        start, stop
            Layers [start, stop).
        train
            Of the training graph, which ends in the loss.

        Returns
        -------
        tuple[records.Segment, Graph]
            The record that plans are compiled with, and the graph that a device executes.

        Raises
        ------
        ModelError
            There are no such layers, or there is no loss to train with.
        """
        chosen = self.laid_out(train)
        n_layers = len(chosen.records)
        if not 0 <= start < stop <= n_layers:
            raise ModelError(f"there are no layers [{start}, {stop}): the model has {n_layers}.")
        graph = chosen.graph(start, stop)
        return segment_record(graph, chosen, start, stop), graph

    def kinds(self, train: bool = False) -> tuple[str, ...]:
        """As what its pieces can be given to devices, the best first."""
        return ("aten",) if train else ("aten", "onnx")

    def document(self, start: int, stop: int, *, train: bool = False, kind: str = "") -> bytes:
        """Layers [start, stop) as bytes for a device, as one of `kinds`; by default the first.

        Parameters
        ----------
        start, stop
            Layers [start, stop).
        train
            Of the training graph.
        kind
            "aten" or "onnx"; default: the first of `kinds`.

        Returns
        -------
        bytes
            A segment document; weights are not in it.

        Raises
        ------
        ModelError
            They cannot be of that kind.
        """
        if kind and kind not in self.kinds(train):
            raise ModelError(
                f"its pieces cannot be {kind} in {'training' if train else 'inference'}."
            )
        if kind == "onnx" and (start, stop) in self._as_onnx:
            return self._as_onnx[start, stop]
        document = self.document_of(self.segment(start, stop, train=train)[1], kind)
        if kind == "onnx":
            self._as_onnx[start, stop] = document
        return document

    def document_of(self, graph: Graph, kind: str = "") -> bytes:
        """A graph made of operators of this model as bytes for a device.

        Raises
        ------
        ModelError
            As ONNX: torch's exporter does not know an operator, or the package is missing.
        """
        if kind != "onnx":
            return dumps(graph)
        try:
            from potluck.graph.onnx import export
        except ImportError as error:
            raise ModelError(
                f"a device without torch needs it as ONNX, and here the package {error.name} is "
                "missing.",
                next_step=f"Run {install('onnx')}.",
            ) from error
        return export.document(graph, self._inference.line.traced.tensors)

    def notes(self, train: bool = False) -> tuple[str, ...]:
        """What keeps the model from being cut more finely, and what of its rows is not proven, in
        words.
        """
        return notes_of(self.laid_out(train).line, self._inference.line, train=train)

    @property
    def _graphs(self) -> tuple[Layers, ...]:
        return (self._inference,) if self._training is None else (self._inference, self._training)

    @property
    def signature(self) -> str:
        """A name that is the same for the same graph and layers, whatever the weights."""
        digest = hashlib.sha256()
        for chosen in self._graphs:
            graph = chosen.line.traced.graph
            free = replace(
                graph, symbols=tuple(replace(symbol, hint=1) for symbol in graph.symbols)
            )
            digest.update(dumps(free) + repr(chosen.bounds).encode())
        return digest.hexdigest()[:32]

    # --- state ---

    def state(self) -> "dict[str, torch.Tensor]":
        """All that devices keep, as it is in the user's modules now, by name: what belongs to the
        loss, too.
        """
        found = {name: tensor.detach() for name, tensor in self._tensors().items()}
        return {**found, **self.kept_values}

    def _tensors(self) -> "dict[str, torch.Tensor]":
        found: dict[str, torch.Tensor] = {}
        for traced in (chosen.line.traced for chosen in self._graphs):
            reductions = traced.reductions
            found |= {**(reductions.constants if reductions else {}), **traced.tensors}
        return found

    def loss_constants(self, state: "Mapping[str, torch.Tensor]") -> "LossConstants | None":
        """What its loss keeps, such as class weights, for a run that gets the weights `state`.

        None without a loss.
        """
        if self._training is None:
            return None
        from potluck.graph.loss.constants import of_run

        return of_run(self._training.line.traced, state)

    def state_dict(
        self, state: "Mapping[str, torch.Tensor]", *, unchanging: bool = False
    ) -> "dict[str, torch.Tensor]":
        """The state of devices as the module's own `state_dict`, without what belongs to the
        loss.

        Parameters
        ----------
        state
            By the names of devices.
        unchanging
            It shares no memory with the module.
        """
        found = as_module(self._net, self._tensors(), state)
        return unshared(self._net, found) if unchanging else found

    def unused_state(self) -> "dict[str, torch.Tensor]":
        """What of the module's state no device has any use for, by the module's own names."""
        return unused(self._net, self._tensors())

    def is_made_from(self, module: Any) -> bool:
        """Whether this is the module that it was made from."""
        return module is self._net

    def check_as_traced(
        self, *, train: bool = False, constants: "LossConstants | None" = None, quick: bool = False
    ) -> None:
        """Whether the user's module is what it was when it was traced, but for its values.

        Parameters
        ----------
        train
            Its loss matters, too, which parts are in evaluation, and which weights are trained.
        constants
            Those of a run, whose values must not have changed since.
        quick
            Of large ones, look only whether torch has changed them.

        Raises
        ------
        ModelError
            A tensor was replaced or converted since, or an attribute, a hook or a class changed.
        """
        if (now := self._now()) is None:
            return
        from potluck.graph.loss.constants import check_unchanged
        from potluck.graph.torch.change_detection import check_as_traced
        from potluck.graph.torch.training_modes import check_modes

        check_as_traced(self._as_traced, now, train=train)
        if train:
            check_modes(self._net, self.laid_out(True).line.traced)
        if constants is not None:
            check_unchanged(self.laid_out(True).line.traced, constants, quick=quick)

    def value_marks(self) -> "Marks":
        """Marks of the values that the tensors which it answers by have now, for `graph.values`.

        None of what was made from a file, which nobody changes.
        """
        if not hasattr(self._net, "named_modules"):
            return {}
        from potluck.graph.torch.value_marks import marks

        return marks(self._inference.line.traced.tensors)

    def _now(self) -> Any:
        """What the user's module and loss are now; None where it is no module."""
        if not hasattr(self._net, "named_modules"):
            return None
        from potluck.graph.torch.change_detection import as_traced

        return as_traced(self._net, self._loss, self._tensors())

    @property
    def trained(self) -> tuple[Parameter, ...]:
        """The weights that it trains, in the order of its modules; none where it cannot be."""
        graphs = [] if self._training is None else [self._training.line.traced.graph]
        return tuple(p for graph in graphs for p in graph.parameters if p.trainable)

    def names_by_identity(self) -> dict[int, str]:
        """What devices call each of the user's own parameters and buffers, by its `id`; empty
        where the graph does not use it. Nothing of a model from a file.
        """
        modules: list[Any] = [m for m in (self._net, self._loss) if hasattr(m, "named_modules")]
        found = {id(tensor): "" for module in modules for tensor in module.parameters()}
        return found | {id(t): name for name, t in self._tensors().items() if modules}

    def state_names(self, start: int, stop: int, *, train: bool = False) -> tuple[str, ...]:
        """Names of the state that layers [start, stop) need: parameters, then buffers.

        Parameters
        ----------
        start, stop
            Layers [start, stop).
        train
            Of the training graph.
        """
        _, graph = self.segment(start, stop, train=train)
        return (*(p.name for p in graph.parameters), *(b.name for b in graph.buffers))

    def load_state(self, state: "Mapping[str, torch.Tensor]") -> None:
        """Put the state of devices into the user's own module, and its loss.

        Raises
        ------
        ModelError
            A name or shape is not one of this model.
        """
        if (now := self._now()) is not None:
            from potluck.graph.torch.change_detection import check_tensors

            check_tensors(self._as_traced, now)
        load(self.state(), state)

    def graph(self) -> "ModelGraph":
        """Its operators with their costs: for `potluck.estimate` on homes that do not exist, and as
        text.
        """
        from potluck.graph.costed_graph import priced

        return priced(self._inference.line.traced, name=self.name, source=repr(self))

    def operators(self, train: bool = False) -> "tuple[tuple[OperatorNode, ...], ...]":
        """The operators of each layer with their costs."""
        from potluck.graph.costed_graph import nodes_by_layer

        chosen = self.laid_out(train)
        return nodes_by_layer(chosen.line, chosen.bounds)

    def traced_line(self) -> Linearization:
        """The inference graph as it was traced, in a line."""
        return self._inference.line

    def laid_out(self, train: bool = False) -> Layers:
        """A graph in a line, and where its layers begin.

        Raises
        ------
        ModelError
            It has no training graph.
        """
        if not train:
            return self._inference
        if self._training is None:
            raise ModelError(self.untrained)
        return self._training

    # --- inputs and outputs ---

    def inputs(self, train: bool = False) -> tuple[records.Tensor, ...]:
        """What home feeds: the inputs, in training followed by the targets and what the loss makes
        of a whole batch.
        """
        traced = self.laid_out(train).line.traced
        return tuple(tensor_record(port, traced.hints) for port in traced.graph.inputs)

    def fed(
        self, *batch: "torch.Tensor", constants: "LossConstants | None" = None
    ) -> "dict[str, torch.Tensor]":
        """All that home feeds of one step of training, by name; it was checked before.

        Parameters
        ----------
        *batch
            Inputs, then targets; each [rows, ...].
        constants
            Those of the run; default: as they are now.

        Raises
        ------
        ModelError
            The loss cannot be taken of these targets.
        """
        from potluck.graph.torch.batch_axis import OperatorFailed

        traced = self.laid_out(True).line.traced
        try:
            known = constants.fed if constants is not None else {}
            reductions = traced.reductions(batch, known) if traced.reductions else []
        except OperatorFailed as error:
            raise ModelError(f"its loss cannot be taken of these targets: {error}") from error
        return {
            port.name: tensor
            for port, tensor in zip(traced.graph.inputs, (*batch, *reductions), strict=True)
        }

    def check_inputs(self, *tensors: Any, train: bool = False) -> int:
        """The number of rows, after checking types, shapes and indices.

        Parameters
        ----------
        *tensors
            Inputs, and for training the targets; each [rows, ...].
        train
            Check them for training.

        Returns
        -------
        int
            The number of rows, the same for all.

        Raises
        ------
        ModelError
            A number, type, shape or index is another one than was expected.
        """
        return check_inputs(self.laid_out(train).line.traced, self.arguments, tensors, train)

    def answer(self, outputs: "Sequence[torch.Tensor]") -> Any:
        """All outputs, in order, in the structure in which the module returns them.

        A tensor or a tuple from ONNX.
        """
        from torch.utils import _pytree as pytree

        structure = self._inference.line.traced.structure
        if structure is None:
            return outputs[0] if len(outputs) == 1 else tuple(outputs)
        return pytree.tree_unflatten(outputs, structure)

    def __repr__(self) -> str:
        size = sum(layer.parameter_bytes for layer in self.layers())
        training = f", {len(self.layers(True))} in training" if self.trains else ""
        name = self.kinds()[0] if self._net is None else self.net_kind
        return f"<Model {name}: {len(self.layers())} layers{training}, {size / 1e6:.3g} MB>"
