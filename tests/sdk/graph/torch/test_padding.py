"""Encoders of which torch leaves zeros at padded places, where gradients are off: said, and what is
said holds.
"""

import warnings

import pytest

from potluck.graph.model import Model

torch = pytest.importorskip("torch")


def encoder(**options):
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 1, **options)


class Padded(torch.nn.Module):
    def __init__(self, by_name, **options):
        super().__init__()
        self.encoder = encoder(**options)
        self.head = torch.nn.Linear(8, 3)
        self.by_name = by_name

    def forward(self, x, pad):
        named = {"src_key_padding_mask": pad} if self.by_name else {}
        given = (x,) if self.by_name else (x, None, pad)
        return self.head(self.encoder(*given, **named).mean(1))


X = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0))
NO_PAD = torch.zeros(4, 5, dtype=torch.bool)


@pytest.mark.long
@pytest.mark.parametrize("by_name", [True, False])
def test_an_encoder_with_a_padding_mask_is_told_whatever_the_example_pads(by_name):
    with pytest.warns(UserWarning, match="padding mask of encoder .* enable_nested_tensor=False"):
        model = Model.from_torch(Padded(by_name).eval(), (X, NO_PAD))
    assert "enable_nested_tensor" in model.notes()[-1]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("net", "inputs"),
    [(Padded(True, enable_nested_tensor=False), (X, NO_PAD)), (encoder(), (X,))],
    ids=["asked for otherwise", "no mask"],
)
def test_one_that_answers_the_same_everywhere_is_not(net, inputs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Model.from_torch(net.eval(), inputs).notes() == ()
