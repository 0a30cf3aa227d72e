"""squeeze in an exported graph never drops the rows: torch drops a dimension wherever its size is
one, and so would a share of one row lose what counts its rows.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_DIMS = torch.ops.aten.squeeze.dims
_SQUEEZES = (torch.ops.aten.squeeze.default, torch.ops.aten.squeeze.dim, _DIMS)

Written = dict[Any, tuple[Any, tuple[Any, ...]]]


def keep_rows(program: Any, batch: set[str]) -> Written:
    """Rewrite every squeeze that could drop the rows to one of its other dimensions.

    `batch`: torch's names of the number of rows. What they were, by node.
    """
    written: Written = {}
    for node in _nodes(program):
        dims = _dims(node) if node.target in _SQUEEZES else []
        shape = node.args[0].meta["val"].shape if dims else ()
        kept = [dim for dim in dims if not _counts_rows(shape[dim], batch)]
        if kept != dims:
            written[node] = node.target, node.args
            node.target, node.args = _DIMS, (node.args[0], kept)
    _recompile(program, written)
    return written


@contextmanager
def as_written(program: Any, written: Written) -> Iterator[None]:
    """The program squeezes as the module does, rows and all."""
    now = {node: (node.target, node.args) for node in written}
    # its source may have been replaced since
    _put(program, {n: (target, (n.args[0], *args[1:])) for n, (target, args) in written.items()})
    try:
        yield
    finally:
        _put(program, now)


def _put(program: Any, ways: Written) -> None:
    for node, (target, args) in ways.items():
        node.target, node.args = target, args
    _recompile(program, ways)


def _graph_modules(program: Any) -> list[Any]:
    return [module for module in program.graph_module.modules() if hasattr(module, "graph")]


def _nodes(program: Any) -> list[Any]:
    return [node for module in _graph_modules(program) for node in module.graph.nodes]


def _recompile(program: Any, changed: Written) -> None:
    for module in _graph_modules(program) if changed else ():
        module.recompile()


def _counts_rows(size: Any, batch: set[str]) -> bool:
    return isinstance(size, torch.SymInt) and bool(
        batch & {str(symbol) for symbol in size.node.expr.free_symbols}
    )


def _dims(node: Any) -> list[int]:
    """The dimensions that a squeeze asks for."""
    n = node.args[0].meta["val"].dim()
    dims = node.args[1] if len(node.args) > 1 else range(n)
    return [dim % n for dim in ([dims] if isinstance(dims, int) else dims)] if n else []
