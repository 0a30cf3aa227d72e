"""A piece of a model as data: numbered values, nodes from the list of operators, sizes that depend
on symbols.

Values are numbered through: inputs, parameters, buffers, then nodes in order; a node may only refer
to smaller numbers. A symbol (such as `batch`) is read from a dimension of an input: size = symbol *
multiple. Nothing here can name code: `operators.py` is the list of what a node may do.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from .operators import KIND_OF, OPERATORS

MAX_NODES = 20_000  # a transformer block has some 20: a model of 1,000 blocks
MAX_INT = 2**53
BATCH = "batch"  # the symbol that counts rows

DTYPE_BYTES: dict[str, int] = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
FLOATS = frozenset({"float32", "float64", "float16", "bfloat16"})
# inside a graph only: no input, output or state is one
COMPLEX_BYTES: dict[str, int] = {"complex64": 8, "complex128": 16}
ITEM_BYTES: dict[str, int] = {**DTYPE_BYTES, **COMPLEX_BYTES}
_IN_PLACE = frozenset({"buffer", "cache"})  # kinds of operators

Expression: TypeAlias = "int | str | tuple[Any, ...]"
Shape: TypeAlias = "tuple[Expression, ...]"


class SegmentError(Exception):
    """A graph that does not hold, or a run of it that failed.

    `cause` is a `RefusalCode` (document, operator) where loading failed, a `FailureCause`
    (bad-input, arithmetic, out-of-memory) where running did.
    """

    def __init__(self, cause: str, text: str) -> None:
        super().__init__(text)
        self.cause, self.text = cause, text


@dataclass(frozen=True, slots=True)
class Ref:
    """The value of that number, or one item of it where it is a tuple."""

    value: int
    item: int | None = None


@dataclass(frozen=True, slots=True)
class Sym:
    """An integer that depends on the symbols."""

    expression: Expression


@dataclass(frozen=True, slots=True)
class Dtype:
    """A data type as an argument."""

    name: str


Argument: TypeAlias = "bool | int | float | str | Ref | Sym | Dtype | tuple[Argument, ...] | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbol:
    """`name` = size of dimension `dim` of input `input`, divided by `multiple`.

    `hint` is its size in the example.
    """

    name: str
    input: int
    dim: int
    multiple: int = 1
    hint: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A tensor that comes from outside; with `gradient`, backward hands its gradient out."""

    name: str
    dtype: str
    shape: Shape
    gradient: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A tensor that belongs to the model; the optimizer changes it if `trainable`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    trainable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A constant of the model, or (`updated`) something that training changes, such as running
    statistics.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    updated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operator. `number` is its place in the whole model, so that a random mask does not depend
    on the cut.
    """

    number: int
    op: str
    args: tuple[Argument, ...] = ()
    kwargs: tuple[tuple[str, Argument], ...] = ()

    def argument(self, position: int, name: str = "", default: Any = None) -> Any:
        """The argument at that position or of that name.

        Parameters
        ----------
        position
            Among those by position.
        name
            Among those by name.
        default
            Where it is absent.
        """
        if len(self.args) > position:
            return self.args[position]
        return dict(self.kwargs).get(name, default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A value that goes out; with `gradient`, backward takes its gradient in."""

    name: str
    ref: Ref
    dtype: str
    shape: Shape
    gradient: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A piece of a model."""

    inputs: tuple[Input, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    nodes: tuple[Node, ...] = ()
    outputs: tuple[Output, ...] = ()
    symbols: tuple[Symbol, ...] = ()

    @property
    def first_node(self) -> int:
        """The number of the first node's value."""
        return len(self.inputs) + len(self.parameters) + len(self.buffers)

    def states(self, values: Iterable[int]) -> tuple[tuple[Parameter, ...], tuple[Buffer, ...]]:
        """The parameters and the buffers among values that are states, by their numbers."""
        states = (*self.parameters, *self.buffers)
        found = [states[value - len(self.inputs)] for value in values]
        return (
            tuple(state for state in found if isinstance(state, Parameter)),
            tuple(state for state in found if isinstance(state, Buffer)),
        )


def evaluate(expression: Expression, symbols: Mapping[str, int]) -> int:
    """The integer that an expression stands for.

    Raises
    ------
    SegmentError
        A symbol is unknown, a division is by zero, or the result is beyond any tensor.
    """
    if isinstance(expression, int):
        return expression
    if isinstance(expression, str):
        if expression not in symbols:
            raise SegmentError("document", f"the symbol {expression!r} is not read from any input")
        return symbols[expression]
    operation, *operands = expression
    numbers = [evaluate(operand, symbols) for operand in operands]
    if operation in ("//", "%") and numbers[1] == 0:
        raise SegmentError("bad-input", "a size is divided by zero")
    result = int(OPERATIONS[operation][0](numbers))
    if abs(result) > MAX_INT:
        raise SegmentError("bad-input", f"a size of {result} is beyond any tensor")
    return result


# operation -> (how to compute it, fewest operands, most operands)
OPERATIONS: dict[str, tuple[Any, int, int]] = {
    "+": (sum, 2, 16),
    "*": (math.prod, 2, 16),
    "//": (lambda n: n[0] // n[1], 2, 2),
    "%": (lambda n: n[0] % n[1], 2, 2),
    "min": (min, 2, 16),
    "max": (max, 2, 16),
}


def symbols_in(expression: Expression) -> frozenset[str]:
    """The names that an expression uses."""
    if isinstance(expression, int):
        return frozenset()
    if isinstance(expression, str):
        return frozenset({expression})
    return frozenset().union(*(symbols_in(operand) for operand in expression[1:]))


def refs(argument: Argument) -> tuple[Ref, ...]:
    """Every value that an argument refers to, in order."""
    if isinstance(argument, Ref):
        return (argument,)
    if isinstance(argument, tuple):
        return tuple(ref for item in argument for ref in refs(item))
    return ()


def node_refs(node: Node) -> tuple[Ref, ...]:
    """Every value that a node reads, in order."""
    return refs(node.args) + tuple(ref for _, argument in node.kwargs for ref in refs(argument))


def rowless(graph: Graph) -> frozenset[int]:
    """The values that no row has a part in: made of state and constants, in sizes without the
    batch.
    """
    first = graph.first_node
    found = set(range(len(graph.inputs), first))
    for value, node in enumerate(graph.nodes, start=first):
        sizes = symbols_of((*node.args, *(argument for _, argument in node.kwargs)))
        if BATCH not in sizes and all(ref.value in found for ref in node_refs(node)):
            found.add(value)
    return frozenset(found)


def cached(graph: Graph) -> frozenset[str]:
    """The buffers that a request leaves to the next one: zeros before the first."""
    targets = {node.args[0] for node in graph.nodes if KIND_OF[node.op] == "cache"}
    buffers = enumerate(graph.buffers, start=graph.first_node - len(graph.buffers))
    return frozenset(buffer.name for value, buffer in buffers if Ref(value) in targets)


def symbols_of(argument: Argument) -> frozenset[str]:
    """The names that the sizes in an argument use."""
    if isinstance(argument, Sym):
        return symbols_in(argument.expression)
    if isinstance(argument, tuple):
        return frozenset().union(*map(symbols_of, argument))
    return frozenset()


def validate(graph: Graph) -> None:
    """Refuse a graph that refers to what is not there, or names an operator outside the list.

    Raises
    ------
    SegmentError
        Names the node, or what is wrong.
    """
    states = [p.name for p in graph.parameters] + [b.name for b in graph.buffers]
    inputs, outputs = [row.name for row in graph.inputs], [row.name for row in graph.outputs]
    for names in (inputs, states, outputs, [symbol.name for symbol in graph.symbols]):
        if len(set(names)) != len(names):
            raise SegmentError(
                "document", "two inputs, states, outputs or symbols have the same name"
            )
    if len(graph.nodes) > MAX_NODES:
        raise SegmentError(
            "document", f"the graph has {len(graph.nodes)} nodes; at most {MAX_NODES} are allowed"
        )
    known = frozenset(symbol.name for symbol in graph.symbols)
    for symbol in graph.symbols:
        if symbol.input >= len(graph.inputs) or symbol.dim >= len(graph.inputs[symbol.input].shape):
            raise SegmentError(
                "document", f"the symbol {symbol.name} is read from a dimension that is not there"
            )
    for name, shape in [(i.name, i.shape) for i in graph.inputs] + [
        (o.name, o.shape) for o in graph.outputs
    ]:
        for size in shape:
            _check_symbols(size, known, name)
    for position, node in enumerate(graph.nodes):
        _check_node(graph, position, node, known)
    for output in graph.outputs:
        if output.ref.value >= graph.first_node + len(graph.nodes):
            raise SegmentError(
                "document",
                f"the output {output.name} is value {output.ref.value}, which is not there",
            )
        if output.ref.item is not None and output.ref.value < graph.first_node:
            raise SegmentError(
                "document", f"the output {output.name} is an item of a value that is one tensor"
            )


def _check_node(graph: Graph, position: int, node: Node, known: frozenset[str]) -> None:
    first, where = graph.first_node, f"node {node.number} ({node.op})"
    if node.op not in OPERATORS:
        raise SegmentError("operator", f"{where}: the operator is not on the list of this device")
    for ref in node_refs(node):
        if ref.value >= first + position:
            raise SegmentError(
                "document", f"{where} refers to value {ref.value}, which does not exist yet"
            )
        if ref.item is not None and ref.value < first:
            raise SegmentError(
                "document", f"{where} takes an item of value {ref.value}, which is one tensor"
            )
    for argument in (*node.args, *(value for _, value in node.kwargs)):
        _check_argument(argument, known, where)
    if KIND_OF[node.op] in _IN_PLACE:
        target = node.args[0] if node.args else None
        first_buffer = first - len(graph.buffers)
        if not (isinstance(target, Ref) and first_buffer <= target.value < first):
            raise SegmentError("document", f"{where} may change a buffer and nothing else")
        if not graph.buffers[target.value - first_buffer].updated:
            raise SegmentError(
                "document", f"{where} changes a buffer that is not marked as updated"
            )


def _check_symbols(expression: Expression, known: frozenset[str], where: str) -> None:
    missing = symbols_in(expression) - known
    if missing:
        raise SegmentError(
            "document", f"{where} uses the symbol {min(missing)}, which is not read from any input"
        )


def _check_argument(argument: Argument, known: frozenset[str], where: str) -> None:
    if isinstance(argument, Sym):
        _check_symbols(argument.expression, known, where)
    elif isinstance(argument, tuple):
        for item in argument:
            _check_argument(item, known, where)
