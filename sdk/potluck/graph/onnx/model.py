"""Model from an ONNX file: for inference.

Its pieces are ONNX again, with the weights sent apart.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from potluck import records
from potluck.errors import FileError, ModelError
from potluck.graph.arguments import Arguments
from potluck.graph.model import MAX_LAYERS, Model
from potluck.graph.onnx.ports import port
from potluck.graph.onnx.trace import OnnxTrace, trace
from potluck.graph.partition.cuts import line
from potluck.graph.partition.layers import layers
from potluck_wire.graph import Graph

if TYPE_CHECKING:
    import torch

# smaller tensors (shapes, scales) stay in the document; onnxruntime folds them
KEPT_INSIDE_BYTES = 1024
_NOT_TRAINED = (
    "a model from an ONNX file answers, and is not trained. Train the torch module that the file "
    "was made from: Model.from_torch(net, example, loss=...)."
)


class OnnxModel(Model):
    """A network from an ONNX file. It answers like any `Model`; its pieces are ONNX.

    Parameters
    ----------
    traced
        The graph, as `potluck.graph.onnx.trace` reads it.
    max_layers
        Operators are merged into at most so many layers.
    merge_below
        A layer with a smaller part of the model's work than this, from 0 to 1, joins a neighbour.
    name
        What plans call it.
    """

    def __init__(
        self, traced: OnnxTrace, *, max_layers: int, merge_below: float, name: str = ""
    ) -> None:
        n_inputs = len(traced.traced.graph.inputs)
        laid_out = layers(
            line(traced.traced), n_inputs=n_inputs, max_layers=max_layers, merge_below=merge_below
        )
        arguments = Arguments(inputs=traced.inputs)
        super().__init__(
            inference=laid_out, training=None, net=None, name=name, arguments=arguments
        )
        self.untrained = _NOT_TRAINED
        self._trace = traced
        self._weights = {
            t.name: t for t in traced.model.graph.initializer if len(t.raw_data) > KEPT_INSIDE_BYTES
        }

    def save(self, path: str | Path) -> None:
        """Refused: its own file is what it is made from.

        Raises
        ------
        ModelError
            Always.
        """
        raise ModelError(
            "a model from an ONNX file is that file.",
            next_step="Keep the file, and read it with Model.from_onnx.",
        )

    @classmethod
    def read(
        cls,
        path: Path,
        data: bytes,
        *,
        sizes: Mapping[str, int],
        max_layers: int = MAX_LAYERS,
        merge_below: float = 0.0,
    ) -> "OnnxModel":
        """The model in a file's bytes. `sizes` fixes every free dimension but the batch.

        Parameters
        ----------
        path
            The file, for messages.
        data
            What is in it.
        sizes
            A number for every free dimension but the batch, by its name.
        max_layers
            Operators are merged into at most so many layers.
        merge_below
            A layer with a smaller part of the model's work than this, from 0 to 1, joins a
            neighbour.

        Raises
        ------
        FileError
            The file is no ONNX model.
        ModelError
            It has an operator that is not known, or a dimension without a size.
        """
        try:
            model = onnx.ModelProto.FromString(data)
        except DecodeError as error:
            raise FileError(f"{path} is not an ONNX file.") from error
        if not model.graph.output:
            raise FileError(f"{path} holds no graph with outputs.")
        return cls(
            trace(model, sizes, file=str(path)),
            max_layers=max_layers,
            merge_below=merge_below,
            name=path.stem,
        )

    def as_torch(self, *, max_layers: int = MAX_LAYERS, merge_below: float = 0.0) -> Model:
        """The same network made of torch's operators, which can be divided by rows.

        It answers within 1e-4.

        Raises
        ------
        ModelError
            It has an operator that torch does not have.
        """
        import torch

        from potluck.graph.onnx.module import OnnxNet
        from potluck.graph.trace import trace as export

        net = OnnxNet(self._trace).eval()
        names = [port.name for port in self._trace.traced.graph.inputs]
        inputs = [torch.from_numpy(np.array(self._trace.example[name])) for name in names]
        laid_out = layers(
            line(export(net, inputs, input_names=names)),
            n_inputs=len(names),
            max_layers=max_layers,
            merge_below=merge_below,
        )
        made = Model(
            inference=laid_out, training=None, net=net, name=self.name, arguments=self.arguments
        )
        made.untrained = self.untrained
        return made

    def segment(
        self, start: int, stop: int, *, train: bool = False
    ) -> tuple[records.Segment, Graph]:
        """Layers [start, stop) seen from outside; the graph's nodes are only for reckoning: see
        `document`.

        Parameters
        ----------
        start, stop
            Layers [start, stop).
        train
            Refused: it does not train.

        Returns
        -------
        tuple[records.Segment, Graph]
            The record that plans are compiled with, and a graph without nodes.

        Raises
        ------
        ModelError
            There are no such layers.
        """
        record, graph = super().segment(start, stop, train=train)
        kept = tuple(p for p in graph.parameters if p.name in self._weights)
        return record, Graph(
            inputs=graph.inputs, parameters=kept, outputs=graph.outputs, symbols=graph.symbols
        )

    def kinds(self, train: bool = False) -> tuple[str, ...]:
        """ONNX, for inference alone."""
        return () if train else ("onnx",)

    def document(self, start: int, stop: int, *, train: bool = False, kind: str = "onnx") -> bytes:
        """Layers [start, stop) as an ONNX model, its weights left out.

        Parameters
        ----------
        start, stop
            Layers [start, stop).
        train, kind
            As for `Model`; there is one kind.
        """
        return self.document_of(self.laid_out(train).graph(start, stop))

    def document_of(self, graph: Graph, kind: str = "onnx") -> bytes:
        """A graph of this model's nodes as an ONNX model, its weights left out."""
        full = self._trace.model
        model = onnx.ModelProto(ir_version=full.ir_version)
        model.opset_import.extend(full.opset_import)
        model.graph.name = "segment"
        model.graph.input.extend(port(p.name, p.dtype, p.shape) for p in graph.inputs)
        model.graph.output.extend(port(p.name, p.dtype, p.shape) for p in graph.outputs)
        model.graph.node.extend(full.graph.node[node.number] for node in graph.nodes)
        wanted = {p.name for p in graph.parameters}
        model.graph.initializer.extend(
            self._stripped(t) for t in full.graph.initializer if t.name in wanted
        )
        return bytes(model.SerializeToString())

    def _stripped(self, tensor: onnx.TensorProto) -> onnx.TensorProto:
        if tensor.name not in self._weights:
            return tensor
        return onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)

    @property
    def signature(self) -> str:
        """A name that is the same for the same graph and layers, whatever the weights."""
        document = self.document(0, len(self.layers()))
        return hashlib.sha256(document + repr(self._inference.bounds).encode()).hexdigest()[:32]

    def state(self) -> "dict[str, torch.Tensor]":
        """All weights that are sent apart, by name."""
        import torch

        tensors = self._trace.traced.tensors
        return {name: torch.from_numpy(np.array(tensors[name])) for name in self._weights}

    def state_dict(
        self, state: "Mapping[str, torch.Tensor]", *, unchanging: bool = False
    ) -> "dict[str, torch.Tensor]":
        """The same: its names are the file's, and nothing else has its memory."""
        return dict(state)

    def load_state(self, state: "Mapping[str, torch.Tensor]") -> None:
        """Refused: an ONNX model is not trained.

        Raises
        ------
        ModelError
            Always.
        """
        raise ModelError("an ONNX model is not trained, so it has no weights to load.")
