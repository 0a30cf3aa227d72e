"""Every kind of model through a whole home: profiled, planned, deployed and run on two real
agents.
"""

import copy
import warnings

import pytest
from tests.sdk.graph.models import CASES, Decoder, cnn
from tests.sdk.run.conftest import make_plan

import potluck

torch = pytest.importorskip("torch")
A, B = "local-1", "local-2"


def test_an_onnx_file_from_profile_to_outputs_equals_onnxruntime_on_the_whole(home, tmp_path):
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    path = tmp_path / "residual.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            CASES["residual"].make().eval(),
            (torch.randn(2, 1, 8, 8),),
            path,
            dynamo=False,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}},
        )
    reference = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    model = potluck.Model.from_onnx(path)
    profile = home.profile(model, rows=(1, 4), repeats=1).wait()
    plans = potluck.plan(profile, potluck.Inference(batch=4))
    split = make_plan(model, ((A,), (4,)), ((B, A), (3, 1)), micro_batch=4, training=False)
    for plan in (plans.best, split):
        run = home.deploy(plan, model).wait()
        for rows in (1, 4, 9):
            x = torch.randn(rows, 1, 8, 8)
            (expected,) = reference.run(None, {"x": x.numpy()})
            assert abs(run(x).numpy() - expected).max() <= 1e-4
        run.close()
    with pytest.raises(potluck.errors.ModelError, match="loss"):
        home.deploy(make_plan_for_training(split), model).wait()


def make_plan_for_training(plan):
    from dataclasses import replace

    return replace(plan, training=True)


@pytest.mark.long
def test_a_decoder_writes_on_with_sequences_of_any_length(home):
    torch.manual_seed(0)
    net = Decoder(tied=True).eval()
    model = potluck.Model.from_torch(net, torch.randint(0, 30, (2, 8)), sequence_dims=(1,))
    run = home.deploy(
        make_plan(model, ((A,), (2,)), ((B,), (2,)), micro_batch=2, training=False), model
    ).wait()
    text = torch.randint(0, 30, (1, 3))
    for _ in range(6):  # greedy: each longer by one than the last
        with torch.no_grad():
            expected = net(text)
        logits = run(text)
        assert (logits - expected).abs().max().item() <= 1e-5
        text = torch.cat([text, logits[:, -1:].argmax(-1)], 1)
    assert text.shape == (1, 9)
    run.close()


def train_on_one_machine(net, loss, x, y, *, micro_batch, epochs):
    """The same micro-batches in order, each with its own batch statistics.

    The losses of all steps.
    """
    optimizer, losses = torch.optim.AdamW(net.parameters(), 1e-3), []
    net.train()
    for _ in range(epochs):
        total = 0.0
        for start in range(0, len(x), micro_batch):
            part = loss(net(x[start : start + micro_batch]), y[start : start + micro_batch])
            (part * micro_batch / len(x)).backward()
            total += part.item() * micro_batch
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total / len(x))
    return losses


def without_dropout(net):
    for module in net.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif isinstance(module, torch.nn.MultiheadAttention):
            module.dropout = 0.0
    return net


@pytest.mark.long
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_transformers_train_over_two_stages_as_on_one_machine(home, kind):
    torch.manual_seed(0)
    case = CASES[kind]
    net = without_dropout(case.make())
    x, y = case.inputs(8), case.targets(8)
    model = potluck.Model.from_torch(net, x, loss=case.loss, example_targets=y)
    run = home.deploy(
        make_plan(model, ((A,), (4,)), ((B,), (4,)), micro_batch=4, n_micro_batches=2), model
    ).wait()
    losses = run.fit((x, y), epochs=3).wait().losses
    alone = copy.deepcopy(net)
    expected = train_on_one_machine(alone, case.loss, x, y, micro_batch=4, epochs=3)
    run.close()
    assert losses == pytest.approx(expected, abs=1e-5)
    assert losses[-1] < losses[0]


@pytest.mark.long
def test_an_encoder_with_dropout_trains_alike_however_it_is_split(home):
    torch.manual_seed(0)
    case = CASES["encoder"]
    x, y = case.inputs(8), case.targets(8)
    model = potluck.Model.from_torch(case.make(), x, loss=case.loss, example_targets=y)
    losses = []
    for stages in ([((A,), (4,))], [((B,), (4,)), ((A, B), (1, 3))]):
        run = home.deploy(
            make_plan(model, *stages, micro_batch=4, n_micro_batches=2), model, seed=3
        ).wait()
        losses.append(run.fit((x, y), epochs=3).wait().losses)
        run.close()
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)


@pytest.mark.long
def test_a_cnn_with_batch_norm_and_dropout_trains_replicated_and_pipelined(home):
    """Pipelined: equal to one machine. Replicated: batch-norm normalises each share by itself, and
    the running statistics are averaged by rows. Dropout does not depend on the split."""
    torch.manual_seed(0)
    x, y = torch.randn(16, 1, 8, 8), torch.randint(0, 10, (16,))
    loss = torch.nn.CrossEntropyLoss()
    net = cnn()
    model = potluck.Model.from_torch(net, x, loss=loss, example_targets=y)
    plans = [
        make_plan(model, ((A,), (8,)), micro_batch=8, n_micro_batches=2),
        make_plan(model, ((A,), (8,)), ((B,), (8,)), micro_batch=8, n_micro_batches=2),
        make_plan(model, ((A, B), (6, 2)), ((B,), (8,)), micro_batch=8, n_micro_batches=2),
    ]
    losses, states = [], []
    for plan in plans:
        run = home.deploy(plan, model, seed=7).wait()
        losses.append(run.fit((x, y), epochs=3).wait().losses)
        states.append(run.state_dict())
        run.close()
    assert losses[1] == losses[0]
    assert all(torch.equal(states[1][name], states[0][name]) for name in states[0])
    assert losses[2] != losses[0]
    assert losses[2][-1] < losses[2][0]

    plain = cnn(dropout=0.0)
    model = potluck.Model.from_torch(plain, x, loss=loss, example_targets=y)
    run = home.deploy(
        make_plan(model, ((A, B), (6, 2)), micro_batch=8, n_micro_batches=1), model
    ).wait()
    shared = run.fit((x[:8], y[:8])).wait().losses
    statistics = run.state_dict()["1.running_mean"]
    run.close()
    alone, averaged = copy.deepcopy(plain).train(), 0.0
    parts = []
    for part, rows in zip(x[:8].split((6, 2)), (6, 2), strict=True):
        one = copy.deepcopy(alone)
        parts.append(one(part))
        averaged = averaged + one[1].running_mean * rows / 8
    assert shared == pytest.approx([loss(torch.cat(parts), y[:8]).item()], abs=1e-5)
    assert torch.allclose(statistics, averaged, atol=1e-6)
