"""The rules of dependence for products, and for what is made of them: attention, recurrent layers.
Pure.
"""

from dataclasses import replace

from potluck.graph.loss.dependence import (
    ACROSS,
    FREE,
    PAIRS,
    Dependence,
    RowsMixed,
    function,
    over_rows,
    product,
    summed,
    together,
)
from potluck.graph.loss.node_view import NodeView
from potluck_wire.graph import Ref


def _contracted(look: NodeView, operands: list[tuple[Ref, str]], result: str) -> Dependence | None:
    """A product of values whose dimensions have letters, summed over those that the result has
    not.
    """
    rows = {
        letters[look.axis_of(ref) or 0]
        for ref, letters in operands
        if look.axis_of(ref) is not None
    }
    if len(rows) > 1:
        raise RowsMixed(PAIRS)
    refs = [ref for ref, _ in operands]
    having = [ref for ref in refs if look.axis_of(ref) is not None]
    if len({(look.known[ref].outer, look.per_row(ref)) for ref in having}) > 1:
        return None
    found = FREE
    for ref in refs:
        value = look.known[ref]
        if having and ref not in having:
            value = over_rows(value)
        found = product(found, value)
    if rows and not rows & set(result):
        return summed(found)
    return look.laid_out_as(refs, found)


def _plus(look: NodeView, found: Dependence | None, other: Ref) -> Dependence | None:
    """With a bias or an addend."""
    if found is None or look.axis_of(other) not in (None, look.axis):
        return None
    value = look.known[other]
    if look.axis is not None and look.axis_of(other) is None:
        value = over_rows(value)
    return replace(together([found, value]), outer=found.outer)


_LETTERS = "abcdefghijklmnopqrstuvwx"
_REST = "0123456789"


def linear(look: NodeView) -> Dependence | None:
    x, weight = look.first, look.argument(1)
    letters = _LETTERS[: look.rank(x)]
    out = "y" if look.rank(weight) == 2 else ""
    found = _contracted(look, [(x, letters), (weight, out + letters[-1])], letters[:-1] + out)
    bias = look.argument(2, "bias")
    return _plus(look, found, bias) if isinstance(bias, Ref) else found


def matmul(look: NodeView, place: int = 0) -> Dependence | None:
    a, b = look.argument(place), look.argument(place + 1)
    rank_a, rank_b = look.rank(a), look.rank(b)
    batch = _LETTERS[: max(rank_a, rank_b, 2) - 2]
    of_a = "z" if rank_a == 1 else (batch[len(batch) - rank_a + 2 :] + "yz")
    of_b = "z" if rank_b == 1 else (batch[len(batch) - rank_b + 2 :] + "zx")
    return _contracted(look, [(a, of_a), (b, of_b)], batch + "yx")


def added_matmul(look: NodeView) -> Dependence | None:
    return _plus(look, matmul(look, 1), look.first)


def einsum(look: NodeView) -> Dependence | None:
    equation, refs = str(look.argument(0)).replace(" ", ""), look.argument(1)
    inputs, arrow, result = equation.partition("->")
    if not arrow:  # what is there once, in the order of the alphabet
        once = sorted(letter for letter in set(inputs) - set(",.") if inputs.count(letter) == 1)
        result = "".join(["..." * ("." in inputs), *once])
    operands, max_rest = [], 0
    for ref, letters in zip(refs, inputs.split(","), strict=True):
        n_rest = look.rank(ref) - len(letters.replace("...", ""))
        operands.append((ref, letters.replace("...", _rest(n_rest))))
        max_rest = max(max_rest, n_rest)
    return _contracted(look, operands, result.replace("...", _rest(max_rest)))


def _rest(n: int) -> str:
    """Names for the dimensions that an equation leaves out, the last ones the same everywhere."""
    return _REST[len(_REST) - n :]


def attention(look: NodeView) -> Dependence | None:
    """Queries, keys and values, and perhaps a mask, of each row."""
    axis = look.axis
    if axis is None:
        return None
    if axis >= len(look.shape) - 2:
        raise RowsMixed(ACROSS)
    values = look.aligned(look.refs)
    return None if values is None else look.laid_out_as(look.refs, function(values))


def recurrent(look: NodeView) -> Dependence | None:
    """The rows lie in the first dimension or the second, as the operator is told.

    The states' in the second.
    """
    batch_first = look.node.args[-1]
    axis, states = look.axis_of(look.first), look.argument(1)
    if (
        axis != (0 if batch_first else 1)
        or look.rank(look.first) != 3
        or look.known[look.first].outer != 1
    ):
        return None
    begin = list(states) if isinstance(states, tuple) else [states]
    if any(look.axis_of(ref) not in (None, 1) or look.known[ref].outer != 1 for ref in begin):
        return None
    return function([look.known[ref] for ref in look.refs])
