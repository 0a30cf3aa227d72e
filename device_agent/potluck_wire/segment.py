"""The graph document: the strict JSON form of a `Graph`.

An argument is a plain null, boolean, number or string, a list of arguments, or an object with one
key: {"r": [value]} or {"r": [value, item]} a value or an item of a tuple, {"s": expression} an
integer of the symbols, {"d": dtype}, {"f": "inf" | "-inf"}. An expression is an integer, a symbol's
name, or [operation, operand, ...].
"""

import json
import math
import re
from typing import Any, NoReturn

from .graph import (
    COMPLEX_BYTES,
    DTYPE_BYTES,
    MAX_INT,
    MAX_NODES,
    OPERATIONS,
    Argument,
    Buffer,
    Dtype,
    Expression,
    Graph,
    Input,
    Node,
    Output,
    Parameter,
    Ref,
    SegmentError,
    Shape,
    Sym,
    Symbol,
    validate,
)

VERSION = 1
MAX_DOCUMENT_BYTES = 8 << 20  # one buffer of the wire
MAX_DEPTH = 8  # nesting of an argument or an expression; lists of lists occur, deeper does not
MAX_ITEMS = 4096  # of one list
MAX_ROWS = 20_000  # inputs, parameters, buffers, outputs, each
MAX_DIMS = 8
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:\-]{0,255}")


def dumps(graph: Graph) -> bytes:
    """The document of a graph."""
    return json.dumps(_document(graph), separators=(",", ":"), allow_nan=False).encode()


def _document(graph: Graph) -> dict[str, Any]:
    return {
        "version": VERSION,
        "symbols": [[s.name, s.input, s.dim, s.multiple, s.hint] for s in graph.symbols],
        "inputs": [[i.name, i.dtype, i.shape, i.gradient] for i in graph.inputs],
        "parameters": [[p.name, p.dtype, p.shape, p.trainable] for p in graph.parameters],
        "buffers": [[b.name, b.dtype, b.shape, b.updated] for b in graph.buffers],
        "nodes": [
            [n.number, n.op, [_plain(a) for a in n.args], {k: _plain(a) for k, a in n.kwargs}]
            for n in graph.nodes
        ],
        "outputs": [[o.name, _plain(o.ref), o.dtype, o.shape, o.gradient] for o in graph.outputs],
    }


def _plain(argument: Argument) -> Any:
    """An argument as plain JSON data."""
    match argument:
        case Ref(value, None):
            return {"r": [value]}
        case Ref(value, item):
            return {"r": [value, item]}
        case Sym(expression):
            return {"s": expression}
        case Dtype(name):
            return {"d": name}
        case tuple():
            return [_plain(item) for item in argument]
        case float() if math.isinf(argument):
            return {"f": "inf" if argument > 0 else "-inf"}
        case _:
            return argument


# --- reading ---


def loads(data: bytes | memoryview) -> Graph:
    """The graph of a document.

    Raises
    ------
    SegmentError
        Something does not hold; names the node.
    """
    if len(data) > MAX_DOCUMENT_BYTES:
        raise SegmentError(
            "document", f"the graph has {len(data)} bytes; at most {MAX_DOCUMENT_BYTES} are read"
        )
    try:
        document = json.loads(
            bytes(data).decode(), object_pairs_hook=_unique, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        raise SegmentError(
            "document", f"the graph is not JSON as we write it: {error}"[:300]
        ) from error
    keys = {"version", "symbols", "inputs", "parameters", "buffers", "nodes", "outputs"}
    if not isinstance(document, dict) or set(document) != keys:
        raise SegmentError("document", f"a graph has exactly the keys {sorted(keys)}")
    if document["version"] is True or document["version"] != VERSION:
        raise SegmentError("document", "the graph is of another version")
    graph = Graph(
        inputs=tuple(_input(row) for row in _rows(document, "inputs", 4)),
        parameters=tuple(_parameter(row) for row in _rows(document, "parameters", 4)),
        buffers=tuple(_buffer(row) for row in _rows(document, "buffers", 4)),
        nodes=tuple(
            _node(position, row)
            for position, row in enumerate(_rows(document, "nodes", 4, MAX_NODES))
        ),
        outputs=tuple(_output(row) for row in _rows(document, "outputs", 5)),
        symbols=tuple(_symbol(row) for row in _rows(document, "symbols", 5)),
    )
    validate(graph)
    return graph


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not allowed")


def _rows(
    document: dict[str, Any], key: str, width: int, max_rows: int = MAX_ROWS
) -> list[list[Any]]:
    rows = document[key]
    if not isinstance(rows, list) or len(rows) > max_rows:
        raise SegmentError("document", f"`{key}` must be a list of at most {max_rows} rows")
    for row in rows:
        if not isinstance(row, list) or len(row) != width:
            raise SegmentError("document", f"each row of `{key}` is a list of {width}")
    return rows


def _name(value: Any) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise SegmentError("document", f"not a name: {value!r}"[:120])
    return value


def _dtype(value: Any) -> str:
    if not isinstance(value, str) or value not in DTYPE_BYTES:
        raise SegmentError("document", f"not a data type: {value!r}"[:120])
    return value


def _any_dtype(value: Any) -> str:
    """Of a value inside the graph, which may be complex."""
    return value if isinstance(value, str) and value in COMPLEX_BYTES else _dtype(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise SegmentError("document", f"not true or false: {value!r}"[:120])
    return value


def _count(value: Any, lowest: int = 0, highest: int = MAX_INT) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise SegmentError("document", f"not an integer of {lowest}..{highest}: {value!r}"[:120])
    return value


def _sizes(value: Any, where: str) -> tuple[int, ...]:
    """A fixed shape, small enough that its number of bytes is an ordinary integer, beside a size of
    zero too.
    """
    if not isinstance(value, list) or len(value) > MAX_DIMS:
        raise SegmentError("document", f"{where}: a shape is a list of at most {MAX_DIMS} sizes")
    sizes = tuple(_count(size) for size in value)
    if math.prod(max(size, 1) for size in sizes) > MAX_INT:
        raise SegmentError(
            "document", f"{where} has the shape {list(sizes)}, beyond any tensor"[:200]
        )
    return sizes


def _expression(value: Any, depth: int = 0) -> Expression:
    if isinstance(value, str):
        return _name(value)
    if not isinstance(value, list):
        return _count(value, -MAX_INT)
    if (
        depth >= MAX_DEPTH
        or not value
        or not isinstance(value[0], str)
        or value[0] not in OPERATIONS
    ):
        raise SegmentError("document", f"not an expression: {value!r}"[:120])
    _, min_operands, max_operands = OPERATIONS[value[0]]
    if not min_operands <= len(value) - 1 <= max_operands:
        raise SegmentError(
            "document", f"the operation {value[0]} takes {min_operands} to {max_operands} operands"
        )
    return (value[0], *(_expression(item, depth + 1) for item in value[1:]))


def _shape(value: Any) -> Shape:
    if not isinstance(value, list) or len(value) > MAX_DIMS:
        raise SegmentError("document", f"a shape is a list of at most {MAX_DIMS} sizes")
    return tuple(_expression(size) for size in value)


def _symbol(row: list[Any]) -> Symbol:
    name, source, dim, multiple, hint = row
    return Symbol(
        name=_name(name),
        input=_count(source),
        dim=_count(dim),
        multiple=_count(multiple, 1),
        hint=_count(hint, 1),
    )


def _input(row: list[Any]) -> Input:
    return Input(
        name=_name(row[0]), dtype=_dtype(row[1]), shape=_shape(row[2]), gradient=_flag(row[3])
    )


def _parameter(row: list[Any]) -> Parameter:
    name = _name(row[0])
    return Parameter(
        name=name, dtype=_dtype(row[1]), shape=_sizes(row[2], name), trainable=_flag(row[3])
    )


def _buffer(row: list[Any]) -> Buffer:
    name = _name(row[0])
    return Buffer(
        name=name, dtype=_dtype(row[1]), shape=_sizes(row[2], name), updated=_flag(row[3])
    )


def _output(row: list[Any]) -> Output:
    ref = _argument(row[1])
    if not isinstance(ref, Ref):
        raise SegmentError("document", f"the output {row[0]!r} is not a value"[:120])
    return Output(
        name=_name(row[0]),
        ref=ref,
        dtype=_dtype(row[2]),
        shape=_shape(row[3]),
        gradient=_flag(row[4]),
    )


def _node(position: int, row: list[Any]) -> Node:
    number, op, args, kwargs = row
    if not isinstance(op, str) or not isinstance(args, list) or not isinstance(kwargs, dict):
        raise SegmentError(
            "document", f"node at position {position} is not [number, operator, list, object]"
        )
    try:
        arguments = tuple(_argument(value) for value in args)
        named = tuple((_name(key), _argument(value)) for key, value in kwargs.items())
        return Node(number=_count(number), op=op[:120], args=arguments, kwargs=named)
    except SegmentError as error:
        raise SegmentError("document", f"node {number!r} ({op}): {error.text}"[:300]) from error


def _argument(value: Any, depth: int = 0) -> Argument:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return _finite(value)
    if isinstance(value, int):
        return _count(value, -MAX_INT)
    if isinstance(value, str):
        if len(value) > 256:
            raise SegmentError("document", "a string of more than 256 characters")
        return value
    if isinstance(value, list):
        if depth >= MAX_DEPTH or len(value) > MAX_ITEMS:
            raise SegmentError("document", f"a list of more than {MAX_ITEMS} items, or too deep")
        return tuple(_argument(item, depth + 1) for item in value)
    return _special(value)


def _finite(value: float) -> float:
    if not math.isfinite(value):  # 1e999 parses as infinity
        raise SegmentError("document", "a number beyond all bounds")
    return value


def _special(value: Any) -> Argument:
    match value:
        case {"r": [number]} if len(value) == 1:
            return Ref(_count(number))
        case {"r": [number, item]} if len(value) == 1:
            return Ref(_count(number), _count(item, 0, MAX_ITEMS))
        case {"s": expression} if len(value) == 1:
            return Sym(_expression(expression))
        case {"d": name} if len(value) == 1:
            return Dtype(_any_dtype(name))
        case {"f": "inf" | "-inf" as text} if len(value) == 1:
            return float(text)
        case _:
            raise SegmentError("document", f"not an argument: {value!r}"[:120])
