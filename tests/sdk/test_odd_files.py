"""What lies where somebody says that a file is: it ends in one error that names it, at once, and
nothing is read of what has no end.
"""

import os
import socket
from contextlib import suppress
from pathlib import Path

import pytest

import potluck
from potluck.display import trace_viewer
from potluck.display.html import save_picture
from potluck.display.png import save_png
from potluck.display.scene import Scene, save_svg
from potluck.errors import PotluckError
from potluck.lab import scenario
from potluck.planning.api import load_plan
from potluck.profile import library, network_file
from potluck.run import checkpoint
from potluck.sessions.metering import Metering
from potluck.sessions.readings import Readings

SCENE = Scene(width=9.0, height=9.0, title="nothing")

LOADERS = {
    "a plan": lambda path: load_plan(path),
    "a network": lambda path: network_file.load_network(path),
    "a device": lambda path: library.load_device(path),
    "a home": lambda path: library.load_home(path),
    "a graph": lambda path: library.load_model(path),
    "a script": lambda path: scenario.read(path),
    "a model": lambda path: potluck.Model.from_onnx(path),
    "a stored model": lambda path: potluck.Model.load(path),
    "a run": lambda path: checkpoint.load(path),
    "a step": lambda path: checkpoint.step_of(path),
}
SAVERS = {
    "readings": lambda path: Readings(Metering(None, tuple), dict).to_csv(path),
    "a picture": lambda path: save_svg(SCENE, path),
    "a painted picture": lambda path: save_png(SCENE, path),
    "a page": lambda path: save_picture(path, SCENE, ""),
    "a trace": lambda path: trace_viewer.save(path, "none"),
}
CALLS = {name: LOADERS[name] for name in LOADERS if name not in ("a run", "a step")} | SAVERS


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_terminal(path: Path) -> None:
    path.symlink_to("/dev/ptmx")


def a_folder(path: Path) -> None:
    path.mkdir()


def a_circle(path: Path) -> None:
    path.symlink_to(path)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


def a_terabyte(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """One that is short enough for the name of a socket."""
    monkeypatch.chdir(tmp_path)
    return Path()


@pytest.mark.skipif(os.name == "nt", reason="no such files there")
@pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize(
    "make", [a_pipe, a_device, a_terminal, a_folder, a_circle, a_socket, a_terabyte]
)
def test_what_is_no_file_is_refused_by_its_name(folder, make, load):
    path = folder / "./odd.toml"
    make(path)
    with pytest.raises(PotluckError, match=r"odd\.toml"):
        load(path)
    assert not left_open(path)


def left_open(path):
    """The descriptors of this process that are of a file; where the system tells."""
    name, found = os.path.basename(os.path.realpath(path)), []
    for descriptor in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):  # closed meanwhile by a thread of another test
            target = os.readlink(descriptor)
            found += [target] if os.path.basename(target) == name else []
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system does not tell")
@pytest.mark.parametrize("make", [a_device, a_terminal, a_folder, a_terabyte])
def test_what_is_left_open_would_be_seen(folder, make):
    path = folder / "odd.toml"
    make(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NOCTTY)
    try:
        assert left_open(path)
    finally:
        os.close(descriptor)
    assert not left_open(path)


@pytest.mark.parametrize("path", [None, 5, b"a.toml", "", "a\0b.toml"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_is_no_path_is_refused_in_words(folder, call, path):
    with pytest.raises(PotluckError):
        call(path)
    assert not [*folder.iterdir()]
