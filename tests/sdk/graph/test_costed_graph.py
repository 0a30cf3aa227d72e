"""A model of one's own, from torch or ONNX, as a graph of costs."""

import warnings

import pytest
from tests.sdk.graph.branching_modules import TwoEncoders
from tests.sdk.graph.families import family
from tests.sdk.graph.models import CASES, Decoder

import potluck
from potluck.graph.modelgraph import ModelGraph
from potluck.planning import make_plans
from potluck.profile.estimate import estimate, problem
from potluck.profile.library import load_home
from potluck.records import Inference, Training

torch = pytest.importorskip("torch")


def test_costs_of_a_small_network_by_hand():
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    graph = potluck.Model.from_torch(net, torch.randn(2, 8), name="mlp").graph()
    first, relu, second = graph.nodes
    assert [node.kind for node in graph.nodes] == ["matmul", "elementwise", "matmul"]
    assert [node.name for node in graph.nodes] == ["0", "1", "2"]
    assert (first.inputs, relu.inputs, second.inputs) == (("input",), ("0",), ("1",))
    assert (first.forward_flop, second.forward_flop) == (2 * 8 * 16, 2 * 16 * 4)
    # no gradient for the input
    assert (first.backward_flop, second.backward_flop) == (2 * 8 * 16, 2 * 2 * 16 * 4)
    assert (first.parameter_bytes, second.parameter_bytes) == (4 * (8 * 16 + 16), 4 * (16 * 4 + 4))
    assert (first.output_bytes, relu.activation_bytes) == (64, 64)
    assert first.traffic_bytes == 4 * (8 + 16)
    assert ModelGraph.from_text(graph.to_text()) == graph


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", CASES)
def test_every_weight_counts_once(kind):
    case = CASES[kind]
    net = case.make()
    graph = potluck.Model.from_torch(net, case.inputs(2)).graph()
    assert graph.parameter_bytes == sum(p.numel() * p.element_size() for p in net.parameters())
    assert ModelGraph.from_text(graph.to_text()) == graph


@pytest.mark.long
def test_tied_weights_count_once():
    net = Decoder(tied=True)
    graph = potluck.Model.from_torch(net, torch.randint(0, 30, (2, 8))).graph()
    assert graph.parameter_bytes == sum(p.numel() * 4 for p in net.parameters())


@pytest.mark.long
def test_an_onnx_file_costs_what_the_torch_module_does(tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    net = CASES["residual"].make().eval()
    path = tmp_path / "residual.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net,
            (torch.randn(2, 1, 8, 8),),
            path,
            dynamo=False,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}},
        )
    graph = potluck.Model.from_onnx(path).graph()
    plain = potluck.Model.from_torch(net, torch.randn(2, 1, 8, 8)).graph()
    heavy = {"conv", "matmul"}
    flop = [sum(n.forward_flop for n in g.nodes if n.kind in heavy) for g in (graph, plain)]
    assert flop[0] == flop[1] > 0
    # batch-norm is folded into a conv
    assert graph.parameter_bytes == pytest.approx(plain.parameter_bytes, rel=0.05)
    assert graph.inputs[0].row_bytes == plain.inputs[0].row_bytes
    assert ModelGraph.from_text(graph.to_text()) == graph


@pytest.mark.long
@pytest.mark.parametrize("workload", [Inference(batch=1), Training(batch=8)])
def test_a_model_of_ones_own_is_planned_for_a_home_that_is_not_there(workload):
    net = TwoEncoders()
    graph = potluck.Model.from_torch(net, net.example(2)).graph()
    names = [node.name for node in graph.in_order().nodes]
    branches = [{name.split(".")[0] for name in names[a:b]} for a, b in graph.branches().spans]
    assert [next(iter(names & {"vision", "audio"})) for names in branches] == ["vision", "audio"]
    problem_of_home = problem(load_home("smart-home-1"), graph, workload, max_layers=6)
    assert problem_of_home.branches
    assert make_plans(problem_of_home).best.latency_s > 0


@pytest.mark.long
def test_all_outputs_of_a_detector_stay_alive_and_are_written_down():
    net, images = family("detector")
    graph = potluck.Model.from_torch(net, images).graph()
    assert len(graph.outputs) == 3
    size = {node.name: node.output_bytes for node in graph.nodes}
    assert graph.live_bytes()[-1] == sum(size[name] for name in graph.outputs)
    assert ModelGraph.from_text(graph.to_text()) == graph
    assert (
        make_plans(
            problem(load_home("smart-home-1"), graph, Inference(), max_layers=6)
        ).best.latency_s
        > 0
    )


def test_a_dropout_in_place_that_is_off_is_nothing():
    net = torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.Flatten(), torch.nn.Dropout(0.5, inplace=True)
    )
    graph = potluck.Model.from_torch(net, torch.randn(2, 4)).graph()
    assert [node.kind for node in graph.nodes] == ["matmul"]


def test_layers_are_estimated_by_their_operators():
    net = CASES["cnn"].make()
    model = potluck.Model.from_torch(net, CASES["cnn"].inputs(2))
    operators = model.operators()
    assert len(operators) == len(model.layers())
    assert [sum(node.forward_flop for node in nodes) for nodes in operators] == [
        layer.forward_flop for layer in model.layers()
    ]
    assert (
        sum(node.parameter_bytes for nodes in operators for node in nodes)
        == model.graph().parameter_bytes
    )


def test_weights_that_two_operators_share_are_named():
    net = Decoder(tied=True)
    graph = potluck.Model.from_torch(net, torch.randint(0, 30, (2, 8))).graph()
    assert graph.tied == ("head.weight",)
    assert ModelGraph.from_text(graph.to_text()) == graph
    (note,) = estimate("smart-home-1", graph, max_layers=4).notes[1:]
    assert "head.weight is used in several places" in note
    assert estimate("smart-home-1", "vgg19", max_layers=4).notes[1:] == ()
