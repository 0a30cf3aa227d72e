"""Models divided by tensor: pieces, summed or side by side, are the whole, whatever the shares."""

import copy
import random

import pytest
import torch
from tests.sdk.graph.divisible_modules import (
    KINDS,
    Gpt,
    Language,
    answer_in_pieces,
    gradients_in_pieces,
    mlp,
    word_loss,
)
from torch import nn

import potluck
from potluck.errors import ModelError
from potluck.graph import Model
from potluck.graph.tensor.allotment import allotted

TOLERANCE_FRAC = 1e-5  # of the largest number: sums in another order, in float32


def is_near(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((got - expected).abs().max() <= TOLERANCE_FRAC * max(1.0, expected.abs().max()))


def lanes(model):
    return tuple(layer.lane for layer in model.layers())


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.long] * (seed >= 4)) for seed in range(40)]
)
def test_random_networks_in_random_shares_are_the_whole(kind, seed):
    check_pieces(kind, seed, sequence=False)


def check_pieces(kind, seed, *, sequence):
    """Answers, losses and gradients in pieces are those of the whole; whether it could be
    divided.
    """
    rng = random.Random(f"{kind}{seed}")
    torch.manual_seed(seed)
    shares = rng.choice([(1, 1), (1, 2), (3, 1), (1, 1, 1), (1, 1, 2), (1, 2, 2, 4)])
    case = KINDS[kind](rng, sum(shares))
    model = Model.from_torch(case.net, case.x, loss=case.loss, example_targets=case.y)
    if sequence and min(allotted(case.x.shape[1], shares)) == 0:
        return False
    divided = model.divided(shares, sequence=sequence)
    assert divided.pieces
    reference = copy.deepcopy(case.net).eval()
    assert is_near(answer_in_pieces(divided, case.x), reference(case.x).detach())
    reference.train()
    expected = case.loss(reference(case.x), case.y)
    expected.backward()
    loss, gradients = gradients_in_pieces(divided, case)
    assert is_near(loss, expected.detach())
    names = model.names_by_identity()
    for own, parameter in zip(case.net.parameters(), reference.parameters(), strict=True):
        assert is_near(gradients[names[id(own)]], parameter.grad), names[id(own)]
    return True


@pytest.mark.parametrize("kind", ["language", "encoder"])
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.long] * (seed >= 4)) for seed in range(40)]
)
def test_with_positions_divided_too_they_are_the_whole(kind, seed):
    if not check_pieces(kind, seed, sequence=True):
        pytest.skip("fewer positions than shares")


def kept_bytes(model):
    """Of activations, for a row of a batch of two, by lane."""
    found = {}
    for layer in model.layers(True):
        found[layer.lane] = found.get(layer.lane, 0) + layer.activation_bytes
    return found


@pytest.mark.parametrize("make", [lambda: Gpt(16, 4, 24), lambda: Dropping(16)])
def test_with_positions_divided_less_is_kept_for_the_backward(make):
    net = nn.Sequential(make(), make())
    x = torch.zeros(2, 8, 16)
    model = Model.from_torch(net, x, loss=nn.functional.mse_loss, example_targets=x)
    whole, own = kept_bytes(model.divided((1, 1))), kept_bytes(model.divided((1, 1), sequence=True))
    assert max(own.values()) < max(whole.values())
    assert sum(own.values()) < sum(whole.values())


class Dropping(nn.Module):
    """A hidden layer whose sum is dropped from, added and normalised."""

    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(0.5)

    def forward(self, x):
        return self.norm(x + self.dropout(self.down(torch.relu(self.up(x)))))


class Sorted(nn.Module):
    """One result of an operator with several, beside a sum that goes by positions."""

    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        ordered = x.sort(1)[0]
        return torch.tanh(self.down(torch.relu(self.up(x))) + ordered)


def test_positions_of_one_result_of_several_are_taken_where_it_is():
    torch.manual_seed(0)
    net, x = nn.Sequential(Sorted(16), Sorted(16)), torch.randn(2, 4, 16)
    divided = Model.from_torch(net, x).divided((1, 1, 2), sequence=True)
    assert is_near(answer_in_pieces(divided, x), net(x).detach())


@pytest.mark.parametrize(
    ("net", "x"),
    [
        (nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU()), (2, 6)),
        (Gpt(16, 4, 24), (2, 1, 16)),  # fewer positions than devices
        (nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6)), (2, 4, 6)),  # nothing behind
    ],
)
def test_nothing_that_goes_by_positions_is_refused(net, x):
    model = Model.from_torch(net, torch.zeros(x))
    model.divided((1, 1))
    with pytest.raises(ModelError, match="by positions") as refused:
        model.divided((1, 1), sequence=True)
    assert "without sequence=True" in refused.value.next_step


@pytest.mark.long
def test_every_heavy_weight_of_a_language_model_is_cut():
    net = Language(32, 16, [Gpt(16, 4, 24)], tied=True)
    model = Model.from_torch(net, torch.zeros(2, 3, dtype=torch.int64)).divided((1, 3))
    cut = {piece.whole for piece in model.pieces.values()}
    kept = {name for name in model.state() if name not in model.pieces}
    assert cut == {
        *("head.weight", "blocks.0.qkv.weight", "blocks.0.qkv.bias", "blocks.0.o.weight"),
        *("blocks.0.up.weight", "blocks.0.up.bias", "blocks.0.down.weight"),
    }
    assert all("norm" in n or "first" in n or "second" in n or "bias" in n for n in kept)


@pytest.mark.long
def test_one_exchange_joins_attention_and_another_the_hidden_layer():
    net = nn.Sequential(Gpt(16, 4, 24), Gpt(16, 4, 24))
    model = Model.from_torch(net, torch.zeros(2, 3, 16)).divided((1, 1))
    assert lanes(model) == (0, 1) * 4 + (0,)


def test_state_comes_back_whole():
    net = Language(32, 16, [Gpt(16, 4, 24)], tied=True)
    model = Model.from_torch(net, torch.zeros(2, 3, dtype=torch.int64)).divided((1, 2, 1))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    state = {name: tensor.clone() for name, tensor in model.state().items()}
    again = model.state_dict(state)
    assert again.keys() == before.keys()
    assert all(torch.equal(again[name], before[name]) for name in before)
    model.load_state({name: tensor + 1 for name, tensor in state.items()})
    assert all(torch.equal(net.state_dict()[name], before[name] + 1) for name in before)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("heads", "shares", "says"),
    [
        (3, (1, 1), "3 parts.*cannot be divided 1:1: the nearest is 2:1, 33% more"),
        (2, (1, 1, 1), "2 parts.*too few for 1:1:1: the nearest is 1:1:0"),
        (8, (1, 2, 2, 4), "8 parts.*cannot be divided 1:2:2:4: the nearest is 1:2:2:3, 12% more"),
    ],
)
def test_a_proportion_that_heads_miss_is_refused_with_their_number(heads, shares, says):
    model = Model.from_torch(Gpt(8 * heads, heads, 36), torch.zeros(2, 3, 8 * heads))
    with pytest.raises(ModelError, match=says):
        model.divided(shares)


def test_an_output_layer_that_misses_the_proportion_stays_whole():
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    model = Model.from_torch(net, torch.zeros(2, 6)).divided((1, 1))
    assert {piece.whole for piece in model.pieces.values()} == {"0.weight", "0.bias", "2.weight"}


def test_a_wider_tolerance_is_the_users_own():
    model = Model.from_torch(Gpt(24, 3, 36), torch.zeros(2, 3, 24))
    assert lanes(model.divided((1, 1), tolerance_frac=0.4)) == (0, 1, 0, 1, 0)


@pytest.mark.parametrize("shares", [(1,), (), (1, 0), (1, -1), (1.0, 1), (True, 1)])
def test_shares_are_two_whole_numbers_or_more(shares):
    model = Model.from_torch(
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), torch.zeros(2, 4)
    )
    with pytest.raises(ModelError, match="two shares or more"):
        model.divided(shares)


def test_what_no_rule_divides_is_refused():
    net = nn.Sequential(nn.ConvTranspose1d(2, 3, 1), nn.LogSoftmax(1), nn.Flatten())
    with pytest.raises(ModelError, match="nothing of it can be divided"):
        Model.from_torch(net, torch.zeros(2, 2, 5)).divided((1, 1))


def test_dropout_inside_a_division_would_draw_another_mask_so_nothing_is_divided_across_it():
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 6))
    x = torch.zeros(2, 6)
    model = Model.from_torch(net, x, loss=nn.functional.mse_loss, example_targets=x)
    with_mask = model.divided((1, 1))
    assert with_mask.joined(with_mask.state()).keys() == model.state().keys()
    assert "cat" in [
        node.op.split(".")[1] for node in with_mask.laid_out(True).line.traced.graph.nodes
    ]


def test_a_divided_model_is_not_saved(tmp_path):
    case = mlp(random.Random(0), 2)
    model = Model.from_torch(case.net, case.x).divided((1, 1))
    with pytest.raises(ModelError, match="made of the whole one"):
        model.save(tmp_path / "m")


@pytest.mark.long
@pytest.mark.parametrize("train", [False, True])
def test_homes_that_do_not_exist_can_be_asked(train):
    net = Language(32, 16, [Gpt(16, 4, 24)], tied=True)
    tokens = torch.zeros(2, 3, dtype=torch.int64)
    model = Model.from_torch(net, tokens, loss=word_loss, example_targets=tokens).divided((1, 1))
    profile = potluck.estimate("edge-cluster", model)
    work = potluck.Training(batch=4) if train else potluck.Inference()
    plans = potluck.plan(profile, work)
    assert {plan.planner for plan in plans} == {"tensor", "single"}
    assert plans.best.latency_s <= min(plan.latency_s for plan in plans)
    undivided = potluck.estimate("edge-cluster", model.whole)
    both = potluck.plan(undivided, work, divided=profile)
    assert both.best.latency_s <= potluck.plan(undivided, work).best.latency_s
    assert "divided by tensor over" in both.notes[-1]
    further = potluck.estimate("edge-cluster", model.whole.divided((1, 1), sequence=True))
    all_three = potluck.plan(undivided, work, divided=[profile, further])
    assert all_three.best.latency_s <= both.best.latency_s
    assert {plan.model for plan in all_three} >= {model.name, further.model}
    assert len(all_three.notes) == len(both.notes) + 1
