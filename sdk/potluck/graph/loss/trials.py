"""Trials of what could not be proven: a loss of some rows, and its gradients, against the mean over
parts of them; and values of some rows against those of parts.

They run in double precision, on rows of several sizes and seeds, so that a term over the batch
shows beside others that are a million times as large. Rows of whole numbers, such as classes, are
drawn from those of the example.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch

from potluck.graph.torch.batch_axis import (
    Complete,
    LateTensor,
    OperatorFailed,
    RowCounter,
    RowRunner,
    arguments,
    at_once,
    largest,
    made_up,
    own_copy,
)
from potluck.graph.traced import Type
from potluck_wire.graph import Ref
from potluck_wire.operators import in_evaluation

_ROWS = 6
_PARTS = ([1, 5], [3, 3], [2, 1, 3])
_MAGNITUDES = (1e-3, 1.0, 1e3)
_TOLERANCE = 1e-9  # of the largest: sums in another order differ by 1e-14
# of the largest gradient: one that is zero in truth, such as a key's bias, is made of it
_ROUNDING = 1e-13
_HALVES = frozenset({torch.float32, torch.float16, torch.bfloat16})


@dataclass(frozen=True, slots=True)
class Difference:
    """The loss of some rows, and the mean over their parts.

    `weight`: whose gradient differs, where losses do not.
    """

    whole: float
    parts: float
    weight: str = ""


class _Doubled(RowRunner):
    """Runs an exported graph in evaluation and in double precision, whatever types it names."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args = in_evaluation(str(target), args)
        return super().call_function(target, *torch.fx.node.map_aggregate((args, kwargs), _doubled))


class _DoubledWatcher(RowCounter):
    """The numbers of rows of every value, in double precision."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return super().call_function(target, *torch.fx.node.map_aggregate((args, kwargs), _doubled))


def _doubled(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.dtype in _HALVES else value
    return torch.float64 if isinstance(value, torch.dtype) and value in _HALVES else value


def _own_doubled(value: Any) -> Any:
    """A copy in double precision, of what may be made only now."""
    return _doubled(at_once(value).clone())


def difference(
    program: Any,
    state: Mapping[torch.fx.Node, torch.Tensor],
    example: Sequence[torch.Tensor],
    complete: Complete = list,
) -> Difference | None:
    """Where the loss of some rows is not the mean over their parts; None where all trials agree.

    Raises OperatorFailed where the loss runs on no rows like those of the example.
    """
    failed, ran = None, False
    learned = [
        h for h, t in state.items() if isinstance(t, torch.nn.Parameter) and t.is_floating_point()
    ]
    for rows, weights in _trials(program, state, example):
        try:
            found = _compare(_Loss(program, weights, learned), complete(rows))
        except OperatorFailed as error:
            failed = error
            continue
        ran = True
        if found is not None:
            return found
    if failed is not None and not ran:
        raise failed
    return None


def apart(
    program: Any,
    values: Mapping[torch.fx.Node, Any],
    types: Sequence[tuple[Type, ...]],
    state: Mapping[torch.fx.Node, torch.Tensor],
    example: Sequence[torch.Tensor],
    refs: Iterable[Ref],
    complete: Complete = list,
) -> frozenset[Ref]:
    """Those of some values that are the same of rows together and of parts of them, in all trials.

    In one of the trials the rows have to differ, or it shows nothing.
    """
    remaining, shown = set(refs), set[Ref]()
    for rows, weights in _trials(program, state, example):

        def digests(
            part: Sequence[torch.Tensor], first: int = 0, own: Any = weights
        ) -> dict[Ref, torch.Tensor]:
            watcher = _DoubledWatcher(program.graph_module, values, types, len(part[0]), first)
            given = {h: LateTensor(partial(_own_doubled, tensor)) for h, tensor in own.items()}
            with torch.no_grad():
                watcher.run(*arguments(program, given, [_doubled(x) for x in complete([*part])]))
            return watcher.found

        try:
            full = digests(rows)
            parts = [[digests(part, first) for first, part in _divided(rows, n)] for n in _PARTS]
        except OperatorFailed:
            continue
        for ref in [*remaining]:
            found = [torch.cat([part[ref] for part in split]) for split in parts]
            if not all(_same(full[ref], other) for other in found):
                remaining.discard(ref)
            if full[ref].isfinite().all() and not _same(full[ref], full[ref].flip(0)):
                shown.add(ref)
    return frozenset(remaining & shown)


def _divided(
    rows: Sequence[torch.Tensor], sizes: Sequence[int]
) -> Iterator[tuple[int, tuple[torch.Tensor, ...]]]:
    """Parts of some rows, each with the number of its first row."""
    parts = zip(*(torch.split(x, list(sizes)) for x in rows), strict=True)
    return zip(accumulate(sizes, initial=0), parts, strict=False)


def _same(full: torch.Tensor, parts: torch.Tensor) -> bool:
    return torch.allclose(
        full, parts, rtol=_TOLERANCE, atol=_TOLERANCE * largest(full), equal_nan=True
    )


def _trials(
    program: Any, state: Mapping[torch.fx.Node, torch.Tensor], example: Sequence[torch.Tensor]
) -> Iterator[tuple[list[torch.Tensor], dict[torch.fx.Node, torch.Tensor | LateTensor]]]:
    """Rows and weights: first those of the user, then made-up ones of each size."""
    holders = [node for node in program.graph.nodes if node.op == "placeholder"]
    yield (
        [x[torch.arange(_ROWS) % x.shape[0]] for x in example],
        {h: own_copy(t) for h, t in state.items()},
    )
    for seed, magnitude in enumerate(_MAGNITUDES):
        generator = torch.Generator().manual_seed(seed)
        weights = {h: made_up(state[h], i + seed) for i, h in enumerate(holders) if h in state}
        yield [_drawn(x, magnitude, generator) for x in example], weights


def _drawn(example: torch.Tensor, magnitude: float, generator: torch.Generator) -> torch.Tensor:
    flat = example.reshape(-1)
    shape = (_ROWS, *example.shape[1:])
    if example.is_floating_point():
        drawn = (
            torch.randn(shape, generator=generator) * magnitude * (float(flat.abs().max()) or 1.0)
        )
        inside = bool(((flat >= 0) & (flat <= 1)).all())  # shares and odds stay such
        return (drawn.abs() / (1 + drawn.abs()) if inside and magnitude != 1.0 else drawn).to(
            example.dtype
        )
    drawn = flat[torch.randint(len(flat), shape, generator=generator)] if len(flat) else example[:0]
    return (drawn * magnitude).to(drawn.dtype) if magnitude < 1 else drawn


@dataclass(frozen=True, slots=True)
class _Loss:
    """A loss with weights; called with rows, it gives itself and the gradients of what is
    learned.
    """

    program: Any
    weights: Mapping[torch.fx.Node, torch.Tensor | LateTensor]
    learned: Sequence[torch.fx.Node]

    def __call__(self, rows: Sequence[torch.Tensor], first: int = 0) -> list[torch.Tensor]:
        weights = {h: _own_doubled(tensor) for h, tensor in self.weights.items()}
        leaves = [weights[h].requires_grad_() for h in self.learned]
        with torch.enable_grad():
            given = arguments(self.program, weights, [_doubled(x) for x in rows])
            (loss,) = _Doubled(self.program.graph_module, len(rows[0]), first).run(*given)
            found = (
                torch.autograd.grad(loss, leaves, allow_unused=True)
                if loss.requires_grad
                else [None] * len(leaves)
            )
        return [
            loss.detach(),
            *(torch.zeros_like(w) if g is None else g for g, w in zip(found, leaves, strict=True)),
        ]


def _compare(loss: _Loss, rows: Sequence[torch.Tensor]) -> Difference | None:
    full = loss(rows)
    for sizes in _PARTS:
        found = [
            [value * (len(part[0]) / _ROWS) for value in loss(part, first)]
            for first, part in _divided(rows, sizes)
        ]
        parts = [torch.stack(values).sum(0) for values in zip(*found, strict=True)]
        noise = _ROUNDING * max([largest(gradient) for gradient in full[1:]], default=0.0)
        for i, (a, b) in enumerate(zip(full, parts, strict=True)):
            if not torch.allclose(
                a,
                b,
                rtol=_TOLERANCE,
                atol=_TOLERANCE * largest(a) + noise * (i > 0),
                equal_nan=True,
            ):
                return Difference(
                    float(full[0]), float(parts[0]), str(loss.learned[i - 1].name) if i else ""
                )
    return None
