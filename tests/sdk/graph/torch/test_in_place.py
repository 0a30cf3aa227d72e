"""Changes in place of what others see: as eager torch has them, forward and backward."""

import pytest

from potluck.errors import ModelError
from potluck.graph import Model
from potluck_agent.worker.training import TrainingSegment
from potluck_wire.segment import dumps, loads

torch = pytest.importorskip("torch")


def a_slice(x):
    y = x.clone()
    y[:, 1:3] = x[:, :2] * 2
    return y


def a_slice_of_a_view(x):
    y = (x * 2).reshape(-1, 2, 3)
    y[:, 1, ::2] += 1.0
    return y.flatten(1) * y.sum((1, 2))[:, None]


def seen_through_another_view(x):
    y = x * 1.0
    first, second = y[:, :3], y.view(-1, 2, 3)
    first.mul_(3.0)
    return second.flatten(1) + first.sum(1, keepdim=True)


def twice(x):
    y = torch.zeros_like(x)
    y[:, 0] = x[:, 1]
    y[:, 1] = x[:, 0] * x[:, 2]
    y.t()[2].fill_(0.5)
    return y


def by_a_mask(x):
    y = x * 1.0
    y[:, 2:].masked_fill_(x[:, 2:] > 0, -1.0)
    return y


def by_an_index(x):
    y = x * 1.0
    y[:, torch.tensor([0, 3])] = 0.25
    return y


def of_another_type(x):
    y = torch.ones(x.shape[0], 6, dtype=torch.float64)
    y[:, :2] = x[:, :2]
    return y.float() * x


def a_transposed_one(x):
    y = (x * 1.0).reshape(-1, 2, 3)
    y.transpose(1, 2)[:, 0] = 7.0
    y.permute(2, 0, 1)[1, :, 0].zero_()
    return y.flatten(1)


def of_what_a_change_gave_back(x):
    y = x * 1.0
    first = y[:, :3]
    z = first.mul_(2.0)
    z.add_(1.0)
    return y * first.sum(1, keepdim=True)


def a_copy_whose_source_changes(x):
    y, source = x * 1.0, x * 2.0
    y.copy_(source)
    source.add_(1.0)
    return y * source


def after_a_dropout(x):
    y = x * 1.0
    z = torch.nn.functional.dropout(y, 0.0, training=True, inplace=True)
    z.add_(1.0)
    return y * z


def dropped(x):
    return torch.nn.functional.dropout(x, 0.0, training=True, inplace=True)


def a_dropout_of_a_view(x):
    return dropped((x * 1.0).unsqueeze(2).flatten(1)) * 2.0


def a_dropout_of_what_has_views_that_nobody_reads_later(x):
    y = x * 1.0
    before = y[:, :3].sum(1, keepdim=True)
    z = dropped(y.view(-1, 2, 3))
    return z.flatten(1) * z.transpose(1, 2).reshape(-1, 6) * before


def a_shape(x):
    y = (x * 2.0).unsqueeze_(1)
    z = y.expand(-1, 6, -1) * 1.0
    z.transpose_(1, 2)
    w = z.sum(2, keepdim=True).squeeze_(-1)
    return w + y.squeeze_(1)


def a_shape_beside_another_view(x):
    y = x * 1.0
    first = y[:, :3]
    first.unsqueeze_(1)
    first.mul_(2.0)
    return y * first.sum((1, 2))[:, None]


def a_quantile(x):
    kept = x.quantile(0.7, dim=1, keepdim=True)
    several = x.quantile(torch.tensor([0.2, 0.9]), dim=1)
    return x * kept + (x.quantile(0.3, dim=1) * x[:, 0])[:, None] + several.sum(0)[:, None]


LINES = [
    *(a_slice, a_slice_of_a_view, seen_through_another_view, twice, by_a_mask),
    *(by_an_index, of_another_type, a_transposed_one),
    *(of_what_a_change_gave_back, a_copy_whose_source_changes, after_a_dropout),
    *(a_dropout_of_a_view, a_dropout_of_what_has_views_that_nobody_reads_later),
    *(a_shape, a_shape_beside_another_view, a_quantile),
]


class Net(torch.nn.Module):
    def __init__(self, line):
        super().__init__()
        self.first, self.line = torch.nn.Linear(6, 6), line

    def forward(self, x):
        return self.line(self.first(x))


@pytest.mark.few(2)
@pytest.mark.parametrize("line", LINES)
@pytest.mark.filterwarnings("ignore")
def test_gives_what_eager_torch_gives_bit_by_bit(line):
    torch.manual_seed(0)
    net = Net(line)
    x = torch.randn(4, 6)
    y = torch.randn(4, 6)
    loss_of = torch.nn.functional.mse_loss
    model = Model.from_torch(net, x, loss=loss_of, example_targets=y)
    _, graph = model.segment(0, len(model.layers(True)), train=True)
    part = TrainingSegment(loads(dumps(graph)))
    for name in part.names():
        part.write(name, model.state()[name])
    (loss,) = part.forward((x, y), key="k", train=True)
    part.backward("k")
    expected = loss_of(net(x), y)
    expected.backward()
    gradients = torch.cat([p.grad.reshape(-1) for p in net.parameters()])
    assert torch.equal(loss, expected)
    assert torch.allclose(part.gradients(), gradients, rtol=1e-6, atol=1e-7)


SEEN = {
    "by what it is a view of": lambda y: (y[:, :3], lambda z: z.sum(1, keepdim=True) * y),
    "by a view of it from before": lambda y: (y, lambda z, v=y[:, :3]: z.sum() + v),
    "by a view from before of what it is a view of": lambda y: (
        y.view(-1, 2, 3),
        lambda z, v=y[:, :3]: z.flatten(1)[:, :3] * v,
    ),
    "by a view from later of what it is a view of": lambda y: (
        y.view(-1, 2, 3),
        lambda z: z.flatten(1)[:, :3] * y[:, :3],
    ),
}


@pytest.mark.parametrize("case", SEEN.values(), ids=SEEN)
def test_a_dropout_in_place_that_others_see_is_refused(case):
    """What it draws is of a device, so that it is written as a new value where nobody else sees."""

    def line(x):
        changed, rest = case(x * 1.0)
        return rest(torch.nn.functional.dropout(changed, 0.5, training=True, inplace=True))

    with pytest.raises(ModelError, match="others may see"):
        Model.from_torch(
            Net(line),
            torch.randn(4, 6),
            loss=lambda out, y: (out.mean(1) - y).square().mean(),
            example_targets=torch.randn(4),
        )
