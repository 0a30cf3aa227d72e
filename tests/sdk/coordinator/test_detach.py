"""The notebook is closed, the coordinator killed: the training goes on, on real agents."""

import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import CancelledError
from pathlib import Path

import psutil
import pytest
from tests.sdk.run.conftest import make_plan

import potluck
from potluck.coordinator.local_coordinator import FOLDER, WHERE
from potluck.discover.keyring import Keyring, KnownDevice
from potluck.documents import read_json
from potluck.errors import HomeError, UserError
from potluck.sessions.agent_specs import local_specs
from potluck.sessions.local_agents import LocalAgents

torch = pytest.importorskip("torch")
A, B = "local-1", "local-2"
EPOCHS = 24
ROWS = 64
BATCH = 8

NOTEBOOK = """
    import os, sys, time, torch, potluck
    from tests.sdk.coordinator.test_detach import begun

    torch.set_num_threads(1)
    home, run, loader = begun(sys.argv[1])
    fitting = run.fit(loader, epochs={epochs})
    while run.step < 5:
        time.sleep(0.01)
    print(run.detach().wait().job, flush=True)
    assert home.closed
    os._exit(1)  # nothing is tidied up
"""


def make_net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))


def begun(state):
    """A home, a run on two devices, and data that is shuffled anew in every epoch."""
    net = make_net()
    x, y = torch.randn(ROWS, 16), torch.randint(0, 4, (ROWS,))
    data = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(
        data, batch_size=BATCH, shuffle=True, generator=torch.Generator().manual_seed(1)
    )
    home = potluck.Home(state=state)
    for known in Keyring(Path(state)).devices():
        home.trust(str(known.addresses[0]), known.key, known.name)
    model = potluck.Model.from_torch(
        net, x[:4], loss=torch.nn.functional.cross_entropy, example_targets=y[:4]
    )
    plan = make_plan(model, ((A,), (4,)), ((B,), (4,)), micro_batch=4, n_micro_batches=2)
    return home, home.deploy(plan, model, optimizer=potluck.SGD(lr=0.05)).wait(), loader


def alone(epochs=EPOCHS):
    """The losses and weights of one machine."""
    net = make_net()
    x, y = torch.randn(ROWS, 16), torch.randint(0, 4, (ROWS,))
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, y),
        batch_size=BATCH,
        shuffle=True,
        generator=torch.Generator().manual_seed(1),
    )
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=0.05), []
    for _ in range(epochs):
        for inputs, targets in loader:
            loss = torch.nn.functional.cross_entropy(net(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, net.state_dict()


@pytest.fixture(scope="module")
def rings(tmp_path_factory):
    """The keys of a notebook, and those of a coordinator elsewhere; two agents trust both."""
    folder = tmp_path_factory.mktemp("rings")
    mine, others = Keyring(folder / "mine"), Keyring(folder / "others")
    (my_key, _), (its_key, _) = mine.identity(), others.identity()
    trust = f"--trust={its_key}:coordinator"
    agents = LocalAgents(local_specs(2), ("notebook", my_key), extra=(trust,))
    for agent in agents.agents:
        known = KnownDevice(name=agent.name, key=agent.key, addresses=(agent.address,))
        mine.remember(known)
        others.remember(known)
    yield mine, others
    agents.close()


@pytest.fixture
def state(tmp_path, rings):
    """The keys of the notebook, with nothing else; what it starts ends with the test."""
    found = shutil.copytree(rings[0].directory, tmp_path / "state")
    yield found
    for process in coordinators(found):
        process.kill()
        process.wait(10.0)


def coordinators(state):
    """The processes that coordinate for this folder."""
    return [
        process
        for process in psutil.process_iter()
        if {"coordinate", str(state)} <= set(_line(process))
    ]


def _line(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.long
def test_the_notebook_ends_the_coordinator_is_killed_and_nothing_is_lost(state):
    code = textwrap.dedent(NOTEBOOK).format(epochs=EPOCHS)
    line = [sys.executable, "-c", code, str(state)]
    root = Path(__file__).parents[3]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=root, timeout=120)
    job = done.stdout.strip()
    assert job, done.stderr
    run = potluck.Home.attach(state=state)
    assert run.job == job
    before = run.step
    while run.step < before + 20:
        time.sleep(0.05)
    assert run.state == "training", run.why
    with pytest.raises(HomeError, match=r"it trains what was handed over.*Home\.attach"):
        potluck.Home(state=state)
    (process,) = coordinators(state)
    process.kill()
    process.wait(10.0)
    again = potluck.Home.attach(state=state)  # starts another, which goes on
    again.wait(180.0)
    losses, weights = alone()
    n = len(again.losses)
    assert again.step == len(losses)
    assert again.losses == pytest.approx(losses[-n:], rel=1e-4)
    net = make_net()
    again.load_into(net)
    for name, tensor in net.state_dict().items():
        assert torch.allclose(tensor, weights[name], atol=1e-4)
    (process,) = coordinators(state)
    process.send_signal(signal.SIGTERM)
    process.wait(20.0)
    with potluck.Home(state=state):  # the devices are free again
        pass
    document = read_json((state / FOLDER / WHERE).read_bytes(), WHERE)
    assert document["pid"] == process.pid


@pytest.mark.long
def test_a_coordinator_on_another_computer_has_keys_of_its_own_and_goes_on(state, rings, tmp_path):
    (my_key, _), (its_key, _) = (ring.identity() for ring in rings)
    others = rings[1]
    line = [sys.executable, "-m", "potluck", "coordinate", "--state", str(others.directory)]
    process = subprocess.Popen([*line, "--trust", my_key], stdout=subprocess.PIPE, text=True)
    try:
        document = process.stdout.readline()
        address = re.search(r"127\.0\.0\.1:\d+", document)[0]
        assert its_key in document
        home, run, loader = begun(state)
        fitting = run.fit(loader, epochs=EPOCHS)
        while run.step < 5:
            time.sleep(0.01)
        detached = run.detach(to=address, key=its_key).wait()
        assert fitting.done
        assert not home.closed
        assert not run.is_open
        home.close()
        again = potluck.Home.attach(at=address, key=its_key, state=state)
        assert again.job == detached.job
        again.wait(180.0)
        losses, weights = alone()
        assert again.step == len(losses)
        net = make_net()
        again.load_into(net)
        for name, tensor in net.state_dict().items():
            assert torch.allclose(tensor, weights[name], atol=1e-4)
        stranger = Keyring(tmp_path / "stranger")
        stranger.identity()
        with pytest.raises(HomeError, match="does not know this notebook"):
            potluck.Home.attach(at=address, key=its_key, state=stranger.directory)
    finally:
        process.terminate()
        process.wait(20.0)
        process.stdout.close()


@pytest.mark.long
def test_what_cannot_be_detached_or_attached_says_so(state, tmp_path):
    with pytest.raises(HomeError, match="nothing was handed over on this computer"):
        potluck.Home.attach(state=state)
    with pytest.raises(UserError, match="40 characters of Z85"):
        potluck.Home.attach(state=state, at="127.0.0.1:47700", key="short")
    home, run, loader = begun(state)
    with pytest.raises(UserError, match="no fit is under way"):
        run.detach()
    with pytest.raises(UserError, match="no batch"):
        run.detach([]).wait()
    nobody = Keyring(tmp_path / "other").identity()[0]
    with pytest.raises(HomeError, match="no coordinator answers at"):
        run.detach(loader, to="127.0.0.1:9", key=nobody).wait()
    assert run.fit(loader).wait().losses  # it goes on here
    home.close()


@pytest.mark.long
def test_where_what_is_sent_is_refused_the_training_goes_on_here(state, monkeypatch):
    def refuse(*_, **__):
        raise HomeError("it has no room for this.")

    monkeypatch.setattr("potluck.coordinator.endpoint.Endpoint.hand_over", refuse)
    home, run, loader = begun(state)
    fitting = run.fit(loader, epochs=EPOCHS)
    while run.step < 5:
        time.sleep(0.01)
    with pytest.raises(HomeError, match="no room"):
        run.detach().wait()
    with pytest.raises(CancelledError):
        fitting.wait()
    n_done = run.step
    losses = run.fit(loader, epochs=EPOCHS, resume=True).wait().losses
    expected, weights = alone()
    assert losses[-1] == pytest.approx(expected[-1], rel=1e-5)
    assert run.step == len(expected) > n_done
    for name, tensor in run.state_dict().items():
        assert torch.allclose(tensor, weights[name], atol=1e-5), name
    home.close()
