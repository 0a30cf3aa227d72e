"""Branches of a model: found where they join, each in one piece, and cut so that nothing is
lost.
"""

import random

import pytest
from tests.sdk.graph.branching_modules import ForkedStem, TwoEncoders

import potluck
from potluck.graph.partition.branches import Branches, find

torch = pytest.importorskip("torch")
loss = torch.nn.functional.cross_entropy


def even(n):
    return [1 / n] * n


@pytest.mark.parametrize(
    ("reads", "spans"),
    [
        ([(), (0,), (1,), (2,)], ()),  # a chain
        ([(), (0,), (0,), (1, 2)], ((1, 2), (2, 3))),  # a diamond
        ([(), (0,), (1,), (0, 2)], ()),  # a skip connection
        ([(), (0,), (), (2,), (1, 3)], ((0, 2), (2, 4))),  # two inputs
        # one in another
        ([(), (0,), (1,), (1,), (2, 3), (0,), (4, 5)], ((1, 5), (2, 3), (3, 4), (5, 6))),
        ([(), (0,), (1,), (2, 1), (3, 0)], ()),  # a U-Net
    ],
)
def test_finds_branches_where_they_join(reads, spans):
    assert find(reads, even(len(reads))) == Branches(order=tuple(range(len(reads))), spans=spans)


def test_a_light_branch_is_none():
    reads = [(), (0,), (0,), (1, 2)]
    assert find(reads, [0.5, 0.02, 0.4, 0.08]).spans == ()


def test_branches_written_in_turns_are_put_together():
    reads = [(), (0,), (0,), (1,), (2,), (3, 4), (5,)]
    found = find(reads, even(7))
    assert found.order == (0, 1, 3, 2, 4, 5, 6)
    assert found.spans == ((1, 3), (3, 5))
    assert found.chains == ((0, 1), (1, 3), (3, 5), (5, 7))


@pytest.mark.parametrize("seed", range(200))
def test_any_graph_keeps_a_running_order_and_a_branch_is_what_one_operand_of_a_join_has_to_itself(
    seed,
):
    rng = random.Random(seed)
    n = rng.randint(2, 30)
    reads = [tuple(rng.sample(range(i), min(i, rng.choice([0, 1, 1, 1, 2, 3])))) for i in range(n)]
    found = find(reads, even(n))
    place = {operator: k for k, operator in enumerate(found.order)}
    assert sorted(found.order) == list(range(n))
    assert all(
        place[source] < place[operator] for operator in range(n) for source in reads[operator]
    )
    closures = []  # every operator with all that it depends on
    for operator in range(n):
        closures.append({operator}.union(*(closures[source] for source in reads[operator])))
    alone = [
        closures[u] - set().union(*(closures[v] for v in set(sources) - {u}))
        for sources in reads
        for u in set(sources)
    ]  # what one reader of a join has to itself
    for start, stop in found.spans:
        assert set(found.order[start:stop]) in alone
    ends = [end for chain in found.chains for end in chain]
    assert ends[0] == 0
    assert ends[-1] == n


@pytest.mark.long
@pytest.mark.parametrize("kind", [TwoEncoders, ForkedStem])
@pytest.mark.parametrize("training", [False, True])
def test_layers_say_to_whom_they_hand_what(kind, training):
    net = kind()
    model = potluck.Model.from_torch(
        net, net.example(2), loss=loss, example_targets=torch.tensor([0, 1])
    )
    layers = model.layers(training)
    takers = [{to for edge in layer.edges for to in edge.to} for layer in layers]
    forks = [i for i, taken in enumerate(takers[:-1]) if i + 1 not in taken]
    assert len(forks) >= 1  # the layer behind begins a branch of its own
    segments = [model.segment(i, i + 1, train=training)[0] for i in range(len(layers))]
    for i, segment in enumerate(segments):
        given = {tensor.name: tensor for tensor in segment.outputs}
        assert sum(edge.output_bytes for edge in layers[i].edges) == (
            sum(t.row_bytes for t in given.values()) if i < len(layers) - 1 else 0
        )
        assert sum(edge.gradient_bytes for edge in layers[i].edges) == (
            sum(t.row_bytes for t in given.values() if t.gradient) if i < len(layers) - 1 else 0
        )
        for tensor, source in zip(segment.inputs, segment.sources, strict=True):
            assert tensor in segments[source].outputs
            assert i in takers[source]
    inputs = model.inputs(False)
    fed = sum(
        t.row_bytes for segment in segments[1:] for t in segment.feeds if t.name.startswith("input")
    )
    assert sum(layer.feed_bytes for layer in layers) == fed
    assert sum(t.row_bytes for t in inputs) >= fed


def test_the_two_encoders_of_a_model_are_fed_and_run_side_by_side():
    net = TwoEncoders()
    model = potluck.Model.from_torch(net, net.example(2))
    layers = model.layers()
    names = [layer.name for layer in layers]
    first = names.index("audio.0")
    assert layers[first].feed_bytes == 32 * 4
    givers = [i for i, layer in enumerate(layers) if any(first in edge.to for edge in layer.edges)]
    assert givers == []


def test_a_chain_has_no_edges():
    net = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)
    )
    model = potluck.Model.from_torch(net, torch.randn(2, 4))
    assert all(layer.edges == () for layer in model.layers())


def test_no_gradient_is_asked_of_what_leads_to_no_loss():
    class Detached(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (torch.nn.Linear(8, 8) for _ in range(3))

        def forward(self, x):
            return self.c(self.b(self.a(x)).detach())

    model = potluck.Model.from_torch(
        Detached(), torch.randn(2, 8), loss=loss, example_targets=torch.tensor([0, 1])
    )
    segments = [model.segment(i, i + 1, train=True)[0] for i in range(3)]
    assert [[t.gradient for t in segment.outputs] for segment in segments[:2]] == [[False], [False]]
    assert [layer.gradient_bytes for layer in model.layers(True)[:2]] == [0, 0]
