"""Regions under torch.vmap, written out as the operators over all entries that they come down to.

The exporter leaves in a program how torch.vmap wraps and unwraps tensors, as masks of attention are
made that way. Run once more over tensors without values, a region gives what torch really computes.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from potluck.graph.torch.subgraph_substitution import as_exported, put_in

_BEGINS, _ENDS = "_vmap_increment_nesting", "_vmap_decrement_nesting"
_LOADS = "lazy_load_decompositions"  # of torch's own, before each region
_WRAPPERS = frozenset({_BEGINS, _ENDS, _LOADS, "_add_batch_dim", "_remove_batch_dim"})


def without_maps(program: Any) -> None:
    """Write out every region under torch.vmap; one that cannot be written out stays as it is."""
    for module in program.graph_module.modules():
        if hasattr(module, "graph"):
            regions = list(_regions(module.graph))
            for region in regions:
                _write_out(module, region)
            if regions:
                module.recompile()


def is_wrapper(target: Any) -> bool:
    """Whether a node's target wraps or unwraps tensors for torch.vmap."""
    return _name(target) in _WRAPPERS


def _name(target: Any) -> str:
    of_torch = str(getattr(target, "__module__", "")).startswith("torch._functorch")
    return str(getattr(target, "__name__", "")) if of_torch else ""


def _regions(graph: Any) -> Iterator[list[Any]]:
    """The nodes of each outermost region, from where it begins to where it ends."""
    region: list[Any] = []
    depth = 0
    for node in graph.nodes:
        name = _name(node.target)
        depth += (name == _BEGINS) - (name == _ENDS)
        if depth or name in (_ENDS, _LOADS):
            region.append(node)
        if region and not depth and name == _ENDS:
            yield region
            region = []


def _write_out(owner: Any, region: list[Any]) -> None:
    """The operators of a region in its place."""
    inside = set(region)
    read = dict.fromkeys(n for node in region for n in node.all_input_nodes)
    given = [node for node in read if node not in inside]
    kept = [node for node in region if any(user not in inside for user in node.users)]

    def called(*values: Any) -> Any:
        known = dict(zip(given, values, strict=True))
        for node in region:
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
            known[node] = node.target(*args, **kwargs)
        return [known[node] for node in kept]

    try:
        with as_exported([node.meta["val"] for node in kept]), torch.no_grad():
            made = make_fx(called)(*[node.meta["val"] for node in given])
        results, _ = put_in(owner.graph, region[-1], made, given)
    except Exception:  # whatever a function under torch.vmap raises: it is refused where it stands
        return
    for node, result in zip(kept, results, strict=True):
        node.replace_all_uses_with(result, delete_user_cb=lambda user: user not in inside)
    for node in reversed(region):
        owner.graph.erase_node(node)
