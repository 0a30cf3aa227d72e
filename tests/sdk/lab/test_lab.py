"""Labs of real agents behind shaped links: Linux and root only.

Skipped, with the reason, elsewhere.
"""

import shutil
import subprocess
import sys

import pytest
from tests.sdk.lab.homes import AIR_BYTES_PER_S, interfaces, tiny_home, write_home
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.lab.namespaces import Namespaces, missing
from potluck.lab.scenario import Bandwidth, Crash, Flow, Freeze, Join, Load, Loss
from potluck.records import Stage
from potluck.testing.faults import agents_of
from potluck.testing.internals import lab_of

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "possible")
torch = pytest.importorskip("torch")

SEND = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 5001)) as s:
    s.sendall(bytes(int(sys.argv[2])))
    s.shutdown(socket.SHUT_WR)
    s.recv(1)
"""
TAKE = """
import socket, sys
with socket.create_server((sys.argv[1], 5001)) as server:
    print("ready", flush=True)
    s, _ = server.accept()
    n = 0
    while part := s.recv(1 << 16):
        n += len(part)
    print(n, flush=True)
"""


def own_interface(links):
    """The interface of these links here."""
    return next(found for found in interfaces() if found[0] == links.interface)


def test_devices_reach_each_other_and_nothing_is_left(tmp_path):
    home = tiny_home(tmp_path)
    names = [device.name for device in home.devices]
    inside = Namespaces(home.network, names)
    try:
        interface = own_interface(inside)
        with subprocess.Popen(
            [*inside.command("two"), sys.executable, "-c", TAKE, inside.address("two")],
            stdout=subprocess.PIPE,
        ) as taker:
            taker.stdout.readline()
            subprocess.run(
                [
                    *inside.command("one"),
                    sys.executable,
                    "-c",
                    SEND,
                    inside.address("two"),
                    "100000",
                ],
                check=True,
            )
            assert int(taker.stdout.readline()) == 100_000
        sent = crossed_bytes(inside, "air")
        assert sent > 2 * 100_000  # up and down
        inside.shape("air", AIR_BYTES_PER_S / 2)
    finally:
        inside.close()
    assert interface not in interfaces()


def crossed_bytes(inside, medium):
    """What the shaper of a medium has let through."""
    shown = subprocess.run(
        [*inside.command("the hub"), "cat", "/proc/net/dev"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    row = next(
        line
        for line in shown.splitlines()
        if line.strip().startswith(f"{inside.layout.entrance(medium)}:")
    )
    return int(row.split(":")[1].split()[8])


def make_net():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(32, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 4),
    )


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Two boards with little memory on one radio channel, everything a hundred times slower."""
    torch.set_num_threads(1)
    path = write_home(tmp_path_factory.mktemp("lab"), devices=("one", "two"), memory=128 * 2**20)
    with potluck.Home.lab(path, time_scale=100, links="namespaces") as home:
        interface = own_interface(lab_of(home).links)
        yield home
    assert interface not in interfaces()


def make_data():
    torch.manual_seed(1)
    return [(torch.randn(8, 32), torch.randint(0, 4, (8,))) for _ in range(3)]


@pytest.fixture
def model():
    x, y = make_data()[0]
    return potluck.Model.from_torch(
        make_net(), x[:4], loss=torch.nn.functional.cross_entropy, example_targets=y[:4]
    )


def make_plan(model, profile):
    n_layers = len(model.layers(True))
    return potluck.Plan(
        planner="by hand",
        model=profile.model,
        micro_batch=4,
        n_micro_batches=2,
        stages=(
            Stage(start=0, stop=1, devices=("one",), shares=(4,), warm_up=2),
            Stage(start=1, stop=n_layers, devices=("two",), shares=(4,)),
        ),
    )


@pytest.mark.long
def test_training_in_a_lab_equals_one_machine(lab, model):
    assert lab.devices["one"].capability["emulated"]["slowdown"] == 1
    profile = lab.profile(model, rows=(1, 4, 8)).wait()
    assert profile.network.bandwidth("one", "two") == pytest.approx(AIR_BYTES_PER_S / 2 / 100)
    before = crossed_bytes(lab_of(lab).links, "air")
    run = lab.deploy(make_plan(model, profile), model, optimizer=potluck.SGD(lr=0.1)).wait()
    run.fit(make_data()).wait()
    assert crossed_bytes(lab_of(lab).links, "air") > before
    trace = run.trace
    assert all(
        trace.peak_bytes[name] <= lab.devices[name].capability["memory_bytes"]
        for name in trace.peak_bytes
    )
    net, alone = make_net(), make_net()
    run.load_into(net)
    run.close()
    train_alone(alone, make_data())
    assert all(
        torch.equal(ours, theirs)
        for ours, theirs in zip(net.parameters(), alone.parameters(), strict=True)
    )


class Exploding(torch.nn.Module):
    """Fits on paper: only the operators know what they need in between."""

    def forward(self, x):
        return x.unsqueeze(-1).expand(-1, -1, 1_000_000).exp().sum(-1)


@pytest.mark.long
def test_who_needs_more_than_the_memory_of_its_device_ends_with_its_name_and_nobody_else_does(lab):
    nn, x = torch.nn, torch.randn(32, 8)
    model = potluck.Model.from_torch(
        nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 4), Exploding()), x[:2]
    )
    n_layers = len(model.layers(False))
    plan = potluck.Plan(
        planner="by hand",
        model=model.name,
        micro_batch=32,
        training=False,
        stages=(
            Stage(start=0, stop=1, devices=("one",), shares=(32,)),
            Stage(start=1, stop=n_layers, devices=("two",), shares=(32,)),
        ),
    )
    pids = [agent.pid for agent in lab_of(lab).started]
    run = lab.deploy(plan, model, protect=False).wait()
    with pytest.raises(
        potluck.errors.OutOfMemory, match=r"two: .*may use 128\.0 MiB\. Give it fewer"
    ) as caught:
        run(x)
    assert (caught.value.device, caught.value.facts["available_bytes"]) == ("two", 128 * 2**20)
    assert lab.devices.need() == ("one", "two")
    agents = agents_of(lab)
    assert [agent.pid for agent in agents.agents if agents.is_there(agent.name)] == pids


def wait_for_script(home):
    scenario = lab_of(home).scenario
    assert scenario.wait(TIMEOUT_S)
    assert [each for each in scenario.happened if each.failure] == []


def test_links_change_as_the_script_says(lab):
    lossy = [Loss(at_s=0, medium="air", loss_frac=0.01)] if shutil.which("nft") else []
    lab.play(
        [
            Bandwidth(at_s=0, medium="air", rate=AIR_BYTES_PER_S * 4),
            *lossy,
            Flow(at_s=0, source="one", target="two", lasts_s=0.002),
        ]
    )
    wait_for_script(lab)
    before = crossed_bytes(lab_of(lab).links, "air")
    assert lab_of(lab).links.flows[-1].wait(TIMEOUT_S) == 0
    assert crossed_bytes(lab_of(lab).links, "air") > before
    lab.play([Loss(at_s=0, medium="air", loss_frac=0.0)] * len(lossy))
    wait_for_script(lab)


@pytest.mark.long
def test_a_crash_ends_the_run_by_name_and_who_joins_again_is_the_same(lab, model):
    profile = lab.profile(model, rows=(1, 4, 8)).wait()
    plan, key = make_plan(model, profile), lab.devices["two"].key
    run = lab.deploy(plan, model, optimizer=potluck.SGD(lr=0.1), protect=False).wait()
    lab.play(
        [
            Freeze(at_s=0, device="one", lasts_s=0.001),
            Load(at_s=0, device="one", busy_frac=0.5, lasts_s=0.001),
            Crash(at_s=0.002, device="two"),
        ]
    )
    with pytest.raises(potluck.PotluckError, match="two"):
        run.fit(make_data() * 1000).wait()
    lab.play([Join(at_s=0, device="two")])
    wait_for_script(lab)
    assert lab.devices.need(["two"]) == ("two",)
    assert lab.devices["two"].key == key
    run = lab.deploy(plan, model, optimizer=potluck.SGD(lr=0.1)).wait()
    run.fit(make_data()[:1]).wait()
    run.close()


def train_alone(net, batches):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in batches:
        for rows in (slice(0, 4), slice(4, 8)):
            (torch.nn.functional.cross_entropy(net(x[rows]), y[rows]) * 0.5).backward()
        optimizer.step()
        optimizer.zero_grad()
