"""Real agents, real coordinators: one is killed or stands still, and the next one goes on."""

import re
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from tests.sdk.coordinator.test_detach import alone, begun, make_net

import potluck
from potluck.coordinator.job import SAVED
from potluck.coordinator.journal import progress_of
from potluck.coordinator.local_coordinator import FOLDER
from potluck.discover.keyring import Keyring, KnownDevice
from potluck.sessions.agent_specs import local_specs
from potluck.sessions.local_agents import LocalAgents

torch = pytest.importorskip("torch")
TIMEOUT_S = 120.0
LONG = 250  # epochs of eight steps

pytestmark = pytest.mark.long


class Home:
    """Devices that trust a notebook and some coordinators, and the processes of these."""

    def __init__(self, folder, n_coordinators):
        self.names = ["notebook", *(f"c{i}" for i in range(n_coordinators))]
        self.rings = {name: Keyring(folder / name) for name in self.names}
        self.keys = {name: ring.identity()[0] for name, ring in self.rings.items()}
        extra = tuple(f"--trust={key}:{name}" for name, key in self.keys.items())
        self.agents = LocalAgents(
            local_specs(3), ("notebook", self.keys["notebook"]), extra=extra[1:]
        )
        for agent in self.agents.agents:
            known = KnownDevice(name=agent.name, key=agent.key, addresses=(agent.address,))
            for ring in self.rings.values():
                ring.remember(known)
        self.processes, self.places = {}, {}

    def start(self, name, join=""):
        """A coordinator; it trusts the notebook and who joins."""
        line = [sys.executable, "-m", "potluck", "coordinate"]
        line += ["--state", str(self.rings[name].directory)]
        for other, key in self.keys.items():
            line += ["--trust", key] * (other != name)
        if join:
            line += ["--join", self.places[join], "--key", self.keys[join]]
        process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        self.processes[name] = process
        self.places[name] = re.search(r"127\.0\.0\.1:\d+", process.stdout.readline())[0]

    def journal(self, name):
        """What is in its copy of the journal."""
        (path,) = (self.rings[name].directory / FOLDER).glob("*/journal")
        return progress_of(path)

    def close(self):
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait(20.0)
            process.stdout.close()
        self.agents.close()


@pytest.fixture
def devices(tmp_path):
    home = Home(tmp_path, 2)
    yield home
    home.close()


def until(true, within_s=TIMEOUT_S):
    end_s = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def detached(devices, epochs):
    """A training that the first coordinator has, and of which the second one has a copy."""
    devices.start("c0")
    devices.start("c1", join="c0")
    state = devices.rings["notebook"].directory
    home, run, loader = begun(state)
    run.fit(loader, epochs=epochs)
    until(lambda: run.step >= 5)
    training = run.detach(to=devices.places["c0"], key=devices.keys["c0"]).wait()
    home.close()
    return training


def follows(devices, name):
    """Wait until a coordinator has a copy that counts, and a state that is not the first one."""

    def has_state():
        with suppress(ValueError):  # its folder is not there yet
            return devices.journal(name).saved[0] in SAVED
        return False

    until(has_state)
    until(lambda: devices.journal(name).group.seat(devices.keys[name]) is not None)
    time.sleep(1.0)  # a pull and a renewal


def check(training):
    losses, weights = alone(LONG)
    n = len(training.losses)
    assert training.step == len(losses)
    assert training.losses == pytest.approx(losses[-n:], rel=1e-3)
    net = make_net()
    training.load_into(net)
    for name, tensor in net.state_dict().items():
        assert torch.allclose(tensor, weights[name], atol=1e-3)


def test_who_acts_is_killed_and_the_next_one_in_line_goes_on_where_it_was(devices):
    training = detached(devices, LONG)
    follows(devices, "c1")
    seen = training.step
    devices.processes["c0"].kill()
    again = potluck.Home.attach(state=devices.rings["notebook"].directory)
    assert again.job == training.job
    again.wait(TIMEOUT_S)
    assert again.step > seen
    assert devices.journal("c1").acts == devices.keys["c1"]
    check(again)
    devices.start("c0")  # it comes back, and sees who acts; what it has stays its own
    assert training.step == again.step


def test_one_that_stood_still_beyond_its_lease_does_no_more(devices):
    training = detached(devices, LONG)
    follows(devices, "c1")
    devices.processes["c0"].send_signal(signal.SIGSTOP)
    until(lambda: devices.journal("c1").acts == devices.keys["c1"])
    devices.processes["c0"].send_signal(signal.SIGCONT)
    until(lambda: devices.journal("c0").acts == devices.keys["c1"])  # it copies from the other
    training.wait(TIMEOUT_S)
    assert training.state == "ended"
    check(training)
