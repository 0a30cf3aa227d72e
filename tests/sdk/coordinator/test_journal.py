"""A journal tells the same to whoever reads it later, however it was cut off."""

import random

import pytest
from tests.fuzz import mutated

from potluck.coordinator.job import MAX_BATCHES, SAVED, START
from potluck.coordinator.journal import (
    ENDED,
    FAILED,
    TRAINING,
    WAITING,
    Journal,
    Progress,
    progress_of,
)
from potluck.errors import FileError


def written(path, seed=0, n=60):
    """A journal of anything that may happen, and its progress after each line."""
    rng, journal = random.Random(seed), Journal(path)
    journal.add(begun=5, n_batches=100, saved=START)
    sizes = [path.stat().st_size]
    states = [snapshot(journal.progress)]
    for number in range(n):
        progress = journal.progress
        if number % 7 == 3:
            journal.add(saved=SAVED[number % 2], at=rng.randint(5, progress.step))
        elif number % 11 == 5:
            journal.add(back=rng.randint(progress.first_step, progress.step))
        elif number % 13 == 6:
            journal.add(note=f"Übergabe {number}", durable=True)
        elif number % 17 == 8:
            journal.add(state=TRAINING, why="")
        else:
            journal.add(step=progress.step + 1, loss=rng.choice([rng.random(), 2, 1e30]))
        sizes.append(path.stat().st_size)
        states.append(snapshot(journal.progress))
    journal.close()
    return sizes, states


def snapshot(progress):
    return (
        progress.step,
        tuple(progress.losses),
        progress.saved,
        progress.state,
        progress.notes[:],
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(3))
def test_cut_anywhere_it_tells_what_was_whole_and_goes_on(tmp_path, seed):
    path = tmp_path / "journal"
    sizes, states = written(path, seed)
    data = path.read_bytes()
    for cut in random.Random(seed).sample(range(sizes[0], len(data) + 1), 80):
        path.write_bytes(data[:cut])
        n_whole = sum(size <= cut for size in sizes)
        assert snapshot(progress_of(path)) == states[n_whole - 1]
        journal = Journal(path)
        assert snapshot(journal.progress) == states[n_whole - 1]
        journal.add(state=ENDED, why="")
        journal.close()
        assert progress_of(path).is_over


def add_steps(journal, start, stop):
    for step in range(start, stop):
        journal.add(step=step, loss=0.25)


@pytest.mark.parametrize("room", [0, 1, 20, 45])
def test_where_the_disk_is_full_in_the_midst_of_a_line_it_holds_what_was_whole(tmp_path, room):
    resource = pytest.importorskip("resource")
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.add(begun=0, n_batches=9, saved=START)
    journal.add(step=1, loss=0.5)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, before[1]))
    try:
        with pytest.raises(FileError, match="cannot write"):
            add_steps(journal, 2, 9)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    n_whole = progress_of(path).step
    assert n_whole == (2 if room == 45 else 1)
    with pytest.raises(FileError, match="cannot write"):
        journal.add(step=9, loss=0.1)  # there is room, but none of those before is there
    journal.close()
    again = Journal(path)
    again.add(step=n_whole + 1, loss=0.125)
    again.close()
    assert progress_of(path).step == n_whole + 1


def test_a_line_that_was_changed_is_named(tmp_path):
    path = tmp_path / "journal"
    written(path)
    data = path.read_bytes()
    ends = [i for i, byte in enumerate(data) if byte == ord("\n")]
    for number in (1, 10, len(ends) - 1):
        spoiled = bytearray(data)
        spoiled[ends[number - 1] - 2] ^= 1
        path.write_bytes(spoiled)
        with pytest.raises(FileError, match=f"line {number}, is not as it was written"):
            progress_of(path)
        assert path.read_bytes() == spoiled


def test_a_journal_of_another_version_is_left_alone(tmp_path):
    path = tmp_path / "journal"
    written(path)
    lines = path.read_bytes().split(b"\n")
    other = Journal.line({"format": "potluck-journal-9"})
    path.write_bytes(b"\n".join([other.rstrip(b"\n"), *lines[1:]]))
    before = path.read_bytes()
    for read in (progress_of, Journal):
        with pytest.raises(FileError, match=r"another version .*journal-9"):
            read(path)
    assert path.read_bytes() == before


IMPOSSIBLE = [
    {"step": 9, "loss": 1.0},
    {"step": 6, "loss": "low"},
    {"back": 4},
    {"saved": START, "at": 99},
    {"saved": "../../another/job/start.safetensors", "at": 5},
    {"saved": "/etc/hostname", "at": 5},
    {"saved": SAVED[0], "at": -1},
    {"begun": -5, "n_batches": 3, "saved": START},
    {"begun": 5, "n_batches": 10**9, "saved": START},
    {"begun": 5, "n_batches": 3, "saved": "journal"},
    {"state": "asleep", "why": ""},
    {},
]


@pytest.mark.parametrize("entry", IMPOSSIBLE, ids=str)
def test_what_cannot_have_happened_is_refused(tmp_path, entry):
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.add(begun=5, n_batches=3, saved=START)
    with pytest.raises(ValueError, match="cannot be after step 5"):
        journal.add(**entry)
    journal.close()
    with path.open("ab") as file:
        file.write(Journal.line(entry))
    with pytest.raises(FileError, match=r"line 3: .* cannot be after step 5"):
        progress_of(path)


def test_it_begins_by_waiting_and_failure_says_why(tmp_path):
    assert Progress().state == WAITING
    journal = Journal(tmp_path / "journal")
    journal.add(state=FAILED, why="no device is left")
    journal.close()
    assert progress_of(tmp_path / "journal").why == "no device is left"


def test_how_it_began_may_always_be_told(tmp_path):
    """Of one that is back, and does not know yet what others have of its journal."""
    journal = Journal(tmp_path / "journal")
    journal.add(begun=3, n_batches=9, saved=START)
    journal.add(step=4, loss=0.5)
    journal.close()
    again = Journal(tmp_path / "journal", 0)
    assert (again.published.first_step, again.published.n_batches, again.published.losses) == (
        3,
        9,
        [],
    )
    again.publish(None)
    assert again.published.losses == [0.5]
    again.close()


KEY = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
MADE = [
    {"step": 7, "loss": 0.5},
    {"saved": SAVED[0], "at": 6},
    {"back": 5},
    {"state": TRAINING, "why": ""},
    {"acts": KEY, "term": 3},
    {"group": {"seats": [[KEY, "127.0.0.1", 99]], "voters": [KEY], "notebooks": [KEY]}},
    {"begun": 5, "n_batches": 3, "saved": START},
]


@pytest.mark.parametrize("entry", MADE, ids=lambda entry: next(iter(entry)))
def test_whatever_a_line_says_progress_stays_possible_and_names_files_of_a_job(entry):
    """Another coordinator may have written it."""
    for seed in range(1000):
        progress = Progress()
        progress.take({"begun": 5, "n_batches": 3, "saved": START})
        progress.take({"step": 6, "loss": 1.0})
        odd = mutated(entry, random.Random(seed))
        try:
            progress.take(odd if isinstance(odd, dict) else {})
        except ValueError:
            continue
        assert progress.saved[0] in (START, *SAVED)
        assert 0 <= progress.first_step <= progress.step
        assert progress.saved[1] >= 0
        assert 1 <= progress.n_batches <= MAX_BATCHES
