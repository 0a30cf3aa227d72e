"""BENCHMARKS.md has a section for every bench, and its commands are understood."""

import argparse
import importlib
import pkgutil
import re
import shlex

import pytest
from tests.structure.lint import ROOT

import potluck.bench
from potluck.bench import harness
from potluck.commands import bench

TEXT = (ROOT / "sdk" / "BENCHMARKS.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (potluck bench .+)$", TEXT, re.MULTILINE)


def benches():
    """The modules that can be run by name."""
    for found in pkgutil.iter_modules(potluck.bench.__path__):
        module = importlib.import_module(f"potluck.bench.{found.name}")
        if hasattr(module, "SETTINGS"):
            yield found.name


def test_every_bench_has_a_section():
    sections = set(re.findall(r"^## ([a-z_]+)$", TEXT, re.MULTILINE))
    assert sections == set(benches())


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_and_settings_exist(command):
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    arguments = parser.parse_args(shlex.split(command)[2:])
    settings = importlib.import_module(f"potluck.bench.{arguments.name}").SETTINGS
    assert {harness.parse_setting(text)[0] for text in arguments.set} <= set(settings)
