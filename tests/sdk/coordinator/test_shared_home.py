"""A home that one process has open is looked at by another, asked for, and taken over: nothing is
lost, and who does not answer is named. On real agents and processes.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sdk.coordinator.test_detach import alone, begun, make_net

import potluck
from potluck.coordinator import home_requests
from potluck.discover.key_claim import holder_of
from potluck.discover.keyring import Keyring, KnownDevice
from potluck.display.cockpit import window
from potluck.display.cockpit.terminal import follow
from potluck.errors import HomeError, UserError
from potluck.sessions.agent_specs import local_specs
from potluck.sessions.local_agents import LocalAgents

torch = pytest.importorskip("torch")
ROOT = Path(__file__).parents[3]
EPOCHS = 40
FIRST = 12  # steps before anybody asks

HOLDER = """
import json, sys, threading, time, torch
from tests.sdk.coordinator.test_detach import begun

torch.set_num_threads(1)
home, run, loader = begun(sys.argv[1])
home.when_asked, epochs, first = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
told = threading.Event()

def watched(step, loss):
    time.sleep(0.02)
    if step >= first and not told.is_set():
        told.set()
        print("begun", flush=True)

fitting = run.fit(loader, epochs=epochs, on_step=watched)
try:
    fitting.wait()
except BaseException as error:
    print(type(error).__name__, flush=True)
print(json.dumps(run.history.losses), flush=True)
while not home.closed:
    time.sleep(0.01)
print(home, flush=True)
"""


@pytest.fixture(scope="module")
def ring(tmp_path_factory):
    """The keys of a notebook that two agents trust."""
    mine = Keyring(tmp_path_factory.mktemp("ring"))
    agents = LocalAgents(local_specs(2), ("notebook", mine.identity()[0]))
    for agent in agents.agents:
        mine.remember(KnownDevice(name=agent.name, key=agent.key, addresses=(agent.address,)))
    yield mine
    agents.close()


@pytest.fixture
def state(tmp_path, ring):
    return shutil.copytree(ring.directory, tmp_path / "state")


@pytest.fixture
def holder(state):
    """A function that begins another process which trains on those keys."""
    begun_ones = []

    def begin(when_asked="stop", epochs=EPOCHS):
        line = [sys.executable, "-c", HOLDER, str(state), when_asked, str(epochs), str(FIRST)]
        process = subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        begun_ones.append(process)
        assert process.stdout.readline().strip() == "begun", process.stderr.read()
        return process

    yield begin
    for process in begun_ones:
        process.kill()
        process.communicate()


@pytest.mark.long
@pytest.mark.slow
def test_a_home_is_taken_over_and_its_training_goes_on_as_if_nothing_had_happened(state, holder):
    process = holder()
    home = potluck.Home.take_over(state=state)
    out, err = process.communicate(timeout=60)
    cancelled, losses, reason = out.splitlines()
    assert cancelled == "CancelledError"
    assert f"closed: process {os.getpid()} took it over" in reason
    assert "asks for this home" in err  # its owner is told
    (saved,) = home.taken_over
    assert saved.stat().st_mode & 0o077 == 0
    losses = json.loads(losses)
    assert FIRST <= len(losses) < EPOCHS * 8
    with home:
        net, loader, model = torn_off()
        run = home.deploy(potluck.load_plan(saved.with_suffix(".toml")), model, resume=saved)
        assert run.step == len(losses)
        losses += run.fit(loader, epochs=EPOCHS, resume=True).wait().losses
        run.load_into(net)
    expected, weights = alone(EPOCHS)
    assert losses == pytest.approx(expected, rel=1e-3)
    for name, tensor in net.state_dict().items():
        assert torch.allclose(tensor, weights[name], atol=1e-4)


def torn_off():
    """What the other process had made: module, data and model."""
    net = make_net()
    x, y = torch.randn(64, 16), torch.randint(0, 4, (64,))
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, y),
        batch_size=8,
        shuffle=True,
        generator=torch.Generator().manual_seed(1),
    )
    model = potluck.Model.from_torch(
        net, x[:4], loss=torch.nn.functional.cross_entropy, example_targets=y[:4]
    )
    return net, loader, model


@pytest.mark.long
@pytest.mark.slow
def test_who_keeps_a_home_has_it_and_trains_on(state, holder):
    process = holder("keep")
    with pytest.raises(HomeError, match=f"{process.pid}.* keeps it: its owner has set"):
        potluck.Home.take_over(state=state)
    losses = json.loads(process.stdout.readline())
    assert len(losses) == EPOCHS * 8
    assert holder_of(state) == process.pid


@pytest.mark.long
@pytest.mark.slow
def test_who_finishes_first_is_waited_for_and_who_does_not_wait_changes_nothing(state, holder):
    process = holder("finish")
    with pytest.raises(HomeError, match=r"It says: it ends first: .*step"):
        potluck.Home.take_over(1.0, state=state)
    with potluck.Home.take_over(120.0, state=state) as home:
        assert home.taken_over == ()
        losses, reason = process.communicate(timeout=60)[0].splitlines()
    assert len(json.loads(losses)) == EPOCHS * 8
    assert "took it over" in reason


@pytest.mark.long
@pytest.mark.slow
def test_who_is_stopped_does_not_answer_and_goes_on_afterwards(state, holder, monkeypatch):
    monkeypatch.setattr(home_requests, "SIGN_S", 1.5)
    process = holder()
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(HomeError, match=f"{process.pid}.* does not answer"):
        potluck.Home.take_over(state=state)
    process.send_signal(signal.SIGCONT)
    assert len(json.loads(process.stdout.readline())) == EPOCHS * 8


@pytest.mark.long
@pytest.mark.slow
def test_another_process_looks_without_being_offered_a_window(state, holder):
    process = holder()
    url, number = window.through(state)
    assert number == process.pid
    frames = follow(url)
    while not (sections := next(frames).sections).get("run"):
        pass
    assert sections["run"]["state"] == "training"
    frames.close()


@pytest.mark.long
@pytest.mark.slow
def test_a_home_of_this_process_is_taken_over_in_the_same_way(state):
    first, run, loader = begun(state)
    fitting = run.fit(loader, epochs=500)
    while run.step < FIRST:
        pass
    with potluck.Home.take_over(state=state) as second:
        assert first.closed
        assert fitting.done
        assert len(second.taken_over) == 1
        assert "took it over" in repr(first)


@pytest.mark.long
@pytest.mark.slow
def test_a_step_that_does_not_end_keeps_the_home_where_it_is(state, monkeypatch):
    import threading

    from potluck.coordinator import shared_home

    monkeypatch.setattr(shared_home, "STEP_S", 1.0)
    go_on = threading.Event()
    home, run, loader = begun(state)
    with home:
        run.fit(loader, epochs=500, on_step=lambda step, loss: go_on.wait())
        while run.step < 1:
            pass
        with pytest.raises(HomeError, match=r"not come to the end of a step"):
            potluck.Home.take_over(state=state)
        go_on.set()
        assert not home.closed
        assert run.is_open


def test_nobody_is_looked_at_where_nobody_is(tmp_path):
    assert holder_of(tmp_path) is None
    with pytest.raises(HomeError, match="nobody has this home open"):
        window.through(tmp_path)


def test_a_home_that_nobody_has_is_opened(tmp_path):
    with potluck.Home.take_over(state=tmp_path, timeout_s=0.1) as home:
        assert home.taken_over == ()
        assert holder_of(tmp_path) == os.getpid()
        with pytest.raises(UserError, match="'keep'"):
            home.when_asked = "never"
