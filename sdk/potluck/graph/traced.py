"""A whole model as data: its graph, the type of every value in it, and where its tensors are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from potluck_wire.graph import (
    ITEM_BYTES,
    Buffer,
    Graph,
    Input,
    Node,
    Parameter,
    Ref,
    Shape,
    evaluate,
)

SEQUENCE = "sequence"  # the symbol that counts tokens, where their number may change
MAX_SIZE = 1 << 20  # of a batch, and of a sequence
ANY_LENGTH = range(1, MAX_SIZE + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Type:
    """Data type and shape of one tensor."""

    dtype: str
    shape: Shape

    def elements(self, symbols: Mapping[str, int]) -> int:
        """How many elements it has at these sizes."""
        count = 1
        for size in self.shape:
            count *= evaluate(size, symbols)
        return count

    def nbytes(self, symbols: Mapping[str, int]) -> int:
        """How many bytes it takes at these sizes."""
        return self.elements(symbols) * ITEM_BYTES[self.dtype]

    def at(self, symbols: Mapping[str, int]) -> "Type":
        """The same with numbers for its sizes."""
        return Type(dtype=self.dtype, shape=tuple(evaluate(size, symbols) for size in self.shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """An exported model. `types[value]` has one entry, or one per item of a tuple.

    `by_rows`: values whose first dimension was seen to count rows; `tensors`: the user's own, by
    name; `modules`: per node the path of the module that it stands in, where there are modules;
    `reductions`: the function that makes the last of the inputs from the others of a whole batch,
    as many as its length; `lengths`: those of the sequence, where their number may change;
    `structure`: how the module's answer is made of the outputs, as torch has it, where that is
    known; `unproven`: the operator because of which only trials say that the loss is a mean over
    rows, or that each row is answered by itself; `squeezes_rows`: of a request of one row, the
    module drops the dimension of the rows; `padded`: its encoders of which torch leaves zeros at
    padded places where gradients are off; `sums_rows`: the loss is a sum over rows, not a mean;
    `whole_batch`: the loss, or an output, compares rows, so that all of a batch are there at once;
    `small_inputs`: those that go to every segment which needs them, as does what is made of them
    alone (places in a text, and masks); `largest`: sizes of the largest request, by symbol, where
    they are not those of the example.
    """

    graph: Graph
    types: tuple[tuple[Type, ...], ...]
    by_rows: frozenset[Ref] = frozenset()
    tensors: Mapping[str, Any] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    reductions: Any = ()
    lengths: range = ANY_LENGTH
    structure: Any = None
    unproven: str = ""
    squeezes_rows: bool = False
    padded: tuple[str, ...] = ()
    sums_rows: bool = False
    whole_batch: bool = False
    small_inputs: frozenset[int] = frozenset()
    largest: tuple[tuple[str, int], ...] = ()

    def type_of(self, ref: Ref) -> Type:
        """The type of a value, or of an item of it."""
        return self.types[ref.value][ref.item or 0]

    @property
    def given(self) -> tuple[Input, ...]:
        """The inputs that its user gives."""
        return self.graph.inputs[: len(self.graph.inputs) - len(self.reductions)]

    @property
    def hints(self) -> dict[str, int]:
        """The sizes of the example."""
        return {symbol.name: symbol.hint for symbol in self.graph.symbols}

    @property
    def state_types(self) -> dict[str, Type]:
        """The type of each parameter and buffer."""
        kept: list[Parameter | Buffer] = [*self.graph.parameters, *self.graph.buffers]
        return {item.name: Type(dtype=item.dtype, shape=item.shape) for item in kept}

    def output_bytes(self, inputs: Sequence[Any]) -> dict[str, int]:
        """Bytes of each output for these inputs, where sequences may be of any length, or sizes do
        not grow with the rows alone.

        Elsewhere plans know them.
        """
        if SEQUENCE not in self.hints and not self.whole_batch:
            return {}
        return {name: kind.nbytes({}) for name, kind in self.output_types(inputs).items()}

    def output_types(self, inputs: Sequence[Any]) -> dict[str, Type]:
        """The type of each output for these inputs, with numbers for its sizes."""
        sizes = {
            symbol.name: inputs[symbol.input].shape[symbol.dim] // symbol.multiple
            for symbol in self.graph.symbols
        }
        return {output.name: self.type_of(output.ref).at(sizes) for output in self.graph.outputs}


def moved(node: Node, move: Callable[[Ref], Ref]) -> Node:
    """The node reading other values.

    Parameters
    ----------
    node
        As it is.
    move
        Gives the value that it reads in the place of another.
    """

    def argument(given: Any) -> Any:
        if isinstance(given, Ref):
            return move(given)
        return tuple(map(argument, given)) if isinstance(given, tuple) else given

    kwargs = tuple((name, argument(given)) for name, given in node.kwargs)
    return replace(node, args=argument(node.args), kwargs=kwargs)
