"""Under autocast every operator gets what torch would give it: bit-equal answers and gradients."""

import pytest
import torch
from tests.sdk.graph.test_equality import loaded
from torch import nn
from torch.nn import functional

from potluck.graph import Model

X = torch.linspace(-2, 2, 4 * 6 * 8).reshape(4, 6, 8)
IMAGE = torch.linspace(-2, 2, 4 * 3 * 8 * 8).reshape(4, 3, 8, 8)
CLASSES = torch.tensor([0, 1, 2, 3])

DOES = {
    "a half beside a whole": lambda net, x: torch.cat([net.linear(x), x], -1),
    "stacked": lambda net, x: torch.stack([net.linear(x), x], 1),
    "added": lambda net, x: net.linear(x) + x,
    "softmax": lambda net, x: torch.softmax(net.linear(x), -1),
    "log of sums": lambda net, x: torch.logsumexp(net.linear(x), -1),
    "sums": lambda net, x: net.linear(x).sum(-1),
    "running sums": lambda net, x: torch.cumsum(net.linear(x), 1),
    "powers": lambda net, x: net.linear(x).pow(2).mean(-1),
    "exponentials": lambda net, x: torch.exp(net.linear(x)),
    "norms": lambda net, x: functional.layer_norm(net.linear(x), (8,)),
    "products of values": lambda net, x: torch.bmm(net.linear(x), x.transpose(1, 2)),
    "mixed products": lambda net, x: torch.matmul(x, net.linear(x).transpose(1, 2)),
    "added products": lambda net, x: torch.baddbmm(net.linear(x)[..., :6], x, x.transpose(1, 2)),
    "einsum": lambda net, x: torch.einsum("rij,rkj->rik", net.linear(x), x),
    "attention": lambda net, x: functional.scaled_dot_product_attention(net.linear(x), x, x),
    "attention with a mask": lambda net, x: functional.scaled_dot_product_attention(
        net.linear(x), x, x, attn_mask=torch.ones(6, 6).tril().log()
    ),
    "twice the same weight": lambda net, x: net.linear(torch.tanh(net.linear(x))),
    "halves by hand": lambda net, x: net.linear(x.to(torch.float16)),
    "doubles": lambda net, x: net.linear(x).double() * 2,
    "a list": lambda net, x: torch.cat(net.linear(x).split(4, -1)[::-1], -1),
}
LOSSES = {
    "cross entropy": (functional.cross_entropy, CLASSES),
    "negative likelihood": (
        lambda y, t: functional.nll_loss(functional.log_softmax(y, 1), t),
        CLASSES,
    ),
    "squares": (functional.mse_loss, torch.ones(4, 5)),
    "absolutes": (functional.l1_loss, torch.ones(4, 5)),
    "Huber": (functional.smooth_l1_loss, torch.ones(4, 5)),
    "bits": (functional.binary_cross_entropy_with_logits, torch.ones(4, 5)),
}


class Net(nn.Module):
    def __init__(self, does):
        super().__init__()
        self.linear, self.does = nn.Linear(8, 8), does

    def forward(self, x):
        return self.does(self, x)


def images():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU6(),
        nn.AvgPool2d(2),
        nn.ConvTranspose2d(4, 4, 2, stride=2),
        nn.GroupNorm(2, 4),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 5),
    )


def cast(dtype="bfloat16"):
    return torch.autocast("cpu", dtype=getattr(torch, dtype), cache_enabled=False)


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", DOES)
def test_an_answer_is_bit_equal(name, dtype):
    torch.manual_seed(0)
    net = Net(DOES[name]).eval()
    model = Model.from_torch(net, X, autocast=dtype)
    made = loaded(model.segment(0, len(model.layers(False)), train=False)[1], model.state())
    with torch.no_grad(), cast(dtype):
        expected = net(X)
    (found,) = made.forward((X,))
    assert found.dtype is expected.dtype
    assert torch.equal(found, expected)


@pytest.mark.long
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_and_its_gradients_are_bit_equal(name):
    torch.manual_seed(0)
    loss, targets = LOSSES[name]
    net = images().train()
    model = Model.from_torch(net, IMAGE, loss=loss, example_targets=targets, autocast="bfloat16")
    graph = model.segment(0, len(model.layers(True)), train=True)[1]
    made = loaded(graph, model.state())
    with cast():
        expected = loss(net(IMAGE), targets)
    expected.backward()
    (found,) = made.forward(tuple(model.fed(IMAGE, targets).values()), key="k", train=True)
    made.backward("k")
    assert found.dtype is expected.dtype
    assert torch.equal(found, expected)
    own = dict(net.named_parameters())
    flat = torch.cat([own[p.name].grad.reshape(-1) for p in graph.parameters])
    assert torch.equal(made.gradients()[: len(flat)], flat)


class Padded(nn.Module):
    """Without gradients, torch's encoder takes a fast path that fails under autocast."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder, self.last = nn.TransformerEncoder(layer, 2), nn.Linear(8, 5)

    def forward(self, x):
        padded = x[:, :, 0] > 0.5
        return self.last(self.encoder(x, src_key_padding_mask=padded)[:, 0])


def test_an_encoder_with_a_mask_of_padding_learns_under_autocast_as_in_torch():
    torch.manual_seed(0)
    x, targets = torch.randn(4, 6, 8), torch.tensor([0, 1, 2, 3])
    x[:, :4, 0], x[:, 4:, 0] = 0.0, 1.0
    net, loss = Padded(), functional.cross_entropy
    model = Model.from_torch(net, x, loss=loss, example_targets=targets, autocast="bfloat16")
    made = loaded(model.segment(0, len(model.layers(True)), train=True)[1], model.state())
    with cast():
        expected = loss(net(x), targets)
    (found,) = made.forward(tuple(model.fed(x, targets).values()), key="k", train=True)
    assert torch.equal(found, expected)
