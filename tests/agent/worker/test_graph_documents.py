"""Graph documents from anyone: read strictly, and nothing but SegmentError comes of a bad one."""

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck_wire.graph import (
    Buffer,
    Dtype,
    Graph,
    Input,
    Node,
    Output,
    Parameter,
    Ref,
    SegmentError,
    Sym,
    Symbol,
    evaluate,
)
from potluck_wire.operators import KIND_OF, OPERATORS, outside
from potluck_wire.segment import MAX_DOCUMENT_BYTES, dumps, loads

GRAPH = Graph(
    symbols=(Symbol(name="batch", input=0, dim=0, hint=4),),
    inputs=(Input(name="x", dtype="float32", shape=("batch", 3), gradient=True),),
    parameters=(Parameter(name="w", dtype="float32", shape=(2, 3)),),
    buffers=(Buffer(name="n", dtype="int64", shape=(), updated=True),),
    nodes=(
        Node(number=0, op="aten.linear.default", args=(Ref(0), Ref(1), None)),
        Node(number=1, op="aten.add_.Tensor", args=(Ref(2), 1)),
        Node(number=2, op="aten.view.default", args=(Ref(3), (Sym(("*", "batch", 2)),))),
        Node(number=3, op="aten.clamp.default", args=(Ref(5), float("-inf"), 1e30)),
        Node(number=4, op="aten.split.Tensor", args=(Ref(6), 1)),
        Node(number=5, op="aten.cat.default", args=((Ref(7, 0), Ref(7, 1)), 0)),
        Node(
            number=6, op="aten.sum.default", args=(Ref(8),), kwargs=(("dtype", Dtype("float32")),)
        ),
    ),
    outputs=(Output(name="y", ref=Ref(9), dtype="float32", shape=(), gradient=True),),
)


def document(**changes: Any) -> bytes:
    return json.dumps(json.loads(dumps(GRAPH)) | changes).encode()


def node(op: str, *args: Any, **kwargs: Any) -> list[Any]:
    return [0, op, list(args), kwargs]


def test_a_graph_survives_writing_and_reading():
    assert loads(dumps(GRAPH)) == GRAPH


def test_writing_is_the_same_every_time():
    assert dumps(loads(dumps(GRAPH))) == dumps(GRAPH)


X = {"r": [0]}
BAD = {
    "from_file": (
        document(nodes=[node("aten.from_file.default", "/etc/passwd")]),
        "operator",
        "aten.from_file",
    ),
    "empty": (document(nodes=[node("aten.empty.memory_format", [8])]), "operator", "aten.empty"),
    "backward operator": (
        document(nodes=[node("aten.embedding_dense_backward.default")]),
        "operator",
        "backward",
    ),
    "python name": (document(nodes=[node("torch.os.system", "ls")]), "operator", "os.system"),
    "dunder name": (document(nodes=[node("aten.__class__.default")]), "operator", "__class__"),
    "custom namespace": (document(nodes=[node("prims.add.default", X, X)]), "operator", "prims"),
    "forward reference": (
        document(nodes=[node("aten.relu.default", {"r": [3]})]),
        "document",
        "aten.relu",
    ),
    "own reference in a list": (
        document(nodes=[node("aten.cat.default", [X, {"r": [3]}])]),
        "document",
        "aten.cat",
    ),
    "negative reference": (
        document(nodes=[node("aten.relu.default", {"r": [-1]})]),
        "document",
        "aten.relu",
    ),
    "boolean reference": (
        document(nodes=[node("aten.relu.default", {"r": [True]})]),
        "document",
        "aten.relu",
    ),
    "item of an input": (
        document(nodes=[node("aten.relu.default", {"r": [0, 0]})]),
        "document",
        "aten.relu",
    ),
    "change of an input": (
        document(nodes=[node("aten.add_.Tensor", X, 1)]),
        "document",
        "buffer and nothing else",
    ),
    "change of a parameter": (
        document(nodes=[node("aten.add_.Tensor", {"r": [1]}, 1)]),
        "document",
        "nothing else",
    ),
    "unknown argument": (
        document(nodes=[node("aten.relu.default", {"code": "x"})]),
        "document",
        "aten.relu",
    ),
    "two keys in an argument": (
        document(nodes=[node("aten.relu.default", {"r": [0], "s": 1})]),
        "document",
        "relu",
    ),
    "unknown dtype": (
        document(nodes=[node("aten.to.dtype", X, {"d": "object"})]),
        "document",
        "object",
    ),
    "unknown symbol": (
        document(nodes=[node("aten.view.default", X, [{"s": "rows"}])]),
        "document",
        "rows",
    ),
    "unknown operation": (
        document(nodes=[node("aten.view.default", X, [{"s": ["**", 9, 9]}])]),
        "document",
        "**",
    ),
    "division by many": (
        document(nodes=[node("aten.view.default", X, [{"s": ["//", 9]}])]),
        "document",
        "//",
    ),
    "not a number": (dumps(GRAPH).replace(b'{"f":"-inf"}', b"NaN"), "document", "NaN"),
    "infinite number": (dumps(GRAPH).replace(b'{"f":"-inf"}', b"1e999"), "document", "bounds"),
    "huge integer": (
        document(nodes=[node("aten.view.default", X, [2**60])]),
        "document",
        "aten.view",
    ),
    "huge beside a zero": (
        document(parameters=[["w", "float32", [0, 2**40, 2**40], True]]),
        "document",
        "beyond",
    ),
    "deep list": (
        document(nodes=[node("aten.cat.default", json.loads("[" * 20 + "]" * 20))]),
        "document",
        "deep",
    ),
    "deep nesting": (b"[" * 100_000, "document", "JSON"),
    "too many nodes": (
        document(nodes=[node("aten.relu.default", X)] * 20_001),
        "document",
        "20000",
    ),
    "too long": (b" " * (MAX_DOCUMENT_BYTES + 1), "document", "bytes"),
    "another version": (document(version=2), "document", "version"),
    "a key too many": (document(extra=1), "document", "keys"),
    "a key twice": (
        dumps(GRAPH).replace(b'{"version":1', b'{"version":1,"version":1'),
        "document",
        "twice",
    ),
    "output not there": (
        document(outputs=[["y", {"r": [99]}, "float32", [], True]]),
        "document",
        "99",
    ),
    "name with a path": (
        document(parameters=[["../w", "float32", [2, 3], True]]),
        "document",
        "name",
    ),
    "huge shape": (
        document(parameters=[["w", "float32", [2**40, 2**40], True]]),
        "document",
        "beyond",
    ),
    "two of a name": (document(buffers=[["w", "int64", [], True]]), "document", "same name"),
    "symbol of no input": (document(symbols=[["batch", 3, 0, 1, 1]]), "document", "batch"),
    "nothing": (b"", "document", "JSON"),
    "a list": (b"[]", "document", "keys"),
}


@pytest.mark.parametrize(("data", "cause", "text"), BAD.values(), ids=BAD)
def test_refuses(data, cause, text):
    with pytest.raises(SegmentError) as caught:
        loads(data)
    assert caught.value.cause == cause
    assert text in caught.value.text


def cause_of(data: bytes) -> str:
    """Why a document is refused; empty where it is read. Any other exception gets out."""
    try:
        loads(data)
    except SegmentError as error:
        return error.cause
    return ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("rsdfx"), inner, max_size=2)
    ),
    max_leaves=12,
)


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(
    key=st.sampled_from(
        ["version", "symbols", "inputs", "parameters", "buffers", "nodes", "outputs"]
    ),
    row=st.integers(0, 6),
    column=st.integers(0, 4),
    value=JSON,
)
def test_any_change_is_read_or_refused(key, row, column, value):
    changed = json.loads(dumps(GRAPH))
    if (
        isinstance(changed[key], list)
        and row < len(changed[key])
        and column < len(changed[key][row])
    ):
        changed[key][row][column] = value
    else:
        changed[key] = value
    assert cause_of(json.dumps(changed).encode()) in ("", "document", "operator")


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_bytes_are_read_or_refused(data):
    document = bytearray(dumps(GRAPH))
    for _ in range(data.draw(st.integers(1, 4))):
        document[data.draw(st.integers(0, len(document) - 1))] = data.draw(st.integers(0, 255))
    assert cause_of(bytes(document)) in ("", "document", "operator")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        (7, 7),
        ("batch", 3),
        (("*", "batch", 4), 12),
        (("+", ("//", ("+", "batch", 2), 2), -1), 1),
        (("%", 7, "batch"), 1),
    ],
)
def test_expressions(expression, value):
    assert evaluate(expression, {"batch": 3}) == value


def test_sizes_beyond_any_tensor_are_refused():
    with pytest.raises(SegmentError, match="beyond"):
        evaluate(("*", "batch", 2**40), {"batch": 2**40})
    with pytest.raises(SegmentError, match="zero"):
        evaluate(("//", 1, "batch"), {"batch": 0})


def test_the_list_has_forward_operators_alone():
    assert not [
        name
        for name in OPERATORS
        if "backward" in name or name.split(".")[1] in ("from_file", "empty", "set_")
    ]
    in_place = [name for name in OPERATORS if name.split(".")[1].endswith("_") and "__" not in name]
    assert in_place == ["aten.add_.Tensor"]
    assert outside(["aten.relu.default", "aten.from_file.default"]) == "aten.from_file.default"
    assert set(KIND_OF) == OPERATORS


def test_reading_a_document_loads_no_torch():
    code = (
        "import sys, potluck_wire.segment; sys.exit('torch' in sys.modules or 'numpy' in "
        "sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
