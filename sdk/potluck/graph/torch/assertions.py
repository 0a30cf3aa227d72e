"""What a module asserts of values (`assert lengths.max().item() <= n`), left out of its program.

The exporter writes an assertion as a check beside the operators: nothing that is computed depends
on it, and devices do not make it. A branch is none: torch.export refuses that one itself.
"""

from typing import Any

import torch

CHECKS = frozenset(
    {
        "_assert_tensor_metadata",
        "_assert_scalar",
        "_assert_async",
        "sym_constrain_range",
        "sym_constrain_range_for_size",
    }
)
_NUMBER = "aten.item.default"


def without_assertions(program: Any) -> None:
    """Leave out every check, and the numbers that are read for checks alone."""
    for module in program.graph_module.modules():
        if hasattr(module, "graph"):
            dead = [node for node in reversed(module.graph.nodes) if _erased(module.graph, node)]
            if dead:
                module.recompile()


def _erased(graph: Any, node: Any) -> bool:
    """Erase a check, or a number that nobody reads any more; whether it was one."""
    if node.op != "call_function" or node.users or not (_is_check(node) or _is_number(node)):
        return False
    graph.erase_node(node)
    return True


def _is_check(node: Any) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._opname in CHECKS


def _is_number(node: Any) -> bool:
    value = node.meta.get("val")
    kinds = (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)
    return isinstance(value, kinds) or str(node.target) == _NUMBER
