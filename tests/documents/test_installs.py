"""The installs that the README names, each in a bare environment of its own: what it brings is what
it says.
"""

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# the build for a processor alone, as the README advises; others bring gigabytes
TORCH = "torch==2.13.0"
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    into = tmp_path_factory.mktemp("wheel")
    run(
        sys.executable,
        "-c",
        "import sys, hatchling.build as b; b.build_wheel(sys.argv[1])",
        str(into),
        cwd=ROOT,
    )
    (built,) = into.glob("*.whl")
    return built


def run(*line, **options):
    answer = subprocess.run(line, capture_output=True, text=True, check=False, **options)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def environment(folder, wheel, extras):
    """The `bin` of a new environment with the wheel and these extras."""
    run(sys.executable, "-m", "venv", str(folder))
    pip = (
        str(folder / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    )
    if {"torch", "sdk", "demo"} & set(extras.split(",")):
        run(*pip, TORCH)
    run(*pip, f"potluck[{extras}] @ {wheel.as_uri()}" if extras else str(wheel))
    return folder / "bin"


@contextmanager
def an_agent(bin_folder, state):
    """What a new agent prints: the line for programs on its output, and what it says to people."""
    line = [
        bin_folder / "potluck",
        "agent",
        "start",
        "--bind",
        "127.0.0.1",
        "--port",
        "0",
        "--state",
        state,
        "--no-mdns",
    ]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


@pytest.mark.parametrize(
    ("extras", "says"),
    [
        ("", "this device computes nothing"),
        ("onnx", "computes with onnxruntime"),
        ("torch", "computes with torch"),
    ],
)
def test_an_agent_says_what_it_computes_with(tmp_path, wheel, extras, says):
    with an_agent(environment(tmp_path / "venv", wheel, extras), tmp_path / "state") as process:
        output = ""
        while says not in " ".join(output.split()):
            line = process.stdout.readline()
            assert line, output
            assert not line.startswith("Now "), output
            output += line


def test_the_notebook_s_computer_plans_trains_and_opens_notebooks(tmp_path, wheel):
    folder = environment(tmp_path / "venv", wheel, "sdk,demo,notebook")
    plan = run(
        folder / "potluck", "plan", "family", "efficientnet-b1", "--infer", "streaming", "--json"
    )
    assert json.loads(plan)["best"]
    assert "digits" in run(
        folder / "potluck", "demo", "--steps", "4", "--out", str(tmp_path / "out")
    )
    run(folder / "jupyter", "lab", "--version")
