"""Runs a graph: its nodes are compiled once into steps, and for each size of batch the sizes are
filled in once.

A step is (function, arguments with holes, which value fills which hole, where the result goes,
which values end here). The loop looks nothing up by name. At the first run of each size of batch
every call has to be admitted first. Values are dropped at their last use; what backward needs,
autograd keeps itself.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from potluck_wire.graph import (
    Argument,
    Dtype,
    Graph,
    Node,
    Ref,
    SegmentError,
    Sym,
    evaluate,
    node_refs,
    refs,
)
from potluck_wire.operators import KIND_OF, in_evaluation

from .admission import FROM_NOTHING, admit
from .arrays.torch_device import CPU
from .failures import is_out_of_memory
from .operators import DTYPE_NAMES, DTYPES, function_of
from .schema import check

MAX_BOUND = 64  # sizes of batch whose steps are kept; a run uses a handful
Observer = Callable[[int, Any], None]
Sizes = tuple[bool, tuple[int, ...]]  # in training?, the symbols' values
Randoms = Mapping[str, Callable[..., Any]]  # operator -> (node number, *its arguments) -> result
Wrap = Callable[[int, Callable[..., Any]], Callable[..., Any]]  # position, function -> function


@dataclass(frozen=True, slots=True)
class CompiledNode:
    """One compiled node."""

    function: Callable[..., Any]
    template: list[Any]
    holes: tuple[tuple[int, int], ...]
    nested: tuple[tuple[int, Callable[[list[Any]], Any]], ...]
    named: dict[str, Any]
    target: int
    ends: tuple[int, ...]


class Interpreter:
    """A graph ready to run. `randoms` replace the operators that draw random numbers, in
    training, and `wrap` what its nodes call. `device`: where its tensors are.
    """

    def __init__(
        self,
        graph: Graph,
        randoms: Randoms | None = None,
        device: torch.device = CPU,
        wrap: Wrap | None = None,
    ) -> None:
        for node in graph.nodes:
            check(node)
        self.graph = graph
        self.randoms = randoms or {}
        self._device = device
        self._wrap = wrap
        self._ends = _last_uses(graph)
        self._bound: dict[Sizes, list[CompiledNode]] = {}
        self._admitted: set[Sizes] = set()

    def symbols(self, inputs: Sequence[torch.Tensor]) -> dict[str, int]:
        """The symbols' values, after checking that every input has the type and shape that the
        graph expects.
        """
        graph = self.graph
        if len(inputs) != len(graph.inputs):
            raise SegmentError(
                "bad-input", f"{len(graph.inputs)} inputs are expected, {len(inputs)} came"
            )
        found = {}
        for symbol in graph.symbols:
            tensor, port = inputs[symbol.input], graph.inputs[symbol.input]
            size = tensor.shape[symbol.dim] if symbol.dim < tensor.dim() else -1
            if size < 0 or size % symbol.multiple:
                raise SegmentError(
                    "bad-input",
                    f"input {port.name} has the shape {list(tensor.shape)}, not {port.shape}",
                )
            found[symbol.name] = size // symbol.multiple
        for tensor, port in zip(inputs, graph.inputs, strict=True):
            shape = [evaluate(size, found) for size in port.shape]
            if list(tensor.shape) != shape or tensor.dtype is not DTYPES[port.dtype]:
                got = f"{DTYPE_NAMES.get(tensor.dtype, tensor.dtype)} {list(tensor.shape)}"
                raise SegmentError(
                    "bad-input", f"input {port.name} is {got}; expected {port.dtype} {shape}"
                )
        return found

    def run(
        self,
        inputs: Sequence[torch.Tensor],
        state: Sequence[torch.Tensor],
        *,
        train: bool,
        observe: Observer | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """The outputs. `state`: parameters, then buffers.

        `observe` sees (position, value) of each node.
        """
        key, steps = self._bind(train, self.symbols(inputs))
        is_new = key not in self._admitted
        values: list[Any] = [*inputs, *state, *([None] * len(self.graph.nodes))]
        step = None
        try:
            with torch.set_grad_enabled(train):
                for step in steps:
                    args = step.template.copy()
                    for position, value in step.holes:
                        args[position] = values[value]
                    for position, build in step.nested:
                        args[position] = build(values)
                    if is_new:
                        admit(self._node(step).op, args, step.named)
                    values[step.target] = result = step.function(*args, **step.named)
                    if observe is not None:
                        observe(step.target - self.graph.first_node, result)
                    for value in step.ends:
                        values[value] = None
        except (
            RuntimeError,
            TypeError,
            IndexError,
            ValueError,
            MemoryError,
            SegmentError,
        ) as error:
            raise self._named(error, step) from error
        self._admitted.add(key)
        return tuple(_fetch(output.ref)(values) for output in self.graph.outputs)

    def _node(self, step: CompiledNode) -> Node:
        return self.graph.nodes[step.target - self.graph.first_node]

    def _named(self, error: Exception, step: CompiledNode | None) -> SegmentError:
        """The error, naming the node where it happened."""
        node = self._node(step) if step else None
        where = f"node {node.number} ({node.op})" if node else "before the first node"
        text = str(error).split("\n")[0][:300]
        if isinstance(error, SegmentError):
            cause = error.cause
        elif is_out_of_memory(error):
            cause = "out-of-memory"
        else:
            cause = "bad-input" if isinstance(error, IndexError | TypeError) else "arithmetic"
        return SegmentError(cause, f"{where}: {text}")

    def _bind(self, train: bool, symbols: Mapping[str, int]) -> tuple[Sizes, list[CompiledNode]]:
        """The steps for these sizes, and under what they are kept; made once for each."""
        key = (train, tuple(symbols.values()))
        if key not in self._bound:
            if len(self._bound) >= MAX_BOUND:
                oldest = next(iter(self._bound))
                del self._bound[oldest]
                self._admitted.discard(oldest)
            steps = (
                self._step(position, train, symbols) for position in range(len(self.graph.nodes))
            )
            self._bound[key] = [step for step in steps if step is not None]
        return key, self._bound[key]

    def _step(self, position: int, train: bool, symbols: Mapping[str, int]) -> CompiledNode | None:
        node = self.graph.nodes[position]
        if not train:
            if KIND_OF[node.op] == "buffer":
                return None
            node = _in_evaluation(node)
        template: list[Any] = []
        holes: list[tuple[int, int]] = []
        nested: list[tuple[int, Callable[[list[Any]], Any]]] = []
        for place, argument in enumerate(node.args):
            if isinstance(argument, Ref) and argument.item is None:
                holes.append((place, argument.value))
                template.append(None)
            elif refs(argument):
                nested.append((place, _builder(argument, symbols)))
                template.append(None)
            else:
                template.append(_constant(argument, symbols))
        if any(refs(argument) for _, argument in node.kwargs):
            raise SegmentError(
                "document",
                f"node {node.number} ({node.op}): a tensor must stand in its place, not by name",
            )
        function = function_of(node.op, bool(node.kwargs))
        if train and node.op in self.randoms:
            random, number = self.randoms[node.op], node.number
            function = lambda *args, **named: random(number, *args, **named)  # noqa: E731 - one line says it
        if node.op in FROM_NOTHING and self._device != CPU:
            function = functools.partial(function_of(node.op, True), device=self._device)
        if train and self._wrap is not None:
            function = self._wrap(position, function)
        named = {name: _constant(argument, symbols) for name, argument in node.kwargs}
        target = self.graph.first_node + position
        return CompiledNode(
            function, template, tuple(holes), tuple(nested), named, target, self._ends[position]
        )


def _in_evaluation(node: Node) -> Node:
    """The node as it is outside training."""
    args = in_evaluation(node.op, node.args)
    return (
        node
        if args is node.args
        else Node(number=node.number, op=node.op, args=args, kwargs=node.kwargs)
    )


def _constant(argument: Argument, symbols: Mapping[str, int]) -> Any:
    if isinstance(argument, Sym):
        return evaluate(argument.expression, symbols)
    if isinstance(argument, Dtype):
        return DTYPES[argument.name]
    if isinstance(argument, tuple):
        return [_constant(item, symbols) for item in argument]
    return argument


def _fetch(ref: Ref) -> Callable[[list[Any]], Any]:
    if ref.item is None:
        return lambda values: values[ref.value]
    return lambda values: values[ref.value][ref.item]


def _builder(argument: Argument, symbols: Mapping[str, int]) -> Callable[[list[Any]], Any]:
    """What makes an argument with values inside: a list of tensors, or an item of a tuple."""
    if isinstance(argument, Ref):
        return _fetch(argument)
    if isinstance(argument, tuple):
        parts = [_builder(item, symbols) for item in argument]
        return lambda values: [part(values) for part in parts]
    constant = _constant(argument, symbols)
    return lambda values: constant


def _last_uses(graph: Graph) -> list[tuple[int, ...]]:
    """For each node, the values that nobody reads after it (outputs and state never end)."""
    n_inputs, first = len(graph.inputs), graph.first_node
    kept = {output.ref.value for output in graph.outputs} | set(range(n_inputs, first))
    last: dict[int, int] = {}
    for position, node in enumerate(graph.nodes):
        last[first + position] = position  # unless somebody reads it later
        for ref in node_refs(node):
            last[ref.value] = position
    ends: list[list[int]] = [[] for _ in graph.nodes]
    for value, position in last.items():
        if value not in kept:
            ends[position].append(value)
    return [tuple(values) for values in ends]
