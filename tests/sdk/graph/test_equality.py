"""Splitting never changes the result: graphs against eager torch, and chains of segments against
the whole.
"""

import copy
from itertools import pairwise

import pytest
import torch

from potluck.graph import Model
from potluck.graph.partition.cuts import cut_out
from potluck_agent.worker.training import TrainingSegment
from potluck_wire.graph import Graph
from potluck_wire.segment import dumps, loads

from .models import CASES, Case

ADAMW = {"name": "adamw", "lr": 1e-2}


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="module", params=CASES)
def made(request) -> tuple[Case, torch.nn.Module, Model]:
    torch.manual_seed(0)
    case = CASES[request.param]
    net = case.make()
    return (
        case,
        net,
        Model.from_torch(net, case.inputs(4), loss=case.loss, example_targets=case.targets(4)),
    )


def loaded(
    graph: Graph, state: dict[str, torch.Tensor], seed: int | None = None
) -> TrainingSegment:
    """A segment as a device would have it: from its document, with its weights written."""
    segment = TrainingSegment(loads(dumps(graph)), seed=seed)
    for name in segment.names():
        segment.write(name, state[name])
    return segment


@pytest.mark.few(1)
def test_five_adamw_steps_are_bit_equal_to_eager(made):
    case, net, model = made
    eager = copy.deepcopy(net).train()
    _, graph = model.segment(0, len(model.layers(True)), train=True)
    segment = loaded(graph, model.state())
    batches = [(case.inputs(6), case.targets(6)) for _ in range(5)]
    optimizer = torch.optim.AdamW(eager.parameters(), lr=1e-2)
    torch.manual_seed(1)
    expected = []
    for x, y in batches:
        loss = case.loss(eager(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.detach())
    torch.manual_seed(1)
    for (x, y), loss in zip(batches, expected, strict=True):
        (got,) = segment.forward(tuple(model.fed(x, y).values()), key="k", train=True)
        segment.backward("k")
        segment.step(None, ADAMW)
        assert torch.equal(got, loss)
    own = dict(eager.named_parameters(remove_duplicate=False)) | dict(eager.named_buffers())
    for name in model.state():
        assert torch.equal(segment.read(name), own[name]), name


@pytest.mark.few(2)
@pytest.mark.parametrize("rows", [1, 3, 7])
def test_inference_is_bit_equal_to_eager_for_any_batch(made, rows):
    case, net, model = made
    x = case.inputs(rows)
    segment = loaded(model.segment(0, len(model.layers()))[1], model.state())
    net.eval()
    # with gradients on: else torch.nn.TransformerEncoderLayer takes a fused kernel
    expected = net(x).detach()
    assert torch.equal(segment.forward((x,))[0], expected)


def chain_step(
    segments: list[TrainingSegment], feeds: dict[str, torch.Tensor], scale: float = 1.0
) -> list[torch.Tensor]:
    """One forward and backward through segments; what passes a cut is copied as a network would."""
    values, outputs = dict(feeds), ()
    for i, segment in enumerate(segments):
        outputs = segment.forward(
            [values[p.name] for p in segment.graph.inputs], key=str(i), train=True
        )
        values |= {
            p.name: y.contiguous().clone()
            for p, y in zip(segment.graph.outputs, outputs, strict=True)
        }
    gradients: dict[str, torch.Tensor] = {}
    for i, segment in reversed(list(enumerate(segments))):
        last = i == len(segments) - 1
        given = () if last else [gradients[p.name] for p in segment.graph.outputs if p.gradient]
        back = segment.backward(str(i), given, scale)
        gradients = {
            p.name: g.contiguous().clone()
            for p, g in zip((p for p in segment.graph.inputs if p.gradient), back, strict=True)
        }
    return list(outputs)


@pytest.mark.few(1)
def test_every_layer_cut_gives_the_same_loss_and_weights(made):
    case, _, model = made
    n = len(model.layers(True))
    _, graph = model.segment(0, n, train=True)
    fed = model.fed(case.inputs(5), case.targets(5))
    one_segment, state = loaded(graph, model.state()), model.state()
    torch.manual_seed(1)
    (loss,) = one_segment.forward(tuple(fed.values()), key="k", train=True)
    one_segment.backward("k")
    expected = one_segment.gradients()
    order = [p.name for p in graph.parameters]
    everywhere = [(0, cut, n) for cut in range(1, n)] + [tuple(range(n + 1))]
    for bounds in everywhere:
        parts = [loaded(model.segment(a, b, train=True)[1], state) for a, b in pairwise(bounds)]
        torch.manual_seed(1)
        (got,) = chain_step(parts, fed)
        assert torch.equal(got, loss), bounds
        for part in parts:
            part.step(None, {"name": "sgd", "lr": 0.1})
    reference = loaded(graph, state)
    torch.manual_seed(1)
    reference.forward(tuple(fed.values()), key="k", train=True)
    reference.backward("k")
    assert torch.equal(reference.gradients(), expected)
    reference.step(None, {"name": "sgd", "lr": 0.1})
    for part in parts:
        for name in part.names():
            assert torch.equal(part.read(name), reference.read(name)), name
    assert set(order) == {p.name for part in parts for p in part.graph.parameters}


@pytest.mark.few(1)
def test_every_open_cut_gives_the_same_output(made):
    case, _, model = made
    one_segment = loaded(model.segment(0, len(model.layers()))[1], model.state())
    x = case.inputs(3)
    (expected,) = one_segment.forward((x,))
    line = model.traced_line()
    cuts = line.open_cuts()
    assert cuts
    for cut in cuts:
        values = {"input": x}
        for start, stop in ((0, cut), (cut, len(line.bound))):
            part = loaded(cut_out(line, start, stop), model.state())
            outputs = part.forward([values[p.name] for p in part.graph.inputs])
            values |= {
                p.name: t.contiguous() for p, t in zip(part.graph.outputs, outputs, strict=True)
            }
        assert torch.equal(values["output"], expected), cut


@pytest.mark.long
def test_accumulated_micro_batches_equal_eager_accumulation(made):
    case, net, model = made
    eager = copy.deepcopy(net).train()
    _, graph = model.segment(0, len(model.layers(True)), train=True)
    segment = loaded(graph, model.state())
    parts = [(case.inputs(n), case.targets(n)) for n in (3, 5)]
    torch.manual_seed(1)
    for x, y in parts:
        (case.loss(eager(x), y) * (len(x) / 8)).backward()
    fed = model.fed(*map(torch.cat, zip(*parts, strict=True))).values()
    torch.manual_seed(1)
    for i, (rows, (x, _)) in enumerate(zip((slice(0, 3), slice(3, 8)), parts, strict=True)):
        segment.forward(tuple(tensor[rows] for tensor in fed), key=str(i), train=True)
        segment.backward(str(i), scale=len(x) / 8)
    own = dict(eager.named_parameters(remove_duplicate=False))
    expected = torch.cat([own[p.name].grad.reshape(-1) for p in graph.parameters])
    assert torch.equal(segment.gradients(0.0)[: len(expected)], expected)
