"""Random networks with branches, cut anywhere: outputs and gradients are those of the whole."""

import copy
import random
from itertools import pairwise

import pytest
import torch
from tests.sdk.graph.test_equality import loaded
from torch import nn

from potluck.graph import Model
from potluck.records import Plan, Stage
from potluck.schedule.stage_graph import wire


class Woven(nn.Module):
    """Linear layers that read the sum of some earlier ones, or an input.

    The last reads all that nobody else reads.
    """

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.n_inputs = rng.choice([1, 2])
        n = rng.randint(3, 9)
        self.reads = [
            tuple(rng.sample(range(i + self.n_inputs), rng.choice([1, 1, 2]) if i else 1))
            for i in range(n)
        ]
        self.reads = [
            tuple(k for k in r if k < i + self.n_inputs) for i, r in enumerate(self.reads)
        ]
        read = {k for r in self.reads for k in r}
        self.ends = tuple(k for k in range(n + self.n_inputs) if k not in read)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(n))

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        values = list(inputs)
        for layer, reads in zip(self.layers, self.reads, strict=True):
            total = values[reads[0]]
            for k in reads[1:]:
                total = total + values[k]
            values.append(torch.tanh(layer(total)))
        return torch.stack([values[k] for k in self.ends]).sum(0)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.long] * (seed >= 12)) for seed in range(25)]
)
def test_any_cut_of_any_network_gives_the_gradients_of_the_whole(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    net, loss = Woven(rng), nn.functional.mse_loss
    inputs, target = [torch.randn(3, 6) for _ in range(net.n_inputs)], torch.randn(3, 6)
    model = Model.from_torch(net, inputs, loss=loss, example_targets=target)
    n_layers = len(model.layers(True))
    ends = sorted({0, n_layers, *rng.sample(range(1, n_layers), rng.randint(0, n_layers - 1))})
    stages = tuple(Stage(start=a, stop=b, devices=("d",), shares=(3,)) for a, b in pairwise(ends))
    cuts = [model.segment(s.start, s.stop, train=True) for s in stages]
    records = [record for record, _ in cuts]
    wiring = wire(
        Plan(planner="p", model="m", stages=stages, micro_batch=3), records, training=True
    )
    segments = [loaded(graph, model.state()) for _, graph in cuts]
    fed = {
        port.name: tensor
        for port, tensor in zip(model.inputs(True), (*inputs, target), strict=True)
    }
    made: list[dict[str, torch.Tensor]] = []
    for p, record in enumerate(records):
        taken = [made[q][t.name] for t, q in zip(record.inputs, wiring.suppliers[p], strict=True)]
        outputs = segments[p].forward(
            [*(fed[t.name] for t in record.feeds), *taken], key="k", train=True
        )
        made.append(dict(zip((t.name for t in record.outputs), outputs, strict=True)))
    back: dict[tuple[int, str], list[torch.Tensor]] = {}
    for p in reversed(range(len(records))):
        given = [sum(back[p, t.name]) for t in records[p].outputs if wiring.returning(p, t)]
        if not wiring.learns[p]:
            continue
        gradients = segments[p].backward("k", given)
        pairs = zip(records[p].inputs, wiring.suppliers[p], strict=True)
        for (tensor, q), gradient in zip(
            [(t, q) for t, q in pairs if t.gradient], gradients, strict=True
        ):
            back.setdefault((q, tensor.name), []).append(gradient)
    reference = copy.deepcopy(net)
    expected = loss(reference(*inputs), target)
    expected.backward()
    assert torch.equal(made[-1]["loss"], expected.detach())
    for segment in segments:
        segment.step(None, {"name": "sgd", "lr": 1.0})
    for name, parameter in reference.named_parameters():
        holder = next(s for s in segments if name in s.names())
        step = parameter.detach() - (parameter.grad if parameter.grad is not None else 0)
        assert torch.allclose(holder.read(name), step, atol=1e-6), name
