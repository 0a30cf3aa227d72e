"""Models of the library in half precision, and writing token by token."""

from dataclasses import replace

import pytest

import potluck
from potluck.errors import PlanError, UserError
from potluck.graph import variants
from potluck.graph.modelgraph import ModelGraph, ModelInput, OperatorNode
from potluck.profile import library
from potluck.profile.roofline import node_s

WRITERS = ("gpt2", "qwen3-0.6b", "qwen3-1.7b", "omni-7b")
# layers, key-value heads x size of a head, tokens: keys and values have 4 bytes a number
CACHES = {
    "gpt2": 12 * 2 * 768 * 512 * 4,
    "qwen3-0.6b": 28 * 2 * 1024 * 512 * 4,
    "qwen3-1.7b": 28 * 2 * 1024 * 512 * 4,
    "omni-7b": 28 * 2 * 512 * 762 * 4,
}


def by_hand(tied=False):
    """Ten tokens: a table, queries with keys and values in one, attention, and a product."""
    return ModelGraph(
        name="small",
        inputs=(ModelInput(name="ids", row_bytes=80), ModelInput(name="picture", row_bytes=400)),
        nodes=(
            OperatorNode(
                name="eye",
                kind="conv",
                inputs=("picture",),
                forward_flop=700,
                output_bytes=40,
                parameter_bytes=90,
            ),
            OperatorNode(name="table", kind="embedding", inputs=("ids",), parameter_bytes=320)
            if not tied
            else OperatorNode(name="table", kind="embedding", inputs=("ids",)),
            OperatorNode(
                name="qkv", kind="matmul", inputs=("table",), output_bytes=480, forward_flop=960
            ),
            OperatorNode(
                name="mixed",
                kind="attention",
                inputs=("qkv",),
                output_bytes=160,
                forward_flop=800,
                traffic_bytes=640,
            ),
            OperatorNode(
                name="joined", kind="elementwise", inputs=("mixed", "eye"), output_bytes=160
            ),
            OperatorNode(
                name="head",
                kind="matmul",
                inputs=("joined",),
                output_bytes=800,
                forward_flop=10 * 2 * 80,
                parameter_bytes=0 if tied else 80 * 4,
                traffic_bytes=960,
            ),
        ),
        outputs=("head",),
        sequence=10,
        tied=("table",) if tied else (),
    )


def test_a_token_by_hand():
    made = variants.decoding(by_hand(), rows=3)
    nodes = {node.name: node for node in made.nodes}
    assert (made.sequence, made.inputs) == (1, (ModelInput(name="ids", row_bytes=8),))
    assert "eye" not in nodes  # it has seen the picture before
    assert nodes["joined"].inputs == ("mixed",)
    assert nodes["table"].buffer_bytes == 90  # its weights stay
    assert (nodes["qkv"].forward_flop, nodes["qkv"].output_bytes) == (96, 48)
    # two thirds of the product are keys and values: read again, and kept for each of three texts
    assert nodes["mixed"].traffic_bytes == 64 + 320
    assert nodes["mixed"].buffer_bytes == 3 * 320
    assert nodes["head"].parameter_bytes == 320
    assert nodes["head"].traffic_bytes == 96


def test_who_shares_its_table_reads_it_for_every_token():
    made = variants.decoding(by_hand(tied=True), rows=1)
    assert made.nodes[-1].traffic_bytes == 96 + 80 * 4


@pytest.mark.parametrize("name", WRITERS)
def test_writers_of_the_library(name):
    graph = library.load_model(name)
    made = variants.decoding(graph, rows=2)
    # all weights are there, those of encoders as what only takes room
    idle = graph.parameter_bytes - made.parameter_bytes
    assert (idle > 0) == (name == "omni-7b")
    kept = sum(node.buffer_bytes for node in made.nodes) - idle
    assert kept == 2 * CACHES[name] + sum(node.buffer_bytes for node in graph.nodes)
    # what a token costs: twice the weights that it passes, and some attention
    flop = 2 * made.parameter_bytes / 4
    assert made.forward_flop < 1.2 * flop


@pytest.mark.parametrize("name", ["bert-base", "resnet50", "vgg19"])
def test_who_does_not_write_is_refused(name):
    with pytest.raises(UserError, match=f"{name} does not write"):
        variants.decoding(library.load_model(name), rows=1)


def test_half_is_half_and_only_once():
    graph = library.load_model("gpt2")
    half = variants.in_half(graph)
    assert half.parameter_bytes == pytest.approx(graph.parameter_bytes / 2, rel=1e-6)
    assert half.inputs == graph.inputs
    assert half.forward_flop == graph.forward_flop
    with pytest.raises(UserError, match="float16"):
        variants.in_half(half)


def test_half_precision_computes_at_its_own_rate_where_that_is_known():
    node = OperatorNode(name="a", kind="matmul", forward_flop=10**12)
    v100, phone = (library.load_device(name) for name in ("v100", "raspberry-pi-5"))
    known = v100.need("peak_fp16_flop_per_s") / v100.need("peak_fp32_flop_per_s")
    assert node_s(v100, node, 1)[0] == pytest.approx(
        known * node_s(v100, node, 1, "float16")[0], rel=1e-3
    )
    assert node_s(phone, node, 1) == node_s(phone, node, 1, "float16")


@pytest.mark.long
@pytest.mark.parametrize("words", [("float16",), ("decode",), ("float16", "decode")])
def test_the_library_has_them_by_name_for_inference(words):
    name = ":".join(("gpt2", *words))
    profile = potluck.estimate("smart-home-2", name, decode_rows=4)
    assert profile.model == name
    plans = potluck.plan(profile, potluck.Inference(batch=4))
    assert plans.best.model == name
    with pytest.raises(PlanError, match="for inference"):
        potluck.plan(profile, potluck.Training(batch=4))


def test_half_of_a_graph_with_frozen_weights_has_half_of_them():
    graph = by_hand()
    frozen = replace(graph.nodes[0], frozen_bytes=graph.nodes[0].parameter_bytes)
    half = variants.in_half(replace(graph, nodes=(frozen, *graph.nodes[1:])))
    assert half.nodes[0].frozen_bytes == half.nodes[0].parameter_bytes == 45


@pytest.mark.parametrize(("word", "times"), [("bfloat16-links", 2), ("int8-links", 4)])
def test_layers_that_hand_on_less_change_nothing_but_what_crosses(word, times):
    graph = replace(by_hand(), sequence=None)
    made = variants.of(graph, (word,), 1)
    assert made.name == f"small:{word}"
    for old, new in zip(graph.nodes, made.nodes, strict=True):
        answers = old.name in graph.outputs
        assert new.output_bytes == (old.output_bytes if answers else -(-old.output_bytes // times))
        assert replace(new, output_bytes=0) == replace(old, output_bytes=0)
    for less in (variants.in_half(graph), made):
        with pytest.raises(UserError, match=r"hands on (float16|.*-links) already"):
            variants.handing_on_less(less, word)


def test_a_plan_that_trains_counts_the_smaller_transfers():
    sizes = []
    for name in ("bert-small", "bert-small:bfloat16-links", "bert-small:int8-links"):
        problem = potluck.estimate("family", name).problem(potluck.Training(batch=8))
        sizes.append([layer.output_bytes for layer in problem.layers[:-1]])
    assert sizes[1] == [size / 2 for size in sizes[0]]
    assert sizes[2][0] == sizes[0][0] / 4 + 4 * 512  # a scale for each token
    assert all(quarter > size / 4 for quarter, size in zip(sizes[2], sizes[0], strict=True))
