"""One row, and a sequence of one: torch.export takes every size that may change for two or more,
and loses what a module does otherwise for one. So the graph is compared with the module there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from potluck.errors import ModelError
from potluck.graph.torch.batch_axis import (
    Complete,
    OperatorFailed,
    Runner,
    arguments,
    largest,
    varied,
)
from potluck.graph.torch.draws import Determined
from potluck.graph.torch.statefulness import spared

_TOLERANCE = 1e-3  # of the largest: some kernels of the module sum in another order
_TOLERANCE_HALF = 2e-2
_ROUNDING = 1e-6  # of the largest of all: what is zero but for it
Run = Callable[[Sequence[torch.Tensor]], Any]


class _ModuleFailed(Exception):
    """A module does not run on some rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleAndProgram:
    """A module and its exported program, which takes what `complete` adds to some rows.

    `train`: what they give is a loss, and its gradients count, too. `has_draws`: they draw random
    numbers.
    """

    module: torch.nn.Module
    program: Any
    state: Mapping[torch.fx.Node, torch.Tensor]
    complete: Complete
    train: bool
    has_draws: bool = False

    def differ(self, rows: Sequence[torch.Tensor]) -> bool:
        """Whether they give something else; not where the program fails, which devices tell.

        Raises _ModuleFailed.
        """
        try:
            wanted = self._outcome(self._module, rows)
        except Exception as error:  # whatever the user's code raises
            raise _ModuleFailed from error
        try:
            got = self._outcome(self._program, rows)
        except OperatorFailed:
            return False
        return not _same(wanted, got)

    def _module(self, rows: Sequence[torch.Tensor]) -> Any:
        with spared(self.module):
            return self.module(*rows)

    def arguments(self, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What the program takes for some rows: parameters, copies of the other state, inputs."""
        own = {
            h: t if isinstance(t, torch.nn.Parameter) else t.detach().clone()
            for h, t in self.state.items()
        }
        return arguments(self.program, own, self.complete(list(rows)))

    def _program(self, rows: Sequence[torch.Tensor]) -> Any:
        return Runner(self.program.graph_module).run(*self.arguments(rows))

    def _outcome(self, run: Run, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What is given for some rows: tensors, or the loss and its gradients."""
        weights = [t for t in self.state.values() if isinstance(t, torch.nn.Parameter)]
        learned = [weight for weight in weights if weight.requires_grad]
        drawn = Determined() if self.has_draws else nullcontext()  # type: ignore[no-untyped-call]
        with torch.random.fork_rng(devices=()), torch.set_grad_enabled(self.train), drawn:
            _seed([*self.state.values(), *rows])  # both draw the same masks
            given = pytree.tree_leaves(run([x.clone() for x in rows]))
            found = [value for value in given if isinstance(value, torch.Tensor)]
            if not self.train or not found[0].requires_grad:
                return [value.detach() for value in found]
            gradients = torch.autograd.grad(found[0], learned, allow_unused=True)
        pairs = zip(gradients, learned, strict=True)
        dense = [torch.zeros_like(w) if g is None else g.to_dense() for g, w in pairs]
        return [found[0].detach(), *dense]


def check_single(
    pair: ModuleAndProgram, tensors: Sequence[torch.Tensor], dims: Sequence[int | None]
) -> None:
    """Raise ModelError for a module that does something else for one row, or for a sequence of one,
    which is dimension `dims[i]`, than its graph does.

    What the module does not run on is left to whoever calls it.
    """
    for example in ([varied(x) for x in tensors], list(tensors)):
        try:
            for what, rows in _single(example, dims):
                if pair.differ(rows) and not pair.differ(example):
                    raise ModelError(
                        f"it does something else for {what} than for several.",
                        next_step="Leave out what asks whether a size is 1, as in x.shape[0] == 1, "
                        "or do it outside the model: its graph is that for several.",
                    )
        except _ModuleFailed:
            continue  # these rows are none for it
        return


def check_same(pair: ModuleAndProgram, tensors: Sequence[torch.Tensor]) -> None:
    """Raise ModelError for a module whose answers, loss or gradients are not those of its graph.

    Where the module does not run on made-up values, its own example speaks alone.
    """
    try:
        differs = pair.differ(list(tensors))
        with suppress(_ModuleFailed):
            differs = differs and pair.differ([varied(x) for x in tensors])
    except _ModuleFailed:
        return
    if differs:
        raise ModelError(
            "it gives other gradients when it is called than its exported graph does."
            if pair.train
            else "it gives other answers when it is called than its exported graph does.",
            next_step="Look for what changes a gradient on its way and is no operator: "
            "torch.inference_mode() (torch.no_grad() or detach() say what is meant), and hooks of "
            "the autograd graph, such as grad_fn.register_hook and saved_tensors_hooks."
            if pair.train
            else "Look for branches that differ from call to call.",
        )


def _seed(tensors: Sequence[torch.Tensor]) -> None:
    """Begin to draw anew where these are: of each kind of accelerator that was never used,
    `torch.manual_seed` keeps a traceback.
    """
    if all(tensor.device.type in ("cpu", "meta") for tensor in tensors):
        torch.default_generator.manual_seed(0)
    else:
        torch.manual_seed(0)


def _single(
    example: Sequence[torch.Tensor], dims: Sequence[int | None]
) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """What is tried, in words, and the tensors."""
    yield "one row", [x[:1] for x in example]
    if any(dim is not None for dim in dims):
        short = [
            x if dim is None else x.narrow(dim, 0, 1) for x, dim in zip(example, dims, strict=True)
        ]
        yield "a sequence of one", short
        yield "one row with a sequence of one", [x[:1] for x in short]


def _same(wanted: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> bool:
    scale = max([largest(value) for value in wanted if value.is_floating_point()], default=0.0)
    return len(wanted) == len(got) and all(
        a.shape == b.shape and a.dtype == b.dtype and _close(a, b, scale)
        for a, b in zip(wanted, got, strict=True)
    )


def _close(wanted: torch.Tensor, got: torch.Tensor, scale: float) -> bool:
    if not wanted.is_floating_point():
        return torch.equal(wanted, got)
    tolerance = _TOLERANCE if wanted.dtype in (torch.float32, torch.float64) else _TOLERANCE_HALF
    atol = tolerance * largest(wanted) + _ROUNDING * scale
    return torch.allclose(wanted, got, rtol=tolerance, atol=atol, equal_nan=True)
