"""Every fault and attack has its tests by name, and SECURITY.md says of each what they found."""

import ast
from functools import cache
from pathlib import Path

import pytest
from tests.security.report import END, START, TARGET, parse, table
from tests.security.rows import ROWS, proofs_of

ROOT = Path(__file__).parents[2]
EXPECTED = [
    *(f"F{i}" for i in range(1, 16)),
    *(f"S{i}" for i in range(1, 24)),
    "L1",
    *(f"A{i}" for i in range(1, 16)),
]


@cache
def found_in(file):
    """The tests of a file, and whether each is long in every case."""
    tree = ast.parse((ROOT / file).read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {
        function.name: any(
            "mark.long" in ast.unparse(d) and "parametrize" not in ast.unparse(d)
            for d in function.decorator_list
        )
        for function in functions
    }


def test_no_row_is_missing():
    assert list(ROWS) == EXPECTED


@pytest.mark.parametrize("name", EXPECTED)
def test_row(name):
    """Its tests exist, and at least one of them is in `make test`."""
    tests = proofs_of(name)
    assert tests
    is_long = {}
    for test in tests:
        file, _, function = test.partition("::")
        assert function in found_in(file), f"{name}: there is no {test}"
        is_long[test] = found_in(file)[function]
    assert not all(is_long.values()), f"{name} is tried in the long tests alone"


def test_the_table_is_that_of_the_rows():
    """Only its figures are measured; `python -m tests.security.report` writes them."""
    text = TARGET.read_text()
    figures = parse(text)
    assert list(figures) == EXPECTED
    inside = text[text.index(START) + len(START) : text.index(END)].strip()
    assert inside == table(figures).strip()


def test_the_figures_are_zeros_where_they_have_to_be():
    for name, figure in parse(TARGET.read_text()).items():
        assert figure.passed > 0, name
        assert figure.failed == 0, name
