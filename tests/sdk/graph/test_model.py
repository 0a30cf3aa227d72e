"""Models from torch modules: layers, segments, state, and clear errors for what cannot be sent."""

import copy
import json
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from torch import nn

from potluck.errors import ModelError
from potluck.graph import Model
from potluck_agent.worker.training import TrainingSegment
from potluck_wire.segment import dumps, loads

from .models import CASES, Decoder, cnn, token_loss


@pytest.fixture(scope="module")
def digits() -> Model:
    torch.set_num_threads(1)
    return Model.from_torch(
        cnn(),
        torch.randn(4, 1, 8, 8),
        loss=nn.CrossEntropyLoss(),
        example_targets=torch.zeros(4).long(),
    )


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class OneBatch(nn.Module):
    def forward(self, x):
        return x.view(4, 3) * 2


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)

    def forward(self, x):
        x = x.unsqueeze(-1).expand(-1, 3, 4)
        return self.encoder(x, mask=nn.Transformer.generate_square_subsequent_mask(3))


class Drawing(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 3), RandomSign())

    def forward(self, x):
        return self.inner(x)


class RandomSign(nn.Module):
    def forward(self, x):
        return x * torch.randn_like(x).sign()


class InPlaceOnInput(nn.Module):
    def forward(self, x):
        return x.mul_(2)


class Items(nn.Module):
    def forward(self, x):
        return x * x.max().item()


REFUSED = {
    "control flow": (Branching(), "data"),
    "one batch": (OneBatch(), "batch"),
    "operator": (Drawing(), "draws random numbers when it answers: randn_like"),
    "input changed": (InPlaceOnInput(), "in place"),
    "causal or not": (Masked(), "its mask.*is_causal=True"),
    "number from data": (Items(), "aten.item|from the data"),
}


@pytest.mark.few(2)
@pytest.mark.parametrize(("net", "text"), REFUSED.values(), ids=REFUSED)
def test_says_why_a_module_cannot_be_sent(net, text):
    with pytest.raises(ModelError, match=text):
        Model.from_torch(net, torch.randn(4, 3))


def test_names_the_function_of_torch_that_looks_into_the_data():
    class Surprise(nn.Module):
        def forward(self, x):
            mean, seen, spread = x.split(1, dim=1)
            return nn.functional.gaussian_nll_loss(mean, seen, spread.exp(), reduction="none")

    where = r"data in torch\.nn\.functional\.gaussian_nll_loss \(test_model\.py"
    with pytest.raises(ModelError, match=where) as caught:
        Model.from_torch(Surprise(), torch.randn(4, 3))
    assert "guard" not in str(caught.value)


def test_names_operator_and_module():
    with pytest.raises(ModelError, match=r"inner\.1") as caught:
        Model.from_torch(Drawing(), torch.randn(4, 3))
    assert caught.value.facts["operator"] == "aten.randn_like.default"


EXAMPLES = {
    "different batches": ((torch.zeros(2, 3), torch.zeros(3, 3)), "rows"),
    "no rows": (torch.zeros(0, 3), "rows"),
    "a number": (torch.tensor(3.0), "batch"),
    "nothing": ((), "example"),
}


@pytest.mark.parametrize(("example", "text"), EXAMPLES.values(), ids=EXAMPLES)
def test_refuses_examples_without_a_common_batch(example, text):
    with pytest.raises(ModelError, match=text):
        Model.from_torch(nn.Linear(3, 3), example)


NO_LOSSES = {
    "a number for each row": (nn.MSELoss(reduction="none"), "one number"),
    "a norm": (lambda y, t: (y - t).norm(), "no mean over rows"),
    "between rows": (lambda y, t: (y @ t.T).logsumexp(1).mean(), "no mean over rows"),
    "a class": (nn.MSELoss, "called as loss"),
    "a name": ("mse", "computes its loss itself"),
    "a flag": (True, "called as loss"),
    "none, beside targets": (None, "and no loss"),
}


@pytest.mark.few(2)
@pytest.mark.parametrize(("loss", "text"), NO_LOSSES.values(), ids=NO_LOSSES)
def test_refuses_what_is_no_mean_over_rows(loss, text):
    with pytest.raises(ModelError, match=text):
        Model.from_torch(
            nn.Linear(3, 3), torch.ones(2, 3), loss=loss, example_targets=torch.ones(2, 3)
        )


def test_labels_of_the_example_that_are_out_of_range_are_told():
    with pytest.raises(
        ModelError, match=r"rows like the examples: aten.cross_entropy_loss.*IndexError: Target 7"
    ):
        Model.from_torch(
            nn.Linear(3, 3),
            torch.ones(2, 3),
            loss=nn.CrossEntropyLoss(),
            example_targets=torch.tensor([7, 7]),
        )


LOSSES = {
    "mse": nn.MSELoss(),
    "l1": nn.functional.l1_loss,
    "huber": nn.HuberLoss(),
    "smooth l1": nn.SmoothL1Loss(),
    "with logits": nn.BCEWithLogitsLoss(),
    "weighted": lambda y, t: (y - t).square().mean(),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_losses_equal_eager(loss):
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    y = torch.rand(4, 2)
    model = Model.from_torch(net, x, loss=loss, example_targets=y)
    segment = TrainingSegment(loads(model.document(0, 1, train=True)))
    for name in segment.names():
        segment.write(name, model.state()[name])
    (got,) = segment.forward((x, y), key="k", train=True)
    segment.backward("k")
    expected = loss(net(x), y)
    expected.backward()
    assert torch.equal(got, expected.detach())
    assert torch.equal(segment.gradients(), torch.cat([net.weight.grad.flatten(), net.bias.grad]))


def test_training_needs_a_loss():
    with pytest.raises(ModelError, match="loss"):
        Model.from_torch(nn.Linear(3, 3), torch.zeros(2, 3)).layers(train=True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ((torch.zeros(2, 1, 9, 8),), r"rows, 1, 8, 8"),
        ((torch.zeros(2, 1, 8, 8).double(),), "float64"),
        ((torch.zeros(2, 8),), "expected"),
        ((torch.zeros(2, 1, 8, 8).to_sparse(),), r"is sparse; a dense tensor.*to_dense\(\)"),
        ((torch.zeros(2, 1, 8, 8, device="meta"),), "has no values"),
        ((), "got 0"),
    ],
)
def test_wrong_inputs_are_told_at_once(digits, tensors, text):
    with pytest.raises(ModelError, match=text):
        digits.check_inputs(*tensors)


def test_right_inputs_give_their_rows(digits):
    assert digits.check_inputs(torch.zeros(7, 1, 8, 8)) == 7
    assert digits.check_inputs(torch.zeros(7, 1, 8, 8), torch.zeros(7).long(), train=True) == 7
    with pytest.raises(ModelError, match="target"):
        digits.check_inputs(torch.zeros(7, 1, 8, 8), torch.zeros(6).long(), train=True)


def test_layers_add_up_to_the_model(digits):
    layers = digits.layers(True)
    net = cnn()
    assert sum(layer.parameter_bytes for layer in layers) == sum(
        p.numel() * 4 for p in net.parameters()
    )
    assert sum(layer.buffer_bytes for layer in layers) == sum(b.nbytes for b in net.buffers())
    assert len({layer.name for layer in layers}) == len(layers) == 5
    first_convolution = 2 * 8 * 8 * 8 * 9  # by hand: 8x8 pixels, 8 channels, 3x3 kernel
    # and batch-norm and ReLU per element
    assert layers[0].forward_flop == first_convolution + 5 * 512 + 512
    assert layers[0].backward_flop < layers[0].forward_flop * 2  # no gradient of the images
    assert layers[0].output_bytes == 8 * 8 * 8 * 4
    assert layers[-1].output_bytes == 4


def test_kept_activations_are_what_autograd_keeps(digits):
    """The table against torch's own hooks, for the whole network.

    Masks and small statistics aside.
    """
    _, graph = digits.segment(0, 5, train=True)
    segment = TrainingSegment(graph)
    measured = segment.kept_bytes(segment.example(64)) / 64
    stated = sum(layer.activation_bytes for layer in digits.layers(True))
    assert 0.6 < stated / measured < 1.4


def test_segments_fit_together(digits):
    n = len(digits.layers(True))
    for cut in range(1, n):
        head, tail = digits.segment(0, cut, train=True)[0], digits.segment(cut, n, train=True)[0]
        assert head.outputs == tail.inputs
        assert [t.name for t in head.feeds] == ["input"]
        assert [t.name for t in tail.feeds] == ["target", "reduction"]
        assert head.outputs[0].gradient
        assert sum(t.row_bytes for t in head.outputs) == digits.layers(True)[cut - 1].output_bytes
        assert head.parameter_count + tail.parameter_count == sum(
            p.numel() for p in cnn().parameters()
        )
    assert head.buffer_count == 2 * (8 + 8 + 16)
    with pytest.raises(ModelError, match="layers"):
        digits.segment(0, n + 1)


def test_merging_obeys_its_limits():
    example = torch.randn(4, 1, 8, 8)
    assert len(Model.from_torch(cnn(), example, max_layers=3).layers()) == 3
    assert len(Model.from_torch(cnn(), example, max_layers=1).layers()) == 1
    coarse = Model.from_torch(cnn(), example, merge_below=0.25).layers()
    assert 1 < len(coarse) < 5


def test_transformer_blocks_are_cut_into_halves():
    model = Model.from_torch(Decoder(), torch.zeros(2, 8).long())
    names = [layer.name for layer in model.layers()]
    assert names == [
        "tokens",
        "blocks.0.norm1",
        "blocks.0.norm2",
        "blocks.1.norm1",
        "blocks.1.norm2",
        "head",
    ]
    assert all(len(model.segment(0, i)[0].outputs) == 1 for i in range(1, 6))


@pytest.mark.long
def test_tied_weights_are_shared_in_training_and_copied_in_inference():
    net = Decoder(tied=True)
    example = torch.zeros(2, 8).long()
    model = Model.from_torch(net, example, loss=token_loss, example_targets=example)
    assert len(model.layers()) == 6
    users = [n for n in range(6) if "head.weight" in model.state_names(n, n + 1)]
    assert users == [0, 5]
    assert len(model.layers(True)) == 6
    assert "head.weight" in model.notes(True)[0]
    held = [[weight.name for weight in layer.shared] for layer in model.layers(True)]
    assert [n for n in range(6) if held[n]] == [0, 5]
    assert held[0] == held[5] == ["head.weight"]


@pytest.mark.long
def test_the_sequence_may_change_its_length_where_asked():
    net = Decoder().eval()
    example = torch.randint(0, 30, (2, 8))
    model = Model.from_torch(net, example, sequence_dims=(1,))
    assert len(model.layers()) == 6
    tokens = torch.randint(0, 30, (3, 13))
    assert model.check_inputs(tokens) == 3
    values = {"input": tokens}
    for start, stop in pairwise(range(7)):
        graph = model.segment(start, stop)[1]
        part = TrainingSegment(loads(dumps(graph)))
        for name in part.names():
            part.write(name, model.state()[name])
        outputs = part.forward([values[p.name] for p in graph.inputs])
        values = {p.name: y for p, y in zip(graph.outputs, outputs, strict=True)}
    assert torch.equal(values["output"], net(tokens))


class SequenceFirst(nn.Module):
    """Its middle counts rows in the second dimension, or mixes them into the first: no cut may be
    made there.
    """

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.third = nn.Linear(4, 4)

    def forward(self, x):
        y = self.first(x).transpose(0, 1).reshape(-1, 4)
        y = self.second(y).view(5, -1, 4).transpose(0, 1)
        return self.third(y)


def test_no_cut_where_rows_are_not_in_the_first_dimension():
    model = Model.from_torch(SequenceFirst(), torch.randn(2, 5, 4))
    line = model.traced_line()
    operators = [line.traced.graph.nodes[line.bound[cut] - 1].op for cut in line.open_cuts()]
    assert operators == ["aten.linear.default", "aten.transpose.int"]


def test_an_example_of_one_row_is_enough():
    model = Model.from_torch(nn.Linear(3, 3), torch.zeros(1, 3))
    segment = TrainingSegment(model.segment(0, 1)[1])
    assert segment.forward((torch.zeros(9, 3),))[0].shape == (9, 3)


def test_state_goes_out_and_comes_back(digits):
    net = cnn()
    model = Model.from_torch(net, torch.randn(4, 1, 8, 8))
    trained = {
        name: torch.randn_like(t) if t.is_floating_point() else t + 3
        for name, t in model.state().items()
    }
    model.load_state(trained)
    assert torch.equal(net[0].weight, trained["0.weight"])
    assert torch.equal(net.state_dict()["1.running_mean"], trained["1.running_mean"])
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(ModelError, match="shape"):
        model.load_state({"0.weight": torch.zeros(8, 1, 3, 3), "0.bias": torch.zeros(9)})
    with pytest.raises(ModelError, match="no state"):
        model.load_state({"9.weight": torch.zeros(1)})
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


@pytest.mark.long
def test_the_module_keeps_its_modes():
    net = cnn().train()
    net[1].eval()
    Model.from_torch(
        net,
        torch.randn(4, 1, 8, 8),
        loss=nn.CrossEntropyLoss(),
        example_targets=torch.zeros(4).long(),
    )
    assert net.training
    assert not net[1].training


def test_the_signature_is_of_the_graph_not_of_weights_or_example():
    first = Model.from_torch(cnn(), torch.randn(4, 1, 8, 8))
    assert Model.from_torch(cnn(), torch.randn(6, 1, 8, 8)).signature == first.signature
    assert (
        Model.from_torch(cnn(), torch.randn(4, 1, 8, 8), max_layers=2).signature != first.signature
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CASES)
def test_documents_hold_nothing_of_the_author(name):
    case = CASES[name]
    model = Model.from_torch(case.make(), case.inputs(2))
    text = model.document(0, len(model.layers())).decode()
    assert "/" not in text.replace('"//"', "")
    assert ".py" not in text
    assert json.loads(text)["version"] == 1


def test_importing_the_package_loads_no_torch():
    code = (
        "import sys, potluck.graph; sys.exit(any(name in sys.modules for name in ('torch', "
        "'numpy', 'onnx')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
