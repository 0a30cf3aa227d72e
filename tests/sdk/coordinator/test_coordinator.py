"""A training that was handed over learns what it would have learned in the notebook, and every
interruption of the coordinator changes nothing about that.
"""

import errno
import os
import threading
import time
import zlib
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.sdk.run.conftest import make_data, make_model, make_plan

import potluck
from potluck.coordinator import job_start
from potluck.coordinator.coordinator import Coordinator
from potluck.coordinator.job import (
    BATCHES,
    COMING,
    JOB,
    JOURNAL,
    MAX_PATIENCE_S,
    MODEL,
    SAVED,
    START,
)
from potluck.coordinator.job_writer import pack
from potluck.coordinator.journal import (
    ENDED,
    FAILED,
    FORMAT,
    STOPPED,
    TRAINING,
    WAITING,
    Journal,
    progress_of,
)
from potluck.errors import FileError, HomeError, UserError
from potluck.run import checkpoint
from potluck.testing.faults import Moment, link_of, memory_of, watch
from potluck.testing.memory import memory_home
from potluck_wire.messages import Chunk, Commit, Done, Execute, Pong, Prepare, Value

torch = pytest.importorskip("torch")
A, B = "local-1", "local-2"
STAGES = (((A,), (4,)), ((B,), (4,)))
N_STEPS = 12


def until(true, within_s=60.0):
    end_s = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.01)


@pytest.fixture(scope="module")
def case():
    torch.manual_seed(0)
    _, model = make_model("mlp")
    x, y = make_data("mlp", 8 * N_STEPS)
    plan = make_plan(model, *STAGES, micro_batch=4, n_micro_batches=2)
    batches = list(zip(x.split(8), y.split(8), strict=True))
    with memory_home(2) as home:
        run = home.deploy(plan, model, optimizer=potluck.AdamW(1e-2)).wait()
        losses = run.fit(batches).wait().losses
        weights = run.state_dict()
    return SimpleNamespace(model=model, plan=plan, batches=batches, losses=losses, weights=weights)


def handed_over(folder, case, n_before=3, **options):
    """A job after some steps in a notebook."""
    folder.mkdir(parents=True)
    with memory_home(2) as home:
        options = {"optimizer": potluck.AdamW(1e-2), **options}
        run = home.deploy(case.plan, case.model, **options).wait()
        if n_before:
            run.fit(case.batches[:n_before]).wait()
        pack(folder, run, case.batches[n_before:], adapt=False)


def coordinator(folder):
    return Coordinator(folder, lambda: memory_home(2))


def check(folder, case, n_before=3):
    progress = progress_of(folder / "job" / JOURNAL)
    assert progress.state == ENDED, progress.why
    assert tuple(progress.losses) == case.losses[n_before:]
    state = checkpoint.load(folder / "job" / progress.saved[0])
    assert state.step == N_STEPS
    for name, tensor in state.weights.items():
        assert torch.equal(tensor, case.weights[name])


@pytest.mark.long
@pytest.mark.parametrize("protect", [None, 2, False])
def test_it_learns_what_the_notebook_would_have(tmp_path, case, protect):
    handed_over(tmp_path / "job", case, protect=protect)
    one = coordinator(tmp_path)
    one.admit("job")
    assert one.jobs() == ("job",)
    one.start("job")
    until(lambda: not one.under_way)
    check(tmp_path, case)
    one.close()
    with pytest.raises(UserError, match="has ended"):
        one.start("job")


@pytest.mark.long
@pytest.mark.parametrize("n_done", [0, 1, 4])
def test_told_to_stop_it_goes_on_later_where_it_was(tmp_path, case, n_done):
    handed_over(tmp_path / "job", case)
    one = coordinator(tmp_path)
    one.admit("job")
    one.start("job")
    until(lambda: len(one.progress("job").losses) >= n_done)
    one.stop("job")
    until(lambda: not one.under_way)
    assert one.progress("job").state in (STOPPED, ENDED)
    if one.progress("job").state == STOPPED:
        one.start("job")
        until(lambda: not one.under_way)
    check(tmp_path, case)
    one.close()


@pytest.mark.long
def test_closed_it_is_gone_on_with_by_the_next(tmp_path, case):
    handed_over(tmp_path / "job", case)
    one = coordinator(tmp_path)
    one.admit("job")
    one.start("job")
    until(lambda: one.progress("job").losses)
    one.close()
    other = coordinator(tmp_path)
    other.go_on()
    until(lambda: not other.under_way)
    check(tmp_path, case)
    other.close()


@pytest.mark.long
@pytest.mark.parametrize("ends", ["stop", "close"])
def test_told_to_end_it_waits_for_no_device_that_is_gone(tmp_path, case, ends):
    """However patient the job is: the process that trains it is to end, or its user waits."""
    handed_over(tmp_path / "job", case, patience_s=MAX_PATIENCE_S)
    homes = []

    def opened():
        homes.append(memory_home(2))
        link_of(homes[0]).watch(lost)
        return homes[0]

    def lost(event, actions):
        while one.progress("job").losses and gone < {A, B}:
            gone.add(name := min({A, B} - gone))
            memory_of(homes[0]).kill(name)

    one, gone = Coordinator(tmp_path, opened), set()
    one.admit("job")
    one.start("job")
    until(lambda: gone == {A, B})
    {"stop": lambda: one.stop("job"), "close": one.close}[ends]()
    until(lambda: not one.under_way)
    one.close()
    progress = progress_of(tmp_path / "job" / JOURNAL)
    assert progress.state == {"stop": STOPPED, "close": TRAINING}[ends], progress.why
    assert progress.losses
    other = coordinator(tmp_path)  # where all are there again
    other.start("job")
    until(lambda: not other.under_way)
    check(tmp_path, case)
    other.close()


@pytest.mark.few(1)
@pytest.mark.parametrize("moment", ["beginning", "training", "saving"])
def test_a_device_that_says_for_ever_that_it_gets_on_keeps_nobody_from_ending(
    tmp_path, case, monkeypatch, moment
):
    monkeypatch.setattr(job_start, "END_S", 0.5)
    handed_over(tmp_path / "job", case)
    homes, stuck = [], threading.Event()

    def opened():
        homes.append(memory_home(2))
        memory_of(homes[0]).take_over(B, says)
        return homes[0]

    def says(message, buffers):
        n_done = len(one.progress("job").losses)
        is_due = {"beginning": True, "training": n_done >= 3, "saving": n_done >= N_STEPS - 3}
        if isinstance(message, Done | Value | Chunk) and is_due[moment]:
            stuck.set()
            return []
        if isinstance(message, Pong) and stuck.is_set():
            message = replace(message, busy=True)
        return [(message, buffers)]

    one = Coordinator(tmp_path, opened)
    one.admit("job")
    one.start("job")
    assert stuck.wait(60.0)
    one.close()
    assert progress_of(tmp_path / "job" / JOURNAL).state in (WAITING, TRAINING, ENDED)
    other = coordinator(tmp_path)
    other.go_on()
    until(lambda: not other.under_way)
    check(tmp_path, case)
    other.close()


@pytest.mark.few(1)
@pytest.mark.parametrize("n_kept", [1, 5, 9])
def test_killed_it_goes_back_to_what_was_on_disk(tmp_path, case, n_kept):
    """As if the power had failed after some steps were written down, and before a state was."""
    handed_over(tmp_path / "job", case)
    one = coordinator(tmp_path)
    one.admit("job")
    journal = Journal(tmp_path / "job" / JOURNAL)
    for number, loss in enumerate(case.losses[3 : 3 + n_kept], 4):
        journal.add(step=number, loss=loss)
    journal.add(state="training", why="")
    journal.close()
    with (tmp_path / "job" / JOURNAL).open("ab") as file:
        file.write(b"0badbeef {")
    one.go_on()
    until(lambda: not one.under_way)
    check(tmp_path, case)
    one.close()


@pytest.mark.long
def test_one_job_at_a_time(tmp_path, case):
    handed_over(tmp_path / "job", case)
    handed_over(tmp_path / "other", case, n_before=0)
    one = coordinator(tmp_path)
    one.admit("job")
    one.admit("other")
    one.start("job")
    if one.under_way:
        with pytest.raises(HomeError, match="job is trained here now"):
            one.start("other")
    until(lambda: not one.under_way)
    one.start("other")
    until(lambda: not one.under_way)
    assert [one.progress(job).state for job in ("job", "other")] == [ENDED, ENDED]
    one.close()
    with pytest.raises(UserError, match="there is no job 'third' here; there are job, other"):
        one.progress("third")


@pytest.mark.long
def test_a_job_that_does_not_hold_is_refused(tmp_path, case):
    handed_over(tmp_path / "job", case)
    one = coordinator(tmp_path)
    (tmp_path / "job" / BATCHES / "order.safetensors").rename(tmp_path / "order")
    with pytest.raises(FileError, match=r"order\.safetensors"):
        one.admit("job")
    (tmp_path / "order").rename(tmp_path / "job" / BATCHES / "order.safetensors")
    _, other = make_model("cnn")
    other.save(tmp_path / "job" / MODEL)
    with pytest.raises(FileError, match="the state of another model"):
        one.admit("job")
    (tmp_path / "job" / START).unlink()
    with pytest.raises(FileError, match=r"start\.safetensors"):
        one.admit("job")
    assert one.jobs() == ()


@pytest.mark.long
def test_a_full_disk_ends_it_and_says_so_and_it_goes_on_where_there_is_room(
    tmp_path, case, monkeypatch
):
    handed_over(tmp_path / "job", case)
    one, line = coordinator(tmp_path), Journal.line

    def until_full(entry):
        if entry.get("step") == 6 or entry.get("why"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return line(entry)

    one.admit("job")
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "line", staticmethod(until_full))
        one.start("job")
        until(lambda: not one.under_way)
        progress = one.progress("job")
        assert progress.state == FAILED
        assert "No space left" in progress.why
    one.start("job")
    until(lambda: not one.under_way)
    one.close()
    check(tmp_path, case)


def test_what_never_came_whole_is_deleted_by_the_next(tmp_path, case):
    handed_over(tmp_path / "whole", case)
    handed_over(tmp_path / "cut", case)
    (tmp_path / f"other{COMING}").mkdir()
    (tmp_path / "of-somebody").mkdir()
    one = coordinator(tmp_path)
    one.admit("whole")
    one.go_on()
    one.close()
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "of-somebody"}


@pytest.mark.parametrize("n_there", [0, 1])
def test_devices_that_nothing_goes_on_without_are_waited_for_and_then_named(
    tmp_path, case, n_there
):
    handed_over(tmp_path / "job", case, protect=False if n_there else None, patience_s=0.0)
    one = Coordinator(tmp_path, lambda: home_without(*((B,) if n_there else (A, B))))
    one.admit("job")
    one.start("job")
    until(lambda: not one.under_way)
    progress = one.progress("job")
    assert progress.state == FAILED
    assert "local-2 is not there" in progress.why or "local-1, local-2 are not" in progress.why
    one.close()


def home_without(*names):
    """A home of two devices, of which these are away."""
    home = memory_home(2)
    for name in names:
        memory_of(home).kill(name)
    until(lambda: not {*names} & {*home.devices.ready})
    return home


@pytest.mark.parametrize("away", [A, B])
@pytest.mark.parametrize("protect", [None, 2])
def test_a_device_that_is_gone_as_it_begins_is_done_without(tmp_path, case, away, protect):
    """As where the coordinator was on the same computer, and both are lost at once."""
    handed_over(tmp_path / "job", case, protect=protect)
    one = Coordinator(tmp_path, lambda: home_without(away))
    one.admit("job")
    one.start("job")
    until(lambda: not one.under_way)
    one.close()
    check(tmp_path, case)
    (note,) = [each for each in one.progress("job").notes if f"without {away}" in each]
    assert note.startswith("Step 3: ")


def test_a_device_that_was_lost_before_is_used_again_once_it_is_there(tmp_path, case):
    folder = tmp_path / "job"
    folder.mkdir()
    with memory_home(2) as home:
        run = home.deploy(case.plan, case.model, optimizer=potluck.AdamW(1e-2)).wait()
        run.fit(case.batches[:2]).wait()
        memory_of(home).kill(B)
        run.fit(case.batches[2:3]).wait()
        assert run.plan.devices == (A,)
        pack(folder, run, case.batches[3:], adapt=False)
    one = coordinator(tmp_path)
    one.admit("job")
    one.start("job")
    until(lambda: not one.under_way)
    one.close()
    check(tmp_path, case)
    state = checkpoint.load(folder / progress_of(folder / JOURNAL).saved[0])
    assert (state.plan, state.wanted) == (case.plan, None)


@pytest.mark.parametrize(("ends", "state"), [("close", WAITING), ("stop", STOPPED)])
def test_one_that_waits_for_devices_is_no_failure_where_it_is_told_to_end(
    tmp_path, case, ends, state
):
    handed_over(tmp_path / "job", case, protect=False)
    one = Coordinator(tmp_path, lambda: home_without(B))
    one.admit("job")
    one.start("job")
    until(lambda: one.under_way)
    one.stop("job") if ends == "stop" else one.close()
    until(lambda: not one.under_way)
    assert one.progress("job").state == state
    one.close()


@pytest.mark.parametrize("after", [0, 2, 5])
@pytest.mark.parametrize(
    "moment", [Moment(Prepare, 0), Moment(Commit, 0), Moment(Execute, 0, "push")], ids=str
)
def test_a_device_that_is_lost_as_it_begins_is_done_without(tmp_path, case, moment, after):
    handed_over(tmp_path / "job", case)
    lost = []

    def strikes():
        home = memory_home(2)
        if lost:
            memory_of(home).kill(B)
        else:
            watch(home, moment, lambda: lost.append(memory_of(home).kill(B)), after=after)
        return home

    one = Coordinator(tmp_path, strikes)
    one.admit("job")
    one.start("job")
    until(lambda: not one.under_way)
    one.close()
    assert lost
    check(tmp_path, case)


def line(entry):
    return Journal.line(entry)


def in_place_of(path, make):
    path.unlink()
    make(path)


SPOILED = {
    "no job": lambda folder: (folder / JOB).unlink(),
    "no journal": lambda folder: (folder / JOURNAL).unlink(),
    "an empty journal": lambda folder: (folder / JOURNAL).write_bytes(b""),
    "a journal of nothing": lambda folder: (folder / JOURNAL).write_bytes(bytes(100)),
    "a line without end": lambda folder: (folder / JOURNAL).write_bytes(
        line({"format": FORMAT}) + b"%08x %b\n" % (zlib.crc32(b"[" * 10**5), b"[" * 10**5) * 2
    ),
    "a pipe as a journal": lambda folder: in_place_of(folder / JOURNAL, os.mkfifo),
    "a link to what has no end": lambda folder: in_place_of(
        folder / JOURNAL, lambda path: path.symlink_to("/dev/zero")
    ),
    "a loss of 400 digits": lambda folder: (folder / JOURNAL).write_bytes(
        (folder / JOURNAL).read_bytes() + line({"step": 4, "loss": 10**400}) + line({"note": "x"})
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("how", SPOILED)
def test_a_spoiled_job_ends_neither_the_coordinator_nor_the_others(tmp_path, case, how):
    for name in ("job", "spoiled"):
        handed_over(tmp_path / name, case)
        coordinator(tmp_path).admit(name)
    saved = tmp_path / "spoiled" / SAVED[0]
    saved.write_bytes((tmp_path / "spoiled" / START).read_bytes())
    SPOILED[how](tmp_path / "spoiled")
    one = coordinator(tmp_path)
    one.go_on()
    until(lambda: not one.under_way and one.progress("job").state == ENDED)
    check(tmp_path, case)
    assert saved.exists()  # what was learned stays
    one.close()
