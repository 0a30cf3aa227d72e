"""ModelGraph: a model as a DAG of operators with their costs, and its text form: JSON that a person
can read and diff.

Pure: the standard library only. A node's sizes are per row (sample) of the batch, its parameters
and buffers are totals, so that one file serves every batch size.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite
from typing import Any

from potluck.documents import read_json
from potluck.errors import FileError, ModelError
from potluck.graph.partition.branches import LEAST, Branches, find, hand_on
from potluck.records import Edge, Layer

FORMAT = "potluck model graph 1"

# What an operator mostly does: its efficiency on a device depends on this (profile/roofline.py).
KINDS = (
    "attention",  # scaled dot product attention
    "conv",  # dense convolution
    "depthwise",  # grouped convolution with few channels per group: bound by memory
    "elementwise",  # activations, additions, products, rotary embeddings
    "embedding",  # gather of table rows
    "matmul",  # linear layers and batched products
    "norm",  # batch, layer and RMS norm, softmax
    "pool",  # pooling, means, resizing
)
COLUMNS = (
    "name",
    "kind",
    "inputs",
    "forward_flop",
    "backward_flop",
    "parameter_bytes",
    "buffer_bytes",
    "output_bytes",
    "activation_bytes",
    "traffic_bytes",
)
FROZEN = "frozen_bytes"  # a last column, where a graph has frozen weights
_COUNTS = (*COLUMNS[3:], FROZEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInput:
    """A tensor that the model is fed, `row_bytes` per row."""

    name: str
    row_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorNode:
    """One operator. `inputs`: names of nodes or of model inputs.

    Per row: flop, `output_bytes`, `activation_bytes` (kept from forward to backward),
    `traffic_bytes` (read and written by a forward pass, parameters aside). Totals:
    `parameter_bytes`, of them `frozen_bytes` that training leaves as they are, and `buffer_bytes`.
    A multiply-add is 2 flop.
    """

    name: str
    kind: str
    inputs: tuple[str, ...] = ()
    forward_flop: int = 0
    backward_flop: int = 0
    parameter_bytes: int = 0
    buffer_bytes: int = 0
    output_bytes: int = 0
    activation_bytes: int = 0
    traffic_bytes: int = 0
    frozen_bytes: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ModelError(
                f"node {self.name!r} has kind {self.kind!r}; expected one of {', '.join(KINDS)}."
            )
        for field in _COUNTS:
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ModelError(
                    f"node {self.name!r}: {field} is {value!r}; expected a whole number, 0 or more."
                )
        if self.frozen_bytes > self.parameter_bytes:
            raise ModelError(
                f"node {self.name!r}: frozen_bytes is {self.frozen_bytes}; expected at most "
                f"parameter_bytes, {self.parameter_bytes}."
            )


def _has_waiting(node: OperatorNode) -> bool:
    """Whether its weights are trained, and their gradient is a computation of its own."""
    is_product = node.kind in ("conv", "depthwise", "matmul", "embedding")
    return is_product and node.parameter_bytes > node.frozen_bytes


def _weight_flop(node: OperatorNode) -> int:
    return min(node.forward_flop, node.backward_flop) if _has_waiting(node) else 0


def still_nodes(nodes: Sequence[OperatorNode]) -> frozenset[str]:
    """The nodes through which no gradient flows: their weights are frozen, and so are those of all
    that lead to them. None where nothing is frozen.

    Parameters
    ----------
    nodes
        In running order.
    """
    flowing = set[str]()
    for node in nodes:
        if node.parameter_bytes > node.frozen_bytes or not flowing.isdisjoint(node.inputs):
            flowing.add(node.name)
    frozen = any(node.frozen_bytes for node in nodes)
    return frozenset(node.name for node in nodes if node.name not in flowing and frozen)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGraph:
    """A model's operators in an order in which they can run: every node comes after its inputs.

    All sizes are per row of the batch; `sequence`: the tokens of a row, where there are tokens.
    `source` says how to make it again. `tied`: weights that several operators use, which training
    has to keep on one device.
    """

    name: str
    inputs: tuple[ModelInput, ...]
    nodes: tuple[OperatorNode, ...]
    outputs: tuple[str, ...]
    title: str = ""
    source: str = ""
    sequence: int | None = None
    dtype: str = "float32"
    tied: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = {item.name for item in self.inputs}
        if len(known) != len(self.inputs):
            raise ModelError(f"model {self.name!r} has two inputs of one name.")
        everyone = known | {node.name for node in self.nodes}
        for node in self.nodes:
            for source in node.inputs:
                if source not in known:
                    fault = (
                        "comes later: a cycle, or not in running order"
                        if source in everyone
                        else "does not exist"
                    )
                    raise ModelError(
                        f"model {self.name!r}: node {node.name!r} reads {source!r}, which {fault}."
                    )
            if node.name in known:
                raise ModelError(f"model {self.name!r} has two nodes named {node.name!r}.")
            known.add(node.name)
        if not self.outputs:
            raise ModelError(f"model {self.name!r} has no outputs.")
        for output in self.outputs:
            if output not in known:
                raise ModelError(
                    f"model {self.name!r}: its output {output!r} is not one of its nodes."
                )

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(node.parameter_bytes for node in self.nodes)

    @property
    def forward_flop(self) -> int:
        """Floating-point operations of one row's forward pass."""
        return sum(node.forward_flop for node in self.nodes)

    def live_bytes(self, *, inputs: bool = True) -> tuple[int, ...]:
        """For each node, the bytes per row of all tensors still needed behind it, skip connections
        and inputs too.

        For `a -> b -> c` with `a -> c` they are: a, a + b, c. The last counts the outputs alone.
        Without `inputs`, what no gradient flows back to is left out: the model's own inputs, and
        what frozen weights alone lead to.
        """
        place = {node.name: index for index, node in enumerate(self.nodes)}
        still = frozenset() if inputs else still_nodes(self.nodes)
        size = {item.name: item.row_bytes * inputs for item in self.inputs} | {
            n.name: n.output_bytes * (n.name not in still) for n in self.nodes
        }
        last = {source: place[node.name] for node in self.nodes for source in node.inputs}
        last |= dict.fromkeys(self.outputs, len(self.nodes))
        alive = [0] * len(self.nodes)
        for name, stop in last.items():
            for index in range(place.get(name, 0), stop):
                alive[index] += size[name]
        return tuple(alive)

    def branches(self, least: float = LEAST) -> Branches:
        """Its parallel branches of at least that share of flop and weights.

        Serial pieces: `branches().chains`.
        """
        place = {node.name: index for index, node in enumerate(self.nodes)}
        flop, weights = max(self.forward_flop, 1), max(self.parameter_bytes, 1)
        return find(
            [[place[name] for name in node.inputs if name in place] for node in self.nodes],
            [
                (node.forward_flop / flop + node.parameter_bytes / weights) / 2
                for node in self.nodes
            ],
            least,
        )

    def in_order(self) -> "ModelGraph":
        """The same graph, its nodes in an order in which every parallel branch is in one piece."""
        return replace(self, nodes=tuple(self.nodes[i] for i in self.branches().order))

    def layers(self, bounds: Sequence[int] = (), *, branched: bool = False) -> tuple[Layer, ...]:
        """Layers, each cut carrying every tensor that is alive there: layer i is the nodes
        [bounds[i], bounds[i + 1]), every node by itself where no bounds are given. A chain; with
        edges if `branched` and there are branches.
        """
        bounds = bounds or range(len(self.nodes) + 1)
        alive, flowing = self.live_bytes(), self.live_bytes(inputs=False)
        edges, feeds = (
            self._edges(bounds) if branched else ([()] * len(self.nodes), [0] * len(self.nodes))
        )
        width = {port.name: port.row_bytes for port in self.inputs}
        width |= {node.name: node.output_bytes for node in self.nodes}
        return tuple(
            Layer(
                name=self.nodes[start].name
                if stop - start == 1
                else f"{self.nodes[start].name} ...",
                parameter_bytes=sum(node.parameter_bytes for node in self.nodes[start:stop]),
                buffer_bytes=sum(node.buffer_bytes for node in self.nodes[start:stop]),
                output_bytes=alive[stop - 1],
                gradient_bytes=flowing[stop - 1],
                activation_bytes=sum(node.activation_bytes for node in self.nodes[start:stop]),
                frozen_bytes=sum(node.frozen_bytes for node in self.nodes[start:stop]),
                forward_flop=float(sum(node.forward_flop for node in self.nodes[start:stop])),
                backward_flop=float(sum(node.backward_flop for node in self.nodes[start:stop])),
                edges=edges[layer],
                feed_bytes=feeds[layer],
                widest_parameter_bytes=(
                    widest := max(
                        node.parameter_bytes - node.frozen_bytes for node in self.nodes[start:stop]
                    )
                ),
                reused_bytes=widest if self.tied else 0,  # not known where: the largest
                weight_flop=float(sum(map(_weight_flop, self.nodes[start:stop]))),
                waiting_bytes=sum(
                    node.output_bytes + sum(width[name] for name in node.inputs)
                    for node in self.nodes[start:stop]
                    if _has_waiting(node)
                ),
            )
            for layer, (start, stop) in enumerate(pairwise(bounds))
        )

    def _edges(self, bounds: Sequence[int]) -> tuple[list[tuple[Edge, ...]], list[int]]:
        """Per layer what it hands to whom, and the bytes of the inputs that it is the first to
        read.
        """
        layer_of = [
            layer
            for layer, (start, stop) in enumerate(pairwise(bounds))
            for _ in range(start, stop)
        ]
        made = {node.name: layer for node, layer in zip(self.nodes, layer_of, strict=True)}
        readers: dict[str, set[int]] = {output: {layer_of[-1]} for output in self.outputs}
        for node in self.nodes:
            for name in node.inputs:
                readers.setdefault(name, set()).add(made[node.name])
        feeds = [0] * (layer_of[-1] + 1)
        for item in self.inputs:
            first = min(readers.pop(item.name, {0}))
            feeds[first] += item.row_bytes if first else 0
        size = {node.name: node.output_bytes for node in self.nodes}
        still = still_nodes(self.nodes)
        edges = []
        for given in hand_on(made, readers, len(feeds), branched=True):
            totals: dict[tuple[int, ...], tuple[int, int]] = {}
            for name, takers in given.items():
                outputs, gradients = totals.get(takers, (0, 0))
                flowing = 0 if name in still else size[name]
                totals[takers] = outputs + size[name], gradients + flowing
            edges.append(
                tuple(
                    Edge(to=to, output_bytes=outputs, gradient_bytes=gradients)
                    for to, (outputs, gradients) in sorted(totals.items())
                    if outputs
                )
            )
        if all(edge.to == (layer + 1,) for layer, given in enumerate(edges) for edge in given):
            return [()] * len(edges), [0] * len(feeds)  # a chain
        return edges, feeds

    def to_text(self) -> str:
        """The text form: one node a line.

        Inputs by their number (model inputs first, then nodes in order).
        """
        number = {
            name: i
            for i, name in enumerate([i.name for i in self.inputs] + [n.name for n in self.nodes])
        }
        columns = (*COLUMNS, FROZEN) if any(n.frozen_bytes for n in self.nodes) else COLUMNS
        head = {
            "format": FORMAT,
            "name": self.name,
            "title": self.title,
            "source": self.source,
            "sequence": self.sequence,
            "dtype": self.dtype,
            "tied": list(self.tied),
            "inputs": [[item.name, item.row_bytes] for item in self.inputs],
            "outputs": list(self.outputs),
            "columns": columns,
        }
        lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
        rows = []
        for node in self.nodes:
            cells = [
                node.name,
                node.kind,
                [number[name] for name in node.inputs],
                *(getattr(node, c) for c in columns[3:]),
            ]
            rows.append("  " + json.dumps(cells, separators=(",", ":")))
        return "{\n" + ",\n".join(lines) + ',\n "nodes": [\n' + ",\n".join(rows) + "\n ]\n}\n"

    @classmethod
    def from_text(cls, text: str, file: str = "a model graph") -> "ModelGraph":
        """Read the text form; `file` names it in errors.

        Raises FileError for anything that is not exactly it.
        """
        return _read(text, file)


def _wrong(file: str, field: str, expected: str, got: object) -> FileError:
    return FileError(
        f"{file}: {field}: expected {expected}, got {str(got)[:80]!r}.",
        next_step="Make it again with `python -m potluck.profile.catalog`.",
        file=file,
        field=field,
    )


def _read(text: str, file: str) -> ModelGraph:
    document = read_json(text, file)
    if not isinstance(document, dict):
        raise _wrong(file, "the document", "an object", type(document).__name__)
    if document.get("format") != FORMAT:
        raise _wrong(file, "format", repr(FORMAT), document.get("format"))
    wanted: dict[str, Any] = {
        "format": str,
        "name": str,
        "title": str,
        "source": str,
        "sequence": (int, type(None)),
        "dtype": str,
        "tied": list,
        "inputs": list,
        "outputs": list,
        "columns": list,
        "nodes": list,
    }
    if set(document) != set(wanted):
        raise _wrong(
            file, "the document", f"the fields {', '.join(wanted)}", ", ".join(map(str, document))
        )
    for field, kind in wanted.items():
        if not isinstance(document[field], kind) or isinstance(document[field], bool):
            raise _wrong(
                file,
                field,
                str(getattr(kind, "__name__", "a whole number or null")),
                document[field],
            )
    for field, what in (("outputs", "names of nodes"), ("tied", "names of weights")):
        if not all(isinstance(name, str) for name in document[field]):
            raise _wrong(file, field, what, document[field])
    if tuple(document["columns"]) not in (COLUMNS, (*COLUMNS, FROZEN)):
        raise _wrong(file, "columns", ", ".join(COLUMNS), document["columns"])
    return _build(document, file)


def _build(document: Mapping[str, Any], file: str) -> ModelGraph:
    inputs = tuple(_input(cells, index, file) for index, cells in enumerate(document["inputs"]))
    names = [item.name for item in inputs]
    nodes = []
    try:
        for index, cells in enumerate(document["nodes"]):
            nodes.append(_node(cells, document["columns"], names, f"nodes[{index}]", file))
            names.append(nodes[-1].name)
        head = {key: document[key] for key in ("name", "title", "source", "sequence", "dtype")}
        head |= {key: tuple(document[key]) for key in ("outputs", "tied")}
        return ModelGraph(inputs=inputs, nodes=tuple(nodes), **head)
    except ModelError as error:
        raise FileError(f"{file}: {error}", file=file) from error


def _input(cells: object, index: int, file: str) -> ModelInput:
    match cells:
        case [str(name), int(row_bytes)] if row_bytes >= 0:
            return ModelInput(name=name, row_bytes=row_bytes)
    raise _wrong(file, f"inputs[{index}]", "[name, bytes per row]", cells)


def _node(
    cells: object, columns: Sequence[str], names: list[str], field: str, file: str
) -> OperatorNode:
    if not isinstance(cells, list) or len(cells) != len(columns):
        raise _wrong(file, field, f"{len(columns)} cells", cells)
    name, kind, sources, *counts = cells
    if not isinstance(name, str) or not isinstance(kind, str):
        raise _wrong(file, field, "a name and a kind first", cells)
    if not isinstance(sources, list) or any(
        type(s) is not int or not 0 <= s < len(names) for s in sources
    ):
        raise _wrong(
            file,
            f"{field} ({name}) inputs",
            f"numbers below {len(names)} (what comes before it)",
            sources,
        )
    if any(isinstance(count, float) and not isfinite(count) for count in counts):
        raise _wrong(file, field, "finite numbers", cells)
    return OperatorNode(
        name=name,
        kind=kind,
        inputs=tuple(names[s] for s in sources),
        **dict(zip(columns[3:], counts, strict=True)),
    )
