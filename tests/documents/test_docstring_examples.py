"""What examples in docstrings show is what comes out."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {
    ".".join(path.relative_to(root).with_suffix("").parts): path
    for root in (ROOT / "sdk", ROOT / "device_agent")
    for path in sorted(root.glob("potluck*/**/*.py"))
}
MODULES = [
    name.removesuffix(".__init__") for name, path in SOURCES.items() if ">>> " in path.read_text()
]


@pytest.mark.long
@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings_come_out_as_shown(name):
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted
    assert results.failed == 0


def test_there_are_examples():
    assert len(MODULES) > 20
