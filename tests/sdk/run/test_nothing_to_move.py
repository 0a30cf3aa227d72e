"""A switch after which everybody has what they had: whoever goes held no weight."""

import pytest
from tests.sdk.run.conftest import more_steps, train_alone

import potluck
from potluck.records import Plan, Stage

torch = pytest.importorskip("torch")
nn = torch.nn
A, B = "local-1", "local-2"


class Weightless(nn.Module):
    """Too much work to be merged with its neighbours, and no weights."""

    def forward(self, x):
        return torch.cumsum(torch.sin(x), 1) @ torch.ones(8, 8)


def plan(*stages):
    made = tuple(
        Stage(start=start, stop=stop, devices=(device,), shares=(4,), warm_up=1)
        for start, stop, device in stages
        if start < stop
    )
    return Plan(planner="by hand", model="net", stages=made, micro_batch=4, n_micro_batches=2)


@pytest.mark.few(1)
@pytest.mark.parametrize("under_way", [False, True])
def test_a_switch_that_moves_nothing_is_one(home, under_way):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), Weightless(), nn.Linear(8, 4))
    x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
    model = potluck.Model.from_torch(
        net, x[:4], loss=nn.functional.cross_entropy, example_targets=y[:4], name="net"
    )
    n_layers = len(model.layers(True))
    bare = [i for i in range(n_layers) if not model.state_names(i, i + 1, train=True)]
    gone, stay = bare[0], plan((0, n_layers, A))
    run = home.deploy(
        plan((0, gone, A), (gone, gone + 1, B), (gone + 1, n_layers, A)),
        model,
        optimizer=potluck.SGD(0.1),
    ).wait()
    epochs = 20
    if under_way:
        training = run.fit((x, y), epochs=epochs)
        more_steps(run, training, 2)
        run.switch(stay).wait()
    else:
        run.fit((x, y), epochs=1).wait()
        run.switch(stay).wait()
        training = run.fit((x, y), epochs=epochs - 1)
    training.wait()
    expected = train_alone(
        net,
        x,
        y,
        batch=8,
        micro_batch=4,
        epochs=epochs,
        make_optimizer=lambda ps: torch.optim.SGD(ps, 0.1),
    )
    assert run.history.losses == pytest.approx(expected, rel=1e-5)
    assert run.plan.devices == (A,)
    run.close()
