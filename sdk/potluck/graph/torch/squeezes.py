"""squeeze in an exported graph never drops the rows: torch drops a dimension wherever its size is
one, and so would a share of one row lose what counts its rows.
"""

from typing import Any

import torch

_ATEN = torch.ops.aten
_SQUEEZES = (_ATEN.squeeze.default, _ATEN.squeeze.dim, _ATEN.squeeze.dims)


def keep_rows(program: Any) -> bool:
    """Rewrite every squeeze of a size that may change to one of the sizes that are always one.

    Whether there was any.
    """
    modules = [m for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    found = [node for module in modules for node in list(module.graph.nodes) if _changes(node)]
    for node in found:
        source = node.args[0]
        dims = [dim for dim in _dims(node) if isinstance(source.meta["val"].shape[dim], int)]
        node.target, node.args = _ATEN.squeeze.dims, (source, dims)
        if not dims:
            node.replace_all_uses_with(source)
            node.graph.erase_node(node)
    for module in modules if found else ():
        module.recompile()
    return bool(found)


def _changes(node: torch.fx.Node) -> bool:
    if node.target not in _SQUEEZES:
        return False
    shape = node.args[0].meta["val"].shape
    return any(not isinstance(shape[dim], int) for dim in _dims(node))


def _dims(node: torch.fx.Node) -> list[int]:
    """The dimensions that a squeeze asks for."""
    n = node.args[0].meta["val"].dim()
    asked = node.args[1] if len(node.args) > 1 else range(n)
    return [dim % n for dim in ([asked] if isinstance(asked, int) else asked)] if n else []
