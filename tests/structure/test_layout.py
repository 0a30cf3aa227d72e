"""The repository holds what its design says, and the tests run what was built."""

import os
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.structure.lint import ROOT

import potluck
import potluck_agent
import potluck_wire

FOLDERS = {"sdk", "device_agent", "notebooks", "profiles", "tests"}
FILES = {"pyproject.toml", "README.md", "Makefile", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md"}
MADE = {"build", "dist", "potluck-demo"}  # ignored by git


def test_the_top_level_is_as_designed():
    seen = {
        path for path in ROOT.iterdir() if not path.name.startswith(".") and path.name not in MADE
    }
    assert {path.name for path in seen if path.is_dir()} - FOLDERS == set()
    assert {path.name for path in seen if path.is_file()} - FILES == set()


@pytest.mark.parametrize(
    "package", [potluck, potluck_agent, potluck_wire], ids=lambda package: package.__name__
)
def test_packages_are_typed(package):
    assert (Path(package.__file__).parent / "py.typed").exists()


@pytest.mark.skipif(
    not os.environ.get("POTLUCK_BUILT_WHEEL"), reason="only `make test` installs the built wheel"
)
@pytest.mark.parametrize(
    "package", [potluck, potluck_agent, potluck_wire], ids=lambda package: package.__name__
)
def test_the_built_wheel_is_what_is_tested(package):
    assert ROOT / "sdk" not in Path(package.__file__).parents
    assert ROOT / "device_agent" not in Path(package.__file__).parents
    assert version("potluck") == potluck_wire.__version__


@pytest.mark.skipif(
    not os.environ.get("POTLUCK_BUILT_WHEEL"), reason="only `make test` installs the built wheel"
)
def test_the_wheel_holds_every_module_of_the_tree():
    for package, folder in (
        (potluck, "sdk"),
        (potluck_agent, "device_agent"),
        (potluck_wire, "device_agent"),
    ):
        installed = Path(package.__file__).parent
        for source in (ROOT / folder / package.__name__).rglob("*.py"):
            copy = installed / source.relative_to(ROOT / folder / package.__name__)
            assert copy.read_bytes() == source.read_bytes(), (
                f"{source} is not the one that is installed"
            )
