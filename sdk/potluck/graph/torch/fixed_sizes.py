"""Which call of a module fixes, or bounds, a size that may change: torch.export says only that some
does.
"""

import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree


class _Guarded(TorchFunctionMode):
    """Notes the first call of torch's in which a condition on a size is made."""

    def __init__(self) -> None:
        super().__init__()
        self.name = ""
        self.frames: Sequence[traceback.FrameSummary] = ()
        self._sizes: Any = None

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        if self._sizes is None:
            self._sizes = _environment((args, named))
        before = self._n_conditions()
        try:
            return function(*args, **named)
        finally:
            if not self.name and self._n_conditions() > before:
                self.name = getattr(function, "__name__", str(function))
                self.frames = traceback.extract_stack()

    def _n_conditions(self) -> int:
        return 0 if self._sizes is None else len(self._sizes.guards)


def _environment(values: Any) -> Any:
    """Where torch keeps what it knows of sizes; None where no tensor has one that may change."""
    for value in pytree.tree_leaves(values):
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if isinstance(size, torch.SymInt):
                return size.node.shape_env
    return None


def fixing_call(export: Callable[[], object]) -> tuple[str, Sequence[traceback.FrameSummary]]:
    """The first call of torch's that fixes or bounds a size, and from where it was made.

    Empty where none does, as where a size is read as a plain number.
    """
    with _Guarded() as guarded, suppress(Exception):
        export()
    return guarded.name, guarded.frames
