"""A home and a model of the library become a Problem; merging keeps sums and the cheap cuts."""

import pytest

from potluck.errors import UserError
from potluck.graph.modelgraph import ModelGraph, ModelInput, OperatorNode
from potluck.profile import library, roofline
from potluck.profile.estimate import estimate, merged, problem
from potluck.records import Inference, QoE, Training


def chain(cuts, flop=(1,) * 100):
    """A chain of nodes with these bytes behind each."""
    nodes = []
    for index, nbytes in enumerate(cuts):
        source = nodes[-1].name if nodes else "x"
        nodes.append(
            OperatorNode(
                name=f"n{index}",
                kind="matmul",
                inputs=(source,),
                output_bytes=nbytes,
                forward_flop=flop[index],
            )
        )
    return ModelGraph(
        name="chain",
        inputs=(ModelInput(name="x", row_bytes=1),),
        nodes=tuple(nodes),
        outputs=(nodes[-1].name,),
    )


@pytest.mark.parametrize(
    ("cuts", "flop", "n", "bounds"),
    [
        ((9, 1, 9, 5), (1, 1, 1, 1), 4, (0, 1, 2, 3, 4)),
        ((9, 1, 9, 5), (1, 1, 1, 1), 2, (0, 2, 4)),  # the worked example
        ((9, 1, 9, 5), (1, 1, 1, 1), 1, (0, 4)),
        ((1, 9, 9, 5), (9, 1, 9, 9), 3, (0, 1, 3, 4)),  # the light one joins across the dearer cut
        ((9, 1, 1, 5), (9, 1, 9, 9), 3, (0, 2, 3, 4)),
        ((1, 1, 1, 1), (1, 9, 9, 9), 3, (0, 2, 3, 4)),  # the first has only a right neighbour
    ],
)
def test_merging_by_hand(cuts, flop, n, bounds):
    assert merged(chain(cuts, flop), n) == bounds


def test_merging_to_nothing_is_refused():
    with pytest.raises(UserError, match="max_layers=0"):
        merged(chain((1, 1)), 0)


@pytest.mark.parametrize("name", ["resnet50", "omni-7b"])
def test_merging_keeps_every_sum(name):
    graph = library.load_model(name)
    full, few = graph.layers(), graph.layers(merged(graph, 20))
    assert len(few) == 20
    biggest = max(layer.parameter_bytes for layer in few)
    assert biggest <= max(graph.parameter_bytes / 4, max(layer.parameter_bytes for layer in full))
    for field in (
        "parameter_bytes",
        "buffer_bytes",
        "activation_bytes",
        "forward_flop",
        "backward_flop",
    ):
        assert sum(getattr(layer, field) for layer in few) == sum(
            getattr(layer, field) for layer in full
        ), field


def test_resnet50_is_cut_where_nothing_skips():
    graph = library.load_model("resnet50")
    alive = graph.live_bytes()
    cuts = merged(graph, 12)[1:-1]
    joins = {node.inputs for node in graph.nodes if len(node.inputs) > 1}
    assert len(joins) == 16  # residual blocks
    cheap = [index for index in cuts if alive[index - 1] == graph.nodes[index - 1].output_bytes]
    assert len(cheap) >= 9  # nearly all carry one tensor alone


def test_a_problem_is_complete_and_says_that_it_is_estimated():
    home, graph = library.load_home("smart-home-2"), library.load_model("bert-base")
    made = problem(home, graph, Training(batch=32), QoE(latency_s=1.0), max_layers=10, rows=(1, 8))
    assert [device.name for device in made.devices] == [
        "laptop-1",
        "laptop-2",
        "xiaomi-1",
        "xiaomi-2",
        "galaxy",
    ]
    assert len(made.layers) == 10
    # a loss comes back
    assert (made.input_bytes, made.target_bytes, made.result_bytes) == (512 * 8, 8, 4)
    tables = roofline.estimate(home.specs["galaxy"], graph, rows=(1, 8))
    for batch in range(2):
        total = sum(table.forward_s[batch] for table in made.costs["galaxy"])
        assert total == pytest.approx(sum(table.forward_s[batch] for table in tables))
    assert {table.source for tables in made.costs.values() for table in tables} == {"estimated"}
    answers = problem(home, library.load_model("vgg19"), Inference(), max_layers=5)
    assert (answers.target_bytes, answers.result_bytes) == (0, 8)
    words = problem(home, library.load_model("gpt2"), Inference(), max_layers=5)
    assert (words.input_bytes, words.result_bytes) == (512 * 8, 512 * 8)


def test_who_has_onnxruntime_alone_answers_requests_and_does_not_train():
    profile = estimate("family", "mobilenet-v2-cifar", max_layers=4, rows=(1, 8)).with_device(
        "galaxy-s25"
    )
    made = profile.problem(Training(batch=8), QoE(memory_bytes={"phone": 10**9}))
    assert [device.name for device in made.devices] == ["laptop-1", "laptop-2", "jetson"]
    why = "has onnxruntime, and training needs torch"
    assert made.excluded == {"phone": why, "galaxy-s25": why}
    assert {device.name for device in profile.problem(Inference()).devices} > {
        "phone",
        "galaxy-s25",
    }


def test_phones_train_in_the_homes_of_papers_that_train_on_phones():
    for name in ("smart-home-2", "dora-figure-2", "traffic-monitor"):
        assert (
            not estimate(name, "mobilenet-v2-cifar", max_layers=4, rows=(1, 8))
            .problem(Training(batch=8))
            .excluded
        )
