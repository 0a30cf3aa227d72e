"""The type that torch makes floats of where none is asked for: on devices it is float32, whatever
`torch.set_default_dtype` says here.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from potluck.errors import ModelError
from potluck.graph.torch.batch_axis import OperatorFailed, Runner
from potluck.graph.torch.convert import where


class _Typed(Runner):
    """Runs a graph, and refuses the first node whose value has another type than it was exported
    with.
    """

    def __init__(self, module: torch.nn.Module, default: torch.dtype) -> None:
        super().__init__(module)
        self._default = default

    def run_node(self, node: torch.fx.Node) -> Any:
        """What the node gives, in the type that it has in the graph.

        Raises
        ------
        ModelError
            It has another.
        """
        try:
            found = super().run_node(node)
        except OperatorFailed as error:
            raise _refusal(node, self._default) from error
        exported = node.meta.get("val")
        if (
            node.op != "placeholder"  # makes nothing; that of an unused buffer is any tensor
            and isinstance(found, torch.Tensor)
            and isinstance(exported, torch.Tensor)
            and found.dtype is not exported.dtype
        ):
            raise _refusal(node, self._default)
        return found


def check_default_type(
    module: torch.nn.Module, arguments: Callable[[], Sequence[torch.Tensor]]
) -> None:
    """Raise ModelError for a graph that gives other types where the default type is float32.

    Parameters
    ----------
    module
        The exported program's.
    arguments
        What it takes: its state, then inputs and targets.

    Raises
    ------
    ModelError
        The first operator that makes floats of the default type.
    """
    if torch.get_default_dtype() is torch.float32:
        return
    given, default = arguments(), torch.get_default_dtype()
    with _as_on_devices(), torch.no_grad(), torch.random.fork_rng(devices=()):
        _Typed(module, default).run(*given)


@contextmanager
def _as_on_devices() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _refusal(node: torch.fx.Node, default: torch.dtype) -> ModelError:
    name = str(default).removeprefix("torch.")
    return ModelError(
        f"{node.target}{where(node)} makes floats of torch's default type, which is {name} here "
        "and float32 on devices.",
        next_step=f"Say the type there, as in x.to(torch.{name}); or leave out "
        "torch.set_default_dtype.",
    )
