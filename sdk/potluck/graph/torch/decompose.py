"""Operators that are not on the devices' list, written out in others that are.

What torch itself makes of others (`mT`, `clip`, `hstack`, `lstm_cell`) is written out as torch does
it, so that the bits are the same. Of the rest, torch's own decompositions towards Core ATen are
taken; these give the same to rounding. Nothing that is on the list is touched.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from potluck.graph.torch.custom_decompositions import own_way
from potluck.graph.torch.draws import says_more
from potluck.graph.torch.subgraph_substitution import as_exported, put_in
from potluck_wire.operators import OPERATORS

MAX_DEPTH = 8  # of operators made of operators; torch's own go four deep


def decompose(program: Any, passed: Callable[[str], bool]) -> None:
    """Write out, in a program, every operator that is not on the list and of which torch knows how.

    `passed`: whether an operator outside the list is none for devices in any case, by its name.
    What cannot be written out stays as it is.
    """
    for module in program.graph_module.modules():
        if hasattr(module, "graph"):
            todo = [(node, 0) for node in module.graph.nodes if _is_strange(node, passed)]
            changed = bool(todo)
            while todo:
                node, depth = todo.pop()
                if depth < MAX_DEPTH:
                    new = _written_out(module, node)
                    todo += [(n, depth + 1) for n in new if _is_strange(n, passed)]
            if changed:
                module.recompile()


def _is_strange(node: Any, passed: Callable[[str], bool]) -> bool:
    name = str(node.target)
    return (
        isinstance(node.target, torch._ops.OpOverload)
        and name.startswith("aten.")
        and (name not in OPERATORS or says_more(node))
        and not passed(name)
        and isinstance(node.meta.get("val"), torch.Tensor | list | tuple)
    )


def way(target: Any) -> Callable[..., Any] | None:
    """How torch writes an operator out; None: it does not."""
    if target._can_decompose():
        return target.decompose  # type: ignore[no-any-return]
    return _table().get(target)


def _table() -> Mapping[Any, Callable[..., Any]]:
    from torch._decomp import decomposition_table

    return decomposition_table


def _written_out(owner: Any, node: Any) -> list[Any]:
    """The nodes that take the place of one; none where there is no way."""
    how = own_way(node) or way(node.target)
    if how is None:
        return []
    leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.fx.Node)]

    def called(*values: Any) -> Any:
        filled = list(leaves)
        for place, value in zip(places, values, strict=True):
            filled[place] = value
        args, kwargs = pytree.tree_unflatten(filled, spec)
        return how(*args, **kwargs)

    examples = [leaves[place].meta["val"] for place in places]
    try:
        with as_exported(node.meta["val"]), torch.no_grad():
            made = make_fx(torch.func.functionalize(called, remove="mutations"))(*examples)
    except Exception:  # whatever a decomposition raises: it is refused by name
        return []
    results, new = put_in(owner.graph, node, made, [leaves[place] for place in places])
    _replace(node, results)
    owner.graph.erase_node(node)
    return new


def _replace(node: Any, results: Any) -> None:
    """Whoever read the node reads these."""
    if isinstance(results, torch.fx.Node):
        results.meta.setdefault("val", node.meta["val"])
        node.replace_all_uses_with(results)
        return
    for user in list(node.users):  # items of a list
        user.replace_all_uses_with(results[user.args[1]])
        user.graph.erase_node(user)
