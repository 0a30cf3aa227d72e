"""Whatever lies in the place of a coordinator's own files, it is said and not waited for."""

import os

import pytest
from tests.sdk.coordinator.in_memory import new_keys

from potluck.coordinator import local_coordinator
from potluck.coordinator.local_coordinator import LOCK, LOG, find_or_start, folder_of
from potluck.discover.key_claim import claim
from potluck.errors import FileError, HomeError

PIPES = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")


@PIPES
def test_a_pipe_in_place_of_its_log_is_said(tmp_path):
    folder_of(tmp_path).mkdir()
    os.mkfifo(folder_of(tmp_path) / LOG)
    with pytest.raises(FileError, match=f"cannot start the coordinator, .*{LOG}: No such device"):
        find_or_start(tmp_path, new_keys())


@PIPES
def test_so_is_one_in_place_of_its_lock(tmp_path):
    os.mkfifo(tmp_path / LOCK)
    with pytest.raises(FileError, match=f"cannot write .*{LOCK}: .*not seekable"):
        claim(tmp_path, LOCK)


def test_so_is_a_folder_that_is_a_link_to_itself(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(FileError, match=f"cannot write .*{LOCK}: "):
        claim(tmp_path / "loop", LOCK)


def test_one_that_can_write_nothing_is_said_to_have_no_room(tmp_path, monkeypatch):
    """Its reasons would be in its log."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr(local_coordinator, "LEAST_FREE_BYTES", 2**62)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(HomeError, match=r"does not start: exit code \d+, and the disk of"):
            find_or_start(tmp_path, new_keys())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
