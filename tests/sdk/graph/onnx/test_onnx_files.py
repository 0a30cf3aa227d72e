"""ONNX files that cannot be used: what a device refuses, and what their owner is told."""

import copy

import numpy as np
import pytest
import torch

from potluck.errors import FileError, ModelError

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from tests.sdk.graph.onnx_files import saved, small  # noqa: E402

from potluck.graph import Model  # noqa: E402
from potluck_agent.worker.arrays import torch_arrays  # noqa: E402
from potluck_agent.worker.onnx.segment import OnnxSegment  # noqa: E402
from potluck_agent.worker.onnx.validator import validate  # noqa: E402
from potluck_wire.graph import SegmentError  # noqa: E402


def external(name: str, location: str) -> "onnx.TensorProto":
    tensor = TensorProto(
        name=name, data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL
    )
    tensor.external_data.add(key="location", value=location)
    return tensor


def with_initializer(tensor: "onnx.TensorProto") -> "onnx.ModelProto":
    model = small()
    del model.graph.initializer[:]
    model.graph.initializer.append(tensor)
    return model


def loop() -> "onnx.NodeProto":
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Relu", ["v"], ["u"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("d", TensorProto.BOOL, []),
            helper.make_tensor_value_info("u", TensorProto.FLOAT, None),
        ],
    )
    return helper.make_node("Loop", ["", "", "x"], ["h"], body=body)


def inside_subgraph(tensor: "onnx.TensorProto") -> "onnx.ModelProto":
    node = copy.deepcopy(loop())
    node.attribute[0].g.initializer.append(tensor)
    return small(node)


def attribute(tensor: "onnx.TensorProto") -> "onnx.ModelProto":
    return small(helper.make_node("Constant", [], ["h"], value=tensor))


def sparse(tensor: "onnx.TensorProto", *, initializer: bool) -> "onnx.ModelProto":
    indices = numpy_helper.from_array(np.arange(4), "i")
    made = onnx.SparseTensorProto(values=tensor, indices=indices, dims=[4])
    if not initializer:
        return small(helper.make_node("Constant", [], ["h"], sparse_value=made))
    model = small()
    model.graph.sparse_initializer.append(made)
    return model


def with_function() -> "onnx.ModelProto":
    model = small()
    body = [helper.make_node("Constant", [], ["b"], value=external("t", "etc/passwd"))]
    model.functions.append(
        helper.make_function("local", "F", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    )
    return model


def with_opset(domain: str, version: int) -> "onnx.ModelProto":
    model = small()
    model.opset_import.append(helper.make_opsetid(domain, version))
    return model


def negative_shape() -> "onnx.ModelProto":
    return with_initializer(TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[-4]))


def many_nodes() -> "onnx.ModelProto":
    model = small()
    model.graph.node.extend([model.graph.node[0]] * 20_001)
    return model


ANOTHER = "another file"
ATTACKS = {
    "external, beside": (lambda: with_initializer(external("w", "weights.bin")), ANOTHER),
    "external, above": (lambda: with_initializer(external("w", "../../etc/passwd")), ANOTHER),
    "external, absolute": (lambda: with_initializer(external("w", "/etc/passwd")), ANOTHER),
    "external in a subgraph": (lambda: inside_subgraph(external("t", "etc/passwd")), ANOTHER),
    "external in an attribute": (lambda: attribute(external("t", "etc/passwd")), ANOTHER),
    "external in a sparse attribute": (
        lambda: sparse(external("t", "etc/passwd"), initializer=False),
        ANOTHER,
    ),
    "external in a sparse initialiser": (
        lambda: sparse(external("t", "etc/passwd"), initializer=True),
        ANOTHER,
    ),
    "external in a function": (with_function, ANOTHER),
    "location without the mark": (
        lambda: with_initializer(
            TensorProto(name="w", data_type=1, dims=[4], external_data=[{"key": "location"}])
        ),
        ANOTHER,
    ),
    "loop": (lambda: small(loop()), "Loop"),
    "custom domain": (
        lambda: small(helper.make_node("Gelu", ["x"], ["h"], domain="com.microsoft")),
        "Gelu",
    ),
    "engine file": (
        lambda: small(helper.make_node("EPContext", ["x"], ["h"], domain="com.microsoft")),
        "EPContext",
    ),
    "random": (
        lambda: small(helper.make_node("RandomNormalLike", ["x"], ["h"])),
        "RandomNormalLike",
    ),
    "custom opset": (lambda: with_opset("evil", 1), "evil"),
    "future opset": (lambda: with_opset("", 99), "99"),
    "negative shape": (negative_shape, "shape"),
    "too many nodes": (many_nodes, "nodes"),
}


@pytest.mark.parametrize(("make", "text"), ATTACKS.values(), ids=ATTACKS)
def test_the_device_refuses(make, text):
    with pytest.raises(SegmentError, match=text) as caught:
        OnnxSegment(make().SerializeToString(), torch_arrays)
    assert caught.value.cause in ("document", "operator")


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00" * 40, b"{}", b" " * ((8 << 20) + 1)],
    ids=["nothing", "zeros", "json", "long"],
)
def test_the_device_refuses_what_is_no_model(data):
    with pytest.raises(SegmentError) as caught:
        validate(data)
    assert caught.value.cause == "document"


def test_a_broken_model_is_refused_at_loading():
    with pytest.raises(SegmentError, match="onnxruntime"):
        OnnxSegment(
            small(helper.make_node("Relu", ["nobody"], ["h"])).SerializeToString(), torch_arrays
        )


@pytest.mark.parametrize(
    "inputs",
    [(), (torch.zeros(2, 5),), (torch.zeros(2, 4).double(),), (torch.zeros(4),)],
    ids=["none", "shape", "type", "dimensions"],
)
def test_wrong_inputs_are_named(inputs):
    with pytest.raises(SegmentError) as caught:
        OnnxSegment(small().SerializeToString(), torch_arrays).forward(inputs)
    assert caught.value.cause == "bad-input"


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: with_initializer(external("w", "weights.bin")), "another file"),
        (lambda: small(loop()), "Loop"),
        (
            lambda: small(helper.make_node("Det", ["x"], ["h"])),
            r"Det is not on the devices' list \(which gives h\)",
        ),
        (
            lambda: small(helper.make_node("Softmax", ["x"], ["h"], axis=0)),
            r"y does not hold one result for each row.*\(since Softmax, which gives h\)",
        ),
        (
            lambda: small(helper.make_node("Softmax", ["x"], ["h"], name="mixes", axis=0)),
            r"since Softmax, node mixes\)",
        ),
        (lambda: small(helper.make_node("RandomNormalLike", ["x"], ["h"])), "RandomNormalLike"),
    ],
)
def test_says_why_a_file_cannot_be_used(tmp_path, make, text):
    with pytest.raises(ModelError, match=text):
        Model.from_onnx(saved(tmp_path, make()))


HIDDEN = "r = ReduceMax<keepdims=0>(x) e = Mul(r, tiny) "


@pytest.mark.long
@pytest.mark.parametrize(
    ("nodes", "operator"),
    [
        ("q, s, z = DynamicQuantizeLinear(x) h = DequantizeLinear(q, s, z)", "DynamicQuantize"),
        (
            "q, s, z = DynamicQuantizeLinear(x) d = DequantizeLinear(q, s, z) "
            "a = ArgMax<axis=1>(d) h = Cast<to=1>(a)",
            "DynamicQuantize",
        ),
        (HIDDEN + "h = Add(x, e)", "ReduceMax"),
        (HIDDEN + "a = Add(x, e) m = ArgMax<axis=1>(a) h = Cast<to=1>(m)", "ReduceMax"),
        (
            "t = Transpose(x) s = ReduceSum<keepdims=0>(t, ax) e = Mul(s, tiny) h = Add(x, e)",
            "Transpose",
        ),
        ("g = Gather(x, zero) e = Mul(g, tiny) h = Add(x, e)", "Gather"),
    ],
)
def test_what_hardly_depends_on_other_rows_is_refused_too(tmp_path, nodes, operator):
    """A scale that all rows share changes answers by less than a trial would notice."""
    instead = "quantize_static" if "Quantize" in operator else "Return what belongs to each row"
    with pytest.raises(
        ModelError, match=rf"one result for each row.*\(since {operator}.*{instead}"
    ):
        Model.from_onnx(saved(tmp_path, of_nodes(nodes)))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "nodes",
    [
        "s = Shape(x) f = Cast<to=1>(s) r = Gather(f, one) z = Sqrt(r) h = Div(x, z)",
        "s = Shape(x) h = Expand(w, s)",
        "s = Shape(x) b = Gather(s, first) c = Concat<axis=0>(b, ax) r = Expand(w, c) "
        "z = ReduceMax<axes=[1], keepdims=1>(r) h = Add(x, z)",
        "q, s, z = DynamicQuantizeLinear(w) d = DequantizeLinear(q, s, z) h = Mul(x, d)",
        "t = Transpose(x) s = ReduceMax<axes=[0], keepdims=1>(t) u = Transpose(s) h = Sub(x, u)",
    ],
    ids=["of a fixed size", "shape", "made shape", "of weights", "of each row"],
)
def test_what_all_rows_share_by_right_is_no_reason(tmp_path, nodes):
    model = Model.from_onnx(saved(tmp_path, of_nodes(nodes)))
    assert model.check_inputs(torch.zeros(5, 4)) == 5


OF_SIZE = {
    "a little": "s = Shape(x) r = Gather(s, zero) c = Cast<to=1>(r) z = Mul(c, tiny) h = Add(x, z)",
    "of all": "s = Size(x) c = Cast<to=1>(s) z = Mul(c, tiny) h = Add(x, z)",
    "none in a trial": "s = Shape(x) r = Gather(s, zero) d = Div(r, hundred) c = Cast<to=1>(d) "
    "h = Add(x, c)",
    "times zero": "s = Shape(x) r = ReduceMax(s) c = Cast<to=1>(r) z = Mul(c, none) h = Add(x, z)",
    "at most": "s = Shape(x) r = Gather(s, zero) m = Max(r, large) c = Cast<to=1>(m) h = Mul(x, c)",
    "its place": "s = Shape(x) r = Gather(s, zero) p = Range(zero, r, one) u = Unsqueeze(p, ax) "
    "c = Cast<to=1>(u) z = Mul(c, tiny) h = Add(x, z)",
    "counted": "s = Shape(x) o = ConstantOfShape<value = float[1] {1}>(s) n = ReduceSum(o) "
    "z = Mul(n, tiny) h = Add(x, z)",
    "counted in order": "s = Shape(x) o = ConstantOfShape<value = float[1] {1}>(s) "
    "n = CumSum(o, zero) z = Mul(n, tiny) h = Add(x, z)",
    "chosen by it": "s = Shape(x) r = Gather(s, zero) d = Div(r, hundred) v = Gather(w, d) "
    "h = Add(x, v)",
    "cut by it": "s = Shape(x) r = Gather(s, first) d = Div(r, hundred) e = Add(d, ax) "
    "v = Slice(x, d, e, ax) h = Add(x, v)",
    "compared": "s = Shape(x) r = Gather(s, zero) l = Less(r, large) h = Where(l, x, w)",
}


@pytest.mark.few(3)
@pytest.mark.parametrize("how", OF_SIZE)
def test_what_depends_on_the_number_of_rows_is_refused_though_no_trial_shows_it(tmp_path, how):
    """A device computes some rows of a batch at a time."""
    with pytest.raises(ModelError, match=r"one result for each row.*since .*the number of rows"):
        Model.from_onnx(saved(tmp_path, of_nodes(OF_SIZE[how])))


def of_nodes(nodes: str) -> "onnx.ModelProto":
    """y = h + w, where these nodes make h of x and constants."""
    text = '<ir_version: 9, opset_import: ["" : 17]> g (float[n, 4] x) => (float[n, 4] y) {'
    model = onnx.parser.parse_model(f"{text}{nodes} y = Add(h, w)}}")
    known = {"w": np.arange(4.0), "tiny": np.array(1e-7), "none": np.array(0.0)}
    numbers = {"ax": np.array([1]), "zero": np.array(0), "one": np.array(1), "first": np.array([0])}
    numbers |= {"hundred": np.array(100), "large": np.array(1000), "ends": np.array([5])}
    for name, value in (*((n, v.astype(np.float32)) for n, v in known.items()), *numbers.items()):
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


def test_a_fixed_batch_or_an_unknown_size_is_told(tmp_path):
    model = small()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    with pytest.raises(ModelError, match="batch"):
        Model.from_onnx(saved(tmp_path, model))
    model = small()
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "width"
    with pytest.raises(ModelError, match="width"):
        Model.from_onnx(saved(tmp_path, model))
    assert (
        Model.from_onnx(saved(tmp_path, model), sizes={"width": 4}).check_inputs(torch.zeros(5, 4))
        == 5
    )


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(FileError, match="cannot be read"):
        Model.from_onnx(tmp_path / "nobody.onnx")
    path = tmp_path / "text.onnx"
    path.write_text("hello, this is text")
    with pytest.raises(FileError, match="not an ONNX"):
        Model.from_onnx(path)
