"""Which values of an exported model count rows: seen by running it on three rows together, then on
one and on two.

A shape alone cannot tell [rows x heads] from [heads x rows]. So each value whose shape has rows in
one dimension is boiled down to one number per row, and the numbers of the parts must be those of
the whole. It runs as in evaluation (batch normalisation ties rows together), and on made-up
weights, so that no zero of the real ones hides anything.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from potluck.graph.partition.cuts import row_dim
from potluck.graph.torch import draws
from potluck.graph.torch.convert import where
from potluck.graph.traced import Type
from potluck_wire.graph import Ref
from potluck_wire.operators import in_evaluation

ROWS = 3
MOST_KEPT = 1_000_003  # numbers of a weight that is made once; a prime, so that no row comes again
_FIRST, _SECOND = slice(0, 1), slice(1, ROWS)
# of the largest: kernels for one and three rows sum in different orders
_TOLERANCE = 1e-3
_TOLERANCE_HALF = 2e-2  # where some of it is computed in half precision


class OperatorFailed(Exception):
    """An operator failed over the values of rows like the examples."""

    def __init__(self, node: torch.fx.Node, error: Exception) -> None:
        super().__init__(
            f"{node.target}{where(node)}: {type(error).__name__}: "
            f"{str(error).strip().splitlines()[0]}"
        )


class Runner(torch.fx.Interpreter):
    """Runs a graph; raises OperatorFailed where an operator does not take the values."""

    def run_node(self, node: torch.fx.Node) -> Any:
        """What the node gives."""
        try:
            return super().run_node(node)
        except Exception as error:  # whatever an operator raises over the values
            raise OperatorFailed(node, error) from error


@dataclass(frozen=True, slots=True)
class LateTensor:
    """A tensor that is made whenever it is read, and kept by nobody: all weights of a large model
    at once would take its size a second time.
    """

    make: Callable[[], torch.Tensor]


class RowRunner(Runner):
    """Runs a graph on some rows of a batch: `first` is the number of the first of them.

    What it would draw for a row is the same, whichever rows are beside it. Some of what it is given
    may be of `LateTensor`.
    """

    def __init__(self, module: torch.nn.Module, rows: int, first: int = 0) -> None:
        super().__init__(module)
        self.rows = rows
        self.first = first

    def map_nodes_to_values(self, args: Any, n: torch.fx.Node) -> Any:
        """The values that a node is given."""
        return torch.fx.node.map_aggregate(super().map_nodes_to_values(args, n), at_once)

    def run_node(self, node: torch.fx.Node) -> Any:
        """What the node gives."""
        if node.target not in draws.DRAWS:
            return super().run_node(node)
        (like,), _ = self.fetch_args_kwargs_from_env(node)
        return draws.stand_in(node, like, self.first, self.rows)


def at_once(value: Any) -> Any:
    """A value, which is made where it is late."""
    return value.make() if isinstance(value, LateTensor) else value


class RowCounter(RowRunner):
    """Runs an exported graph in evaluation and keeps one number per row of every value that may
    count rows.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        values: Mapping[torch.fx.Node, Any],
        types: Sequence[tuple[Type, ...]],
        rows: int,
        first: int = 0,
    ) -> None:
        super().__init__(module, rows, first)
        self.values = values
        self.types = types
        self.found: dict[Ref, torch.Tensor] = {}
        self._weights = _weights(0)  # of the largest value so far: others take its first ones

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for place, region in enumerate(args):
            if isinstance(region, torch.nn.Module):  # without gradients, or autocast
                inside = type(self)(region, self.values, self.types, self.rows, self.first)
                result = inside.run(*args[place + 1 :])
                self.found |= inside.found
                return result
        functional = str(target).replace("_.", ".", 1)
        return super().call_function(target, in_evaluation(functional, args), kwargs)

    def run_node(self, node: torch.fx.Node) -> Any:
        result = super().run_node(node)
        ref = self.values.get(node)
        for item, tensor in enumerate(result if isinstance(result, list | tuple) else (result,)):
            if isinstance(ref, Ref) and isinstance(tensor, torch.Tensor):
                self._note(ref if tensor is result else Ref(ref.value, item), tensor)
        return result

    def _note(self, ref: Ref, tensor: torch.Tensor) -> None:
        dim = row_dim(self.types[ref.value][ref.item or 0].shape)
        if dim is not None and tensor.numel():
            if tensor.is_complex():
                tensor = torch.view_as_real(tensor.detach().resolve_conj())
            flat = tensor.detach().movedim(dim, 0).reshape(self.rows, -1).double()
            if len(self._weights) < flat.shape[1]:
                self._weights = _weights(flat.shape[1])
            self.found[ref] = flat @ self._weights[: flat.shape[1]]


Complete = Callable[[list[torch.Tensor]], list[torch.Tensor]]


def by_rows(
    program: Any,
    values: Mapping[torch.fx.Node, Any],
    types: Sequence[tuple[Type, ...]],
    state: Mapping[torch.fx.Node, torch.Tensor],
    example: Sequence[torch.Tensor],
    complete: Complete = list,
) -> frozenset[Ref]:
    """Every value of which one dimension counts rows of the batch, one after the other.

    `complete` adds to some rows what else the graph takes beside them. Raises OperatorFailed where
    the graph does not even run on the rows of the example.
    """

    def seen(
        inputs: Sequence[torch.Tensor], weights: Mapping[torch.fx.Node, torch.Tensor | LateTensor]
    ) -> frozenset[Ref]:
        def digests(part: slice) -> dict[Ref, torch.Tensor]:
            rows = part.stop - part.start
            watcher = RowCounter(program.graph_module, values, types, rows, part.start)
            _run(watcher, program, weights, [x[part].clone() for x in inputs])
            return watcher.found

        full = digests(slice(0, ROWS))
        first = digests(_FIRST)
        second = digests(_SECOND)
        everywhere = full.keys() & first.keys() & second.keys()
        return frozenset(
            ref
            for ref in everywhere
            if _same(full[ref], torch.cat([first[ref], second[ref]]), tolerance)
        )

    is_half = any(t.dtype in ("float16", "bfloat16") for kinds in types for t in kinds)
    tolerance = _TOLERANCE_HALF if is_half else _TOLERANCE
    holders = [node for node in program.graph.nodes if node.op == "placeholder"]
    try:
        weights = {
            holder: made_up(state[holder], i) for i, holder in enumerate(holders) if holder in state
        }
        return seen(complete([varied(x) for x in example]), weights)
    except OperatorFailed:  # an index may have left its range: the real rows and weights, then
        real = [x[torch.arange(ROWS) % x.shape[0]] for x in example]
        if all(bool((x == x[:1]).all()) for x in real):
            raise  # rows that are all the same show nothing
        return seen(complete(real), {holder: own_copy(tensor) for holder, tensor in state.items()})


def _run(
    watcher: RowCounter,
    program: Any,
    state: Mapping[torch.fx.Node, torch.Tensor | LateTensor],
    inputs: Sequence[torch.Tensor],
) -> Any:
    """The outputs for these inputs and this state."""
    with torch.no_grad():
        return watcher.run(*arguments(program, state, inputs))


def arguments(
    program: Any, state: Mapping[torch.fx.Node, Any], inputs: Sequence[torch.Tensor]
) -> list[Any]:
    """What a program is called with: its state, then these inputs.

    Nothing for state that it does not use.
    """
    holders = [node for node in program.graph.nodes if node.op == "placeholder"]
    rest = iter(inputs)
    unused = {
        h for h in holders if not h.users and h.name not in program.graph_signature.user_inputs
    }
    return [
        torch.zeros(0) if h in unused else state[h] if h in state else next(rest) for h in holders
    ]


def _same(full: torch.Tensor, parts: torch.Tensor, tolerance: float) -> bool:
    atol = tolerance * largest(full)
    return torch.allclose(full, parts, rtol=tolerance, atol=atol, equal_nan=True)


def largest(tensor: torch.Tensor) -> float:
    """The largest absolute value that is a number."""
    return float(tensor.abs().nan_to_num(posinf=0.0).max()) if tensor.numel() else 0.0


def made_up(tensor: torch.Tensor, seed: int) -> torch.Tensor | LateTensor:
    """A weight of the usual size in place of the real one; buffers and constants as they are."""
    if not isinstance(tensor, torch.nn.Parameter) or not tensor.is_floating_point():
        return tensor.detach().clone()
    make = partial(_made_up, tensor.shape, tensor.dtype, seed)
    return LateTensor(make) if tensor.numel() > MOST_KEPT else make()


def own_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of what a graph may change: weights are not."""
    is_weight = isinstance(tensor, torch.nn.Parameter)
    return tensor.detach() if is_weight else tensor.detach().clone()


def _made_up(shape: torch.Size, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Normal numbers; those of a large weight are some of them again and again."""
    generator = torch.Generator().manual_seed(seed)
    size = math.prod(shape)
    fan_in = max(size // shape[0], 1) if len(shape) > 1 and shape[0] else 1
    made = torch.randn(min(size, MOST_KEPT), generator=generator) * fan_in**-0.5
    made = (made if len(shape) > 1 else 1.0 + 0.1 * made).to(dtype)
    many: torch.Tensor = made.repeat(-(-size // MOST_KEPT) or 1)[:size]
    return many.reshape(shape)


def varied(example: torch.Tensor) -> torch.Tensor:
    """Three rows like those of the example, all different."""
    generator = torch.Generator().manual_seed(0)
    rows = example[torch.arange(ROWS) % example.shape[0]].clone()
    if rows.is_floating_point():
        scale = float(rows.std().nan_to_num()) if rows.numel() > 1 else 1.0
        return rows + torch.randn(rows.shape, generator=generator).to(rows.dtype) * (scale or 1.0)
    flat = example.reshape(-1)
    return flat[torch.randint(len(flat), rows.shape, generator=generator)] if len(flat) else rows


def _weights(n: int) -> torch.Tensor:
    """Fixed numbers around one, of no simple pattern."""
    return torch.add(
        1.0, torch.sin(torch.arange(n, dtype=torch.float64) * 12.9898 + 0.7), alpha=0.5
    )
