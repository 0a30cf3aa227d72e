"""What is promised today when something dies: the run ends by name, and goes on from its file as if
undisturbed.

A run does not go on by itself after a failure, and a notebook that died is not attached again: see
SECURITY.md.
"""

import random
import signal
import sys

import psutil
import pytest
from tests.sdk.run.conftest import make_data, make_model, make_plan
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.errors import DeviceGone, FileError, PotluckError, WorkerFailed
from potluck.run.checkpoint import load
from potluck.testing.faults import agents_of

torch = pytest.importorskip("torch")
A, B = "local-1", "local-2"
FOREVER = 1_000_000
STEPS_PER_EPOCH = 2


@pytest.fixture(scope="module")
def home():
    torch.set_num_threads(1)
    with potluck.Home.local(2) as opened:
        yield opened


@pytest.fixture(scope="module")
def model():
    return make_model("mlp")[1]


def plan_of(model):
    return make_plan(model, ((A,), (4,)), ((B,), (4,)), micro_batch=4, n_micro_batches=2)


def kill(home, device, how):
    """Kill an agent or its worker, or send the worker another signal."""
    victim, number = how
    process = psutil.Process(agents_of(home).process(device).pid)
    victims = [process] if victim == "agent" else agents_of(home).workers(device)
    victims[0].send_signal(number)


def mend(home, device, how):
    """A device whose agent is dead comes back."""
    if how[0] == "agent":
        agents_of(home).process(device).wait(TIMEOUT_S)
        agents_of(home).restart(device)
    while device not in home.devices.ready:
        try:
            home.devices.need([device])
        except PotluckError:
            continue


HOW = [
    ("worker", signal.SIGKILL),
    ("worker", signal.SIGSEGV),
    ("agent", signal.SIGKILL),
    ("worker", signal.SIGABRT),
]


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("n_faults", [3, pytest.param(60, marks=pytest.mark.long)])
def test_f14_chaos_changes_nothing_that_is_learned(
    home, model, tmp_path, n_faults, record_property
):
    """Faults at random moments; after each the run goes on from its last file, and equals the
    undisturbed one.
    """
    rng = random.Random(14)
    (x, y) = make_data("mlp", 16)
    path = tmp_path / "run.safetensors"
    n_files = psutil.Process().num_fds()
    run = home.deploy(plan_of(model), model, seed=7, protect=False).wait()
    losses = []
    for number in range(n_faults):
        losses += run.fit((x, y)).wait().losses[-STEPS_PER_EPOCH:]
        run.save(path)
        at_work, until = run.fit((x, y), epochs=FOREVER), run.step + rng.randrange(6)
        while run.step < until and not at_work.done:
            pass
        device, how = rng.choice((A, B)), HOW[number % len(HOW)]
        kill(home, device, how)
        with pytest.raises((DeviceGone, WorkerFailed), match=device):
            at_work.wait()
        run.close()
        mend(home, device, how)
        run = home.deploy(plan_of(model), model, resume=path, protect=False).wait()
        assert run.step == STEPS_PER_EPOCH * (number + 1)  # no step is lost, none is applied twice
    got = run.state_dict()
    run.close()
    uninterrupted = home.deploy(plan_of(model), model, seed=7).wait()
    assert uninterrupted.fit((x, y), epochs=n_faults).wait().losses == tuple(losses)
    expected = uninterrupted.state_dict()
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    uninterrupted.close()
    assert psutil.Process().num_fds() < n_files + 40  # not one more for each fault
    record_property("faults", n_faults)
    record_property("survived", n_faults)


def test_f11_a_file_cut_at_any_place_or_a_full_disk_leaves_the_last_good_one(
    home, model, tmp_path, record_property
):
    import resource

    x, y = make_data("mlp", 16)
    path, cut = tmp_path / "run.safetensors", tmp_path / "cut.safetensors"
    run = home.deploy(make_plan(model, ((A,), (4,)), micro_batch=4), model, seed=7).wait()
    run.fit((x, y)).wait()
    run.save(path)
    intact = path.read_bytes()
    places = range(0, len(intact), max(1, len(intact) // 400))
    for place in places:
        cut.write_bytes(intact[:place])
        with pytest.raises(FileError, match="cut"):
            load(cut)
    cut.unlink()
    run.fit((x, y)).wait()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # as a disk that is full half way
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(intact) // 2, before[1]))
    try:
        with pytest.raises(FileError, match="cannot write"):
            run.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == intact
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    again = home.deploy(make_plan(model, ((A,), (4,)), micro_batch=4), model, resume=path).wait()
    assert again.step == load(path).step
    record_property("faults", len(places) + 1)
    record_property("survived", len(places) + 1)
