"""Two notebooks train on the same devices at once, and each has what it would have alone."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from tests.agent.agents import agent
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.errors import OutOfMemory
from potluck.records import Plan, Stage

torch = pytest.importorskip("torch")

N_STEPS = 12
MIB = 2**20


def net_of(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))


def batches_of(seed):
    made = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(8, 8, generator=made), torch.randint(0, 3, (8,), generator=made))
        for _ in range(N_STEPS)
    ]


def alone(seed):
    """The weights on one machine."""
    net, loss = net_of(seed), torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in batches_of(seed):
        optimizer.zero_grad()
        loss(net(x), y).backward()
        optimizer.step()
    return net.state_dict()


def until_it_hears(home, holds):
    """Until what a device says of itself holds."""
    never_set = threading.Event()
    for _ in range(int(TIMEOUT_S * 10)):
        if holds(home.devices["jetson"].capability):
            return
        never_set.wait(0.1)
    raise AssertionError("it never came")


def model_of(net, seed):
    x, y = batches_of(seed)[0]
    return potluck.Model.from_torch(
        net, x[:4], loss=torch.nn.CrossEntropyLoss(), example_targets=y[:4]
    )


def two_stages(model):
    """A plan over both devices."""
    stages = (
        Stage(start=0, stop=1, devices=("jetson",), shares=(8,), warm_up=1),
        Stage(start=1, stop=len(model.layers(True)), devices=("phone",), shares=(8,), warm_up=1),
    )
    return Plan(planner="hand", model=model.name, stages=stages, micro_batch=8, n_micro_batches=1)


@pytest.fixture
def notebooks(tmp_path):
    """Two homes of the same two devices, each paired by a code of its own."""
    with ExitStack() as stack:
        devices = [
            stack.enter_context(
                agent(tmp_path / name, "--pair", "--memory", "64MiB", name=name, backends="torch")
            )
            for name in ("jetson", "phone")
        ]
        peers = [f"127.0.0.1:{device.port}" for device in devices]
        homes = []
        for notebook in ("ada", "bob"):
            home = stack.enter_context(potluck.Home(peers=peers, state=tmp_path / notebook))
            for peer, device in zip(peers, devices, strict=True):
                code = device.code if notebook == "ada" else device.command("token").stdout.strip()
                home.pair(peer, code)
            homes.append(home)
        yield homes


@pytest.mark.long
@pytest.mark.slow
def test_two_notebooks_train_at_once_as_each_would_alone(notebooks):
    nets = [net_of(seed) for seed in (0, 1)]
    models = [model_of(net, seed) for seed, net in enumerate(nets)]
    runs = []
    for home, model in zip(notebooks, models, strict=True):
        run = home.deploy(two_stages(model), model, optimizer=potluck.SGD(0.1))
        runs.append(run.wait())

    def train(seed):
        runs[seed].fit(batches_of(seed)).wait()
        runs[seed].load_into(nets[seed])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(train, (0, 1)))
    for seed, net in enumerate(nets):
        for name, expected in alone(seed).items():
            assert torch.allclose(net.state_dict()[name], expected, atol=1e-6), name
    all_facts = [home.devices["jetson"].capability for home in notebooks]
    assert all(
        capability["available_bytes"] < capability["memory_bytes"] for capability in all_facts
    )
    runs[0].close()
    before = copy.deepcopy(nets[1].state_dict())
    runs[1].fit(batches_of(1)).wait()  # the other one's end is none of its business
    runs[1].load_into(nets[1])
    assert any(not torch.equal(before[name], now) for name, now in nets[1].state_dict().items())


@pytest.mark.long
@pytest.mark.slow
def test_a_second_notebook_plans_with_what_the_first_one_leaves(notebooks):
    first, second = notebooks
    deep = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8)))  # 32 MiB
    model = potluck.Model.from_torch(deep, torch.randn(2, 1024), name="deep")
    only_stage = Stage(start=0, stop=len(model.layers(False)), devices=("jetson",), shares=(1,))
    plan = Plan(
        planner="hand",
        model="deep",
        stages=(only_stage,),
        micro_batch=1,
        n_micro_batches=1,
        training=False,
    )
    run = first.deploy(plan, model).wait()
    profile = second.profile(model, repeats=1).wait()
    sees = {device.name: device.memory_bytes for device in profile.devices}
    assert sees["jetson"] <= 32 * MIB < sees["phone"]
    assert any("jetson was measured beside the runs of 1 other" in note for note in profile.notes)
    best = potluck.plan(profile, potluck.Inference()).best
    assert best.devices != ("jetson",)  # it does not fit there
    with pytest.raises(OutOfMemory, match="here or in another notebook"):
        second.deploy(plan, model).wait()
    run.close()
    until_it_hears(second, lambda facts: facts["available_bytes"] == facts["memory_bytes"])
    second.deploy(plan, model).wait().close()  # now it fits
