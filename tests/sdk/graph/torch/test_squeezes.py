"""A squeeze never drops the rows: one row of several computes what it does among them."""

import pytest
import torch
from tests.sdk.run.conftest import make_plan
from torch import nn
from torch.nn import functional

import potluck
from potluck.errors import ModelError
from potluck.graph import Model
from potluck.testing.memory import memory_home

LOSSES = {
    "mean": lambda o, y: functional.mse_loss(o.squeeze(), y),
    "logits": lambda o, y: functional.binary_cross_entropy_with_logits(o.squeeze(), y),
    "first": lambda o, y: functional.mse_loss(o.squeeze(0)[:, 0], y),
    "several": lambda o, y: functional.mse_loss(o.squeeze((0, 1)), y),
    "from behind": lambda o, y: functional.mse_loss(o.squeeze(-2)[:, 0], y),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_pieces_of_one_row_learn_what_the_batch_does(loss):
    net = nn.Linear(4, 1)
    x = torch.randn(5, 4)
    y = torch.rand(5)
    wanted = loss(net(x), y).item()
    model = Model.from_torch(net, x[:4], loss=loss, example_targets=y[:4], name="t")
    with memory_home(1) as home:
        plan = make_plan(model, ((next(iter(home.devices)),), (1,)), micro_batch=1)
        run = home.deploy(plan, model, optimizer=potluck.SGD(0.1)).wait()
        assert run.fit([(x, y)]).wait().losses[0] == pytest.approx(wanted, rel=1e-4)
        run.close()


def test_a_squeeze_hides_no_branch_for_one_row():
    class Net(nn.Linear):
        def forward(self, x):
            answer = super().forward(x).squeeze(0)
            return answer * 2 if x.shape[0] > 1 else answer

    with pytest.raises(ModelError, match="something else for one row"):
        Model.from_torch(Net(4, 4), torch.randn(3, 4))


@pytest.mark.parametrize("length", [1, 2])
def test_a_sequence_of_one_is_squeezed_as_torch_does(length):
    class Net(nn.Linear):
        def forward(self, x):
            return super().forward(x).squeeze(1).cumsum(-1)

    net, x = Net(4, 4).eval(), torch.randn(3, length, 4)
    model = Model.from_torch(net, torch.randn(3, 6, 4), sequence_dims=(1,), name="t")
    with memory_home(1) as home:
        stage = ((next(iter(home.devices)),), (3,))
        run = home.deploy(make_plan(model, stage, micro_batch=3, training=False), model).wait()
        torch.testing.assert_close(run(x), net(x).detach())
        run.close()


HEADS = {
    "all": lambda o: o.squeeze(),
    "rows": lambda o: o.squeeze(0),
    "several": lambda o: o.squeeze((0, 1)),
}


class Head(nn.Module):
    def __init__(self, end):
        super().__init__()
        self.linear, self.end = nn.Linear(4, 1), end

    def forward(self, x):
        return self.end(self.linear(x))


@pytest.mark.parametrize("end", HEADS.values(), ids=HEADS)
def test_a_request_of_one_row_that_would_lose_its_rows_is_refused(end):
    net, x = Head(end).eval(), torch.randn(5, 4)
    model = Model.from_torch(net, x[:4], name="t")
    with memory_home(1) as home:
        stage = ((next(iter(home.devices)),), (1,))
        run = home.deploy(make_plan(model, stage, micro_batch=1, training=False), model).wait()
        torch.testing.assert_close(run(x), net(x).detach())  # each row by itself
        with pytest.raises(ModelError, match=r"one row is given.*squeeze\(-1\)"):
            run(x[:1])
        run.close()


def test_a_squeeze_of_another_dimension_answers_one_row():
    net, x = Head(lambda o: o.squeeze(-1)).eval(), torch.randn(1, 4)
    model = Model.from_torch(net, torch.randn(4, 4), name="t")
    assert model.check_inputs(x) == 1


def test_pieces_whose_sequence_of_one_is_squeezed_are_put_together():
    class Net(nn.Linear):
        def forward(self, x):
            return super().forward(x).squeeze(1)

    net, x = Net(4, 4).eval(), torch.randn(5, 1, 4)
    model = Model.from_torch(net, torch.randn(2, 6, 4), sequence_dims=(1,), name="t")
    with memory_home(1) as home:
        stage = ((next(iter(home.devices)),), (1,))
        run = home.deploy(make_plan(model, stage, micro_batch=1, training=False), model).wait()
        torch.testing.assert_close(run(x), net(x).detach())
        run.close()
