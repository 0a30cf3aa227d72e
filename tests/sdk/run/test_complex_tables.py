"""A table of complex numbers that a module keeps and does not save, as rotations of positions, goes
to the devices.
"""

import copy

import pytest
from tests.sdk.run.conftest import make_plan

import potluck

torch = pytest.importorskip("torch")
nn = torch.nn
ROWS, LENGTH = 4, 5
WIDTH = 8


def turns():
    return torch.polar(torch.ones(LENGTH, WIDTH // 2), torch.rand(LENGTH, WIDTH // 2))


class Rotated(nn.Module):
    """Rotary positions as Llama's first code has them."""

    def __init__(self, keep):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        keep(self)

    def forward(self, x):
        pairs = torch.view_as_complex(self.first(x).reshape(*x.shape[:2], -1, 2))
        return self.last(torch.view_as_real(pairs * self.freqs_cis).flatten(2))


def as_attribute(net):
    net.freqs_cis = turns()


def as_buffer(net):
    net.register_buffer("freqs_cis", turns(), persistent=False)


def as_conjugate(net):
    net.freqs_cis = turns().conj()


@pytest.mark.few(1)
@pytest.mark.parametrize("keep", [as_attribute, as_buffer, as_conjugate])
def test_it_gives_what_it_gives_on_one_machine(keep, home):
    torch.manual_seed(0)
    net = Rotated(keep)
    x, y = torch.randn(2 * ROWS, LENGTH, WIDTH), torch.randn(2 * ROWS, LENGTH, 3)
    loss = nn.functional.mse_loss
    model = potluck.Model.from_torch(net, x[:2], loss=loss, example_targets=y[:2])
    each = [((device,), (ROWS,)) for device in ("local-1", "local-2")]
    run = home.deploy(make_plan(model, *each, micro_batch=ROWS, training=False), model).wait()
    assert torch.allclose(run(x), net(x), atol=1e-6)
    run.close()
    alone = copy.deepcopy(net)
    plan = make_plan(model, *each, micro_batch=ROWS)
    run = home.deploy(plan, model, optimizer=potluck.SGD(0.1)).wait()
    run.fit((x, y)).wait()
    assert run.state_dict().keys() == net.state_dict().keys()
    run.load_into(net)
    run.close()
    optimizer = torch.optim.SGD(alone.parameters(), 0.1)
    for rows in (slice(ROWS), slice(ROWS, None)):
        optimizer.zero_grad()
        loss(alone(x[rows]), y[rows]).backward()
        optimizer.step()
    assert torch.allclose(net(x), alone(x), atol=1e-6)
    assert torch.equal(net.freqs_cis, alone.freqs_cis)
