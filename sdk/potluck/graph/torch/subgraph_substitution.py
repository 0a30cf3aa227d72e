"""A small graph, traced of what an operator or several come down to, put in the place of these."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch.utils import _pytree as pytree

_COPIED = ("nn_module_stack", "stack_trace", "source_fn_stack", "from_node")


@contextmanager
def as_exported(results: Any) -> Iterator[None]:
    """Under the mode in which the shapes of these results are symbols."""
    found = [v for v in pytree.tree_leaves(results) if isinstance(v, torch.Tensor)]
    mode = getattr(found[0], "fake_mode", None) if found else None
    if mode is None:
        raise ValueError("its result has no shape yet")
    with mode, enable_python_dispatcher():
        yield


def put_in(graph: Any, at: Any, made: Any, given: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Copy the nodes of `made` into a graph, before the node `at`; what they give, and they.

    `given`: the nodes that it takes. The new ones stand in the same module and line as `at`.
    """
    copies: dict[Any, Any] = {}
    rest = iter(given)
    new = list[Any]()
    results = None
    with graph.inserting_before(at):
        for inner in made.graph.nodes:
            if inner.op == "placeholder":
                copies[inner] = next(rest)
                continue
            if inner.op == "output":
                results = pytree.tree_map_only(torch.fx.Node, copies.get, inner.args[0])
                continue
            copies[inner] = (
                _constant(graph, getattr(made, inner.target), inner)
                if inner.op == "get_attr"
                else graph.node_copy(inner, copies.__getitem__)
            )
            new.append(copies[inner])
    for one in new:
        one.meta.update({key: at.meta[key] for key in _COPIED if key in at.meta})
    return results, new


def _constant(graph: Any, tensor: torch.Tensor, inner: Any) -> Any:
    """A number that a decomposition made, as an operator that makes it."""
    if tensor.numel() != 1:
        raise ValueError("a table of its own")
    shape = list(tensor.shape)
    made = graph.call_function(
        torch.ops.aten.full.default, (shape, tensor.item()), {"dtype": tensor.dtype}
    )
    made.meta["val"] = inner.meta.get("val", tensor)
    return made
