"""What each operator of an exported program costs: ExportedProgram -> ModelGraph, from shapes alone (meta tensors do).

Flop: a multiply-add is 2; activations and norms count one per element and operation. Backward: a product costs as much
again for each operand that needs a gradient, attention 2.5 times its forward (its five products, the scores made
again), the rest twice. Kept for backward: what autograd's formulas save, each storage once; attention is taken to be
the fused one, dropout to be off. What does not depend on the model's inputs (masks, rotary tables) costs nothing: it is
computed once.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from potluck.errors import ModelError
from potluck.graph.modelgraph import Input, ModelGraph, Node

KIND_OF = {
    "attention": ("scaled_dot_product_attention",),
    "conv": ("conv1d", "conv2d", "conv3d", "conv_transpose2d"),
    "matmul": ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm"),
    "norm": ("layer_norm", "batch_norm", "group_norm", "rms_norm", "softmax", "log_softmax"),
    "pool": ("max_pool1d", "max_pool2d", "avg_pool1d", "avg_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool2d"),
    "embedding": ("embedding",),
}
KINDS_BY_NAME = {name: kind for kind, names in KIND_OF.items() for name in names}
# Another name for the same storage, or nothing at all.
VIEWS = {
    *("view", "transpose", "permute", "t", "unsqueeze", "squeeze", "expand", "slice", "select", "chunk", "split"),
    *("split_with_sizes", "unbind", "getitem", "detach", "alias", "dropout", "feature_dropout", "expand_as", "narrow"),
}
MAYBE_VIEWS = {"reshape", "flatten", "contiguous", "to", "type_as", "clone", "_to_copy"}
MOVES = {*MAYBE_VIEWS, "embedding", "cat", "stack", "pad", "constant_pad_nd", "index_select", "gather"}
UNPRICED = {"einsum", "lstm", "gru", "rnn_tanh", "rnn_relu", "multi_head_attention_forward"}
KEEPS_OUTPUT = {"relu", "sigmoid", "tanh", "exp", "rsqrt", "sqrt", "softmax", "log_softmax"}
KEEPS_INPUT = {"silu", "gelu", "hardtanh", "relu6", "hardswish", "pow", "cos", "sin", "layer_norm", "batch_norm"}
KEEPS_INPUT |= {"group_norm", "rms_norm", "leaky_relu", "softplus", *KIND_OF["pool"]}
KEEPS_OPERANDS = {"mul", "div", *KIND_OF["matmul"], *KIND_OF["conv"]}


@dataclass(slots=True)
class _Group:
    """Neighbouring operators of one module, with at most one heavy operator: a node to be."""

    path: str
    module: str
    kind: str = "elementwise"
    nodes: list[torch.fx.Node] = field(default_factory=list)
    cost: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, amount: float) -> None:
        self.cost[name] = self.cost.get(name, 0) + round(amount)


def graph_of(program: ExportedProgram, *, name: str, rows: int = 1, **labels: Any) -> ModelGraph:
    """The ModelGraph of an exported program whose example inputs have `rows` rows.

    `labels`: title, source, sequence. Raises ModelError for an operator whose cost is not known to be small.
    """
    return _Tracing(program, rows).graph(name, labels)


class _Tracing:
    def __init__(self, program: ExportedProgram, rows: int) -> None:
        self.program, self.rows = program, rows
        self.fx = program.graph_module.graph
        self.weights: dict[str, Tensor] = {}  # parameters and buffers by placeholder name
        self.buffers: set[str] = set()
        self.fed: list[torch.fx.Node] = []
        placeholders = {node.name: node for node in self.fx.nodes if node.op == "placeholder"}
        for spec in program.graph_signature.input_specs:
            node = placeholders[spec.arg.name]
            if spec.kind is InputKind.USER_INPUT:
                self.fed.append(node)
            else:
                self.weights[node.name] = node.meta["val"]
                if spec.kind is not InputKind.PARAMETER:
                    self.buffers.add(node.name)
        self.live = self._depending(self.fed)  # computed anew for every batch
        trained = [node for node in placeholders.values() if node.name in self.weights.keys() - self.buffers]
        self.trained = self._depending(trained)  # a gradient flows back through it
        self.root: dict[torch.fx.Node, torch.fx.Node] = {}
        self.kept: set[torch.fx.Node] = set()
        self.placed: set[str] = set()

    def _depending(self, start: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
        found = set(start)
        for node in self.fx.nodes:
            if node.op == "call_function" and any(source in found for source in node.all_input_nodes):
                found.add(node)
        return found

    def graph(self, name: str, labels: dict[str, Any]) -> ModelGraph:
        groups = self._grouped()
        owner = {node: group for group in groups for node in group.nodes}
        users: dict[torch.fx.Node, set[int]] = {}
        for group in groups:
            for node in group.nodes:
                self._price(group, node)
                for source in self._sources(node):
                    users.setdefault(source, set()).add(id(group))
        (result,) = {self._root(node) for node in self.fx.output_node().all_input_nodes if node in self.live}
        users.setdefault(result, set()).add(0)
        names = self._names(groups)
        nodes = []
        for group in groups:
            sources = {self._root(source) for node in group.nodes for source in self._sources(node)}
            places = [names[id(owner[s])] if s in owner else s.name for s in sources if owner.get(s) is not group]
            order = {**{node.name: -1 for node in self.fed}, **{names[id(g)]: i for i, g in enumerate(groups)}}
            leaving = [node for node in group.nodes if users.get(node, set()) - {id(group)}]
            group.add("output_bytes", sum(map(self._row_bytes, leaving)))
            nodes.append(
                Node(
                    name=names[id(group)],
                    kind=group.kind,
                    inputs=tuple(sorted(set(places), key=lambda place: (order[place], place))),
                    **group.cost,
                )
            )
        inputs = tuple(Input(name=node.name, row_bytes=self._row_bytes(node)) for node in self.fed)
        output = names[id(owner[result])]
        return ModelGraph(name=name, inputs=inputs, nodes=tuple(nodes), output=output, rows=self.rows, **labels)

    def _grouped(self) -> list[_Group]:
        groups: list[_Group] = []
        for node in self.fx.nodes:
            if node.op != "call_function" or node not in self.live or not isinstance(node.meta.get("val"), Tensor):
                continue
            if self._is_view(node):
                continue
            path, module = _place(node)
            kind = self._kind(node, module)
            last = groups[-1] if groups else None
            light = "elementwise" in (kind, last.kind if last else "")
            if last is None or last.path != path or not (light or kind == last.kind == "norm"):
                groups.append(_Group(path=path, module=module))
            if kind != "elementwise":
                groups[-1].kind = kind
            groups[-1].nodes.append(node)
        return groups

    def _kind(self, node: torch.fx.Node, module: str) -> str:
        name = _op(node)
        if "norm" in module.lower():
            return "norm"
        if name in ("mean", "upsample_nearest2d", "upsample_bilinear2d"):
            return "pool"
        kind = KINDS_BY_NAME.get(name, "elementwise")
        if kind == "conv":
            weight = node.args[1].meta["val"]  # type: ignore[union-attr]
            groups = node.args[6] if len(node.args) > 6 else 1
            if groups != 1 and weight.shape[1] < 8:  # fewer channels per group than a vector unit has lanes
                return "depthwise"
        return kind

    def _names(self, groups: list[_Group]) -> dict[int, str]:
        taken: dict[str, int] = {}
        names = {}
        for group in groups:
            count = taken[group.path] = taken.get(group.path, 0) + 1
            names[id(group)] = group.path if count == 1 else f"{group.path}:{count}"
        return names

    def _price(self, group: _Group, node: torch.fx.Node) -> None:
        flop = _forward_flop(node, group.kind) / self.rows
        group.add("forward_flop", flop)
        group.add("backward_flop", flop * self._backward_factor(node))
        for weight in self._new_weights(node):
            value = self.weights[weight.name]
            field_name = "buffer_bytes" if weight.name in self.buffers else "parameter_bytes"
            group.add(field_name, value.numel() * value.element_size())
        group.add("traffic_bytes", self._row_bytes(node))
        for source in self._sources(node):
            part = node if group.kind == "embedding" else source  # a gather reads as much as it writes
            group.add("traffic_bytes", self._row_bytes(part))
        if node in self.trained:
            group.add("activation_bytes", sum(map(self._row_bytes, self._keeps(node))) + self._extra(node))

    def _backward_factor(self, node: torch.fx.Node) -> float:
        if node not in self.trained:
            return 0.0
        name = _op(node)
        if name in KIND_OF["attention"]:
            return 2.5
        if name in (*KIND_OF["matmul"], *KIND_OF["conv"]):
            operands = node.all_input_nodes[-2:] if name in ("addmm", "baddbmm") else node.all_input_nodes[:2]
            return float(sum(operand in self.trained for operand in operands))
        return 2.0

    def _keeps(self, node: torch.fx.Node) -> Iterator[torch.fx.Node]:
        """The storages that this operator keeps for its backward and nobody kept before."""
        name = _op(node)
        wanted: list[torch.fx.Node] = []
        if name in KEEPS_OUTPUT or name in KIND_OF["attention"]:
            wanted.append(node)
        if name in KEEPS_INPUT or name in KIND_OF["attention"] or name in KIND_OF["embedding"]:
            wanted += node.all_input_nodes[:3] if name in KIND_OF["attention"] else node.all_input_nodes
        if name in KEEPS_OPERANDS:
            operands = node.all_input_nodes[-2:] if name in ("addmm", "baddbmm") else node.all_input_nodes[:2]
            for operand, other in zip(operands, operands[::-1], strict=True):
                if other in self.trained:  # the gradient of one operand needs the other
                    wanted.append(operand)
        for tensor in map(self._root, wanted):
            if tensor in self.live and tensor not in self.kept:
                self.kept.add(tensor)
                yield tensor

    def _extra(self, node: torch.fx.Node) -> int:
        """Bytes per row kept beside the operands: pooling's indices, a norm's and attention's sums."""
        value: Tensor = node.meta["val"]
        match _op(node):
            case "max_pool2d" | "max_pool1d":
                return value.numel() * 8 // self.rows
            case "layer_norm":
                return 2 * value.numel() // value.shape[-1] * 4 // self.rows
            case "scaled_dot_product_attention":
                return value.numel() // value.shape[-1] * 4 // self.rows
        return 0

    def _new_weights(self, node: torch.fx.Node) -> list[torch.fx.Node]:
        """Weights that this operator is the first to use, through constants computed from them too."""
        found, seen, todo = [], set(), list(node.all_input_nodes)
        while todo:
            source = todo.pop()
            if source in seen or source in self.live:
                continue
            seen.add(source)
            todo += source.all_input_nodes
            if source.name in self.weights and source.name not in self.placed:
                self.placed.add(source.name)
                found.append(source)
        return found

    def _sources(self, node: torch.fx.Node) -> list[torch.fx.Node]:
        """The storages that it reads and that are computed anew for every batch."""
        return list(dict.fromkeys(self._root(source) for source in node.all_input_nodes if source in self.live))

    def _root(self, node: torch.fx.Node) -> torch.fx.Node:
        """The operator whose storage this tensor is."""
        if node not in self.root:
            through = node.op == "call_function" and self._is_view(node)
            self.root[node] = self._root(next(s for s in node.all_input_nodes if s in self.live)) if through else node
        return self.root[node]

    def _is_view(self, node: torch.fx.Node) -> bool:
        name = _op(node)
        if name in VIEWS or not isinstance(node.meta.get("val"), Tensor):
            return True
        if name not in MAYBE_VIEWS or node not in self.live:
            return False
        old, new = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
        if name == "clone" or old.dtype != new.dtype:
            return False
        if name in ("to", "type_as", "_to_copy"):
            return True
        like = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device="meta")
        return like.is_contiguous() if name == "contiguous" else bool(like.reshape(new.shape)._is_view())

    def _row_bytes(self, node: torch.fx.Node) -> int:
        value: Tensor | tuple[Tensor, ...] = node.meta["val"]
        if not isinstance(value, Tensor):  # several tensors that share one storage's bytes
            return sum(part.numel() * part.element_size() for part in value) // self.rows
        return value.numel() * value.element_size() // self.rows


def _op(node: torch.fx.Node) -> str:
    """The operator's plain name: `aten.relu_.default` is relu."""
    name = getattr(node.target, "_opname", None) or getattr(node.target, "__name__", str(node.target))
    return str(name).removesuffix("_") if not str(name).startswith("_") else str(name)


def _place(node: torch.fx.Node) -> tuple[str, str]:
    """The path and class of the innermost module that the operator belongs to."""
    stack = [entry for entry in (node.meta.get("nn_module_stack") or {}).values() if entry[0]]
    if not stack:
        return node.name, ""
    path, kind = stack[-1]
    return path.removeprefix("net."), str(getattr(kind, "__name__", kind)).rsplit(".", 1)[-1]


def _forward_flop(node: torch.fx.Node, kind: str) -> float:
    name = _op(node)
    out: Tensor = node.meta["val"]
    read = [source.meta["val"] for source in node.all_input_nodes]
    shapes = [value.shape for value in read if isinstance(value, Tensor)]
    if name in KIND_OF["conv"]:
        return 2.0 * out.numel() * prod(shapes[1][1:])  # weight: out channels, channels per group, kernel
    if name in KIND_OF["matmul"]:
        left = shapes[1] if name in ("addmm", "baddbmm") else shapes[0]
        return 2.0 * out.numel() * left[-1]
    if name in KIND_OF["attention"]:
        query, key = shapes[0], shapes[1]
        return 4.0 * prod(query) * key[-2]  # scores and their product with the values; a causal mask saves nothing
    if name in MOVES:
        return 0.0
    if name in KIND_OF["norm"]:
        return 5.0 * out.numel()  # mean, variance, subtract, scale, shift; softmax: maximum, subtract, exp, sum, divide
    if name in UNPRICED:
        raise ModelError(f"the cost of {name} is not known.", next_step="Write it with matmul, or measure the model.")
    largest = max([out.numel(), *map(prod, shapes)]) if kind == "pool" else out.numel()
    return float(largest)
