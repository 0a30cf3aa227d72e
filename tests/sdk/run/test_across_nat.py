"""A home across the internet: two devices and a notebook, each behind a router of its own that lets
nobody in, train through a relay what one machine trains.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sdk.run.internet import Internet, missing
from tests.timeouts import TIMEOUT_S

import potluck
from potluck_wire.limits import PORT, RELAY_PORT

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "an internet")

ROOT = Path(__file__).parents[3]
POTLUCK = [sys.executable, "-m", "potluck_agent"]
RELAY, DEVICES = 10, {"ada": 11, "bob": 12}  # public addresses: their last number
NOTEBOOK = 13


class Home:
    """A notebook and two devices, each in a home of its own, and what each process says."""

    def __init__(self, net, folder):
        self.net, self.folder = net, folder
        with potluck.Home(state=folder / "notebook") as home:
            self.key = home.key
        self.keys = {}
        net.behind_nat("notebook", NOTEBOOK)
        for name, number in DEVICES.items():
            net.behind_nat(name, number)

    def start_device(self, name, *more):
        line = [*POTLUCK, "start", "--name", name, "--state", str(self.folder / name), "--json"]
        line += ["--no-mdns", "--threads", "1", "--device", "cpu", "--memory", "64Mi"]
        agent = self.net.start(name, [*line, f"--trust={self.key}:notebook", *more])
        return json.loads(agent.stdout.readline())["key"]

    def notebook(self, epochs, addresses):
        """A training there."""
        state = str(self.folder / "notebook")
        peers = [f"{name}={address}={self.keys[name]}" for name, address in addresses.items()]
        line = [sys.executable, "-m", "tests.sdk.run.notebook_there", state, str(epochs), *peers]
        return self.net.start("notebook", line, cwd=ROOT)


class RelayedHome(Home):
    """The devices are reached through a relay."""

    def __init__(self, net, folder):
        super().__init__(net, folder)
        self.address = net.public("relay", RELAY)
        self.relay = self.start_relay()
        for name in DEVICES:
            self.keys[name] = self.start_device(name, "--relay", str(self.invitation(name)))
        for _ in DEVICES:
            line_with(self.relay, "is reached")

    def start_relay(self):
        line = [*POTLUCK, "relay", "start", "--state", str(self.folder / "relay"), "--rate", "1e9"]
        relay = self.net.start("relay", line)
        line_with(relay, "relay on")
        return relay

    def invitation(self, name):
        path = self.folder / f"{name}.json"
        line = [*POTLUCK, "relay", "invite", name, self.address, "--to", str(path)]
        done = self.net.start("relay", [*line, "--state", str(self.folder / "relay")])
        assert done.communicate(timeout=TIMEOUT_S)[0]
        return path

    def through_relay(self):
        ports = (RELAY_PORT + 4, RELAY_PORT + 8)
        places = (f"{self.address}:{port}" for port in ports)
        return dict(zip(DEVICES, places, strict=True))


@pytest.fixture
def internet():
    with Internet() as net:
        yield net


def line_with(process, text):
    """The next line with this text."""
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(f"it ended before it said {text!r}")


def fact(process, name):
    return json.loads(line_with(process, f'"{name}"'))


def check_learned(result, steps):
    assert result["steps"] == steps
    assert result["losses"] == 0.0
    assert result["weights"] == 0.0


@pytest.mark.long
def test_devices_behind_routers_train_what_one_machine_trains(internet, tmp_path):
    home = RelayedHome(internet, tmp_path)
    notebook = home.notebook(4, home.through_relay())
    assert fact(notebook, "devices")["devices"] == dict.fromkeys(DEVICES, "ready")
    check_learned(fact(notebook, "steps"), 8)


@pytest.mark.long
@pytest.mark.slow
def test_a_relay_that_dies_is_a_loss_and_training_goes_on_when_it_is_back(internet, tmp_path):
    home = RelayedHome(internet, tmp_path)
    notebook = home.notebook(300, home.through_relay())
    assert fact(notebook, "under_way")["under_way"] < 600
    home.relay.kill()
    home.relay.wait()
    home.relay = home.start_relay()
    result = fact(notebook, "steps")
    assert result["recoveries"] >= 1
    check_learned(result, 600)


@pytest.mark.slow
@pytest.mark.long  # nobody tells a device that its router has another address: 20 s of silence do
def test_a_device_whose_public_address_changes_is_there_again(internet, tmp_path):
    home = RelayedHome(internet, tmp_path)
    notebook = home.notebook(300, home.through_relay())
    assert fact(notebook, "under_way")["under_way"] < 600
    internet.renumber("ada", DEVICES["ada"], 33)
    line_with(home.relay, "ada has")
    line_with(home.relay, "ada is reached")
    result = fact(notebook, "steps")
    assert result["recoveries"] >= 1
    check_learned(result, 600)


def connects(internet, address, port):
    """Whether the notebook gets there."""
    knock = f"import socket; socket.create_connection(({address!r}, {port}), 2)"
    process = internet.start("notebook", [sys.executable, "-c", knock], stderr=subprocess.DEVNULL)
    return process.wait(TIMEOUT_S) == 0


@pytest.mark.long
def test_without_a_relay_nobody_gets_in(internet, tmp_path):
    """That the routers are as they should be: else these tests show nothing."""
    home = RelayedHome(internet, tmp_path)
    assert connects(internet, home.address, RELAY_PORT)
    for number in DEVICES.values():
        assert not connects(internet, f"203.0.113.{number}", PORT)
    assert not connects(internet, "192.168.7.2", PORT)  # its own address, like everybody's


@pytest.mark.long
def test_addresses_of_a_virtual_private_network_are_plain_addresses(internet, tmp_path):
    """As WireGuard and Tailscale give them: routed, of another interface, and nothing is told of
    them. (The tunnel is a pair of plain interfaces: what encrypts on the way is not ours.)
    """
    home, addresses = Home(internet, tmp_path), {}
    for number, name in enumerate(DEVICES, 2):
        addresses[name] = f"100.64.0.{number}"
        internet.tunnel("notebook", name, ("100.64.0.1", addresses[name]), f"wg{number}")
    internet.tunnel("ada", "bob", (addresses["ada"], addresses["bob"]), "wg9")
    for name, address in addresses.items():
        home.keys[name] = home.start_device(name, "--bind", address)
    check_learned(fact(home.notebook(4, addresses), "steps"), 8)
