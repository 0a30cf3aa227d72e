"""What an import brings along: pure packages nothing of the world, the agent and the SDK nothing
heavy.
"""

import json
import subprocess
import sys

import pytest

from potluck.optional_packages import EXTRAS

WORLD = {
    "zmq",
    "zeroconf",
    "torch",
    "numpy",
    "scipy",
    "socket",
    "ssl",
    "asyncio",
    "subprocess",
    "multiprocessing",
}
HEAVY = {
    "torch",
    "numpy",
    "scipy",
    "matplotlib",
    "onnx",
    "onnxruntime",
    "sklearn",
    "zeroconf",
    "spake2",
    "rich",
}

# Imports the modules (and with a star all below them), then prints what has been loaded.
PROBE = """
import importlib, json, pkgutil, sys
sys.modules |= dict.fromkeys({missing})
before = set(sys.modules)
for name in sys.argv[1:]:
    module = importlib.import_module(name.removesuffix(".*"))
    if name.endswith(".*"):
        for info in pkgutil.walk_packages(module.__path__, module.__name__ + "."):
            importlib.import_module(info.name)
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def loaded_by(*names, missing=()):
    probe = PROBE.replace("{missing}", repr(sorted(missing)))
    done = subprocess.run(
        [sys.executable, "-c", probe, *names], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "name",
    [
        "potluck_wire.*",
        "potluck.planning.*",
        "potluck.contention.*",
        "potluck.offload.plan.*",
        "potluck.schedule.*",
        "potluck.simulate.*",
        "potluck.serve.scheduling.*",
        "potluck.serve.simulate.*",
        "potluck.serve.baselines.*",
        "potluck.records",
        "potluck.errors",
    ],
)
def test_a_pure_package_leaves_the_world_out(name):
    loaded = loaded_by(name)
    assert name.removesuffix(".*") in loaded
    assert loaded & WORLD == set()


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "names",
    [
        ["potluck"],
        ["potluck_agent"],
        ["potluck_agent.core.machine"],
        ["potluck.cli"],
        ["potluck_wire.pairing"],
    ],
)
def test_an_app_can_hold_it(names):
    assert loaded_by(*names) & HEAVY == set()


@pytest.mark.parametrize("name", ["potluck.commands.*", "potluck.display.views", "potluck.home"])
def test_the_light_install_has_what_commands_and_views_need(name):
    """Those that need more say so when they are used."""
    assert name.removesuffix(".*") in loaded_by(name, missing=EXTRAS)


def test_the_probe_sees_what_is_loaded():
    with pytest.raises(AssertionError, match="halted"):
        loaded_by("xml.*", missing={"xml.dom"})
    assert "socket" in loaded_by("http.client")
    assert "xml.dom.minidom" in loaded_by("xml.*")
