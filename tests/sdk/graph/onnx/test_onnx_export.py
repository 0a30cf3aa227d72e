"""Pieces of torch models as ONNX: the same outputs at any number of rows, whatever pieces run as
what.
"""

from itertools import pairwise

import numpy as np
import pytest
import torch

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from tests.sdk.graph.families import FAMILIES, family
from tests.sdk.graph.models import CASES
from tests.sdk.graph.small_modules import LINES, Net
from tests.sdk.graph.test_small_modules import REFUSED

from potluck.errors import ModelError
from potluck.graph import Model
from potluck_agent.worker.arrays import numpy_arrays, torch_arrays
from potluck_agent.worker.loading import Loader

WITH_TORCH = Loader({"torch": "", "onnxruntime": ""}, torch_arrays)
WITHOUT = Loader({"onnxruntime": ""}, numpy_arrays)


def made(name: str) -> tuple[torch.nn.Module, Model, torch.Tensor]:
    torch.manual_seed(0)
    if name in FAMILIES:
        net, x = family(name)
        return net, Model.from_torch(net, x), torch.cat([x, x.flip(2), x + 1])[:5]
    case = CASES[name]
    net = case.make().eval()
    return net, Model.from_torch(net, case.inputs(2)), case.inputs(5)


def through(
    model: Model, bounds: tuple[int, ...], kinds: list[str], x: torch.Tensor
) -> list[torch.Tensor]:
    """The outputs after a pipeline of pieces, each of its kind: on a device with torch, or on one
    without.
    """
    values = {"input": x}
    state = model.state()
    outputs = []
    for (start, stop), kind in zip(pairwise(bounds), kinds, strict=True):
        loader = WITH_TORCH if kind == "aten" else WITHOUT
        piece = loader.load(kind, model.document(start, stop, kind=kind), seed=0)
        assert piece.names() == model.state_names(start, stop)
        to, back = (
            (lambda v: v.numpy(), torch.from_numpy)
            if kind == "onnx"
            else (lambda v: v, lambda v: v)
        )
        for name in piece.names():
            piece.write(name, to(state[name]))
        inputs = [to(values[port.name]) for port in piece.graph.inputs]
        outputs = [
            back(y)
            for y in piece.forward(inputs, key="", train=False, rows=None, step=0, micro_batch=0)
        ]
        values |= {port.name: y for port, y in zip(piece.graph.outputs, outputs, strict=True)}
    return outputs


@pytest.mark.few(1)
@pytest.mark.parametrize("name", [*FAMILIES, *CASES])
def test_layers_that_alternate_between_torch_and_onnx_equal_one_machine(name):
    net, model, x = made(name)
    n = len(model.layers())
    with torch.no_grad():
        expected = net(x)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for kinds in (["onnx"] * n, ["aten", "onnx"] * n, ["onnx", "aten"] * n):
        outputs = through(model, tuple(range(n + 1)), kinds[:n], x)
        for output, other in zip(outputs, expected, strict=True):
            np.testing.assert_allclose(output, other, rtol=1e-5, atol=1e-5)


class Doubled(torch.nn.Module):
    def forward(self, x):
        return x.to(torch.bfloat16) * 2


class Sorted(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.huber_loss(x, x * 2, reduction="none")


@pytest.mark.parametrize(
    ("net", "words"),
    [(Doubled(), "bfloat16"), (Sorted(), "huber_loss")],
    ids=["element type", "operator"],
)
def test_what_onnx_does_not_have_is_named(net, words):
    model = Model.from_torch(net, torch.randn(2, 3))
    with pytest.raises(ModelError, match=words):
        model.document(0, 1, kind="onnx")


def pieces_of(net, x):
    """Its layers as one piece of ONNX, and what that gives."""
    model = Model.from_torch(net, x[:2])
    return through(model, (0, len(model.layers())), ["onnx"], x)[0]


def numbers(shape=(5, 8)):
    """Of both signs, whole ones among them."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3)) * 3
    return torch.cat([x, x.round()])


@pytest.mark.few(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in LINES if name not in REFUSED])
def test_a_line_as_onnx_gives_what_torch_gives_or_is_refused(name):
    torch.manual_seed(0)
    net, x = Net(name).eval(), numbers()
    try:
        found = pieces_of(net, x)
    except ModelError:
        return
    np.testing.assert_allclose(found, net(x).detach(), rtol=1e-3, atol=1e-3)


class Line(torch.nn.Module):
    def __init__(self, line):
        super().__init__()
        self.line = line

    def forward(self, x):
        return self.line(x)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "line",
    [
        lambda x: torch.floor_divide(x, 0.3),
        lambda x: torch.div(x, -0.3, rounding_mode="floor"),
        lambda x: x // (x.abs() + 1.0),
        lambda x: x // x.round(),
        lambda x: torch.remainder(x, -0.3),
        lambda x: x % x.roll(1, 1),
        lambda x: ((x * 5).long() % -3).float(),
        lambda x: ((x * 5).long() // 3).float(),
        lambda x: ((x * 5).int() // torch.tensor(-3, dtype=torch.int32)).float(),
    ],
)
def test_a_quotient_is_rounded_down_below_zero_too(line):
    net, x = Line(line), numbers()
    torch.testing.assert_close(pieces_of(net, x), net(x), rtol=0, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize(
    ("line", "operator"),
    [
        (lambda x: ((x * 50).long() >> 2).float(), "__rshift__"),
        (lambda x: torch.nn.functional.softplus(x, beta=3.0, threshold=2.0), "softplus"),
    ],
    ids=["shifted", "straight from a threshold on"],
)
def test_what_the_exporter_writes_otherwise_than_torch_computes_is_refused(line, operator):
    with pytest.raises(ModelError, match=rf"something else than torch \(operators: .*{operator}"):
        pieces_of(Line(line), numbers())


def test_whatever_the_exporter_raises_is_a_refusal():
    """It asserts that no head is shared by several queries."""

    def grouped(x):
        x = x.reshape(-1, 4, 2, 1)
        return torch.nn.functional.scaled_dot_product_attention(
            x, x[:, :2], x[:, :2], enable_gqa=True
        ).flatten(1)

    with pytest.raises(ModelError, match=r"torch cannot write a piece of it as ONNX: .*gqa"):
        pieces_of(Line(grouped), numbers())


def test_single_numbers_on_the_edge_are_no_other_answer():
    """Values jump where rounding decides: what onnxruntime sums in another order may fall on the
    other side.
    """
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv1d(8, 64, 3, padding=1), Line(lambda x: (x * 1e4).round() / 1e4)
    )
    x = torch.randn(4, 8, 64)
    np.testing.assert_allclose(pieces_of(net, x), net(x).detach(), atol=2e-4)


@pytest.mark.long
def test_a_sequence_of_any_length_stays_with_torch():
    model = Model.from_torch(
        CASES["decoder"].make().eval(), CASES["decoder"].inputs(2), sequence_dims=(1,)
    )
    with pytest.raises(ModelError, match="its sequence changes its length"):
        model.document(0, 1, kind="onnx")


@pytest.mark.long
def test_training_has_no_pieces_in_onnx():
    case = CASES["cnn"]
    model = Model.from_torch(
        case.make(), case.inputs(2), loss=case.loss, example_targets=case.targets(2)
    )
    with pytest.raises(ModelError, match="cannot be onnx in training"):
        model.document(0, 1, train=True, kind="onnx")


def test_a_piece_carries_no_weights():
    net = torch.nn.Linear(300, 300)
    document = Model.from_torch(net, torch.randn(2, 300)).document(0, 1, kind="onnx")
    assert len(document) < 1000
