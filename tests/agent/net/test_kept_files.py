"""The files of kept weights: what was put there by anybody is never used, and nothing of others is
touched.
"""

import os
import select
import sys

import pytest

from potluck_agent.core.events import (
    DONE,
    FAILED,
    MOVES,
    FromDisk,
    ReadKept,
    RemoveKept,
    Span,
    WriteKept,
)
from potluck_agent.net.kept_files import FOLDER, MOVES_BYTES, KeptFiles, folder_of, kept
from potluck_wire.content import content_of

OWNER, OTHER = "A" * 40, "B" * 40
DATA = bytes(range(256)) * 16
CONTENT = content_of("uint8", (len(DATA),), DATA)
ROOM = 1 << 20
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="links and pipes of POSIX")


class Disk:
    """The files of a state directory, asked one thing at a time."""

    def __init__(self, state, **how):
        self.state, self.notes = state, []
        self.files = KeptFiles(state, self.notes.append, **{"free_bytes": 0} | how)
        self.path = state / FOLDER / folder_of(OWNER) / CONTENT.hex()
        self.moves = 0

    def ask(self, kind, data, *, content=CONTENT, shape=None, owner=OWNER):
        place = Span(arena="inbound", offset=0, nbytes=len(data))
        order = kind(ticket=1, owner=owner, content=content, dtype="uint8",
                     shape=shape or (len(data),), place=place)  # fmt: skip
        self.files.do(order, lambda span: memoryview(data))
        while True:
            select.select([self.files.descriptor], [], [])
            for event in self.files.news():
                if event.state != MOVES:
                    return event.state
                self.moves += 1

    def write(self, data=DATA, **how):
        return self.ask(WriteKept, bytearray(data), **how)

    def read(self, nbytes=4096, **how):
        place = bytearray(nbytes)
        return self.ask(ReadKept, place, **how), bytes(place)


@pytest.fixture
def disk(tmp_path):
    made = Disk(tmp_path)
    yield made
    made.files.close()


def test_what_was_written_is_read_and_listed(disk):
    assert disk.write() == DONE
    assert disk.read() == (DONE, DATA)
    assert kept(disk.state, [OWNER], ROOM) == [(OWNER, CONTENT, len(DATA))]
    assert [path.name for path in disk.path.parent.iterdir()] == [CONTENT.hex()]
    if sys.platform != "win32":
        assert disk.path.stat().st_mode & 0o777 == 0o600
        assert disk.path.parent.stat().st_mode & 0o777 == 0o700


def test_what_has_another_content_than_was_said_is_not_kept(disk):
    assert disk.write(DATA[::-1]) == FAILED
    assert disk.write(shape=(2, len(DATA) // 2)) == FAILED
    assert list(disk.path.parent.iterdir()) == []


def _flip(path):
    data = bytearray(path.read_bytes())
    data[77] ^= 1
    path.write_bytes(data)


def _instead(make):
    def spoil(path):
        path.unlink()
        make(path)

    return spoil


SPOILED = {
    "a bit": _flip,
    "cut short": lambda path: path.write_bytes(DATA[:-1]),
    "longer": lambda path: path.write_bytes(DATA + b"x"),
    "empty": lambda path: path.write_bytes(b""),
    "gone": lambda path: path.unlink(),
    "a folder": _instead(lambda path: (path.mkdir(), (path / "x").touch())),
}
if sys.platform != "win32":
    SPOILED |= {
        "a link to the same bytes": lambda path: (
            path.rename(path.parents[2] / "away"),
            path.symlink_to(path.parents[2] / "away"),
        ),
        "a pipe": _instead(os.mkfifo),
    }


@pytest.mark.parametrize("how", SPOILED)
def test_a_file_that_is_not_what_its_name_says_is_never_used(disk, how):
    disk.write()
    SPOILED[how](disk.path)
    assert disk.read()[0] == FAILED
    assert not os.path.lexists(disk.path)
    assert disk.write() == DONE
    assert disk.read() == (DONE, DATA)
    away = disk.state / "away"
    assert not away.exists() or away.read_bytes() == DATA


def test_a_planted_file_of_another_type_or_shape_is_never_used(disk):
    disk.write()
    assert disk.read(shape=(16, 256))[0] == FAILED


@POSIX
@pytest.mark.parametrize("which", ["all", "of one notebook"])
def test_nothing_is_written_through_a_link(disk, tmp_path, which):
    outside = tmp_path / "outside"
    outside.mkdir()
    folder = disk.state / FOLDER
    if which == "all":
        folder.symlink_to(outside)
    else:
        folder.mkdir()
        (folder / folder_of(OWNER)).symlink_to(outside)
    assert disk.write() == FAILED
    assert list(outside.iterdir()) == []
    assert len(disk.notes) == 1


@POSIX
def test_a_link_in_the_place_of_the_file_that_is_written_is_not_followed(disk, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("of its owner")
    disk.path.parent.mkdir(parents=True)
    disk.path.with_name(disk.path.name + ".part").symlink_to(victim)
    assert disk.write() == DONE
    assert victim.read_text() == "of its owner"


def test_a_full_disk_keeps_nothing_and_stays_as_it_is(tmp_path):
    disk = Disk(tmp_path, free_bytes=2**60)
    assert disk.write() == FAILED
    assert not disk.path.exists()
    disk.files.close()


def test_a_disk_that_fails_is_told_once(disk):
    (disk.state / FOLDER).write_text("in its place")
    assert [disk.write(), disk.write()] == [FAILED, FAILED]
    assert len(disk.notes) == 1


def test_where_the_system_gives_no_thread_the_next_order_asks_again(disk, monkeypatch):
    with monkeypatch.context() as refusing:
        refusing.setattr("threading.Thread.start", none_left)
        with pytest.raises(RuntimeError, match="new thread"):
            disk.write()
    assert disk.write() == DONE


def none_left(thread):
    raise RuntimeError("can't start new thread")


def test_a_place_that_went_with_its_worker_is_told_and_no_fault(disk):
    def gone(span):
        raise LookupError

    place = Span(arena="inbound", offset=0, nbytes=8, worker=3)
    order = ReadKept(ticket=7, owner=OWNER, content=CONTENT, dtype="uint8", shape=(8,), place=place)
    disk.files.do(order, gone)
    assert list(disk.files.news()) == [FromDisk(7, 3, FAILED)]
    assert disk.notes == []


def test_a_large_one_says_that_it_gets_on(disk):
    data = bytes(3 * MOVES_BYTES)
    content = content_of("uint8", (len(data),), data)
    assert disk.write(data, content=content) == DONE
    assert disk.moves == 2
    assert disk.read(len(data), content=content) == (DONE, data)


def test_what_is_removed_is_that_of_this_notebook_alone(disk):
    assert [disk.write(), disk.write(owner=OTHER)] == [DONE, DONE]
    disk.files.do(RemoveKept(OWNER), memoryview)
    assert disk.read()[0] == FAILED
    assert disk.read(owner=OTHER) == (DONE, DATA)
    disk.files.do(RemoveKept(OTHER, CONTENT), memoryview)
    assert disk.read(owner=OTHER)[0] == FAILED


def test_what_lies_there_of_others_goes_at_the_start(disk):
    disk.write()
    disk.write(owner=OTHER)
    (disk.path.parent / "notes.txt").touch()
    disk.path.with_name(disk.path.name + ".part").touch()
    (disk.state / FOLDER / "x").touch()
    assert kept(disk.state, [OWNER], ROOM) == [(OWNER, CONTENT, len(DATA))]
    assert [path.name for path in (disk.state / FOLDER).iterdir()] == [folder_of(OWNER)]
    assert [path.name for path in disk.path.parent.iterdir()] == [CONTENT.hex()]


@POSIX
def test_links_that_lie_there_are_taken_away_and_not_followed(disk, tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / CONTENT.hex()).write_bytes(DATA)
    disk.write()
    (disk.path.parent / ("0" * 64)).symlink_to(victim / CONTENT.hex())
    (disk.state / FOLDER / folder_of(OTHER)).symlink_to(victim)
    assert kept(disk.state, [OWNER, OTHER], ROOM) == [(OWNER, CONTENT, len(DATA))]
    assert (victim / CONTENT.hex()).read_bytes() == DATA


@POSIX
def test_a_link_in_the_place_of_all_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / FOLDER).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="no folder"):
        kept(tmp_path, [OWNER], ROOM)


def test_those_used_longest_ago_come_first(disk):
    shapes = [(len(DATA),), (16, 256), (256, 16)]
    contents = [content_of("uint8", shape, DATA) for shape in shapes]
    for i, (shape, content) in enumerate(zip(shapes, contents, strict=True)):
        disk.write(shape=shape, content=content)
        os.utime(disk.path.with_name(content.hex()), (1e9 + i, 1e9 + i))
    disk.read(shape=shapes[0], content=contents[0])
    assert [content for _, content, _ in kept(disk.state, [OWNER], ROOM)] == contents[
        1:
    ] + contents[:1]


@pytest.mark.parametrize(
    ("limit_bytes", "max_entries", "n_stay"),
    [(ROOM, 9, 3), (2 * len(DATA), 9, 2), (2 * len(DATA) - 1, 9, 1), (0, 9, 0), (ROOM, 1, 1)],
)
def test_what_is_more_than_the_owner_allows_now_goes_at_the_start(
    disk, limit_bytes, max_entries, n_stay
):
    """Those used longest ago; with `--keep 0`, all."""
    shapes = [(len(DATA),), (16, 256), (256, 16)]
    contents = [content_of("uint8", shape, DATA) for shape in shapes]
    for i, (shape, content) in enumerate(zip(shapes, contents, strict=True)):
        disk.write(owner=OTHER if i == 1 else OWNER, shape=shape, content=content)
        path = disk.state / FOLDER / folder_of(OTHER if i == 1 else OWNER) / content.hex()
        os.utime(path, (1e9 + i, 1e9 + i))
    rows = kept(disk.state, [OWNER, OTHER], limit_bytes, max_entries)
    assert [content for _, content, _ in rows] == contents[3 - n_stay :]
    names = {path.name for path in (disk.state / FOLDER).glob("*/*")}
    assert names == {content.hex() for _, content, _ in rows}
