"""ONNX models: cut everywhere with the same outputs, weights sent apart, clear errors.

And the validator's refusals.
"""

import warnings
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from potluck.errors import ModelError
from potluck.graph.partition.boundary_tensors import boundary_tensors

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from tests.sdk.graph.models import CASES  # noqa: E402
from tests.sdk.graph.onnx_files import saved, small  # noqa: E402

from potluck.graph import Model  # noqa: E402
from potluck.graph.onnx.operator_table import TABLE  # noqa: E402
from potluck_agent.worker.arrays import torch_arrays  # noqa: E402
from potluck_agent.worker.interpreter import Interpreter  # noqa: E402
from potluck_agent.worker.onnx.segment import OnnxSegment  # noqa: E402
from potluck_wire.graph import SegmentError  # noqa: E402


@pytest.fixture(scope="module", params=CASES)
def made(request, tmp_path_factory):
    """A torch module, its ONNX file, and example inputs."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    case = CASES[request.param]
    net, path = case.make().eval(), tmp_path_factory.mktemp("onnx") / f"{request.param}.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        axes = {"x": {0: "batch"}, "y": {0: "batch"}}
        torch.onnx.export(
            net,
            (case.inputs(2),),
            path,
            dynamo=False,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes=axes,
        )
    return case, path


def session(path: Path) -> "onnxruntime.InferenceSession":
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def loaded(model: Model, start: int, stop: int) -> OnnxSegment:
    segment = OnnxSegment(model.document(start, stop), torch_arrays)
    state = model.state()
    assert segment.names() == model.state_names(start, stop)
    for name in segment.names():
        segment.write(name, state[name])
    return segment


def chained(model: Model, bounds: tuple[int, ...], x: torch.Tensor) -> torch.Tensor:
    return passed_on([loaded(model, start, stop) for start, stop in pairwise(bounds)], x)


def passed_on(segments: Iterable[OnnxSegment], x: torch.Tensor) -> torch.Tensor:
    values, outputs = {"input": x}, ()
    for segment in segments:
        outputs = segment.forward([values[p.name] for p in segment.graph.inputs])
        values |= {p.name: y for p, y in zip(segment.graph.outputs, outputs, strict=True)}
    return outputs[0]


@pytest.mark.few(1)
@pytest.mark.parametrize("rows", [1, 3, 7])
def test_any_batch_through_all_layers_equals_the_whole_file(made, rows):
    case, path = made
    model = Model.from_onnx(path)
    n, x = len(model.layers()), case.inputs(rows)
    assert model.check_inputs(x) == rows
    (expected,) = session(path).run(None, {"x": x.numpy()})
    assert np.allclose(chained(model, (0, n), x), expected, rtol=1e-4, atol=1e-5)
    assert np.allclose(chained(model, tuple(range(n + 1)), x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.few(1)
def test_every_cut_between_layers(made):
    case, path = made
    model = Model.from_onnx(path)
    n, x = len(model.layers()), case.inputs(3)
    assert n >= 3
    (expected,) = session(path).run(None, {"x": x.numpy()})
    for cut in range(1, n):
        head, tail = model.segment(0, cut)[0], model.segment(cut, n)[0]
        assert head.outputs == tail.inputs
        assert np.allclose(chained(model, (0, cut, n), x), expected, rtol=1e-4, atol=1e-5), cut


@pytest.mark.few(1)
def test_documents_hold_neither_weights_nor_names(made):
    _, path = made
    model = Model.from_onnx(path)
    document = model.document(0, len(model.layers()))
    assert len(document) < 200_000
    assert b"torch" not in document
    assert b"onnx::" not in document
    parts = onnx.ModelProto.FromString(document)
    assert not any(node.name or node.doc_string for node in parts.graph.node)
    assert all(len(t.raw_data) <= 1024 for t in parts.graph.initializer)


@pytest.mark.few(1)
def test_a_segment_has_made_up_weights_until_they_are_written(made):
    _, path = made
    model = Model.from_onnx(path)
    segment = OnnxSegment(model.document(0, 1), torch_arrays)
    outputs = segment.forward(segment.example(5))
    assert outputs[0].shape[0] % 5 == 0
    assert torch.isfinite(outputs[0]).all()


@pytest.mark.few(1)
def test_it_does_not_train(made):
    _, path = made
    model = Model.from_onnx(path)
    assert not model.trains
    with pytest.raises(ModelError):
        model.layers(train=True)
    segment = OnnxSegment(model.document(0, 1), torch_arrays)
    with pytest.raises(SegmentError):
        segment.forward(segment.example(2), train=True)


def test_a_value_that_passes_through_a_segment(tmp_path):
    """A skip over a whole segment leaves it as it came."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Neg", ["a"], ["b"]),
        helper.make_node("Exp", ["b"], ["c"]),
        helper.make_node("Add", ["a", "c"], ["y"]),
    ]
    model = small()
    del model.graph.node[:]
    del model.graph.initializer[:]
    model.graph.node.extend(nodes)
    read = Model.from_onnx(saved(tmp_path, model))
    uncut, bounds = read.laid_out(), (0, 2, 3, 4)
    boundary = boundary_tensors(uncut.line, bounds, branched=False)
    cut = replace(uncut, bounds=bounds, records=uncut.records * 3, boundary_tensors=boundary)
    graphs = [cut.graph(start, start + 1) for start in range(3)]
    assert [port.name for port in graphs[1].inputs] == ["v1", "v2"]
    assert [port.name for port in graphs[1].outputs] == ["v1", "v3"]
    x = torch.randn(3, 4)
    segments = [OnnxSegment(read.document_of(graph), torch_arrays) for graph in graphs]
    assert torch.allclose(passed_on(segments, x), x.relu() + (-x.relu()).exp())


# --- made of torch's operators --------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("rows", [1, 5])
def test_made_of_torchs_operators_it_answers_alike(made, rows):
    case, path = made
    model, x = Model.from_onnx(path).as_torch(), case.inputs(rows)
    (expected,) = session(path).run(None, {"x": x.numpy()})
    graph = model.segment(0, len(model.layers()))[1]
    state = model.state()
    got = Interpreter(graph).run(
        [x], [state[row.name] for row in (*graph.parameters, *graph.buffers)], train=False
    )
    assert np.allclose(got[0], expected, rtol=1e-4, atol=1e-5)


def one(op: str, *more: np.ndarray, **attributes: object) -> "onnx.ModelProto":
    """One operator over an image of 4 channels and 9 x 6 pixels, with these constants as its other
    inputs.
    """
    names = [f"c{i}" if array is not None else "" for i, array in enumerate(more)]
    graph = helper.make_graph(
        [helper.make_node(op, ["x", *names], ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, 9, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, name) for name, a in zip(names, more, strict=True) if name],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


KERNEL = np.random.default_rng(0).standard_normal((4, 4, 3, 3)).astype(np.float32)
SCALES = np.array([1, 1, 2, 2], np.float32)
ALIKE = {
    "same, the odd row behind": one("Conv", KERNEL, auto_pad="SAME_UPPER", strides=[2, 2]),
    "same, the odd row before": one("Conv", KERNEL, auto_pad="SAME_LOWER", strides=[2, 2]),
    "uneven pads": one("Conv", KERNEL, pads=[0, 1, 2, 1]),
    "transposed": one(
        "ConvTranspose", KERNEL, strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]
    ),
    "uneven pool": one("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1]),
    "average without padding": one(
        "AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]
    ),
    "nearest": one(
        "Resize",
        None,
        SCALES,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    ),
    "bilinear": one("Resize", None, SCALES, mode="linear"),
    "depth to space": one("DepthToSpace", blocksize=2),
    "depth to space, by columns": one("DepthToSpace", blocksize=2, mode="CRD"),
    "space to depth": one("SpaceToDepth", blocksize=3),
    "padded": one("Pad", np.array([0, 0, 1, 2, 0, 0, 3, 0]), np.float32(2.0)),
    "every second row": one(
        "Slice", np.array([1]), np.array([2**62]), np.array([2]), np.array([2])
    ),
    "channels by number": one("Gather", np.array([3, 0, -2]), axis=1),
    "clipped": one("Clip", np.float32(-0.5), np.float32(0.5)),
    "slopes": one("PRelu", np.array([0.1, 0.2, 0.3, 0.4], np.float32).reshape(4, 1, 1)),
    "slopes of columns": one("PRelu", np.linspace(0.1, 0.6, 6, dtype=np.float32)),
    "one slope": one("PRelu", np.float32(0.25)),
    "hard sigmoid": one("HardSigmoid"),
    "means": one("ReduceMean", axes=[2, 3], keepdims=0),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("case", ALIKE)
def test_each_way_of_an_operator_answers_alike_in_torch(case, tmp_path):
    # raises where the answers differ
    model = Model.from_onnx(saved(tmp_path, ALIKE[case])).as_torch()
    assert model.kinds()[0] == "aten"


def parsed(nodes, **weights):
    """A model of these nodes, of an input `x` and an output `y` of any type."""
    known = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    text = (
        f'<ir_version: 9, opset_import: ["" : 17]> g (float[N, 4, 8, 8] x) => (float y) {{{nodes}}}'
    )
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(known)
    model.graph.output[0].ClearField("type")
    return onnx.shape_inference.infer_shapes(model)


TWO = np.float32(2)
WHOLE = "a = Mul(x, ten) b = Cast<to=7>(a) y = Pow(b, exponent)"


@pytest.mark.long
def test_a_power_of_whole_numbers_is_whole(tmp_path):
    model = Model.from_onnx(saved(tmp_path, parsed(WHOLE, ten=np.float32(10), exponent=TWO)))
    model = model.as_torch()
    (output,) = model.segment(0, len(model.layers()))[1].outputs
    assert output.dtype == "int64"


def test_a_quantised_convolution_has_costs(tmp_path):
    known = {"s": np.float32(0.03), "z": np.uint8(120), "v": np.float32(0.02), "n": np.int8(0)}
    weight = np.random.default_rng(0).integers(-90, 90, (3, 4, 3, 3)).astype(np.int8)
    model = parsed(
        "q = QuantizeLinear(x, s, z) h = QLinearConv<pads=[1,1,1,1]>(q, s, z, w, v, n, s, z) "
        "y = DequantizeLinear(h, s, z)",
        w=weight,
        **known,
    )
    layers = Model.from_onnx(saved(tmp_path, model)).layers()
    assert sum(layer.forward_flop for layer in layers) >= 2 * 3 * 64 * 4 * 9


@pytest.mark.few(1)
@pytest.mark.parametrize("wrong", [torch.sigmoid, lambda x: x * float("nan"), lambda x: x[..., :3]])
def test_what_answers_otherwise_than_onnxruntime_is_refused(wrong, tmp_path, monkeypatch):
    monkeypatch.setitem(TABLE, "HardSigmoid", (1, lambda call, x: wrong(x)))
    with pytest.raises(ModelError, match="made of torch's operators"):
        Model.from_onnx(saved(tmp_path, one("HardSigmoid"))).as_torch()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("model", "text"),
    [
        (one("Selu"), "Selu"),
        (
            one("Pad", np.array([0, 0, 1, 1, 0, 0, 1, 1]), mode="reflect"),
            "pads with something else",
        ),
        (one("Slice", np.array([8]), np.array([0]), np.array([2]), np.array([-1])), "backwards"),
        (one("Resize", None, SCALES, mode="cubic"), "resizes by cubic"),
        (
            one("ConvTranspose", KERNEL, strides=[2, 2], auto_pad="SAME_UPPER"),
            "ConvTranspose pads .* a given size",
        ),
        (
            one("ConvTranspose", KERNEL, strides=[2, 2], auto_pad="SAME_LOWER"),
            "ConvTranspose pads .* a given size",
        ),
    ],
    ids=["not in the table", "reflected", "backwards", "cubic", "same upper", "same lower"],
)
def test_what_torch_does_otherwise_is_refused(model, text, tmp_path):
    with pytest.raises(ModelError, match=text):
        Model.from_onnx(saved(tmp_path, model)).as_torch()


OF_ALL_ROWS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2")


@pytest.mark.long
@pytest.mark.parametrize("reduce", OF_ALL_ROWS)
@pytest.mark.parametrize("axes", ["axes=[0], keepdims=1", "keepdims=0"])
def test_what_is_made_of_all_rows_is_refused_though_no_trial_shows_it(reduce, axes, tmp_path):
    """No made-up row is as large as that."""
    if reduce == "ReduceSum":  # its axes are an input
        call = "ReduceSum(b, first)" if "[0]" in axes else "ReduceSum<keepdims=0>(b)"
    else:
        call = f"{reduce}<{axes}>(b)"
    model = parsed(
        f"a = Sub(x, large) b = Relu(a) c = {call} y = Add(x, c)",
        large=np.float32(1e6),
        first=np.array([0]),
    )
    with pytest.raises(ModelError, match=rf"y does not hold one result .*{reduce}"):
        Model.from_onnx(saved(tmp_path, model))


MIX_ROWS = {
    "CumSum": "c = CumSum(b, first)",
    "Softmax": "c = Softmax<axis=0>(b)",
    "LogSoftmax": "c = LogSoftmax<axis=0>(b)",
    "LpNormalization": "c = LpNormalization<axis=0>(b)",
    "MeanVarianceNormalization": "c = MeanVarianceNormalization<axes=[0, 2, 3]>(b)",
    "Slice": "c = Slice(b, last, end, axes, last)",
    "Trilu": "d = Reshape(b, flat) e = Trilu(d) c = Reshape(e, shape)",
}
WHOLE_NUMBERS = {
    "first": np.int64(0),
    "axes": np.array([0]),
    "last": np.array([-1]),
    "end": np.array([-(2**31)]),
    "flat": np.array([-1, 256]),
    "shape": np.array([-1, 4, 8, 8]),
}


@pytest.mark.long
@pytest.mark.parametrize("operator", MIX_ROWS)
@pytest.mark.parametrize("hidden", ["a = Sub(x, large) b = Relu(a)", "b = Clip(x, large, large)"])
def test_an_operator_that_mixes_rows_is_refused_though_no_trial_shows_it(
    operator, hidden, tmp_path
):
    """What it gets is the same in every row of a trial; it is seen alone."""
    nodes = f"{hidden} {MIX_ROWS[operator]} y = Add(x, c)"
    model = parsed(nodes, large=np.float32(50), **WHOLE_NUMBERS)
    with pytest.raises(ModelError, match=r"y does not hold one result"):
        Model.from_onnx(saved(tmp_path, model))


HIDDEN = "a = Sub(x, large) b = Relu(a)"
ROWS_SECOND = "d = Transpose<perm=[1, 0, 2, 3]>(b)"
ROWS_LAST = "d = Transpose<perm=[1, 2, 3, 0]>(b)"
HARD_TO_TRY = {
    "beside one that takes no made-up indices": f"{HIDDEN} i = Cast<to=7>(b) "
    "t = Gather(table, i) s = Cast<to=1>(t) d = CumSum(b, first) c = Add(d, s)",
    "by indices of its own": f"{HIDDEN} i = Cast<to=7>(b) c = GatherElements<axis=0>(b, i)",
    "with rows in the second place": f"{HIDDEN} {ROWS_SECOND} e = CumSum(d, second) "
    "c = Transpose<perm=[1, 0, 2, 3]>(e)",
    "hidden behind it": "d = CumSum(x, first) a = Sub(d, large) c = Relu(a)",
    "hidden while rows are in the second place": "d = Transpose<perm=[1, 0, 2, 3]>(x) "
    "a = Sub(d, large) b = Relu(a) e = CumSum(b, second) c = Transpose<perm=[1, 0, 2, 3]>(e)",
    "a window over rows": f"{HIDDEN} {ROWS_LAST} "
    "e = AveragePool<kernel_shape=[1, 3], pads=[0, 1, 0, 1], count_include_pad=1>(d) "
    "c = Transpose<perm=[3, 0, 1, 2]>(e)",
}


@pytest.mark.few(2)
@pytest.mark.parametrize("how", HARD_TO_TRY)
def test_each_operator_that_mixes_rows_is_seen_for_itself(how, tmp_path):
    """Whatever others need, and in whichever dimension the rows are."""
    model = parsed(
        f"{HARD_TO_TRY[how]} y = Add(x, c)",
        large=np.float32(50),
        table=np.zeros(1, np.float32),
        second=np.int64(1),
        **WHOLE_NUMBERS,
    )
    with pytest.raises(ModelError, match=r"y does not hold one result"):
        Model.from_onnx(saved(tmp_path, model))


@pytest.mark.long
def test_rows_in_another_dimension_stay_apart_where_operators_keep_them_so(tmp_path):
    model = parsed(
        f"{HIDDEN} {ROWS_SECOND} e = Softmax<axis=2>(d) f = CumSum(e, first) "
        "c = Transpose<perm=[1, 0, 2, 3]>(f) y = Add(x, c)",
        large=np.float32(50),
        first=np.int64(0),
    )
    assert Model.from_onnx(saved(tmp_path, model)).layers()


def test_what_has_a_value_s_type_alone_is_not_made_of_its_rows(tmp_path):
    model = parsed("a = CastLike(two, x) y = Mul(x, a)", two=np.int64(2))
    assert Model.from_onnx(saved(tmp_path, model)).layers()
