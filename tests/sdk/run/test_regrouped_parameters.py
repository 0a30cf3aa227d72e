"""Parameters that change their group of a torch optimizer in mid-run: refused, and once it is given
again, all is as in torch."""

import pytest
from tests.sdk.run.conftest import make_plan

import potluck
from potluck.errors import UserError
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
A, B = "local-1", "local-2"
C = "local-3"
BATCH, MICRO = 8, 4
CLOSE = 1e-12  # in float64


@pytest.fixture(scope="module")
def trio():
    torch.set_num_threads(1)
    with memory_home(3) as opened:
        yield opened


def make_net():
    torch.manual_seed(0)
    layers = torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 3)
    return torch.nn.Sequential(*layers).double()


def make_batches():
    torch.manual_seed(1)
    return [(torch.randn(n, 6, dtype=torch.float64), torch.randint(0, 3, (n,))) for n in (8, 8, 5)]


def optimizer_of(net):
    groups = [
        {"params": [*net[0].parameters()]},
        {"params": [*net[2].parameters()], "lr": 0.02, "weight_decay": 0.1},
    ]
    return torch.optim.SGD(groups, lr=0.05, momentum=0.9)


def moved(optimizer):
    first, second = optimizer.param_groups
    first["params"].append(second["params"].pop())


def swapped(optimizer):
    first, second = optimizer.param_groups
    first["params"], second["params"] = second["params"], first["params"]


def replaced(optimizer):
    first, second = optimizer.param_groups
    first["params"][0], second["params"][0] = second["params"][0], first["params"][0]


def merged(optimizer):
    optimizer.param_groups[0]["params"] += optimizer.param_groups.pop()["params"]


def divided(optimizer):
    group = optimizer.param_groups[1]
    optimizer.param_groups.append({**group, "params": [group["params"].pop()], "lr": 0.3})


CHANGES = {
    "moved": moved,
    "swapped": swapped,
    "replaced": replaced,
    "groups in another order": lambda optimizer: optimizer.param_groups.reverse(),
    "merged": merged,
    "divided": divided,
    "maximize": lambda optimizer: optimizer.param_groups[1].update(maximize=True),
    "nesterov": lambda optimizer: optimizer.param_groups[0].update(nesterov=True),
}


def stages_of(which):
    if which == "replicas":
        return [((A, B), (3, 1)), ((C,), (MICRO,))]
    return [((A,), (MICRO,)), ((B,), (MICRO,))]


@pytest.mark.long
@pytest.mark.parametrize("which", ["pipeline", "replicas"])
@pytest.mark.parametrize("ema", [None, 0.9])
@pytest.mark.parametrize("change", CHANGES)
def test_an_optimizer_that_is_given_again_is_read_again_and_keeps_what_it_has(
    trio, change, ema, which
):
    net, alone = make_net(), make_net()
    batches = make_batches()
    x, y = batches[0]
    loss_of = torch.nn.functional.cross_entropy
    model = potluck.Model.from_torch(net, x, loss=loss_of, example_targets=y)
    plan = make_plan(model, *stages_of(which), micro_batch=MICRO, n_micro_batches=BATCH // MICRO)
    optimizer, own = optimizer_of(net), optimizer_of(alone)
    average = {name: tensor.clone() for name, tensor in alone.state_dict().items()}
    for epoch in range(2):
        for inputs, targets in batches:
            own.zero_grad()
            loss_of(alone(inputs), targets).backward()
            own.step()
            for name, tensor in alone.state_dict().items():
                average[name].lerp_(tensor, 0.1)
        if not epoch:
            CHANGES[change](own)
    run = trio.deploy(plan, model).wait()
    run.fit(batches, optimizer=optimizer, ema=ema).wait()
    CHANGES[change](optimizer)
    with pytest.raises(UserError, match=r"Give (it|the optimizer) again"):
        run.fit(batches).wait()
    run.fit(batches, optimizer=optimizer).wait()
    state = run.state_dict()
    for name, expected in alone.state_dict().items():
        torch.testing.assert_close(state[name], expected, rtol=CLOSE, atol=CLOSE)
    if ema is not None:
        averaged = run.state_dict(ema=True)
        for name, expected in average.items():
            torch.testing.assert_close(averaged[name], expected, rtol=CLOSE, atol=CLOSE)
    run.close()


def test_what_an_optimizer_keeps_cannot_change_in_mid_run(trio):
    net, batches = make_net(), make_batches()
    x, y = batches[0]
    model = potluck.Model.from_torch(
        net, x, loss=torch.nn.functional.cross_entropy, example_targets=y
    )
    plan = make_plan(model, *stages_of("pipeline"), micro_batch=MICRO, n_micro_batches=2)
    optimizer = torch.optim.Adam(net.parameters())
    run = trio.deploy(plan, model).wait()
    run.fit(batches, optimizer=optimizer).wait()
    optimizer.param_groups[0]["amsgrad"] = True
    with pytest.raises(UserError, match="keeps something else"):
        run.fit(batches, optimizer=optimizer)
    run.close()


def test_a_run_is_saved_as_devices_know_it_while_its_optimizer_is_regrouped(trio, tmp_path):
    net, batches = make_net(), make_batches()
    x, y = batches[0]
    model = potluck.Model.from_torch(
        net, x, loss=torch.nn.functional.cross_entropy, example_targets=y
    )
    plan = make_plan(model, *stages_of("pipeline"), micro_batch=MICRO, n_micro_batches=2)
    optimizer = optimizer_of(net)
    run = trio.deploy(plan, model).wait()
    run.fit(batches, optimizer=optimizer).wait()
    merged(optimizer)
    assert run.save(tmp_path / "run") == len(batches)
    run.close()
    run = trio.deploy(plan, model, resume=tmp_path / "run").wait()
    run.fit(batches).wait()
    run.close()
