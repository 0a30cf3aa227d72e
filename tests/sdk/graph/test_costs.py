"""What operators cost, against autograd itself: torch's flop counter, and the storages that a
backward really keeps.
"""

import weakref
from collections import Counter

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from potluck.graph.model import Model  # noqa: E402
from potluck.profile.architectures import Attention, DenseLayer, Gated, TransformerBlock  # noqa: E402
from potluck_agent.worker.interpreter import Interpreter  # noqa: E402


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = (
            nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False),
            nn.BatchNorm2d(8),
        )
        self.squeeze = nn.Conv2d(8, 8, 1)

    def forward(self, x):
        y = functional.silu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        y = y * torch.sigmoid(self.squeeze(functional.adaptive_avg_pool2d(y, 1)))
        return functional.relu(x + y)


class Words(nn.Module):
    """Tied input and output tables, a learned position table, a residual stream."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Embedding(16, 32)
        self.block = TransformerBlock(
            Attention(32, 4, 4, causal=True), Gated(32, 64, bias=False), nn.LayerNorm, 32
        )
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.words.weight

    def forward(self, text):
        x = self.words(text) + self.places(torch.arange(text.shape[1]))
        return self.head(self.norm(self.block(x)))


def images(rows):
    return torch.randn(rows, 3, 16, 16)


def texts(rows):
    return torch.randint(0, 50, (rows, 16))


CASES = {
    "plain convolutions": (
        lambda: nn.Sequential(
            *(
                nn.Conv2d(3, 8, 3, stride=2, padding=1),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Flatten(),
                nn.Linear(128, 10),
            )
        ),
        images,
    ),
    "residual, depthwise, squeeze": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 1), Residual(), Residual(), nn.Flatten(), nn.Linear(2048, 5)
        ),
        images,
    ),
    "dense": (
        lambda: nn.Sequential(nn.Conv2d(3, 64, 3), DenseLayer(64), DenseLayer(96), nn.AvgPool2d(2)),
        images,
    ),
    "transformer": (Words, texts),
}


def traced(case, rows=2):
    torch.manual_seed(0)
    build, feed = CASES[case]
    net, x = build().eval(), feed(rows)
    return net, x, Model.from_torch(net, x, name="net").graph()


def kept_bytes(net, x):
    """Bytes of the distinct storages that autograd keeps, weights aside."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*net.parameters(), *net.buffers())}
    storages, alive = {}, []

    def pack(tensor):
        alive.append(tensor)  # or its address could be used again
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        net(x)
    return sum(storages.values())


class LiveBytes(TorchDispatchMode):
    """The most that is there at once of what operators make; `own`: storages that do not count."""

    def __init__(self, own):
        super().__init__()
        self.own, self.most = own, 0
        self.sizes, self.n_of = {}, Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **kwargs or {})
        for tensor in pytree.tree_leaves(made):
            storage = tensor.untyped_storage()
            if isinstance(tensor, torch.Tensor) and storage.data_ptr() not in self.own:
                self.sizes[storage.data_ptr()] = storage.nbytes()
                self.n_of[storage.data_ptr()] += 1
                weakref.finalize(tensor, self.n_of.subtract, [storage.data_ptr()])
        now = sum(self.sizes[place] for place, n in self.n_of.items() if n > 0)
        self.most = max(self.most, now)
        return made


@pytest.mark.parametrize("case", CASES)
def test_a_layer_works_on_what_its_operators_have_at_once(case):
    """As a worker computes it, which gives back what nobody needs any more."""
    torch.manual_seed(0)
    net, x = CASES[case][0]().eval(), CASES[case][1](2)
    model = Model.from_torch(net, x, max_layers=1, name="net")
    (layer,) = model.layers(False)
    graph, state = model.segment(0, 1)[1], model.state()
    states = [state[each.name] for each in (*graph.parameters, *graph.buffers)]
    interpreter = Interpreter(graph)
    own = {each.untyped_storage().data_ptr() for each in (*states, x)}
    with torch.no_grad(), LiveBytes(own) as live:
        interpreter.run([x], states, train=False)
    assert 2 * layer.working_bytes == pytest.approx(live.most, rel=0.2)


@pytest.mark.few(1)
@pytest.mark.parametrize("case", CASES)
def test_flop_of_products_are_those_of_torchs_counter(case):
    net, x, graph = traced(case)
    with FlopCounterMode(display=False) as forward:
        out = net(x)
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    # it leaves attention out
    ours = [node for node in graph.nodes if node.kind in ("conv", "depthwise", "matmul")]
    assert 2 * sum(node.forward_flop for node in ours) == pytest.approx(
        forward.get_total_flops(), rel=0.01
    )
    # it takes the backward of a grouped convolution for that of a dense one
    if "depthwise" not in case:
        assert 2 * sum(node.backward_flop for node in ours) == pytest.approx(
            backward.get_total_flops(), rel=0.01
        )


@pytest.mark.long
def test_flop_of_attention_and_of_grouped_convolution_by_hand():
    (attention,) = (node for node in traced("transformer")[2].nodes if node.kind == "attention")
    # scores and mixing: 16 x 16 tokens, width 32
    assert attention.forward_flop == 2 * (2 * 16 * 16 * 32)
    assert attention.backward_flop == 5 * (2 * 16 * 16 * 32)
    grouped = [
        node for node in traced("residual, depthwise, squeeze")[2].nodes if node.kind == "depthwise"
    ]
    # 8 channels, 16 x 16, 3 x 3 each
    assert [node.forward_flop for node in grouped] == [2 * 8 * 16 * 16 * 9] * 2
    assert [node.backward_flop for node in grouped] == [4 * 8 * 16 * 16 * 9] * 2


@pytest.mark.few(1)
@pytest.mark.parametrize("case", CASES)
def test_activation_bytes_are_what_autograd_keeps(case):
    net, x, graph = traced(case)
    assert 2 * sum(node.activation_bytes for node in graph.nodes) == pytest.approx(
        kept_bytes(net, x), rel=0.05
    )


@pytest.mark.parametrize("case", CASES)
def test_weights_are_counted_once(case):
    net, _, graph = traced(case)
    assert graph.parameter_bytes == 4 * sum(weight.numel() for weight in net.parameters())
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in net.buffers())
    assert sum(node.buffer_bytes for node in graph.nodes) <= buffers


@pytest.mark.few(1)
@pytest.mark.parametrize("case", CASES)
def test_costs_per_row_do_not_depend_on_the_rows_traced(case):
    two, five = traced(case, rows=2)[2], traced(case, rows=5)[2]
    assert two.nodes == five.nodes
    assert two.inputs == five.inputs


def test_a_skip_connection_is_an_edge():
    graph = traced("residual, depthwise, squeeze")[2]
    joins = [node.inputs for node in graph.nodes if len(node.inputs) > 1]
    gates, skips = joins[::2], joins[1::2]
    assert gates == [("1.norm2", "1:3"), ("2.norm2", "2:3")]
    assert skips == [("0", "1:4"), ("1:6", "2:4")]
    assert "depthwise" in {node.kind for node in graph.nodes}


def test_what_is_the_same_for_all_rows_is_no_work_of_a_row():
    class Masked(nn.Module):
        def forward(self, x):
            return x + torch.ones(300, x.shape[1]).tril().sum(0)

    (layer,) = Model.from_torch(Masked(), torch.zeros(2, 300), max_layers=1).layers(False)
    assert layer.working_bytes <= 3 * 4 * 300


@pytest.mark.timeout(60)
def test_a_hundred_reshapes_in_a_row_are_looked_at_one_by_one():
    class Reshaped(nn.Module):
        def forward(self, x):
            for _ in range(50):
                x = x.reshape(-1, 6).reshape(-1, 2, 3)
            return x

    model = Model.from_torch(nn.Sequential(nn.Linear(3, 3), Reshaped()), torch.randn(2, 2, 3))
    assert sum(layer.forward_flop for layer in model.layers()) == 2 * 2 * 3 * 3
