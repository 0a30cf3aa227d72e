"""Sizes that depend on the batch: torch's symbolic integers as our expressions."""

from collections.abc import Mapping
from typing import Any

from potluck.errors import ModelError
from potluck_wire.graph import Expression, Shape

_OPERATIONS = {
    "FloorDiv": "//",
    "CleanDiv": "//",
    "Mod": "%",
    "PythonMod": "%",
    "Max": "max",
    "Min": "min",
}


def expression(size: Any, names: Mapping[str, str]) -> Expression:
    """A SymInt (or an integer) as an expression over the symbols in `names` (torch's name ->
    ours).
    """
    if isinstance(size, int):
        return size
    return _of_sympy(size.node.expr, names)


def shape(tensor: Any, names: Mapping[str, str]) -> Shape:
    """The shape of a traced tensor."""
    return tuple(expression(size, names) for size in tensor.shape)


def _of_sympy(term: Any, names: Mapping[str, str]) -> Expression:
    if term.is_Integer:
        return int(term)
    if term.is_Symbol:
        if str(term) not in names:
            raise ModelError(
                "a size depends on the data, not on the shapes of the inputs.",
                next_step="Make it depend on input shapes only, or compute it outside the model.",
            )
        return names[str(term)]
    kind = type(term).__name__
    operands = [_of_sympy(argument, names) for argument in term.args] if kind != "Pow" else []
    if term.is_Add:
        return ("+", *operands)
    if term.is_Mul:
        return ("*", *operands)
    if kind == "Pow" and term.exp.is_Integer and 2 <= int(term.exp) <= 8:
        return ("*", *([_of_sympy(term.base, names)] * int(term.exp)))
    if kind in _OPERATIONS:
        return (_OPERATIONS[kind], *operands)
    raise ModelError(f"a size is computed as {kind}, which a device cannot evaluate.")
