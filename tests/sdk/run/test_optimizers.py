"""The optimizers as values: what torch's constructors refuse is refused where it is written.

What is taken runs.
"""

import dataclasses
import itertools
import json
import math
from fractions import Fraction

import pytest

import potluck
from potluck.errors import UserError
from potluck.run.optimizers import CLASSES, check_steps, read_optimizer
from potluck_agent.worker.optimizers import ParameterOptimizer as OnDevice
from potluck_wire.optimizers import HALVES

np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")

NUMBERS = (-1, -0.5, -0.0, 0, 1e-8, 0.3, 1 - 1e-9, 1, 1.5, 3, math.inf, -math.inf, math.nan)
ODD = ("0.1", None, True, [0.1], (), 1j, 10**400, np.ones(2))
FLOATS = [float(number) for number in NUMBERS]  # torch takes no whole numbers as betas
PAIRS = {
    "betas": tuple(itertools.product(FLOATS, FLOATS)),
    "eps": ((None, 0.0), (None, 1.0), (0.5, 0.3), (None, -1.0), (-1.0, 0.5), (math.nan, 1.0)),
}


def values_of(name, default):
    """What a setting is tried with."""
    if isinstance(default, bool):
        return (False, True)
    return PAIRS[name] if isinstance(default, tuple) else NUMBERS


TORCHS = {kind: getattr(torch.optim, kind.__name__) for kind in CLASSES if kind is not potluck.Lion}
SETTINGS = {
    kind: {
        item.name: values_of(item.name, item.default)
        for item in dataclasses.fields(kind)
        if item.name != HALVES  # torch has none
    }
    for kind in TORCHS
}
# numbers that leave the range of half precision already
STEEP = (potluck.SGD, potluck.AdamW)


def one_and_two_at_a_time(kind):
    """Each setting at every value, and every two of them together.

    The others as they are by default.
    """
    for first, second in itertools.combinations_with_replacement(SETTINGS[kind], 2):
        for a, b in itertools.product(SETTINGS[kind][first], SETTINGS[kind][second]):
            yield {first: a, second: b}


PARTS = 4


def made(make, **settings):
    try:
        return make(**settings)
    except (UserError, ValueError, TypeError, RuntimeError):
        return None


@pytest.mark.long
@pytest.mark.few(len(SETTINGS))  # of each kind one part, not the same of all
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", SETTINGS)
def test_whatever_torch_refuses_is_refused_and_whatever_is_taken_runs(kind, part):
    taken = refused = 0
    for settings in itertools.islice(one_and_two_at_a_time(kind), part, None, PARTS):
        weight = torch.nn.Parameter(torch.ones(2))
        theirs, ours = made(TORCHS[kind], params=[weight], **settings), made(kind, **settings)
        if theirs is None:
            assert ours is None, settings
            refused += 1
        elif ours is None:  # no program carries an infinite number
            pairs = [v for v in settings.values() if isinstance(v, tuple)]
            flat = [v for v in settings.values() if not isinstance(v, tuple)]
            flat += [v for pair in pairs for v in pair if v is not None]
            assert not all(map(math.isfinite, flat)), settings
        else:
            taken += 1
            on_device, weight.grad = OnDevice({"w": weight}), torch.ones(2)
            on_device.step(json.loads(json.dumps(ours.to_json(), allow_nan=False)))
            other = torch.nn.Parameter(torch.ones(2))
            other.grad = torch.ones(2)
            TORCHS[kind]([other], **settings).step()
            assert torch.equal(weight.nan_to_num(), other.nan_to_num()), settings
            assert read_optimizer(ours.to_json()) == ours
    assert taken > 12
    assert refused > 12


LARGE = (0.0, 1e3, 1e5, 3e38, 3.5e38, 1e39, 1e300)


def two_steps(optimizer, weight):
    """The weight after two steps of torch's optimizer on gradients of one.

    None where torch raises.
    """
    try:
        for _ in range(2):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
    except RuntimeError:
        return None
    return weight.detach()


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", STEEP)
def test_what_leaves_the_range_of_the_weights_is_refused_and_all_else_equals_torch(kind, dtype):
    refused = taken = 0
    rates = SETTINGS[kind].keys() - {"nesterov", "betas", "amsgrad", "maximize"}
    more = (
        [{"nesterov": True}]
        if kind is potluck.SGD
        else [{"betas": (1 - 1e-9, 0.5)}, {"betas": (0.0, 0.0)}]
    )
    for names in (
        *itertools.combinations(sorted(rates), 1),
        *itertools.combinations(sorted(rates), 2),
    ):
        for values, extra in itertools.product(
            itertools.product(LARGE, repeat=len(names)), [{}, *more]
        ):
            settings = dict(zip(names, values, strict=True)) | extra
            weight, other = (
                torch.ones(2, dtype=getattr(torch, dtype), requires_grad=True) for _ in range(2)
            )
            theirs, ours = made(TORCHS[kind], params=[weight], **settings), made(kind, **settings)
            assert (theirs is None) == (ours is None), settings
            if theirs is None:
                continue
            expected = two_steps(theirs, weight)
            if expected is None:
                with pytest.raises(
                    UserError, match=rf"^{kind.__name__}\(.* takes no step on weights of {dtype}"
                ):
                    check_steps([ours], [dtype])
                refused += 1
                continue
            check_steps([ours], [dtype])
            on_device, options = (
                OnDevice({"w": other}),
                json.loads(json.dumps(ours.to_json(), allow_nan=False)),
            )
            for _ in range(2):
                other.grad = torch.ones_like(other)
                on_device.step(options)
            assert torch.equal(other.nan_to_num(), expected.nan_to_num()), settings
            taken += 1
    assert taken > 20
    assert refused > 20 or dtype == "float64"


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_what_is_no_number_is_refused_by_the_name_of_its_setting(kind, odd):
    flags = {n for n, values in SETTINGS[kind].items() if values == (False, True)}
    for name in SETTINGS[kind].keys() - flags:
        with pytest.raises(UserError, match=rf"^{name} "):
            kind(**{name: odd})


@pytest.mark.parametrize(
    "number", [np.float32(0.25), np.float64(0.25), np.float16(0.25), Fraction(1, 4)], ids=repr
)
def test_any_number_is_one(number):
    assert potluck.AdamW(number, (number, number), number, number) == potluck.AdamW(
        0.25, (0.25, 0.25), 0.25, 0.25
    )
    assert potluck.SGD(number, number, number) == potluck.SGD(0.25, 0.25, 0.25)
    assert json.dumps(potluck.SGD(number, number, number).to_json())
    assert potluck.SGD(np.int64(1)).lr == 1.0


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: potluck.AdamW(betas=(1.5, 2)),
            r"betas must be two numbers from 0 to below 1, got \(1\.5, 2\)",
        ),
        (
            lambda: potluck.AdamW(betas=0.9),
            r"betas must be two numbers from 0 to below 1, got 0\.9",
        ),
        (lambda: potluck.AdamW(betas=(0.9, 0.99, 0.999)), "betas must be two numbers"),
        (lambda: potluck.AdamW(betas="0.9"), "betas must be two numbers"),
        (
            lambda: potluck.AdamW(weight_decay=-1),
            "weight_decay must be zero or above and finite, got -1",
        ),
        (lambda: potluck.AdamW(eps=-1e-8), "eps must be zero or above and finite, got -1e-08"),
        (lambda: potluck.SGD(-1), "lr must be zero or above and finite, got -1"),
        (lambda: potluck.SGD(momentum=-1), "momentum must be zero or above and finite, got -1"),
        (
            lambda: potluck.SGD(nesterov=True),
            r"nesterov needs a momentum above zero.*SGD\(lr, momentum=0\.9",
        ),
        (
            lambda: potluck.SGD(momentum=0.9, nesterov="yes"),
            "nesterov must be True or False, got 'yes'",
        ),
    ],
)
def test_says_what_was_expected(make, says):
    with pytest.raises(UserError, match=says):
        make()
