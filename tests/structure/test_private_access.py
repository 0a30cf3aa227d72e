"""No test reaches into what is private to the code it tests."""

from pathlib import Path

import pytest
from tests.structure import private_access
from tests.structure.lint import ROOT

TESTS = {  # but this one, which plants them
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in sorted((ROOT / "tests").rglob("*.py"))
    if path != Path(__file__).resolve()
}


@pytest.mark.long
def test_no_test_reaches_into_a_private_attribute():
    assert len(TESTS) > 100
    assert [
        f"{path}:{line}: {name}"
        for path, source in TESTS.items()
        for line, name in private_access.reaches(source)
        if name not in private_access.ALLOWED.get(path, {})
    ] == []


@pytest.mark.parametrize(
    "source",
    [
        "core._worker",
        "core._worker.behind_bytes",
        "talk.core.worker._owed",
        "self.core._worker",
        "made(1)._worker",
        "made[0]._worker",
        "link._controller = Notes()",
        "del core._executions[name]",
        "from potluck.planning import check_plan\ncheck_plan._cache",
        "import potluck\npotluck.home._runs",
        "from potluck.run.checkpoint import _checksum",
        "from potluck._inside import checksum",
        "def test():\n    from tests.other import _helper",
        "monkeypatch.setattr(run, '_engine', None)",
        "monkeypatch.setattr('potluck.run.Run._engine', None)",
        "setattr(loop, '_core', 1)",
        "getattr(loop, '_core')",
        "EventLoop.__new__(EventLoop)",
        "object.__new__(EventLoop)",
        "SCRIPT = '''\nfrom potluck.profile import library\nprint(library._folder())\n'''",
    ],
)
def test_a_planted_reach_is_caught(source):
    assert private_access.reaches(source)


@pytest.mark.parametrize(
    "source",
    [
        "class Fake:\n    def __init__(self):\n        self._calls = []",
        "class Fake:\n    @classmethod\n    def make(cls):\n        return cls._made",
        "import torch\ntorch._C._jit_clear_class_registry()",
        "torch = pytest.importorskip('torch')\nnn = torch.nn\nnn.modules.batchnorm._BatchNorm",
        "from torch import nn\nnn.modules.batchnorm._BatchNorm",
        "import os\nos._exit(1)",
        "run._repr_html_()",
        "table.__class__.__name__",
        "for _ in range(3): core.step()",
        "_, answer = ask()",
        "monkeypatch.setattr(run, 'engine', None)",
        "text = 'import _thing, and more'",
    ],
)
def test_what_is_allowed_is_let_through(source):
    assert private_access.reaches(source) == []


def test_every_exception_has_a_reason_and_is_still_needed():
    for path, names in private_access.ALLOWED.items():
        assert all(len(reason) > 10 for reason in names.values())
        assert names.keys() <= {name for _, name in private_access.reaches(TESTS[path])}
