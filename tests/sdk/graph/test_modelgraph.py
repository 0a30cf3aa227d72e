"""ModelGraph: alive tensors at a cut worked by hand, the text form there and back, and what is
refused.
"""

import json

import pytest

from potluck.errors import FileError, ModelError
from potluck.graph.modelgraph import ModelGraph, ModelInput, OperatorNode
from potluck.profile.estimate import merged
from potluck.profile.library import load_model


def node(name, *inputs, out=1, **costs):
    return OperatorNode(name=name, kind="matmul", inputs=inputs, output_bytes=out, **costs)


DIAMOND = ModelGraph(
    name="diamond",
    title="x splits, and joins again",
    inputs=(ModelInput(name="x", row_bytes=100),),
    nodes=(
        node(
            "a",
            "x",
            out=1,
            parameter_bytes=4,
            forward_flop=10,
            backward_flop=20,
            activation_bytes=7,
        ),
        node("b", "a", out=10),
        node("c", "a", out=1000),
        node("d", "b", "c", out=10000),
        node("e", "d", "x", out=100000),
    ),
    outputs=("e",),
    sequence=3,
)


def test_live_bytes_count_every_tensor_needed_behind_a_node():
    # Behind a: a, x. Behind b: a (for c), b, x. Behind c: b, c, x. Behind d: d, x. Behind e: the
    # output.
    assert DIAMOND.live_bytes() == (101, 111, 1110, 10100, 100000)


def test_an_output_in_the_middle_stays_alive():
    graph = ModelGraph(
        name="g",
        inputs=(ModelInput(name="x", row_bytes=5),),
        nodes=(node("a", "x"), node("b")),
        outputs=("a",),
    )
    assert graph.live_bytes() == (1, 1)


def test_layers_are_the_nodes_in_order():
    layers = DIAMOND.layers()
    assert [layer.name for layer in layers] == list("abcde")
    assert layers[0].parameter_bytes == 4
    assert (layers[0].forward_flop, layers[0].backward_flop, layers[0].activation_bytes) == (
        10.0,
        20.0,
        7,
    )
    assert [layer.output_bytes for layer in layers] == list(DIAMOND.live_bytes())
    # none goes back to x
    assert [layer.gradient_bytes for layer in layers] == [1, 11, 1010, 10000, 100000]


def test_layers_between_bounds_add_up():
    first, second = DIAMOND.layers((0, 3, 5))
    assert (first.name, second.name) == ("a ...", "d ...")
    assert (first.output_bytes, second.output_bytes) == (1110, 100000)
    assert (first.forward_flop, first.activation_bytes, second.parameter_bytes) == (10.0, 7, 0)


def test_text_form_goes_there_and_back():
    text = DIAMOND.to_text()
    assert ModelGraph.from_text(text) == DIAMOND
    assert ModelGraph.from_text(text).to_text() == text
    assert json.loads(text)["nodes"][3][:3] == ["d", "matmul", [2, 3]]


def changed(**fields):
    return json.dumps(json.loads(DIAMOND.to_text()) | fields)


def with_node(index, cell, value):
    nodes = json.loads(DIAMOND.to_text())["nodes"]
    nodes[index][cell] = value
    return changed(nodes=nodes)


BAD = {
    "no JSON": ("{", "expected JSON"),
    "a list": ("[]", "expected an object, got 'list'"),
    "another format": (
        changed(format="potluck model graph 9"),
        "format: expected 'potluck model graph 1'",
    ),
    "a field too many": (changed(colour="red"), "expected the fields format"),
    "a field of another type": (
        changed(sequence="one"),
        "sequence: expected a whole number or null, got 'one'",
    ),
    "other columns": (changed(columns=["name"]), "columns: expected name, kind"),
    "a bad input": (changed(inputs=[["x"]]), r"inputs\[0\]: expected \[name, bytes per row\]"),
    "a short node": (changed(nodes=[["a"]]), r"nodes\[0\]: expected 10 cells"),
    "a cycle": (with_node(1, 2, [3]), r"nodes\[1\] \(b\) inputs: expected numbers below 2"),
    "an input that is no number": (with_node(1, 2, [True]), r"nodes\[1\] \(b\) inputs"),
    "an unknown kind": (with_node(1, 1, "magic"), "kind 'magic'; expected one of attention"),
    "a negative number": (with_node(1, 5, -1), "parameter_bytes is -1; expected a whole number"),
    "a broken number": (with_node(1, 3, 1.5), "forward_flop is 1.5; expected a whole number"),
    "not a number": (with_node(1, 3, float("nan")), "expected finite numbers"),
    "two of one name": (with_node(1, 0, "a"), "two nodes named 'a'"),
    "no outputs": (changed(outputs=[]), "'diamond' has no outputs"),
    "an output that is no name": (changed(outputs=[3]), "outputs: expected names of nodes"),
    "no such output": (changed(outputs=("z",)), "its output 'z' is not one of its nodes"),
}


@pytest.mark.parametrize("case", BAD)
def test_refuses_text_that_is_not_a_model_graph(case):
    text, message = BAD[case]
    with pytest.raises(FileError, match=message) as caught:
        ModelGraph.from_text(text, file="some.json")
    assert "some.json" in str(caught.value)


def test_refuses_nodes_out_of_order_and_inputs_that_do_not_exist():
    with pytest.raises(ModelError, match="'b' reads 'c', which comes later"):
        ModelGraph(name="g", inputs=(), nodes=(node("b", "c"), node("c")), outputs=("c",))
    with pytest.raises(ModelError, match="'b' reads 'z', which does not exist"):
        ModelGraph(name="g", inputs=(), nodes=(node("b", "z"),), outputs=("b",))


def test_the_multimodal_model_decomposes_into_its_encoders():
    graph = load_model("omni-7b").in_order()
    names = [node.name for node in graph.nodes]
    spans = graph.branches().spans
    assert [{name[:5] for name in names[start:stop]} for start, stop in spans] == [
        {"visio"},
        {"audio"},
    ]
    bounds = merged(graph, 16)
    layers = graph.layers(bounds, branched=True)
    first_audio = next(i for i, layer in enumerate(layers) if layer.name.startswith("audio"))
    givers = [
        i for i, layer in enumerate(layers) if any(first_audio in edge.to for edge in layer.edges)
    ]
    assert givers == []  # it begins at once, fed by home
    assert layers[first_audio].feed_bytes == 512_000
    assert layers[first_audio - 1].edges[0].to != (first_audio,)


def test_the_layers_of_a_chain_have_no_edges():
    graph = load_model("qwen3-0.6b")
    assert graph.branches().spans == ()
    assert all(layer.edges == () for layer in graph.layers(merged(graph, 12), branched=True))


def inception(n_branches):
    """A stem, branches of three nodes each, a join that reads all."""
    nodes = [OperatorNode(name="stem", kind="conv", inputs=("x",), forward_flop=10, output_bytes=8)]
    for k in range(3):  # written in turns
        for b in range(n_branches):
            source = f"b{b}.{k - 1}" if k else "stem"
            nodes.append(
                OperatorNode(
                    name=f"b{b}.{k}", kind="conv", inputs=(source,), forward_flop=10, output_bytes=4
                )
            )
    ends = tuple(f"b{b}.2" for b in range(n_branches))
    nodes.append(
        OperatorNode(name="cat", kind="elementwise", inputs=ends, forward_flop=1, output_bytes=16)
    )
    return ModelGraph(
        name="inception",
        inputs=(ModelInput(name="x", row_bytes=8),),
        nodes=tuple(nodes),
        outputs=("cat",),
    )


@pytest.mark.parametrize("n_branches", [2, 3, 4])
def test_an_inception_block_comes_apart_and_keeps_its_text(n_branches):
    graph = inception(n_branches).in_order()
    assert ModelGraph.from_text(graph.to_text()) == graph
    chains = graph.branches().chains
    assert [stop - start for start, stop in chains] == [1, *[3] * n_branches, 1]
    bounds = (0, *(stop for _, stop in chains))
    layers = graph.layers(bounds, branched=True)
    heads = tuple(range(1, n_branches + 1))
    assert [[edge.to for edge in layer.edges] for layer in layers] == [
        [heads],
        *[[(n_branches + 1,)]] * n_branches,
        [],
    ]
    assert layers[0].edges[0].output_bytes == 8  # one tensor, whoever takes it
