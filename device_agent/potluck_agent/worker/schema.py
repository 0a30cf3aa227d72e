"""Whether a node's arguments are of the kinds that its operator takes, so that no odd one reaches
native code.
"""

from typing import Any

from potluck_wire.graph import Argument, Dtype, Node, Ref, SegmentError, Sym
from potluck_wire.operators import KIND_OF, TRAINING_ARGUMENT

from .operators import OVERLOADS

MAX_WINDOW = 1024  # of a kernel, stride or padding: larger ones are bombs, not networks
REDUCTIONS = frozenset({0, 1, 2})  # none, mean, sum
TRAINING_NAME = {
    op: OVERLOADS[op]._schema.arguments[place].name
    for op, (place, _) in TRAINING_ARGUMENT.items()
    if op in OVERLOADS
}
_SCALARS_AS_TENSORS = frozenset({"arithmetic", "comparison", "buffer"})


def check(node: Node) -> None:
    """Raise SegmentError, naming the node and the argument, where an argument is of the wrong
    kind.
    """
    where = f"node {node.number} ({node.op})"
    schema = OVERLOADS[node.op]._schema
    positional = [argument for argument in schema.arguments if not argument.kwarg_only]
    if len(node.args) > len(positional):
        raise SegmentError(
            "document", f"{where} takes at most {len(positional)} arguments, not {len(node.args)}"
        )
    given = dict(zip((argument.name for argument in positional), node.args, strict=False))
    by_name = {argument.name: argument for argument in schema.arguments}
    for name, value in node.kwargs:
        if name not in by_name or name in given:
            raise SegmentError("document", f"{where} takes no argument {name}"[:200])
        given[name] = value
    for name, argument in by_name.items():
        if name not in given:
            if not argument.has_default_value():
                raise SegmentError("document", f"{where} lacks its argument {name}")
        elif not _fits(given[name], str(argument.real_type), node.op):
            raise SegmentError(
                "document", f"{where}: {name} is not a {argument.real_type}: {given[name]!r}"[:200]
            )
    _check_values(node, given, where)


def _check_values(node: Node, given: dict[str, Any], where: str) -> None:
    """What the kinds alone cannot say: enumerations, and windows that would make bombs."""
    kind = KIND_OF[node.op]
    if TRAINING_NAME.get(node.op) in dict(node.kwargs):  # it is set for evaluation by its place
        raise SegmentError(
            "document", f"{where}: {TRAINING_NAME[node.op]} must stand in its place, not by name"
        )
    if kind == "loss" and given.get("reduction", 1) not in REDUCTIONS:
        raise SegmentError(
            "document", f"{where}: reduction {given['reduction']!r} is none of 0, 1, 2"[:200]
        )
    if kind in ("convolution", "pooling") and node.op.split(".")[1].startswith(
        ("conv", "max", "avg")
    ):
        sizes = [
            v for value in given.values() for v in (value if isinstance(value, tuple) else (value,))
        ]
        if any(
            isinstance(size, int) and abs(size) > MAX_WINDOW
            for size in sizes
            if size is not given.get("groups")
        ):
            raise SegmentError(
                "document", f"{where}: a kernel, stride or padding above {MAX_WINDOW}"
            )


def _fits(value: Argument, kind: str, op: str) -> bool:
    """Whether an argument is of a kind, in the words of torch's schemas."""
    if kind.startswith("Optional["):
        return value is None or _fits(value, kind[9:-1], op)
    if kind.startswith("List["):
        if isinstance(value, tuple):
            return all(_fits(item, kind[5:-1], op) for item in value)
        # int[2] may be one integer
        return kind in ("List[int]", "List[SymInt]") and _fits(value, "int", op)
    if kind == "Tensor":
        number = isinstance(value, bool | int | float | Sym) and KIND_OF[op] in _SCALARS_AS_TENSORS
        return isinstance(value, Ref) or number
    if kind in ("int", "SymInt"):
        return isinstance(value, Sym) or (isinstance(value, int) and not isinstance(value, bool))
    if kind in ("number", "Scalar"):
        return isinstance(value, bool | int | float | Sym)
    if kind == "float":
        return isinstance(value, float | int) and not isinstance(value, bool)
    known = {"bool": bool, "str": str, "ScalarType": Dtype}
    return kind in known and isinstance(value, known[kind])
