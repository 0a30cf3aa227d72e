"""Batch reductions: numbers that a loss makes of the inputs and targets of a whole batch, such as
how many are not ignored.

The weighted mean over a batch is no mean of its shares' weighted means: what is divided by belongs
to all rows. So what depends on inputs and targets alone, and on all their rows at once, is computed
where the whole batch is, and fed to devices as one more input. A reduction that grows with the rows
(a sum, nearly always a divisor) is spread evenly over them, and each share divides by its part of
it. Any other (a mean, a maximum) comes whole with every row."""

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import signature
from types import MappingProxyType
from typing import Any

import torch
from torch.nn._reduction import legacy_get_string
from torch.overrides import TorchFunctionMode

from potluck.graph.loss.decompositions import written_out
from potluck.graph.loss.growth import growing
from potluck.graph.torch import symbolic_sizes
from potluck.graph.torch.batch_axis import OperatorFailed, Runner
from potluck_wire.graph import BATCH, symbols_in
from potluck_wire.operators import KIND_OF

_ATEN = torch.ops.aten


class WrittenOutLosses(TorchFunctionMode):
    """Torch's losses in operators that devices have.

    Weighted means as a sum, divided by a sum of weights.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """The loss in parts where it is one of these; else what the function gives."""
        found = written_out(func, args, kwargs or {})
        if found is not None:
            return found
        parts = sum_and_weights(func, args, kwargs or {})
        return func(*args, **(kwargs or {})) if parts is None else parts[0] / parts[1]


def sum_and_weights(
    loss: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """What a weighted mean of torch's is the quotient of; None where the loss is none."""
    if loss not in (torch.nn.functional.cross_entropy, torch.nn.functional.nll_loss):
        return None
    call = signature(loss).bind(*args, **kwargs)
    call.apply_defaults()
    given = call.arguments
    size_average, reduce = given["size_average"], given["reduce"]
    if size_average is not None or reduce is not None:  # torch's old words for it
        given["reduction"] = legacy_get_string(size_average, reduce, emit_warning=False)
        given["size_average"] = given["reduce"] = None
    target, weight = given["target"], given["weight"]
    if given["reduction"] != "mean" or target.is_floating_point():
        return None
    given["reduction"] = "sum"
    counted = target != given["ignore_index"]
    weights = counted if weight is None else weight[torch.where(counted, target, 0)] * counted
    return loss(*call.args, **call.kwargs), weights.sum()


@dataclass(frozen=True, slots=True)
class _Reduction:
    """A node of the exported graph, whether its value is spread over the rows, and as what it is
    fed.
    """

    node: torch.fx.Node
    spread: bool
    dtype: torch.dtype


class BatchReductions:
    """The reductions of an exported loss; called with inputs and targets, it gives a tensor of rows
    for each.
    """

    def __init__(self, part: "_ReductionPart", reductions: Sequence[_Reduction]) -> None:
        self._part, self._reductions = part, tuple(reductions)

    def __len__(self) -> int:
        return len(self._reductions)

    @property
    def names(self) -> list[str]:
        """What the inputs are called that take them."""
        return [f"reduction_{i}" if i else "reduction" for i in range(len(self))]

    @property
    def constants(self) -> Mapping[str, torch.Tensor]:
        """What they are computed with beside inputs and targets: the user's own, by name."""
        return self._part.constants

    @property
    def reads(self) -> tuple[bool, ...]:
        """Of each input and target whether they are computed of its values."""
        places = [node for node in self._part.graph.nodes if node.op == "placeholder"]
        return tuple(bool(node.users) for node in places[len(self._part.constants) :])

    def __call__(
        self,
        tensors: Sequence[torch.Tensor],
        constants: Mapping[str, torch.Tensor] = MappingProxyType({}),
    ) -> list[torch.Tensor]:
        """One tensor per reduction, whose first dimension counts rows as those of `tensors` do.

        `constants`: what to compute with in place of the user's own, by name. Raises
        OperatorFailed.
        """
        rows, found = tensors[0].shape[0], []
        values = self._part.values(tensors, constants)
        for reduction, value in zip(self._reductions, values, strict=True):
            each = (value.double() / rows if reduction.spread else value).to(reduction.dtype)
            found.append(each.expand(rows, *each.shape))
        return found


@dataclass(frozen=True, slots=True)
class _ReductionPart:
    """A part of a program: its own graph, and the constants that it takes before the inputs."""

    owner: torch.nn.Module
    graph: torch.fx.Graph
    constants: Mapping[str, torch.Tensor]

    def values(
        self,
        tensors: Sequence[torch.Tensor],
        constants: Mapping[str, torch.Tensor] = MappingProxyType({}),
    ) -> Any:
        """What it makes of inputs and targets, with these constants in place of its own."""
        taken = [constants.get(name, own) for name, own in self.constants.items()]
        with torch.no_grad():
            return Runner(self.owner, graph=self.graph).run(*taken, *tensors)


def extract(
    program: Any,
    inputs: Sequence[torch.fx.Node],
    constants: Mapping[torch.fx.Node, tuple[str, torch.Tensor]],
    symbols: dict[str, str],
    example: Sequence[torch.Tensor],
) -> BatchReductions | None:
    """The reductions of an exported loss, None where it has none.

    Its graph takes them as its last inputs from now on.

    `constants`: what in the program's state never changes, with its name. Raises OperatorFailed.
    """
    _without_broadcasts(program.graph, symbols)
    nodes = _found(program, inputs, constants, symbols)
    if not nodes:
        return None
    closure = _closure(program, nodes)
    part = _part(program, nodes, closure, inputs, constants)
    loss = next(node for node in program.graph.nodes if node.op == "output").args[0][0].meta["val"]
    ordered = [node for node in program.graph.nodes if node in closure]
    grows = growing(ordered, lambda node: _counts_rows(node, symbols))
    tried = _spread(part.values, example) if any(grows[node] is None for node in nodes) else ()
    spread = [tried[i] if (known := grows[node]) is None else known for i, node in enumerate(nodes)]
    reductions = [
        _Reduction(node, s, _dtype(node, s, loss.dtype))
        for node, s in zip(nodes, spread, strict=True)
    ]
    _replace(program, reductions, inputs[0].meta["val"].shape[0])
    for node in sorted(closure, reverse=True):
        if node.op != "placeholder" and not node.users:
            program.graph.erase_node(node)
    return BatchReductions(part, reductions)


def _without_broadcasts(graph: torch.fx.Graph, symbols: dict[str, str]) -> None:
    """Take out what broadcasts a value to its own shape: a loss of outputs and targets would make
    all that reads the targets later depend on the outputs.
    """
    for node in [n for n in graph.nodes if n.target is _ATEN.broadcast_tensors.default]:
        for item in [user for user in node.users if user.target is operator.getitem]:
            source = node.args[0][item.args[1]]
            shapes = [symbolic_sizes.shape(n.meta["val"], symbols) for n in (source, item)]
            if shapes[0] == shapes[1]:
                item.replace_all_uses_with(source)
                graph.erase_node(item)
        if not node.users:
            graph.erase_node(node)


def _found(
    program: Any,
    inputs: Sequence[torch.fx.Node],
    constants: Mapping[torch.fx.Node, tuple[str, torch.Tensor]],
    symbols: dict[str, str],
) -> list[torch.fx.Node]:
    """The nodes whose values come from all rows of inputs and targets, and of nothing that is
    learned, where they are read by others."""
    given, reductions = set(inputs), set[torch.fx.Node]()
    learned = (
        {node for node in program.graph.nodes if node.op == "placeholder"}
        - given
        - constants.keys()
    )
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        name, value = str(node.target), node.meta.get("val")
        kind, sources = KIND_OF.get(name, ""), node.all_input_nodes
        if (
            kind in ("random", "draw")
            or _changes(node)
            or any(source in learned for source in sources)
        ):
            learned.add(node)
        elif kind != "creation" and isinstance(value, torch.Tensor | list | tuple):
            if any(source in given for source in sources):
                given.add(node)
            if (
                node in given
                and isinstance(value, torch.Tensor)
                and not _has_rows(value, symbols)
                and not _is_nought(node)
            ):
                reductions.add(node)
    return [
        node
        for node in program.graph.nodes
        if node in reductions and any(_reads(u, reductions) for u in node.users)
    ]


def _reads(user: torch.fx.Node, reductions: set[torch.fx.Node]) -> bool:
    return user not in reductions and isinstance(user.meta.get("val"), torch.Tensor | list | tuple)


def _is_nought(node: torch.fx.Node) -> bool:
    """Whether it multiplies by 0: of nothing it does not show how it grows with the rows."""
    return bool(node.target is _ATEN.mul.Tensor and node.args[1] == 0)


def _changes(node: torch.fx.Node) -> bool:
    if node.target is _ATEN.detach_.default:  # of a constant that stands in the loss
        return False
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _counts_rows(node: torch.fx.Node, symbols: dict[str, str]) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and _has_rows(value, symbols)


def _has_rows(value: torch.Tensor, symbols: dict[str, str]) -> bool:
    return any(BATCH in symbols_in(size) for size in symbolic_sizes.shape(value, symbols))


def _closure(program: Any, nodes: Sequence[torch.fx.Node]) -> set[torch.fx.Node]:
    """The nodes and all that they need."""
    needed = set(nodes)
    for node in reversed(program.graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    return needed


def _part(
    program: Any,
    nodes: Sequence[torch.fx.Node],
    closure: set[torch.fx.Node],
    inputs: Sequence[torch.fx.Node],
    constants: Mapping[torch.fx.Node, tuple[str, torch.Tensor]],
) -> _ReductionPart:
    """The part of the program that makes these nodes."""
    graph, copies = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    kept = [holder for holder in constants if holder in closure]
    rest = [node for node in program.graph.nodes if node in closure and node.op != "placeholder"]
    for node in (*kept, *inputs, *rest):
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in nodes))
    own = dict(constants[holder] for holder in kept)
    return _ReductionPart(program.graph_module, graph, own)


def _spread(
    values: Callable[[Sequence[torch.Tensor]], Any], example: Sequence[torch.Tensor]
) -> list[bool]:
    """Of each reduction, whether trials say that it is to be spread over the rows: unless the same
    rows twice leave it as it is.

    Zeros show nothing, and examples are often made of them: ones are tried, too.
    """
    trials = [values(example) + values([torch.cat([x, x]) for x in example])]
    with suppress(OperatorFailed):
        ones = [torch.ones_like(x) for x in example]
        trials.append(values(ones) + values([torch.cat([x, x]) for x in ones]))
    n = len(trials[0]) // 2
    return [
        not _stays([(trial[k].double(), trial[n + k].double()) for trial in trials])
        for k in range(n)
    ]


def _stays(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    telling = [(once, twice) for once, twice in pairs if bool(twice.any())]
    return bool(telling) and all(
        torch.allclose(once, twice, equal_nan=True) for once, twice in telling
    )


def _dtype(node: torch.fx.Node, spread: bool, loss: torch.dtype) -> torch.dtype:
    own: torch.dtype = node.meta["val"].dtype
    return loss if spread and not own.is_floating_point else own


def _replace(program: Any, reductions: Sequence[_Reduction], rows: Any) -> None:
    """New inputs behind the others, whose rows make up what the reductions were."""
    graph = program.graph
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for i, reduction in enumerate(reductions):
        value = reduction.node.meta["val"]
        with graph.inserting_after(last):
            holder = last = graph.placeholder(f"reduction_{i}")
        holder.meta["val"] = value.new_empty((rows, *value.shape), dtype=reduction.dtype)
        function, args = (
            (_ATEN.sum.dim_IntList, ([0],)) if reduction.spread else (_ATEN.select.int, (0, 0))
        )
        with graph.inserting_before(reduction.node):
            made = graph.call_function(function, (holder, *args))
        made.meta["val"] = function(holder.meta["val"], *args)
        reduction.node.replace_all_uses_with(made)
