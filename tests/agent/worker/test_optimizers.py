"""What a device does with an optimizer: torch's arithmetic, in pieces, by groups, and over a move
of its state to another device.
"""

import copy

import pytest

from potluck_wire.graph import SegmentError
from potluck_wire.optimizers import HALVED, HALVES, KINDS

torch = pytest.importorskip("torch")
from potluck_agent.worker.optimizers import PIECE_NUMBERS, ParameterOptimizer  # noqa: E402

TORCHS = {name: kind for name, kind in KINDS.items() if kind.torch}
MORE = {
    "adam": {"amsgrad": True, "weight_decay": 0.1},
    "rmsprop": {"momentum": 0.9, "centered": True},
    "momentum": {"nesterov": True},
    "radam": {"decoupled_weight_decay": True, "weight_decay": 0.1},
}


def parameters(large=False):
    torch.manual_seed(0)
    wide = PIECE_NUMBERS // 64 + 3 if large else 5
    return {
        "matrix": torch.nn.Parameter(torch.randn(64, wide)),
        "bias": torch.nn.Parameter(torch.randn(wide)),
    }


def given(own, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in own.values():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def theirs(name, own, settings):
    kind = KINDS[name]
    known = {**kind.settings, **settings}
    known.pop(HALVES, None)
    for pair, one, two in (("betas", "beta1", "beta2"), ("eps", "eps1", "eps2")):
        if one in known:
            known[pair] = (known.pop(one), known.pop(two))
    return getattr(torch.optim, kind.torch)(own.values(), **known)


@pytest.mark.few(6)
@pytest.mark.parametrize("large", [False, True], ids=["whole", "in pieces"])
@pytest.mark.parametrize("name", TORCHS)
def test_steps_are_those_of_torch_and_go_on_elsewhere(name, large):
    """After two steps the state is read by name and written into a new one, as a switch does."""
    own, other = parameters(large), parameters(large)
    settings = MORE.get(name, {})
    reference, own_optimizer = theirs(name, other, settings), ParameterOptimizer(own)
    for seed in range(4):
        if seed == 2:
            state = {key: own_optimizer.read(key).clone() for key in own_optimizer.names()}
            own = {key: torch.nn.Parameter(p.detach().clone()) for key, p in own.items()}
            own_optimizer = ParameterOptimizer(own)
            for key, tensor in state.items():
                own_optimizer.write(key, tensor)
        for each in (own, other):
            given(each, seed)
        own_optimizer.step({"name": name, **settings})
        reference.step()
        for key in own:
            assert torch.equal(own[key], other[key]), (key, seed)


HALF = {"lr": 0.01, "beta1": 0.9, "beta2": 0.95, "bfloat16_moments": True}


def rounded(reference):
    """Its moments, rounded to bfloat16."""
    for state in reference.state.values():
        for slot in HALVED.intersection(state):
            state[slot].copy_(state[slot].bfloat16())


@pytest.mark.parametrize("large", [False, True], ids=["whole", "in pieces"])
@pytest.mark.parametrize("name", ["adam", "adamw"])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_moments_in_bfloat16_are_rounded_after_each_step_and_go_on_elsewhere(name, large, amsgrad):
    own, other = parameters(large), parameters(large)
    settings = {**HALF, "amsgrad": amsgrad}
    reference, own_optimizer = theirs(name, other, settings), ParameterOptimizer(own)
    for seed in range(4):
        if seed == 2:
            state = {key: own_optimizer.read(key).clone() for key in own_optimizer.names()}
            halves = {key for key, tensor in state.items() if tensor.dtype is torch.bfloat16}
            assert halves == {key for key in state if key.partition(":")[0] in HALVED}
            own = {key: torch.nn.Parameter(p.detach().clone()) for key, p in own.items()}
            own_optimizer = ParameterOptimizer(own)
            for key, tensor in state.items():
                own_optimizer.write(key, tensor)
        for each in (own, other):
            given(each, seed)
        own_optimizer.step({"name": name, **settings})
        reference.step()
        rounded(reference)
        for key in own:
            assert torch.equal(own[key], other[key]), (key, seed)
            assert own[key].grad is None


def test_moments_become_narrow_and_wide_again_in_the_middle_of_a_training():
    own, other = parameters(), parameters()
    reference, own_optimizer = theirs("adamw", other, HALF), ParameterOptimizer(own)
    for seed, halves in enumerate([False, False, True, True, False, False]):
        for each in (own, other):
            given(each, seed)
        if halves:
            rounded(reference)
        own_optimizer.step({"name": "adamw", **HALF, "bfloat16_moments": halves})
        reference.step()
        if halves:
            rounded(reference)
        dtype = torch.bfloat16 if halves else torch.float32
        assert own_optimizer.read("exp_avg:matrix").dtype is dtype
        for key in own:
            assert torch.equal(own[key], other[key]), (key, seed)


def test_lion_is_the_papers_algorithm():
    own, average = parameters(), None
    expected = copy.deepcopy(own)
    own_optimizer = ParameterOptimizer(own)
    average = {key: torch.zeros_like(p) for key, p in own.items()}
    for seed in range(3):
        given(own, seed)
        gradients = {key: p.grad.clone() for key, p in own.items()}
        own_optimizer.step(
            {"name": "lion", "lr": 0.01, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1}
        )
        for key, p in expected.items():
            c = 0.9 * average[key] + 0.1 * gradients[key]
            p.data = p.data - 0.01 * (c.sign() + 0.1 * p.data)
            average[key] = 0.99 * average[key] + 0.01 * gradients[key]
            assert torch.allclose(own[key], p, atol=1e-6)


def test_groups_have_their_own_settings_and_may_change():
    own, other = parameters(), parameters()
    own_optimizer = ParameterOptimizer(own)
    reference = torch.optim.AdamW(
        [{"params": [other["matrix"]], "weight_decay": 0.3}, {"params": [other["bias"]]}],
        lr=0.1,
        weight_decay=0.0,
    )
    base = {"name": "adamw", "lr": 0.1, "weight_decay": 0.0}
    for seed in range(3):
        for each in (own, other):
            given(each, seed)
        groups = [[["matrix"], {"weight_decay": 0.3}], [["bias"], {}]]
        own_optimizer.step(base, groups[:: -1 if seed == 1 else 1])
        reference.step()
        assert all(torch.equal(own[key], other[key]) for key in own)


@pytest.mark.parametrize(
    ("options", "groups", "says"),
    [
        ({"name": "adam"}, [[["matrix"], {}]], "'bias' is not in one group"),
        ({"name": "adamw", "bfloat16_moments": True}, [], "beta2 is at most 0.9961, got 0.999"),
        ({"name": "sgd", "bfloat16_moments": True}, [], "no setting 'bfloat16_moments'"),
        ({"name": "adam"}, [[["matrix", "bias"], {}], [["bias"], {}]], "in one only"),
        ({"name": "adam"}, [[["matrix", "bias", "x"], {}]], "'x' is not in one group"),
        ({"name": "adam", "beta1": 1.0}, (), "beta1 must be below 1"),
        ({"name": "adam", "lr": -1.0}, (), "not negative"),
        ({"name": "adam", "lr": float("nan")}, (), "finite"),
        ({"name": "adam", "rate": 1.0}, (), "no setting 'rate'"),
        ({"name": "adam", "amsgrad": 2}, (), "true or false"),
        ({"name": "adafactor", "beta2_decay": 0.5}, (), "zero or below"),
        ({"name": "lbfgs"}, (), "no optimizer 'lbfgs'"),
        ({"name": "momentum"}, [[["matrix", "bias"], {"momentum": -1}]], "not negative"),
    ],
)
def test_what_no_optimizer_does_is_refused_and_changes_nothing(options, groups, says):
    own = parameters()
    before = {key: p.detach().clone() for key, p in own.items()}
    given(own, 0)
    with pytest.raises(SegmentError, match=says):
        ParameterOptimizer(own).step(options, groups)
    assert all(torch.equal(own[key], before[key]) for key in own)


def test_an_average_begins_at_the_weights_and_is_read_before_it():
    own = parameters()
    own_optimizer = ParameterOptimizer(own)
    first = own["bias"].detach().clone()
    assert torch.equal(own_optimizer.read("average:bias"), first)
    given(own, 0)
    own_optimizer.step({"name": "sgd", "lr": 0.5}, average=0.75)
    expected = first.lerp(own["bias"].detach(), 0.25)
    assert torch.equal(own_optimizer.read("average:bias"), expected)
    assert "average:bias" in own_optimizer.names()
