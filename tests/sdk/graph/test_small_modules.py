"""Functions of one line, as torch's documentation lists them: over two agents as on one machine,
forward and backward; or refused, with a reason of a fixed list.
"""

import copy

import pytest
from tests.sdk.graph.small_modules import LINES, Net
from tests.sdk.run.conftest import make_plan

import potluck
from potluck.errors import ModelError
from potluck.graph.torch.refusals import DATA, MEMORY, VALUES

torch = pytest.importorskip("torch")

ROWS = 4
TOLERANCE = 1e-5  # of the largest: what torch writes out otherwise is rounded otherwise
# what is refused, and why: a reason of `refusals`, or what else is said
ROWS_MIXED = "does not hold one result for each row"
NO_EXPORT = "cannot be exported"
IN_ANSWERS = "draws random numbers when it answers"
ONE_SIZE = "only for one size of batch"
REFUSED = {
    "Tensor.masked_scatter": ROWS_MIXED,
    "torch.vander": ROWS_MIXED,
    "torch.combinations": NO_EXPORT,
    "torch.take_along_dim": ONE_SIZE,
    "torch.kron of rows": ONE_SIZE,
    "torch.chain_matmul": ONE_SIZE,
    "torch.index_reduce": "is not on the devices' list",
    "F.gumbel_softmax": IN_ANSWERS,
    "Tensor.as_strided": MEMORY.text,
    "Tensor.nonzero": DATA.text,
    "Tensor.unique": DATA.text,
    "Tensor.masked_select": DATA.text,
    "Tensor.item": DATA.text,
    "Tensor.tolist": DATA.text,
    "torch.rand_like": IN_ANSWERS,
    "torch.randn_like": IN_ANSWERS,
    "torch.bernoulli": IN_ANSWERS,
    "torch.multinomial": IN_ANSWERS,
    "torch.randperm": IN_ANSWERS,
    "torch.bincount": DATA.text,
    "torch.histc": DATA.text,
    "torch.linalg.svdvals": VALUES.text,
    "torch.inverse": VALUES.text,
    "torch.linalg.cholesky": VALUES.text,
    "torch.linalg.eigvalsh": VALUES.text,
    "torch.linalg.solve": VALUES.text,
    "torch.cholesky_inverse": VALUES.text,
    "F.ctc_loss": NO_EXPORT,
    "F.fractional_max_pool2d": IN_ANSWERS,
}


def test_the_corpus_is_large_and_mostly_runs():
    assert len(LINES) >= 420
    assert len(REFUSED) <= 0.08 * len(LINES)
    assert set(REFUSED) <= set(LINES)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in LINES if name not in REFUSED])
def test_a_line_gives_on_two_agents_what_it_gives_on_one_machine(name, home):
    torch.manual_seed(0)
    net = Net(name)
    x, y = torch.randn(ROWS, 8), torch.randn(ROWS, 3)
    loss_of = torch.nn.functional.mse_loss
    model = potluck.Model.from_torch(net, x, loss=loss_of, example_targets=y)
    stages = [((device,), (ROWS,)) for device in ("local-1", "local-2")]
    answering = make_plan(model, *stages, micro_batch=ROWS, training=False)
    run = home.deploy(answering, model).wait()
    got = run(x)
    run.close()
    with torch.no_grad():
        assert close(got, copy.deepcopy(net).eval()(x))
    stages = stages[: len(model.layers(True))]
    training = make_plan(model, *stages, micro_batch=ROWS)
    run = home.deploy(training, model, optimizer=potluck.SGD(0.1)).wait()
    losses = run.fit((x, y), epochs=2).wait().losses
    weights = run.state_dict()
    run.close()
    assert losses == pytest.approx(trained(net, x, y), rel=TOLERANCE, abs=TOLERANCE)
    for path, weight in net.named_parameters():
        assert close(weights[path], weight), path


def trained(net, x, y):
    """The losses of two steps on one machine."""
    optimizer, losses = torch.optim.SGD(net.parameters(), 0.1), []
    for _ in range(2):
        loss = torch.nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def close(got, wanted):
    most = float(wanted.detach().abs().max())
    return torch.allclose(got, wanted, rtol=0, atol=TOLERANCE * max(1.0, most), equal_nan=True)


@pytest.mark.few(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_a_line_is_refused_with_its_reason_and_the_line(name):
    torch.manual_seed(0)
    with pytest.raises(ModelError) as caught:
        potluck.Model.from_torch(Net(name), torch.randn(ROWS, 8))
    assert REFUSED[name] in str(caught.value)
    assert "small_modules.py, line " in str(caught.value)
