"""Every shipped module keeps the rules of structure, and every rule catches what it is for."""

import pytest
from tests.structure import lint

MODULES = list(lint.modules())


@pytest.mark.parametrize("rule", lint.RULES, ids=lambda rule: rule.__name__)
def test_shipped_code_keeps(rule):
    assert len(MODULES) > 20
    assert [broken for path, source in MODULES for broken in rule(path, source)] == []


@pytest.mark.long
def test_tests_assign_names_one_by_one():
    sources = {str(path): path.read_text() for path in (lint.ROOT / "tests").rglob("*.py")}
    assert len(sources) > 20
    assert [found for path, text in sources.items() for found in lint.crowded(path, text)] == []


WIRE = "device_agent/potluck_wire/x.py"
PLAN = "sdk/potluck/planning/x.py"
SDK = "sdk/potluck/run/x.py"
AGENT = "device_agent/potluck_agent/x.py"
PLANTED = {
    lint.unsafe: [
        (AGENT, "import pickle"),
        (AGENT, "import cloudpickle as cp"),
        (AGENT, "def f(b):\n    from marshal import loads\n    return loads(b)"),
        (AGENT, "from multiprocessing.reduction import pickle"),
        (SDK, "socket.recv_pyobj()"),
        (SDK, "self.sockets[0].send_pyobj(1)"),
        (SDK, "x = eval('1')"),
        (SDK, "exec(code)"),
        (SDK, "f = eval"),
        (SDK, "import builtins\nbuiltins.exec(code)"),
        (SDK, "compile(text, 'x', 'exec')"),
        (SDK, "__import__(name)"),
        (AGENT, "import torch\ntorch.load(path)"),
        (AGENT, "import torch as t\nt.load(path)"),
        (AGENT, "from torch import load"),
        (AGENT, "from torch import load as safe_load\nsafe_load(path)"),
        (AGENT, "import torch\nloader = torch.export.load"),
        (AGENT, "from torch import export\nexport.load(path)"),
        (AGENT, "import torch.jit\ntorch.jit.load(path)"),
        (AGENT, "from torch.fx import GraphModule"),
        (AGENT, "import torch.fx as fx\nfx.GraphModule(m, g)"),
        (AGENT, "import numpy\nnumpy.load(path, allow_pickle=True)"),
        (AGENT, "import subprocess\nsubprocess.run(text, shell=True)"),
        (AGENT, "import os\nos.system(text)"),
    ],
    lint.pure: [
        (PLAN, "import time"),
        (PLAN, "def f():\n    import socket"),
        (WIRE, "from threading import Lock"),
        (WIRE, "import torch.nn"),
        ("sdk/potluck/records.py", "import numpy as np"),
        (PLAN, "open('x')"),
        (PLAN, "print(1)"),
        (PLAN, "import random\nrandom.shuffle(x)"),
        (PLAN, "from random import choice\nchoice(x)"),
        (PLAN, "def f():\n    global x"),
    ],
    lint.long: [(SDK, "x = 1\n" * 501)],
    lint.prints: [(SDK, "print(1)"), (AGENT, "import sys\nsys.stdout.write('x')")],
    lint.wall_time: [
        (AGENT, "import time\ntime.time()"),
        (SDK, "from time import time\ntime()"),
        (SDK, "import datetime\ndatetime.datetime.now()"),
        (SDK, "from datetime import datetime as dt\ndt.now()"),
    ],
    lint.bare: [(SDK, "try:\n    f()\nexcept:\n    pass"), (AGENT, "class ConnectionManager: ...")],
    lint.crowded: [(SDK, "a, b, c = 1, 2, 3"), (AGENT, "a = b = c = 0")],
}
INNOCENT = [
    (AGENT, "import re\nre.compile('x')"),
    (AGENT, "module.eval()"),
    (AGENT, "import json\njson.load(f)"),
    (AGENT, "from safetensors.torch import load\nload(b)"),
    (AGENT, "import time\ntime.monotonic()"),
    (PLAN, "import random\nrandom.Random(1).random()"),
    (PLAN, "def plan(problem, rng):\n    return rng.random()"),
    (SDK, "x = 1\n" * 500),
    ("sdk/potluck/commands/x.py", "print(1)"),
    (SDK, "a, b = 1, 2\nc, d, e = f()\ng = h = 0"),
]
SAMPLES = [(rule, *sample) for rule, samples in PLANTED.items() for sample in samples]


@pytest.mark.parametrize(("rule", "path", "source"), SAMPLES, ids=range(len(SAMPLES)))
def test_a_planted_breach_is_caught(rule, path, source):
    assert rule(path, source)


@pytest.mark.parametrize(("path", "source"), INNOCENT, ids=range(len(INNOCENT)))
def test_what_is_allowed_is_let_through(path, source):
    assert [broken for rule in lint.RULES for broken in rule(path, source)] == []


def test_every_rule_has_planted_breaches():
    assert set(PLANTED) == set(lint.RULES)


def test_every_excuse_has_a_reason_and_is_still_needed():
    for table in lint.EXCUSES:
        assert all(len(reason) > 10 for reason in table.values())
    lines = {path: source.count("\n") for path, source in MODULES}
    assert [
        path for path in lint.LONG if lines.get(path, lint.MAX_LINES + 1) <= lint.MAX_LINES
    ] == []
