"""Python 3.10, which Jetsons have: everything loads there, and an agent with a worker serves a
notebook. `PYTHON310` names an interpreter that has what `pip install .` brings, and torch or
onnxruntime.
"""

import os
import shutil
import subprocess

import pytest
from tests.agent import agents
from tests.agent.agents import Keys, RawPeer, agent
from tests.agent.core.core_driver import plan, recv

from potluck_wire.messages import Commit, Committed, Hello, Prepare, Prepared, Welcome

OPTIONAL = (
    *("torch", "transformers", "IPython", "matplotlib", "onnx", "onnxruntime", "numpy", "scipy"),
    *("sklearn", "rich", "ortools", "ipywidgets", "anywidget", "safetensors"),
)
LOADS = f"""
import importlib, pkgutil, sys
def look(name):
    error = sys.exc_info()[1]
    if (getattr(error, "name", None) or "").split(".")[0] not in {OPTIONAL!r}:
        raise
for package in map(importlib.import_module, ("potluck_wire", "potluck_agent", "potluck")):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".", look):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except Exception:
                look(module.name)
"""


@pytest.fixture(scope="module")
def python310():
    """That interpreter, with our sources."""
    found = os.environ.get("PYTHON310") or shutil.which("python3.10")
    if not found or run(found, "import msgpack, psutil, spake2, tomli, zeroconf, zmq").returncode:
        pytest.skip("no Python 3.10 with what an agent needs: PYTHON310 names one")
    # -E of the worker leaves PYTHONPATH out, so that the sources have to be installed in it
    if run(found, "import potluck, potluck_agent, potluck_wire").returncode:
        pytest.skip(f"{found} has no potluck: {found} -m pip install .")
    return found


def run(python, text):
    return subprocess.run([python, "-c", text], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_every_module_loads(python310):
    done = run(python310, LOADS)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_an_agent_and_its_worker_serve_a_notebook(python310, tmp_path, monkeypatch):
    if run(python310, "import torch").returncode and run(python310, "import onnx").returncode:
        pytest.skip("neither torch nor onnx is there")
    monkeypatch.setattr(agents.sys, "executable", python310)
    ada = Keys()
    with (
        agent(tmp_path, "--trust", f"{ada.public}:ada", backends="") as running,
        RawPeer(running.port, running.key, ada) as peer,
    ):
        assert isinstance(peer.ask(Hello(major=1)), Welcome)
        assert isinstance(peer.ask(Prepare(run="r", epoch=1), *plan(recv("x"))), Prepared)
        assert isinstance(peer.ask(Commit(run="r", epoch=1)), Committed)
        assert "ready" in running.command("status").stdout
