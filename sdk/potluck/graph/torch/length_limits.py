"""Which lengths of a sequence a module takes, as far as an error of torch.export's tells."""

import ast
import operator
import re

from potluck.graph.traced import MAX_SIZE, SEQUENCE

_NEAR = 4096  # so far from the example lengths that a module leaves out are looked for
_FEW = 16  # lengths left out; where it is more, as every second one, the refusal stands
_OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_NOT_ALL = re.compile(
    rf"values of {SEQUENCE} = (\S+) in the specified range [^\n]* satisfy the generated guard "
    r"([^\n]+) != (-?\d+)\.\n"
)


def limited(text: str, lengths: range, example: int) -> range:
    """Those of the lengths about the example's that the module takes; the same where the error
    tells of none that it does not.

    A table has a length, and torch leaves out single ones, for which memory would lie otherwise.
    """
    found = re.search(rf"\b{SEQUENCE} = Dim\('{SEQUENCE}'(?:, min=(\d+))?(?:, max=(\d+))?\)", text)
    lowest, highest = found.groups() if found else (None, None)
    start = max(lengths.start, int(lowest or 0))
    stop = min(lengths.stop, int(highest or MAX_SIZE) + 1)
    for size, left, right in _NOT_ALL.findall(text):
        try:
            tree = ast.parse(left.replace(size, "n"), mode="eval").body
            around = range(max(start, example - _NEAR), min(stop, example + _NEAR))
            out = [n for n in around if _at(tree, n) == int(right)]
        except (SyntaxError, KeyError, AttributeError, ZeroDivisionError):
            continue
        if len(out) > _FEW:
            continue
        start = max([start, *(n + 1 for n in out if n < example)])
        stop = min([stop, *(n for n in out if n > example)])
    return range(start, stop)


def _at(tree: ast.AST, n: int) -> int:
    """What an expression of a length gives at one.

    Raises KeyError or AttributeError for another expression.
    """
    if isinstance(tree, ast.Constant):
        return int(tree.value)  # type: ignore[arg-type]
    if isinstance(tree, ast.Name):
        return n
    if isinstance(tree, ast.UnaryOp):
        return {ast.USub: operator.neg}[type(tree.op)](_at(tree.operand, n))  # type: ignore[index]
    return int(_OPERATIONS[type(tree.op)](_at(tree.left, n), _at(tree.right, n)))  # type: ignore[attr-defined]
