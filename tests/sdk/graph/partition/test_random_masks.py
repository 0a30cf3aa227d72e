"""Layers say whether they draw random masks when they train."""

import pytest

import potluck

torch = pytest.importorskip("torch")


class Attention(torch.nn.Module):
    def __init__(self, dropped):
        super().__init__()
        self.dropped = dropped

    def forward(self, x):
        p = self.dropped if self.training else 0.0
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=p)


def layers_of(middle, train=True):
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), middle, torch.nn.Linear(4, 4))
    x, y = torch.randn(3, 2, 4), torch.randn(3, 2, 4)
    model = potluck.Model.from_torch(
        net.train(), x, loss=torch.nn.functional.mse_loss, example_targets=y, max_layers=8
    )
    return model.layers(train)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("middle", "is_random"),
    [
        (torch.nn.Dropout(0.5), True),
        (torch.nn.Dropout(0.0), False),
        (Attention(0.25), True),
        (Attention(0.0), False),
        (torch.nn.ReLU(), False),
    ],
    ids=["dropout", "dropout of nothing", "attention", "attention without", "none"],
)
def test_only_layers_that_draw_are_random_and_only_in_training(middle, is_random):
    assert any(layer.is_random for layer in layers_of(middle)) == is_random
    assert not any(layer.is_random for layer in layers_of(middle, train=False))
