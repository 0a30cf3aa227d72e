"""On a full disk whatever is written ends in a sentence, leaves nothing, and what was there stays.

The kernel refuses every write to a file here, as it does where a disk is full.
"""

import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

import potluck
from potluck.coordinator.local_coordinator import write_place
from potluck.discover.keyring import Keyring, KnownDevice
from potluck.display import chrome_trace, markup, scene
from potluck.documents import write_text, write_whole
from potluck.errors import FileError, UserError
from potluck.planning.api import save_plan
from potluck.records import Plan, Stage
from potluck.sessions.events import Address

resource = pytest.importorskip("resource")
PLAN = Plan(
    planner="mine",
    model="m",
    micro_batch=4,
    stages=(Stage(start=0, stop=1, devices=("a",), shares=(4,)),),
)
PICTURE = SimpleNamespace(standalone=lambda: "<svg/>")
WRITES = {
    "text": lambda path: write_text(path, "x"),
    "whole": lambda path: write_whole(path, "x"),
    "page": lambda path: markup.save(path, "title", "<p>x</p>"),
    "trace": lambda path: chrome_trace.save(path),
    "picture": lambda path: scene.save_svg(PICTURE, path),
    "plan": lambda path: save_plan(PLAN, path),
    "place": lambda path: write_place(path.parent, "127.0.0.1", 9),
}


@contextmanager
def full_disk():
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def threads():
    return {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("write", WRITES.values(), ids=[*WRITES])
def test_what_cannot_be_written_is_said_and_what_was_there_stays(tmp_path, write):
    path = tmp_path / "file"
    path.write_text("before")
    with full_disk(), pytest.raises(FileError, match="cannot write"):
        write(path)
    assert path.read_text() == "before"
    assert [*tmp_path.iterdir()] == [path]


def test_a_home_opens_and_its_page_is_not_half_there(tmp_path):
    Keyring(tmp_path).identity()
    with full_disk():
        home = potluck.Home(peers=["127.0.0.1:9"], state=tmp_path)
    with home:
        files, before = {*tmp_path.iterdir()}, threads()
        with full_disk(), pytest.raises(FileError, match="cannot write"):
            home.window()
        assert {*tmp_path.iterdir()} == files
        assert threads() <= before
        assert home.window().startswith("http://127.0.0.1:")


def test_a_device_that_is_forgotten_is_talked_to_no_more(tmp_path):
    place, key = Address(host="127.0.0.1", port=9), Keyring(tmp_path).identity()[0]
    Keyring(tmp_path).remember(KnownDevice(name="jetson", key=key, addresses=(place,)))
    with potluck.Home(peers=[str(place)], state=tmp_path) as home:
        assert [*home.devices] == ["jetson"]
        with pytest.raises(UserError, match="no device is called 'phone'"):
            home.forget("phone")
        with full_disk(), pytest.raises(FileError, match="cannot write"):
            home.forget("jetson")
        assert [*home.devices] == []
        home.forget("jetson")
        assert not Keyring(tmp_path).devices()


@pytest.mark.parametrize("exists", [True, False])
def test_a_file_that_the_user_asked_for_has_the_rights_of_any(tmp_path, exists):
    path = tmp_path / "file"
    (tmp_path / "any").write_text("")
    if exists:
        path.write_text("before")
    write_text(path, "a\nb\r\n")
    assert path.read_bytes() == b"a\nb\r\n"
    assert path.stat().st_mode == (tmp_path / "any").stat().st_mode


def test_nothing_takes_the_place_of_a_link_or_a_device(tmp_path):
    (tmp_path / "real").write_text("before")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_text(tmp_path / "link", "after")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "after"
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(FileError, match="No space left"):
        write_text(tmp_path / "full", "x")
    with pytest.raises(FileError, match="s a directory"):
        write_text(tmp_path, "x")
