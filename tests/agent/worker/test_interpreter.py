"""The interpreter and what it trains: refusals at loading, errors that name the node, state,
dropout, optimizers.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck_agent.worker import optimizers
from potluck_agent.worker.interpreter import Interpreter
from potluck_agent.worker.operators import OVERLOADS
from potluck_agent.worker.training import TrainingSegment
from potluck_wire.graph import (
    Argument,
    Buffer,
    Dtype,
    Graph,
    Input,
    Node,
    Output,
    Parameter,
    Ref,
    SegmentError,
    Sym,
    Symbol,
)
from potluck_wire.operators import OPERATORS, TRAINING_ARGUMENT

BATCH = (Symbol(name="batch", input=0, dim=0, hint=2),)
SHAPE = ("batch", 4)


def graph(
    *nodes: Node, out: Ref | None = None, shape: tuple = SHAPE, dtype: str = "float32", **rest
) -> Graph:
    inputs = rest.pop("inputs", (Input(name="x", dtype="float32", shape=SHAPE, gradient=True),))
    state = len(rest.get("parameters", ())) + len(rest.get("buffers", ()))
    ref = out or Ref(len(inputs) + state + len(nodes) - 1)
    outputs = (Output(name="y", ref=ref, dtype=dtype, shape=shape, gradient=True),)
    return Graph(symbols=BATCH, inputs=inputs, nodes=nodes, outputs=outputs, **rest)


def node(op: str, *args: Argument, number: int = 0, **kwargs: Argument) -> Node:
    return Node(
        number=number,
        op=f"aten.{op}" if "." in op else f"aten.{op}.default",
        args=args,
        kwargs=tuple(kwargs.items()),
    )


LINEAR = graph(
    node("linear", Ref(0), Ref(1), Ref(2)),
    parameters=(
        Parameter(name="w", dtype="float32", shape=(4, 4)),
        Parameter(name="b", dtype="float32", shape=(4,)),
    ),
)

WRONG_ARGUMENTS = {
    "unknown reduction": node("mse_loss", Ref(0), Ref(0), 7),
    "text for a tensor": node("relu", "x"),
    "number for a tensor": node("relu", 3),
    "tensor for a number": node("softmax.int", Ref(0), Ref(0)),
    "bool for an integer": node("softmax.int", Ref(0), True),
    "dtype for an integer": node("softmax.int", Ref(0), Dtype("float32")),
    "too many": node("relu", Ref(0), Ref(0)),
    "too few": node("linear", Ref(0)),
    "unknown name": node("relu", Ref(0), shared=True),
    "a device": node("zeros", (2,), device="cuda"),
    "a layout": node("zeros", (2,), layout=1),
    "huge padding": node("max_pool2d", Ref(0), (2, 2), (1, 1), (2**20, 2**20)),
    "huge kernel": node("avg_pool2d", Ref(0), 2**30),
}


@pytest.mark.parametrize("wrong", WRONG_ARGUMENTS.values(), ids=WRONG_ARGUMENTS)
def test_refuses_arguments_of_the_wrong_kind(wrong):
    with pytest.raises(SegmentError) as caught:
        Interpreter(graph(wrong))
    assert caught.value.cause == "document"
    assert wrong.op in caught.value.text


BOMBS = {
    "zeros": node("zeros", (2**42,)),
    "zeros in two dimensions": node("zeros", (2**21, 2**21)),
    "full": node("full", (2**42,), 1.0),
    "new zeros": node("new_zeros", Ref(0), (2**42,)),
    "arange": node("arange", 2**42),
    "arange in small steps": node("arange.start_step", 0, 1, 1e-12),
    "expand": node("expand", Ref(0), (2**42, 2, 4)),
    "repeat": node("repeat", Ref(0), (2**40, 1)),
    "repeat interleave": node("repeat_interleave.self_int", Ref(0), 2**40),
    "pad": node("pad", Ref(0), (2**40, 0)),
    "upsample": node("upsample_nearest2d.vec", Ref(1), (2**20, 2**20), None),
    "outer product": node("matmul", Ref(2), Ref(3)),
    "sum of a tall and a wide one": node("add.Tensor", Ref(2), Ref(3)),
    "nothing of huge sizes": node("zeros", (0, 2**31, 2**31)),
    "symbolic": node("zeros", (Sym(("*", "batch", 2**41)),)),
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_refuses_to_make_what_no_memory_holds(bomb):
    shapes = {"picture": (1, 1, 4, 4), "tall": (2**20, 1), "wide": (1, 2**20)}
    parameters = tuple(
        Parameter(name=name, dtype="float32", shape=shape) for name, shape in shapes.items()
    )
    segment = TrainingSegment(graph(bomb, parameters=parameters))
    with pytest.raises(SegmentError) as caught:
        segment.forward((torch.zeros(2, 4),))
    assert caught.value.cause == "out-of-memory"
    assert bomb.op in caught.value.text
    assert "allocate" not in caught.value.text  # by our own bound, before the allocator is asked


@pytest.mark.parametrize("shape", [(2**50,), (2**41, 2), (0, 2**31, 2**31)])
def test_refuses_parameters_that_no_memory_holds(shape):
    with pytest.raises(SegmentError) as caught:
        TrainingSegment(
            graph(
                node("relu", Ref(0)),
                parameters=(Parameter(name="w", dtype="float32", shape=shape),),
            )
        )
    assert caught.value.cause == "out-of-memory"
    assert caught.value.text.startswith("w: ")
    assert "allocate" not in caught.value.text


def test_every_allowed_operator_exists_here():
    assert set(OVERLOADS) == OPERATORS


INPUTS = {
    "shape": (torch.zeros(2, 5),),
    "dimensions": (torch.zeros(4),),
    "type": (torch.zeros(2, 4, dtype=torch.float64),),
    "number": (torch.zeros(2, 4), torch.zeros(2, 4)),
    "none": (),
}


@pytest.mark.parametrize("inputs", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("train", [False, True])
def test_wrong_inputs_are_named(inputs, train):
    with pytest.raises(SegmentError) as caught:
        TrainingSegment(LINEAR).forward(inputs, train=train)
    assert caught.value.cause == "bad-input"


def test_an_error_names_its_node():
    broken = graph(node("relu", Ref(0)), node("matmul", Ref(1), Ref(1), number=17))
    with pytest.raises(SegmentError, match=r"node 17 \(aten.matmul.default\)"):
        TrainingSegment(broken).forward((torch.zeros(2, 4),))


def test_an_index_out_of_range_is_bad_input():
    embedding = graph(
        node("embedding", Ref(1), Ref(0)),
        inputs=(Input(name="x", dtype="int64", shape=("batch",)),),
        parameters=(Parameter(name="w", dtype="float32", shape=(3, 4)),),
    )
    with pytest.raises(SegmentError) as caught:
        TrainingSegment(embedding).forward((torch.tensor([0, 3]),))
    assert caught.value.cause == "bad-input"


def test_the_worker_goes_on_after_an_error():
    segment = TrainingSegment(LINEAR)
    with pytest.raises(SegmentError):
        segment.forward((torch.zeros(2, 5),), train=True, key="a")
    (y,) = segment.forward((torch.ones(2, 4),), train=True, key="a")
    segment.backward("a", (torch.ones_like(y),))


@settings(max_examples=150, deadline=None)
@given(
    op=st.sampled_from(sorted(OPERATORS - {"aten.add_.Tensor"})),
    args=st.lists(
        st.sampled_from(
            [
                Ref(0),
                Ref(1),
                None,
                True,
                0,
                1,
                -1,
                2,
                3,
                0.5,
                "mean",
                (1, 1),
                (2, 2),
                (Ref(0), Ref(1)),
                (),
                Dtype("int64"),
            ]
        ),
        max_size=7,
    ),
    train=st.booleans(),
)
def test_any_operator_with_any_arguments_runs_or_refuses(op, args, train):
    odd = Graph(
        symbols=BATCH,
        inputs=(
            Input(name="x", dtype="float32", shape=("batch", 2, 4, 4), gradient=True),
            Input(name="i", dtype="int64", shape=("batch", 2)),
        ),
        nodes=(Node(number=0, op=op, args=tuple(args)),),
        outputs=(),
    )
    inputs = (torch.randn(2, 2, 4, 4), torch.zeros(2, 2, dtype=torch.int64))
    try:
        TrainingSegment(odd).forward(inputs, train=train)
        cause = ""
    except SegmentError as error:
        cause = error.cause
    assert cause in ("", "document", "bad-input", "arithmetic", "out-of-memory")


# --- state and learning ---------------------------------------------------------------------------


def test_state_is_written_and_read_by_name():
    segment = TrainingSegment(LINEAR)
    value = torch.randn(4, 4)
    segment.write("w", value)
    assert segment.names() == ("w", "b")
    assert torch.equal(segment.read("w"), value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("w", torch.zeros(4)),
        ("w", torch.zeros(4, 4).double()),
        ("nobody", torch.zeros(1)),
        ("exp_avg:nobody", torch.zeros(1)),
    ],
)
def test_refuses_to_write_what_does_not_fit(name, value):
    with pytest.raises(SegmentError) as caught:
        TrainingSegment(LINEAR).write(name, value)
    assert caught.value.cause == "bad-input"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"name": "lbfgs"},
        {"name": "sgd", "lr": "1"},
        {"name": "sgd", "lr": float("nan")},
        {"name": "sgd", "lr": -1.0},
        {"name": "sgd", "foreach": True},
        {"name": "adamw", "betas": [0.9, 0.999]},
        {"name": "adamw", "beta2": 1.5},
    ],
)
def test_refuses_unknown_optimizers_and_settings(options):
    with pytest.raises(SegmentError):
        TrainingSegment(LINEAR).step(None, options)


OPTIMIZERS = {
    "sgd": ({"name": "sgd", "lr": 0.1}, lambda p: torch.optim.SGD(p, lr=0.1)),
    "momentum": (
        {"name": "momentum", "lr": 0.1, "momentum": 0.8},
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.8),
    ),
    "adamw": (
        {"name": "adamw", "lr": 0.1, "beta1": 0.8, "beta2": 0.99},
        lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.8, 0.99)),
    ),
}


@pytest.mark.parametrize("piece_numbers", [optimizers.PIECE_NUMBERS, 8])
@pytest.mark.parametrize(("options", "make"), OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_optimizers_are_torchs_own_and_their_state_moves(options, make, piece_numbers, monkeypatch):
    """Half of the steps on one segment, the rest on another that got its state: the same as torch's
    optimizer.
    """
    monkeypatch.setattr(optimizers, "PIECE_NUMBERS", piece_numbers)
    first = TrainingSegment(LINEAR)
    second = TrainingSegment(LINEAR)
    net = torch.nn.Linear(4, 4)
    first.write("w", net.weight.detach())
    first.write("b", net.bias.detach())
    optimizer = make(list(net.parameters()))
    for i in range(6):
        segment = first if i < 3 else second
        if i == 3:
            for name in first.names():
                second.write(name, first.read(name))
        x = torch.randn(2, 4)
        net(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        (y,) = segment.forward((x,), key="k", train=True)
        segment.backward("k", (torch.ones_like(y),))
        segment.step(None, options)
    assert torch.equal(second.read("w"), net.weight.detach())
    assert torch.equal(second.read("b"), net.bias.detach())


def test_a_vector_replaces_gradients_and_running_statistics():
    normed = graph(
        node("batch_norm", Ref(0), None, None, Ref(2), Ref(3), True, 0.5, 1e-5, False),
        node("add.Tensor", Ref(4), Ref(1)),
        parameters=(Parameter(name="b", dtype="float32", shape=(4,)),),
        buffers=(
            Buffer(name="mean", dtype="float32", shape=(4,), updated=True),
            Buffer(name="var", dtype="float32", shape=(4,), updated=True),
        ),
    )
    shares = [TrainingSegment(normed), TrainingSegment(normed)]
    x = torch.randn(8, 4)
    for segment, rows in zip(shares, (slice(0, 3), slice(3, 8)), strict=True):
        for name in ("mean", "var", "b"):
            segment.write(name, torch.ones(4))
        (y,) = segment.forward((x[rows],), key="k", train=True)
        segment.backward("k", (torch.ones_like(y) / 8,))
    vector = shares[0].gradients(3 / 8) + shares[1].gradients(5 / 8)
    means = 3 / 8 * shares[0].read("mean") + 5 / 8 * shares[1].read("mean")
    for segment in shares:
        segment.step(vector, {"name": "sgd", "lr": 1.0})
        assert torch.equal(segment.read("mean"), means)
        assert torch.allclose(segment.read("b"), torch.zeros(4))
    with pytest.raises(SegmentError, match="flat"):
        shares[0].step(vector[1:], {"name": "sgd"})


def test_backward_needs_its_forward_and_fitting_gradients():
    segment = TrainingSegment(LINEAR)
    with pytest.raises(SegmentError, match="no forward"):
        segment.backward("k")
    segment.forward((torch.ones(2, 4),), key="k", train=True)
    with pytest.raises(SegmentError, match="loss"):
        segment.backward("k")
    segment.forward((torch.ones(2, 4),), key="k", train=True)
    with pytest.raises(SegmentError, match="expected"):
        segment.backward("k", (torch.ones(3, 4),))


def test_a_skip_over_the_segment_gets_its_gradient():
    """A value that merely passes through hands its gradient on, added to what the segment itself
    makes of it.
    """
    skip = graph(node("mul.Tensor", Ref(0), 3.0))
    both = Graph(
        symbols=skip.symbols,
        inputs=skip.inputs,
        nodes=skip.nodes,
        outputs=(
            *skip.outputs,
            Output(name="x", ref=Ref(0), dtype="float32", shape=SHAPE, gradient=True),
        ),
    )
    segment = TrainingSegment(both)
    segment.forward((torch.ones(2, 4),), key="k", train=True)
    (back,) = segment.backward("k", (torch.ones(2, 4), torch.full((2, 4), 10.0)))
    assert torch.equal(back, torch.full((2, 4), 13.0))


# --- dropout --------------------------------------------------------------------------------------

DROPOUTS = {
    "dropout": graph(node("dropout", Ref(0), 0.5, True, number=5)),
    "features": graph(node("feature_dropout", Ref(0), 0.5, True, number=5)),
    "attention": graph(
        node("view", Ref(0), (Sym("batch"), 2, 2, 1)),
        node("scaled_dot_product_attention", Ref(1), Ref(1), Ref(1), None, 0.5, True, number=5),
        shape=("batch", 2, 2, 1),
    ),
    "flattened rows": graph(
        node("view", Ref(0), (Sym(("*", "batch", 2)), 2)),
        node("dropout", Ref(1), 0.5, True, number=5),
        shape=(("*", "batch", 2), 2),
    ),
}


@pytest.mark.parametrize("dropping", DROPOUTS.values(), ids=DROPOUTS)
def test_dropout_does_not_depend_on_the_split(dropping):
    x = torch.randn(8, 4)
    reference = TrainingSegment(dropping, seed=3).forward(
        (x,), train=True, rows=(0, 8, 8), step=2, micro_batch=1
    )[0]
    parts = [
        TrainingSegment(dropping, seed=3).forward(
            (x[a:b],), train=True, rows=(a, b, 8), step=2, micro_batch=1
        )[0]
        for a, b in ((0, 3), (3, 8))
    ]
    assert torch.equal(torch.cat(parts), reference)
    for other in ({"step": 3, "micro_batch": 1}, {"step": 2, "micro_batch": 0}):
        assert not torch.equal(
            TrainingSegment(dropping, seed=3).forward((x,), train=True, rows=(0, 8, 8), **other)[0],
            reference,
        )


def test_dropout_keeps_the_mean_and_is_off_in_inference():
    segment = TrainingSegment(DROPOUTS["dropout"], seed=1)
    x = torch.ones(4000, 4)
    (y,) = segment.forward((x,), train=True, rows=(0, 4000, 4000))
    assert set(y.unique().tolist()) == {0.0, 2.0}
    assert abs(float(y.mean()) - 1.0) < 0.05
    assert torch.equal(segment.forward((x,))[0], x)


def test_refuses_rows_that_are_none():
    with pytest.raises(SegmentError, match="rows"):
        TrainingSegment(LINEAR).forward((torch.ones(2, 4),), rows=(3, 1, 8))


# --- measuring ------------------------------------------------------------------------------------


def test_made_up_inputs_fit_and_kept_bytes_grow_with_rows():
    segment = TrainingSegment(LINEAR)
    few, many = segment.example(2), segment.example(20)
    assert [list(x.shape) for x in many] == [[20, 4]]
    assert segment.kept_bytes(few) == 2 * 4 * 4  # the input, for the gradient of the weight
    assert segment.kept_bytes(many) == 10 * segment.kept_bytes(few)


@pytest.mark.parametrize("op", TRAINING_ARGUMENT)
def test_what_makes_an_operator_train_stands_in_its_place(op):
    """By name it would be missed where a segment runs for evaluation, which changes no buffer and
    draws no number.
    """
    place, _ = TRAINING_ARGUMENT[op]
    named = OVERLOADS[op]._schema.arguments[place].name
    arguments = [
        Ref(0) if str(a.real_type) == "Tensor" else None
        for a in OVERLOADS[op]._schema.arguments[:place]
    ]
    value = 0.5 if named == "dropout_p" else True
    with pytest.raises(SegmentError, match=f"{named} must stand in its place|is not a|lacks"):
        Interpreter(graph(Node(number=0, op=op, args=tuple(arguments), kwargs=((named, value),))))
    if op == "aten.dropout.default":
        with pytest.raises(SegmentError, match="train must stand in its place"):
            Interpreter(graph(Node(number=0, op=op, args=(Ref(0), 0.5), kwargs=(("train", True),))))
