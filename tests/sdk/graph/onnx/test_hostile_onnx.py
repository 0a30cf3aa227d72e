"""ONNX files made to do harm: this process neither ends, nor grows, nor reads another file, and
whoever loads one gets a ModelError.
"""

import random
import resource
import subprocess
from pathlib import Path

import numpy as np
import pytest

from potluck.errors import ModelError, PotluckError

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from tests.sdk.graph.onnx_files import saved  # noqa: E402

from potluck.graph import Model  # noqa: E402
from potluck.graph.onnx import trace as tracing  # noqa: E402
from potluck.graph.onnx import trial_run  # noqa: E402

node = helper.make_node


def integers(name: str, *values: int) -> "onnx.TensorProto":
    return numpy_helper.from_array(np.array(values if len(values) > 1 else values[0]), name)


def listed(name: str, *values: int) -> "onnx.TensorProto":
    return numpy_helper.from_array(np.array(values), name)


def model(
    nodes: "list[onnx.NodeProto]",
    *tensors: "onnx.TensorProto",
    dtype: int = TensorProto.FLOAT,
    sizes: tuple[int, ...] = (4,),
) -> "onnx.ModelProto":
    """`nodes` give r, a number; y = x + r."""
    graph = helper.make_graph(
        [*nodes, node("Cast", ["r"], ["f"], to=1), node("Add", ["x", "f"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", dtype, ["n", *sizes])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        list(tensors),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


LARGE = 2**30  # numbers: more than the runs may take
GREEDY = {
    "Range": model(
        [node("Range", ["a", "b", "c"], ["v"]), node("ReduceMax", ["v"], ["r"], keepdims=0)],
        integers("a", 0),
        integers("b", LARGE),
        integers("c", 1),
    ),
    "Expand": model(
        [node("Expand", ["x", "s"], ["v"]), node("ReduceMax", ["v"], ["r"], keepdims=0)],
        listed("s", LARGE, 1, 4),
    ),
    "ConstantOfShape": model(
        [node("ConstantOfShape", ["s"], ["v"]), node("ReduceMax", ["v"], ["r"], keepdims=0)],
        listed("s", LARGE),
    ),
    "Concat": model(
        [
            *(node("Concat", [f"v{i}"] * 2, [f"v{i + 1}"], axis=1) for i in range(30)),
            node("ReduceMax", ["v30"], ["r"], keepdims=0),
        ]
    ),
    "an input": model([node("ReduceMax", ["x"], ["r"], keepdims=0)], sizes=(LARGE,)),
}
GREEDY["Concat"].graph.node[0].input[:] = ["x", "x"]


@pytest.mark.few(1)
@pytest.mark.parametrize("what", GREEDY)
def test_a_file_that_takes_all_memory_takes_none_of_this_process(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_run, "memory_bytes", lambda: 512 << 20)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelError):
        Model.from_onnx(saved(tmp_path, GREEDY[what]))
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert grown_kib < 256 << 10


@pytest.mark.long
def test_constants_that_would_come_home_large_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_run, "OUTPUT_BYTES", 1 << 20)
    made = model(
        [node("ConstantOfShape", ["s"], ["v"]), node("ReduceMax", ["v"], ["r"], keepdims=0)],
        listed("s", 1 << 20),
    )
    with pytest.raises(ModelError, match="its constants come to 4194408 bytes"):
        Model.from_onnx(saved(tmp_path, made))


def test_a_file_that_ends_the_process_that_runs_it_is_named(tmp_path: Path) -> None:
    path = saved(
        tmp_path,
        model([node("Div", ["a", "b"], ["r"])], integers("a", -(2**63)), integers("b", -1)),
    )
    with pytest.raises(ModelError, match="ended the process that ran it") as caught:
        Model.from_onnx(path)
    assert str(path) in str(caught.value)


def test_a_file_that_never_answers_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_run, "LASTS_S", 0)
    path = saved(tmp_path, model([node("ReduceMax", ["x"], ["r"], keepdims=0)]))
    with pytest.raises(ModelError, match="did not answer 3 rows within 0 s") as caught:
        Model.from_onnx(path)
    assert str(path) in str(caught.value)


def outside(location: str = "secret.bin") -> "onnx.TensorProto":
    tensor = TensorProto(
        name="t", data_type=TensorProto.UINT8, dims=[6], data_location=TensorProto.EXTERNAL
    )
    tensor.external_data.add(key="location", value=location)
    return tensor


def holders() -> "dict[str, onnx.ModelProto]":
    """Every place of a model that holds a tensor, with one that lies in another file."""
    tensor, total = outside(), node("ReduceMax", ["c"], ["r"], keepdims=0)
    sparse = onnx.SparseTensorProto(values=tensor, indices=listed("i", 0), dims=[6])
    body = helper.make_graph([], "body", [], [], [tensor])
    made = {
        "an attribute": model([node("Constant", [], ["c"], value=tensor), total]),
        "one of a list": model([node("Constant", [], ["c"], value=[tensor]), total]),
        "a sparse attribute": model([node("Constant", [], ["c"], sparse_value=sparse), total]),
        "a sparse list": model([node("Constant", [], ["c"], values=[sparse]), total]),
        "a graph": model([node("If", ["x"], ["c"], then_branch=body), total]),
        "a list of graphs": model([node("If", ["x"], ["c"], branches=[body]), total]),
        "an initialiser": model([total], tensor),
        "a sparse initialiser": model([total]),
        "a function": model([total]),
        "training": model([total]),
    }
    made["a sparse initialiser"].graph.sparse_initializer.append(sparse)
    body_of = helper.make_function(
        "own", "F", [], ["c"], [node("Constant", [], ["c"], value=tensor)], []
    )
    made["a function"].functions.append(body_of)
    made["training"].training_info.add().initialization.CopyFrom(body)
    return made


@pytest.mark.parametrize("place", holders())
def test_a_tensor_in_another_file_is_refused_wherever_it_hides(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret.bin").write_bytes(b"secret")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="lies in another file"):
        Model.from_onnx(saved(tmp_path, holders()[place]))


ODD_NUMBERS = (0, 1, -1, 2, 17, 77, 2**31 - 1)
ODD_SIZES = (0, 1, -1, 2**20, 2**40, 2**62)
ODD_TEXTS = ("", "x", "y", "r", "nobody", "\x1b[2J", "\u202e", "Q" * 100_000)


def mutate(message: "onnx.ModelProto", rng: random.Random) -> None:
    """Change one field of one message anywhere in the model."""
    where = [message]
    for part in where:
        for field, value in part.ListFields():
            if field.message_type is not None:
                where += list(value) if field.is_repeated else [value]
    part = rng.choice(where)
    field = rng.choice(part.DESCRIPTOR.fields)
    odd = ODD_SIZES if field.name in ("dims", "dim_value") else ODD_NUMBERS
    if field.message_type is not None or rng.random() < 0.1:
        part.ClearField(field.name)
        return
    value = (
        rng.choice(ODD_TEXTS)
        if field.type == field.TYPE_STRING
        else rng.choice(ODD_TEXTS).encode()
        if field.type == field.TYPE_BYTES
        else float(rng.choice(ODD_NUMBERS))
        if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE)
        else rng.choice([v.number for v in field.enum_type.values])
        if field.enum_type is not None
        else rng.choice(odd)
    )
    try:
        if field.is_repeated:
            getattr(part, field.name).append(value)
        else:
            setattr(part, field.name, value)
    except ValueError:  # a number that this field cannot hold
        part.ClearField(field.name)


def sound() -> "onnx.ModelProto":
    weight = numpy_helper.from_array(np.ones(4, np.float32), "w")
    return model(
        [node("Mul", ["x", "w"], ["m"]), node("ReduceMax", ["m"], ["r"], axes=[1])],
        weight,
        integers("k", 1),
    )


def seen_at_the_door(made: "onnx.ModelProto") -> str:
    """What is said of it before anything is run; "" where it may be run."""

    def stop(*args: object, **more: object) -> None:
        raise ModelError("it may be run")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing, "run_apart", stop)
        with pytest.raises(PotluckError) as caught:
            tracing.trace(made, {})
    text = str(caught.value)
    assert len(text) < 1500
    assert text.isprintable()
    return "" if text == "it may be run" else text


@pytest.mark.few(5)
@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_changed_in_a_file_ends_in_words(seed: int) -> None:
    rng, n_run = random.Random(seed), 0
    for _ in range(60):
        made = sound()
        for _ in range(rng.choice((1, 1, 2, 3))):
            mutate(made, rng)
        n_run += not seen_at_the_door(made)
    assert 0 < n_run < 60


def lying(**fields: object) -> "onnx.ModelProto":
    tensor = numpy_helper.from_array(np.ones(4, np.float32), "w")
    for name, value in fields.items():
        if name == "dims":
            del tensor.dims[:]
            tensor.dims.extend(value)  # type: ignore[arg-type]
        else:
            setattr(tensor, name, value)
    return model([node("ReduceMax", ["w"], ["r"], keepdims=0)], tensor)


def undefined() -> "onnx.ModelProto":
    made = sound()
    made.graph.output[0].name = "nobody"
    return made


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (undefined(), "no node gives the output nobody"),
        (lying(data_type=77), "the tensor w .* does not hold"),
        (lying(data_type=0), "the tensor w .* does not hold"),
        (lying(data_type=TensorProto.STRING), "the tensor w .* does not hold"),
        (lying(raw_data=b"abc"), "the tensor w .* does not hold"),
        (lying(dims=[2**40]), "the tensor w .* does not hold"),
        (lying(dims=[2**20, 2**20], raw_data=b""), "the tensor w .* does not hold"),
        (lying(dims=[-1]), "the tensor w .* does not hold"),
        (model([node("Identity", ["x"], ["r"])], dtype=TensorProto.STRING), "the input x is"),
        (model([node("Identity", ["x"], ["r"])], dtype=TensorProto.COMPLEX64), "the input x is"),
        (model([node("Q" * 3_000_000, ["x"], ["r"])]), "not on the devices' list"),
        (model([node("\x1b[2J", ["x"], ["r"])]), "not on the devices' list"),
    ],
)
def test_what_cannot_be_is_said(made: "onnx.ModelProto", text: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=text) as caught:
        Model.from_onnx(saved(tmp_path, made))
    assert len(str(caught.value)) < 1000
    assert str(caught.value).isprintable()


RATIO = numpy_helper.from_array(np.array(1e-3, np.float32), "ratio")  # few draws show in a trial
ON, OFF = (numpy_helper.from_array(np.array(is_on), "mode") for is_on in (True, False))


def with_dropout(*more: "onnx.NodeProto", mode: str = "mode") -> "list[onnx.NodeProto]":
    return [*more, node("Dropout", ["x", "ratio", mode], ["r"])]


DRAWING = {
    "by a weight": model(with_dropout(), RATIO, ON),
    "by a constant": model(with_dropout(node("Constant", [], ["mode"], value=ON)), RATIO),
    "by a value": model(
        with_dropout(
            node("ReduceMax", ["ratio"], ["top"], keepdims=0), node("Cast", ["top"], ["mode"], to=9)
        ),
        RATIO,
    ),
    **{
        name: model([node(name, [], ["r"], shape=[1, 4])])
        for name in ("RandomNormal", "RandomUniform")
    },
    **{
        name: model([node(name, ["x"], ["r"])])
        for name in ("RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial")
    },
}


@pytest.mark.parametrize("made", DRAWING.values(), ids=DRAWING)
def test_what_draws_numbers_is_refused(made: "onnx.ModelProto", tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"draws numbers|not on the devices' list"):
        Model.from_onnx(saved(tmp_path, made))


@pytest.mark.parametrize(
    "made",
    [
        model(with_dropout(), RATIO, OFF),
        model(with_dropout(node("Constant", [], ["mode"], value=OFF)), RATIO),
        model(with_dropout(mode=""), RATIO),
    ],
)
def test_a_dropout_that_draws_none_is_none(made: "onnx.ModelProto", tmp_path: Path) -> None:
    assert Model.from_onnx(saved(tmp_path, made)).layers()


STATISTICS = [
    numpy_helper.from_array(np.ones(4, np.float32), name) for name in ("s", "b", "m", "v")
]


@pytest.mark.parametrize("opset", [9, 13, 14, 15, 20])
@pytest.mark.parametrize("is_training", [False, True])
def test_a_batch_norm_that_is_training_is_told_so(
    opset: int, is_training: bool, tmp_path: Path
) -> None:
    """Until 13 it is where its statistics are among its results."""
    more = ["mean", "var"] if is_training else []
    mode = {"training_mode": 1} if is_training and opset > 13 else {}
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ["n", 4]), ("y", None))
    ]
    norm = node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y", *more], **mode)
    graph = helper.make_graph([norm], "g", values[:1], values[1:], STATISTICS)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    if not is_training:
        assert Model.from_onnx(saved(tmp_path, made)).layers()
        return
    with pytest.raises(ModelError, match=r"BatchNormalization .* training mode.*model\.eval"):
        Model.from_onnx(saved(tmp_path, made))


def test_text_among_the_values_is_said(tmp_path: Path) -> None:
    made = model(
        [node("Cast", ["x"], ["t"], to=TensorProto.STRING), node("Cast", ["t"], ["r"], to=1)]
    )
    with pytest.raises(ModelError, match="is not made of numbers"):
        Model.from_onnx(saved(tmp_path, made))


def test_an_honest_model_is_run_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    run = trial_run.subprocess.run
    monkeypatch.setattr(
        trial_run.subprocess, "run", lambda *a, **more: started.append(a) or run(*a, **more)
    )
    Model.from_onnx(saved(tmp_path, sound()))
    assert len(started) == 1


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[" * 100_000,
        b'{"values": ' + b"[" * 500 + b"]" * 500 + b"}",
        b"5",
        b'{"error": 5}',
        b'{"values": [["a", "float32", [[1]], true]], "still": [], "wanted": ["y"]}',
        b'{"values": [], "still": [], "wanted": ["y"], "arrays": [["<f4", [1000000000000]]]}\n',
        b'{"values": [], "still": [], "wanted": ["y"], "arrays": [["<f4", [4611686018427387904]]]}',
        b'{"values": [], "still": [], "wanted": ["y"], "arrays": [["S2147483647", [9, 999]]]}\n12',
        b'{"values": [], "still": [], "wanted": ["y"], "arrays": [["O", [1]]]}\n12345678',
        b'{"values": [], "still": [], "wanted": ["y"], "arrays": [["<f4", [-1]]]}\n1234',
        b'{"values": 1e400, "still": 7, "wanted": ["y"], "arrays": {}}',
    ],
)
def test_what_a_model_makes_its_process_say_is_an_error_or_nothing(monkeypatch, text):
    """A model that has taken its process over can make it say anything."""

    def run(command, *, stdout, **more):
        stdout.write(text)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(trial_run.subprocess, "run", run)
    with pytest.raises(ModelError, match=r"said nothing that holds|cannot run it"):
        trial_run.run_apart(b"", [], watched=["y"], still=[], wanted=["y"])


@pytest.mark.parametrize("word", ["Reluz", "named", "given", "made", "sized"])
def test_words_that_are_no_text_are_refused(tmp_path, word):
    """Of an operator, a node, an input, an output and a dimension."""
    graph = helper.make_graph(
        [node("Reluz", ["given"], ["made"], name="named")],
        "g",
        [helper.make_tensor_value_info("given", TensorProto.FLOAT, ["sized", 4])],
        [helper.make_tensor_value_info("made", TensorProto.FLOAT, ["sized", 4])],
    )
    data = helper.make_model(graph, ir_version=8).SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(data.replace(word.encode(), b"\xff" * len(word)))
    with pytest.raises(ModelError, match="is no text in UTF-8"):
        Model.from_onnx(path)
