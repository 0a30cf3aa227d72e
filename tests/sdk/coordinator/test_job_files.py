"""The jobs in a folder are in the order in which they came, whatever the clock says; and whatever
becomes of one on the disk, it is told, and nothing is trained on it.
"""

import json
import os
import random
import shutil

import pytest
from tests.sdk.coordinator.in_memory import new_keys
from tests.sdk.coordinator.test_coordinator import case, check, coordinator, handed_over, until

from potluck.coordinator.batch_store import BatchStore, write_batches
from potluck.coordinator.checked_replies import MAX_NOTES
from potluck.coordinator.fetched_states import FetchedStates
from potluck.coordinator.job import JOB, JOURNAL, MODEL, ORDER, START, files_of
from potluck.coordinator.job_files import delete_cut, jobs_in, make_latest
from potluck.coordinator.job_upload import JobUpload
from potluck.coordinator.journal import ENDED, Journal
from potluck.coordinator.server import VERSION, CoordinatorServer
from potluck.coordinator.shared_job import CHUNK_BYTES, fetch
from potluck.errors import FileError

torch = pytest.importorskip("torch")
__all__ = ["case"]  # the fixture
ROWS = "batches/rows-00000.safetensors"

HOUR_NS = 3600 * 10**9


def come(folder, name, at_ns):
    """A job, of which only that it is there counts; the clock of the disk says this."""
    (folder / name).mkdir()
    for file in (JOB, JOURNAL):
        (folder / name / file).touch()
    os.utime(folder / name / JOB, ns=(at_ns, at_ns))
    make_latest(folder / name)


def test_a_clock_that_is_set_back_does_not_make_an_older_job_the_latest(tmp_path):
    names = ("birds", "ants", "cats", "dogs")
    for name, at_ns in zip(names, (5 * HOUR_NS, 4 * HOUR_NS, 5 * HOUR_NS, 0), strict=True):
        come(tmp_path, name, at_ns)
    assert jobs_in(tmp_path) == names


def test_a_pipe_among_its_files_is_waited_for_by_nobody(tmp_path):
    for name in (MODEL, START):
        os.mkfifo(tmp_path / name)
    for read in (
        lambda: files_of(tmp_path),
        lambda: FetchedStates().part("k", tmp_path / START, 0),
    ):
        with pytest.raises(OSError, match="no file"):
            read()


def test_nor_is_one_in_place_of_rows(tmp_path):
    write_batches(tmp_path, [(torch.ones(2, 3),)])
    (tmp_path / "rows-00000.safetensors").unlink()
    os.mkfifo(tmp_path / "rows-00000.safetensors")
    with pytest.raises(FileError, match="it is no file"):
        BatchStore(tmp_path).batch(0)


def test_nor_is_one_in_place_of_a_job_that_comes(tmp_path, case):
    os.mkfifo(tmp_path / "job.coming")
    delete_cut(tmp_path)
    handed_over(tmp_path / "packed", case)
    with pytest.raises(FileExistsError):
        JobUpload(tmp_path / "job.coming", files_of(tmp_path / "packed"))


@pytest.fixture(scope="module")
def begun(tmp_path_factory, case):
    """The folder of a job that is not trained yet."""
    folder = tmp_path_factory.mktemp("jobs")
    handed_over(folder / "job", case)
    one = coordinator(folder)
    one.admit("job")
    one.close()
    return folder


@pytest.mark.few(5)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", [JOB, MODEL, START, ORDER, ROWS])
def test_a_bit_that_has_changed_is_told_by_its_file_and_never_trained_on(
    tmp_path, case, begun, name, seed
):
    """But for one that says nothing of the training."""
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    path, rng = tmp_path / "job" / name, random.Random(seed)
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    one = coordinator(tmp_path)
    one.start("job")
    until(lambda: not one.under_way)
    if name != JOB and one.progress("job").state == ENDED:
        check(tmp_path, case)
    else:
        assert str(path) in one.progress("job").why
    one.close()


def test_however_much_is_noted_of_it_the_latest_is_told(tmp_path, begun):
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    journal = Journal(tmp_path / "job" / JOURNAL)
    for number in range(MAX_NOTES + 5):
        journal.add(note=str(number))
    journal.close()
    keys = new_keys()
    server = CoordinatorServer(coordinator(tmp_path), keys, frozenset({keys.public}))
    request = json.dumps({"version": VERSION, "ask": "status", "job": "job", "since": 0})
    answer, _ = server.answer([b"", request.encode(), b""], keys.public)
    server.close()
    assert answer["notes"] == [*map(str, range(5, MAX_NOTES + 5))]


def test_a_job_whose_journal_is_on_a_disk_that_is_away_is_not_deleted(tmp_path):
    come(tmp_path, "away", HOUR_NS)
    (tmp_path / "away" / JOURNAL).unlink()
    (tmp_path / "away" / JOURNAL).symlink_to(tmp_path / "disk" / JOURNAL)
    delete_cut(tmp_path)
    assert (tmp_path / "away" / JOB).exists()


def test_what_cannot_be_asked_for_by_its_name_is_no_job(tmp_path):
    come(tmp_path, "birds", HOUR_NS)
    for name in ("birds (copy)", "Birds", "birds.coming"):
        shutil.copytree(tmp_path / "birds", tmp_path / name)
    assert jobs_in(tmp_path) == ("birds",)


def asked_of(folder):
    """How another coordinator answers that has a job in this folder."""

    def ask(what, data=b"", **about):
        if what == "files":
            return {"files": files_of(folder)}, b""
        with (folder / about["file"]).open("rb") as file:
            file.seek(about["at"])
            return {}, file.read(CHUNK_BYTES)

    return ask


@pytest.mark.parametrize("way", ["handed over", "copied"])
def test_what_has_come_is_on_the_disk_and_not_only_on_its_way(tmp_path, case, monkeypatch, way):
    """The notebook has it no more, or the other coordinator counts on it; the power may be cut."""
    handed_over(tmp_path / "job", case)
    synced, sync = [], os.fsync

    def recorded(handle):
        sync(handle)
        synced.append(os.fstat(handle).st_ino)

    monkeypatch.setattr(os, "fsync", recorded)
    folder = tmp_path
    if way == "copied":
        folder = tmp_path / "copies"
        folder.mkdir()
        fetch(folder, "job", asked_of(tmp_path / "job"))
        last = len(synced)
    else:
        one = coordinator(folder)
        one.admit("job")
        one.close()
        last = synced.index((folder / "job" / JOURNAL).stat().st_ino)
        assert (folder / "job").stat().st_ino in synced[last:]  # that has its name
    came = {path.stat().st_ino for path in (folder / "job").rglob("*") if path.name != JOURNAL}
    assert len(came) > 4
    assert came <= {*synced[:last]}
    assert folder.stat().st_ino in synced
