"""Pieces of torch models as ONNX: the same outputs at any number of rows, whatever pieces run as
what.
"""

from itertools import pairwise

import numpy as np
import pytest
import torch

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from potluck.errors import ModelError
from potluck.graph import Model
from potluck_agent.worker.arrays import numpy_arrays, torch_arrays
from potluck_agent.worker.loading import Loader

from .families import FAMILIES, family
from .models import CASES

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


@pytest.mark.few(2)
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


def test_a_sequence_of_any_length_stays_with_torch():
    model = Model.from_torch(
        CASES["decoder"].make().eval(), CASES["decoder"].inputs(2), sequence_dims=(1,)
    )
    with pytest.raises(ModelError, match="its sequence changes its length"):
        model.document(0, 1, kind="onnx")


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
