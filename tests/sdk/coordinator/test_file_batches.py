"""A training on files of arrays that the coordinator reads itself learns what it would have learned
in the notebook; what it cannot reach, or finds otherwise, is refused before anything is trained.
"""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.sdk.coordinator.in_memory import Coordinators
from tests.sdk.coordinator.test_coordinator import STAGES, until
from tests.sdk.coordinator.test_server import mine, serving
from tests.sdk.run.conftest import make_data, make_model, make_plan

import potluck
from potluck.coordinator.coordinator import Coordinator
from potluck.coordinator.detached_run import DetachedRun
from potluck.coordinator.file_batches import FileBatches
from potluck.coordinator.job import FILES, JOURNAL, ORDER, READS, WHOLE
from potluck.coordinator.job_writer import pack
from potluck.coordinator.journal import ENDED, progress_of
from potluck.errors import FileError, HomeError, UserError
from potluck.handle import Task
from potluck.run import checkpoint
from potluck.run.array_files import ArrayBatches
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")
__all__ = ["mine", "serving"]  # the fixtures
EPOCHS, ROWS = 3, 36
NAMES = ["x.npy", "sub/all.npz:y"]


def saved(folder, x, y):
    (folder / "sub").mkdir(parents=True)
    numpy.save(folder / "x.npy", x.numpy())
    numpy.savez(folder / "sub" / "all.npz", y=y.numpy())


def files(folder, names=NAMES):
    return potluck.ArrayFiles(folder, names, batch=8, shuffle=True, seed=4)


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """What the notebook learns, the files, and the job of those epochs."""
    torch.manual_seed(0)
    _, model = make_model("mlp")
    folder = tmp_path_factory.mktemp("files")
    saved(folder / "data", *make_data("mlp", ROWS))
    plan = make_plan(model, *STAGES, micro_batch=4, n_micro_batches=2)
    with memory_home(2) as home:
        run = home.deploy(plan, model, optimizer=potluck.AdamW(1e-2)).wait()
        losses = run.fit(files(folder / "data"), epochs=EPOCHS).wait().losses
        weights = run.state_dict()
    packed = handed_over(folder / "packed", model, plan, files(folder / "data"))
    return SimpleNamespace(
        model=model, plan=plan, losses=losses, weights=weights, data=folder / "data", packed=packed
    )


def handed_over(folder, model, plan, data, epochs=EPOCHS):
    folder.mkdir()
    with memory_home(2) as home:
        run = home.deploy(plan, model, optimizer=potluck.AdamW(1e-2)).wait()
        pack(folder, run, data.remaining(epochs, model.arguments), adapt=False)
    return folder


def coordinator(tmp_path, case, reads):
    shutil.copytree(case.packed, tmp_path / "jobs" / "job")
    return Coordinator(tmp_path / "jobs", lambda: memory_home(2), reads=reads)


def check(folder, case):
    progress = progress_of(folder / "job" / JOURNAL)
    assert progress.state == ENDED, progress.why
    assert tuple(progress.losses) == case.losses
    state = checkpoint.load(folder / "job" / progress.saved[0])
    assert all(torch.equal(tensor, case.weights[name]) for name, tensor in state.weights.items())


@pytest.mark.long
def test_it_learns_what_the_notebook_would_have_and_has_no_row_of_its_own(tmp_path, case):
    one = coordinator(tmp_path, case, case.data)
    assert not (case.packed / ORDER).exists()
    assert {*case.packed.glob("batches/*")} == {case.packed / FILES, case.packed / WHOLE}
    one.admit("job")
    one.start("job")
    until(lambda: len(one.progress("job").losses) >= 4)
    one.close()  # in the middle: the next one goes on with the batch behind
    other = Coordinator(tmp_path / "jobs", lambda: memory_home(2), reads=case.data)
    other.go_on()
    until(lambda: not other.under_way)
    check(tmp_path / "jobs", case)
    other.close()


@pytest.mark.long
def test_of_the_rows_only_what_a_loss_needs_of_a_whole_batch_is_read(tmp_path, case, home):
    run = home.deploy(case.plan, case.model, optimizer=potluck.AdamW(1e-2)).wait()
    taken = []

    def counted(array):
        take = array.take
        return replace(array, take=lambda rows: taken.append((array, len(rows))) or take(rows))

    data = files(case.data)
    data.batches = ArrayBatches(map(counted, data.batches.arrays), data.batches.order)
    pack(tmp_path, run, data.remaining(EPOCHS, case.model.arguments), adapt=False)
    run.close()
    n_read = {name: sum(n for array, n in taken if array.name == name) for name in NAMES}
    assert n_read == {NAMES[0]: 8, NAMES[1]: EPOCHS * ROWS + 8}  # a batch is looked at before


def test_arrays_are_given_by_the_names_of_arguments(tmp_path, case):
    names = {"target": NAMES[1], "input": NAMES[0]}
    packed = handed_over(tmp_path / "packed", case.model, case.plan, files(case.data, names))
    assert json.loads((packed / FILES).read_text()) == json.loads((case.packed / FILES).read_text())


@pytest.mark.few(1)
@pytest.mark.parametrize("n_done", [0, 1, 5, 9])
def test_a_fit_that_is_under_way_is_handed_over_from_where_it_is(home, tmp_path, case, n_done):
    run = home.deploy(case.plan, case.model, optimizer=potluck.AdamW(1e-2)).wait()
    losses_so_far = []

    def on_step(step, loss):
        losses_so_far.append(loss)

    data = files(case.data)
    for _ in range(n_done):
        next(iter(data))  # somebody has looked at some: the next epoch begins at its beginning
    first = data.begins
    fitting = run.fit(data, epochs=EPOCHS, on_step=on_step)
    while len(losses_so_far) < n_done and not fitting.done:
        pass
    (remaining,) = run.rest() or [None]
    if remaining is None:
        return
    folder = tmp_path / "packed"
    folder.mkdir()
    pack(folder, run, remaining, adapt=False)
    store = FileBatches(folder, case.data)
    store.check()
    assert len(store) == len(data) * EPOCHS - run.step
    assert remaining.first == first + run.step
    run.close()


def test_what_a_loss_makes_of_a_batch_is_handed_over_beside_the_files(tmp_path):
    """A mean over those rows that count: how many those are is known of the whole batch alone."""
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 3)
    x, y = torch.randn(20, 4), torch.randint(0, 3, (20,))
    y[::3] = -100

    def loss(output, target):
        return torch.nn.functional.cross_entropy(output, target, ignore_index=-100)

    model = potluck.Model.from_torch(net, x[:6], loss=loss, example_targets=y[:6])
    plan = make_plan(model, (("local-1",), (2,)), micro_batch=2, n_micro_batches=4)
    numpy.savez(tmp_path / "all.npz", x=x.numpy(), y=y.numpy())
    data = potluck.ArrayFiles(tmp_path, ["all.npz:x", "all.npz:y"], batch=8, shuffle=True)
    with memory_home(1) as home:
        run = home.deploy(plan, model, optimizer=potluck.SGD(0.1)).wait()
        losses = run.fit(data, epochs=2).wait().losses
    again = potluck.ArrayFiles(tmp_path, ["all.npz:x", "all.npz:y"], batch=8, shuffle=True)
    (tmp_path / "jobs" / "job").mkdir(parents=True)
    with memory_home(1) as home:
        run = home.deploy(plan, model, optimizer=potluck.SGD(0.1)).wait()
        pack(tmp_path / "jobs" / "job", run, again.remaining(2, model.arguments), adapt=False)
    assert (tmp_path / "jobs" / "job" / WHOLE).exists()
    one = Coordinator(tmp_path / "jobs", lambda: memory_home(1), reads=tmp_path)
    one.admit("job")
    one.start("job")
    until(lambda: not one.under_way)
    progress = one.progress("job")
    assert (progress.state, progress.why) == (ENDED, "")
    assert tuple(progress.losses) == losses
    one.close()


# --- what cannot be reached -----------------------------------------------------------------------


def without(case, folder, change):
    """The files where the coordinator is, but for something."""
    shutil.copytree(case.data, folder)
    change(folder)
    return folder


def one_row(folder):
    x = numpy.load(folder / "x.npy")
    x[5] += 1
    numpy.save(folder / "x.npy", x)


OTHERWISE = {
    "missing": (lambda folder: (folder / "x.npy").unlink(), "cannot reach 'x.npy' in"),
    "no folder": (shutil.rmtree, "cannot reach 'x.npy' in"),
    "of another type": (
        lambda folder: numpy.save(folder / "x.npy", numpy.ones((ROWS, 8))),
        "is .* of float64 where the coordinator is, and .* of float32 in the notebook",
    ),
    "of another shape": (
        lambda folder: numpy.save(folder / "x.npy", numpy.ones((ROWS + 1, 8), "float32")),
        "'x.npy' in .* is .37, 8. of float32 where the coordinator is, and .36, 8. of",
    ),
    "of other rows": (one_row, "'x.npy', .*, is another file than that of the notebook"),
    "outside": (
        lambda folder: ((folder / "x.npy").unlink(), (folder / "x.npy").symlink_to("/etc/passwd")),
        "leads out of it",
    ),
}


@pytest.mark.parametrize(("change", "why"), OTHERWISE.values(), ids=OTHERWISE)
def test_a_job_whose_data_is_not_there_is_refused_by_file_and_folder(tmp_path, case, change, why):
    reads = without(case, tmp_path / "data", change)
    one = coordinator(tmp_path, case, reads)
    with pytest.raises(FileError, match=why) as caught:
        one.admit("job")
    assert caught.value.next_step
    assert str(reads) in str(caught.value)
    assert one.jobs() == ()


def test_a_coordinator_that_was_given_no_folder_reads_none(tmp_path, case):
    one = coordinator(tmp_path, case, None)
    with pytest.raises(FileError, match=r"cannot reach 'x\.npy': its owner has given .* no folder"):
        one.admit("job")


def test_files_that_have_changed_end_it_and_say_which(tmp_path, case):
    reads = without(case, tmp_path / "data", lambda folder: None)
    one = coordinator(tmp_path, case, reads)
    one.admit("job")
    one_row(reads)
    one.start("job")
    until(lambda: not one.under_way)
    assert "'x.npy'" in one.progress("job").why
    assert "another file" in one.progress("job").why
    shutil.copy(case.data / "x.npy", reads / "x.npy")
    one.start("job")
    until(lambda: not one.under_way)
    check(tmp_path / "jobs", case)
    one.close()


def test_an_order_that_has_changed_since_is_not_trained_on(tmp_path, case):
    one = coordinator(tmp_path, case, case.data)
    one.admit("job")
    path = tmp_path / "jobs" / "job" / FILES
    document = json.loads(path.read_text())
    document["order"][3] += 1  # its seed
    path.write_text(json.dumps(document))
    one.start("job")
    until(lambda: not one.under_way)
    assert f"{path} is not as it was handed over" in one.progress("job").why
    one.close()


@pytest.mark.parametrize(
    "change",
    [
        {"format": "potluck-file-batches-2"},
        {"arrays": []},
        {"arrays": [["../../secret.npy", [36, 8], "float32", ""]]},
        {"arrays": [["/etc/passwd", [36, 8], "float32", ""]]},
        {"arrays": [["x.npy", [36, -8], "float32", ""]]},
        {"arrays": [["x.npy", [36, 8], "float32"]]},
        {"arrays": [[["x.npy"], [36, 8], "float32", ""]]},
        {"arrays": [["x.npy", [36, 8], "float32", ""]] * 65},
        {"order": [37, 8, True, 4, False]},
        {"order": [36, 0, True, 4, False]},
        {"order": [36, 8, True, -4, False]},
        {"order": [36, 8, 1, 4, False]},
        {"order": [True, 8, True, 4, False]},
        {"order": [36, 2**70, True, 4, True]},
        {"first": -1},
        {"first": 2**60},
        {"n_batches": 0},
        {"n_batches": 2**60},
        {"n_batches": 14},
        {"n_batches": True},
    ],
    ids=str,
)
def test_a_hostile_description_of_files_is_refused(tmp_path, case, change):
    one = coordinator(tmp_path, case, case.data)
    path = tmp_path / "jobs" / "job" / FILES
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(FileError):
        one.admit("job")
    assert one.jobs() == ()


# --- who may say which folder ---------------------------------------------------------------------


@pytest.mark.long
def test_the_owner_of_a_coordinator_says_where_and_it_knows_when_it_is_back(
    tmp_path, case, serving
):
    place, coordinator = serving
    place.hand_over("job", case.packed, Task(), reads=str(case.data))
    assert coordinator.reads is None
    run = DetachedRun(place, "job").start()
    until(lambda: run.losses)
    coordinator.close()
    other = Coordinator(coordinator.folder, lambda: memory_home(2))
    other.go_on()
    until(lambda: not other.under_way)
    check(coordinator.folder, case)
    other.close()


def test_nobody_else_says_which_folder_is_read(tmp_path, case):
    """A notebook with keys of its own, and a job that brings what only its owner may say."""
    lab = Coordinators(tmp_path / "lab", ("A",))
    try:
        lab.start("A")
        place = lab.place(lab.keys["A"].public)
        with pytest.raises(HomeError, match="its owner has given it no folder to read"):
            place.hand_over("job", case.packed, Task(), reads=str(case.data))
        shutil.copytree(case.packed, tmp_path / "odd")
        (tmp_path / "odd" / READS).write_text(json.dumps(str(case.data)))
        with pytest.raises(HomeError, match="its owner has given it no folder to read"):
            place.hand_over("job", tmp_path / "odd", Task())
        assert lab.alive["A"].coordinator.jobs() == ()
    finally:
        lab.close()


@pytest.mark.parametrize("reads", ["data", "../data", "~/data", ""])
def test_a_folder_is_said_from_the_root_on(tmp_path, case, serving, reads):
    place, coordinator = serving
    with pytest.raises(HomeError, match=r"no path of a folder|no folder to read"):
        place.hand_over("job", case.packed, Task(), reads=reads)
    assert coordinator.jobs() == ()


@pytest.mark.long
def test_a_copy_that_could_not_read_the_files_does_not_stand_in_line(tmp_path, case):
    lab = Coordinators(tmp_path / "lab")
    try:
        lab.start("A").coordinator.reads = case.data
        lab.start("B")
        lab.hand_over(case.packed, "A")
        for _ in range(2):
            with pytest.raises((HomeError, FileError), match=r"cannot reach 'x\.npy'"):
                until(lambda: lab.join("B", "A"))
        assert lab.alive["B"].coordinator.followed == ""
        lab.alive["B"].coordinator.reads = case.data
        assert lab.join("B", "A")
        until(lambda: lab.progress("A").is_over)
        assert tuple(lab.progress("A").losses) == case.losses
    finally:
        lab.close()


def test_no_batch_is_no_job(home, tmp_path, case):
    run = home.deploy(case.plan, case.model, optimizer=potluck.AdamW(1e-2)).wait()
    for epochs in (0, -1):
        (tmp_path / str(epochs)).mkdir()
        remaining = files(case.data).remaining(epochs, case.model.arguments)
        with pytest.raises(UserError, match="no batch"):
            pack(tmp_path / str(epochs), run, remaining, adapt=False)
    other = potluck.ArrayFiles(case.data, [NAMES[1], NAMES[0]], batch=8)
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError):
        pack(tmp_path / "other", run, other.remaining(1, case.model.arguments), adapt=False)
    run.close()
