"""The profiles are found alike from a built wheel and from an editable install."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from potluck.profile import library

ROOT = Path(__file__).parents[3]
ASK = """
from potluck.profile import library
print(library.folder())
print({kind: library.names(kind) for kind in library.SUFFIX})
print(library.load_home("smart-home-2").devices[0].memory_bytes)
"""


def ask(folders, cwd):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=env, cwd=cwd, capture_output=True, text=True, check=True
    )
    where, *answers = done.stdout.splitlines()
    return Path(where), answers


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of what a wheel is made of, so that nothing is written into the repository."""
    project = tmp_path_factory.mktemp("project")
    for folder in ("sdk", "device_agent", "profiles"):
        shutil.copytree(
            ROOT / folder, project / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    for file in ("pyproject.toml", "LICENSE", "README.md"):
        if (ROOT / file).exists():
            shutil.copy(ROOT / file, project)
    (project / "README.md").touch()
    return project


def build(project, hook, into):
    """What pip does: call the build backend's hook, unpack the wheel."""
    into.mkdir()
    command = [
        sys.executable,
        "-c",
        f"import sys, hatchling.build as b; b.{hook}(sys.argv[1])",
        str(into),
    ]
    subprocess.run(command, cwd=project, check=True, capture_output=True, text=True)
    (wheel,) = into.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(into / "site")
    return into / "site"


def test_wheel_and_editable_install_find_the_same_files(project, tmp_path):
    pytest.importorskip("hatchling")
    site = build(project, "build_wheel", tmp_path / "w")
    editable = build(project, "build_editable", tmp_path / "e")
    folders = [line for pth in editable.glob("*.pth") for line in pth.read_text().splitlines()]
    wheel_folder, wheel = ask([site], tmp_path)
    editable_folder, from_source = ask(folders, tmp_path)
    assert wheel_folder == site / "potluck" / "profiles"
    assert editable_folder == project / "profiles"
    assert wheel == from_source
    assert wheel[0] == str({kind: library.names(kind) for kind in library.SUFFIX})
